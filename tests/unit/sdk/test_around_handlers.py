"""What runs around an agent's handlers: middleware, retries, hooks at start and stop; and when the agent gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, Running, settle

from dragoman import Agent, CallNext, HubUnreachable, Misconfigured, Reject, Retry, RetryPolicy, SyncTask, Task
from dragoman.sdk.work.signature import ASKED, policy_of

# --- middleware ---


async def test_middleware_runs_around_every_handler_the_first_one_outermost(agent: Agent, hub: FakeHub) -> None:
    said: list[str] = []

    @agent.middleware
    async def outer(task: Task, call_next: CallNext) -> Any:
        said.append(f"outer {task.type}")
        value = await call_next(task)
        return {"seen": value}

    @agent.middleware
    async def inner(task: Task, call_next: CallNext) -> Any:
        said.append("inner")
        return await call_next(task)

    agent.on("add")(lambda a: a + 1)

    @agent.on("name")
    async def name(task: Task) -> str:
        return task.id

    async with Running(agent, hub):
        hub.request("add", {"a": 2})
        added = await hub.next("work_result")
        asked = hub.request("name")
        named = await hub.next("work_result")
    assert added.x_custom_fields["result"] == {"seen": 3}
    assert named.x_custom_fields["result"] == {"seen": asked.payload.task_id}
    assert said == ["outer add", "inner", "outer name", "inner"]


async def test_middleware_may_refuse_and_sees_what_a_handler_raises(agent: Agent, hub: FakeHub) -> None:
    seen: list[BaseException] = []

    @agent.middleware
    async def guard(task: Task, call_next: CallNext) -> Any:
        if task.input.get("by") != "ann":
            raise Reject("only for ann")
        try:
            return await call_next(task)
        except ValueError as error:
            seen.append(error)
            return "mended"

    @agent.on("fail")
    async def fail(by: str) -> str:
        raise ValueError(by)

    async with Running(agent, hub):
        hub.request("fail", {"by": "bob"})
        assert (await hub.next("work_result")).payload.output == "only for ann"
        hub.request("fail", {"by": "ann"})
        assert (await hub.next("work_result")).payload.output == "mended"
    assert [str(error) for error in seen] == ["ann"]


def test_middleware_that_cannot_be_awaited_is_refused_where_it_is_declared(agent: Agent) -> None:
    with pytest.raises(Misconfigured, match="async def"):
        agent.middleware(lambda task, call_next: None)  # type: ignore[type-var]


# --- retries ---


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
async def test_a_handler_that_failed_runs_again_as_its_policy_says(
    agent: Agent, hub: FakeHub, runtime: FakeRuntime, plain: bool
) -> None:
    runs: list[tuple[float, int]] = []

    def fetch(retries: int) -> str:
        runs.append((runtime.time, retries))
        if len(runs) < 3:
            raise ConnectionError("refused")
        return "fetched"

    async def coroutine(task: Task) -> str:
        return fetch(task.retries)

    def function(task: SyncTask) -> str:
        return fetch(task.retries)

    agent.on("fetch", retry=RetryPolicy(attempts=3, delay=5, factor=3))(function if plain else coroutine)
    began = runtime.time
    async with Running(agent, hub):
        hub.request("fetch")
        result = await runtime_moves(runtime, hub)
    assert (result.payload.output, result.payload.exit_code) == ("fetched", 0)
    assert [retries for _, retries in runs] == [0, 1, 2]
    if not plain:  # while a thread runs, the clock of this test moves on
        assert [time - began for time, _ in runs] == [0, 5, 20]


async def runtime_moves(runtime: FakeRuntime, hub: FakeHub) -> Any:
    """The result, and meanwhile time passes."""
    waiting = asyncio.ensure_future(hub.next("work_result"))
    async with asyncio.timeout(PATIENCE):
        while not waiting.done():
            await asyncio.sleep(0)
            await runtime.advance(1)
    return waiting.result()


async def test_after_the_last_run_the_task_fails_as_the_handler_did(
    agent: Agent, hub: FakeHub, runtime: FakeRuntime
) -> None:
    runs: list[int] = []

    @agent.on("fetch", retry=2)
    async def fetch(task: Task) -> None:
        runs.append(task.retries)
        raise ConnectionError("refused")

    async with Running(agent, hub):
        hub.request("fetch")
        result = await runtime_moves(runtime, hub)
    assert (result.payload.output, result.payload.exit_code) == ("ConnectionError: refused", 1)
    assert runs == [0, 1]


async def test_a_handler_asks_for_another_run_after_so_many_seconds(
    agent: Agent, hub: FakeHub, runtime: FakeRuntime
) -> None:
    times: list[float] = []

    @agent.on("fetch")
    async def fetch() -> str:
        times.append(runtime.time)
        if len(times) == 1:
            raise Retry("too many requests", after=30)
        return "fetched"

    async with Running(agent, hub):
        hub.request("fetch")
        result = await runtime_moves(runtime, hub)
    assert result.payload.output == "fetched"
    assert times[1] - times[0] == 30


async def test_between_two_runs_the_task_lives_and_its_place_is_free(hub: FakeHub, runtime: FakeRuntime) -> None:
    agent = Agent("worker", runtime=runtime, concurrency=1)
    runs: list[str] = []

    @agent.on("fetch", retry=RetryPolicy(delay=25, longest=25))
    async def fetch() -> str:
        runs.append("fetch")
        if len(runs) == 1:
            raise ConnectionError("refused")
        return "fetched"

    agent.on("quick")(lambda: "quick")
    async with Running(agent, hub):
        hub.request("fetch")
        await settle()
        hub.request("quick")
        assert (await hub.next("work_result")).payload.output == "quick"
        await runtime.advance(12)
        assert (await hub.next("work_status")).payload.status == "running"
        assert (await runtime_moves(runtime, hub)).payload.output == "fetched"


async def test_a_question_is_asked_once_however_often_the_handler_runs(
    agent: Agent, hub: FakeHub, runtime: FakeRuntime
) -> None:
    answers: list[Any] = []

    @agent.on("deploy", retry=2)
    async def deploy(task: Task) -> str:
        answers.append(await task.ask("Restart?"))
        if len(answers) == 1:
            raise ConnectionError("refused")
        return "done"

    async with Running(agent, hub):
        asked = hub.request("deploy")
        question = await hub.next("work_status")
        assert question.payload.status == "paused"
        hub.request("deploy", {"answer": "yes"}, task_id=asked.payload.task_id)
        result = await runtime_moves(runtime, hub)
    assert (result.payload.output, answers) == ("done", ["yes", "yes"])


@pytest.mark.parametrize(
    ("run", "error", "delay"),
    [
        (1, ValueError("x"), 1.0),
        (2, ValueError("x"), 2.0),
        (3, ValueError("x"), 3.0),
        (4, ValueError("x"), None),
        (1, Retry(after=7), 7),
        (2, Retry("later"), 2.0),
        (4, Retry(after=7), None),
        (1, Reject("no"), None),
        (1, SystemExit(), None),
    ],
)
def test_the_next_delay(run: int, error: BaseException, delay: float | None) -> None:
    assert RetryPolicy(attempts=4, delay=1, longest=3).next_delay(run, error) == delay


def test_without_a_policy_only_a_retry_is_tried_again() -> None:
    assert ASKED.next_delay(1, ValueError("x")) is None
    assert ASKED.next_delay(1, Retry("later")) == 1.0
    assert policy_of(None) is ASKED
    assert policy_of(3) == RetryPolicy(attempts=3)
    for wrong in (0, -1, True, "3"):
        with pytest.raises(Misconfigured, match="retry"):
            policy_of(wrong)  # type: ignore[arg-type]


# --- start and stop ---


async def test_hooks_run_before_it_connects_and_after_it_stopped(hub: FakeHub, runtime: FakeRuntime) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[None]:
        said.append(f"enter {agent.id}")
        try:
            yield
        finally:
            said.append("leave")

    agent = Agent("worker", runtime=runtime, lifespan=lifespan)

    @agent.on_start
    async def connect() -> None:
        said.append(f"start, links: {hub.pipe is not None}")

    @agent.on_stop
    def first() -> None:
        said.append("stop first")

    @agent.on_stop
    async def last() -> None:
        said.append("stop last")

    agent.on("say")(lambda: said.append("work"))
    async with Running(agent, hub):
        hub.request("say")
        await hub.next("work_result")
    assert said == ["enter worker", "start, links: False", "work", "stop last", "stop first", "leave"]


async def test_an_agent_that_cannot_start_does_not_serve(agent: Agent, hub: FakeHub) -> None:
    said: list[str] = []

    @agent.on_start
    def broken() -> None:
        raise OSError("no database")

    agent.on_stop(lambda: said.append("stop"))
    agent.on("say")(lambda: None)
    with pytest.raises(OSError, match="no database"):
        await agent.serve_over(hub.dial)
    assert (said, hub.pipe) == ([], None)


# --- giving up ---


async def test_an_agent_gives_up_after_the_seconds_that_it_was_given(hub: FakeHub, runtime: FakeRuntime) -> None:
    agent = Agent("worker", runtime=runtime, give_up_after=60)
    agent.on("say")(lambda: "hello")
    running = Running(agent, hub)
    async with running:
        await runtime.advance(3600)  # idle, and connected: that is not counted
        hub.is_down = True
        hub.cut()
        await settle()
        await runtime.advance(45)
        assert not running.serving.done()
        await runtime.advance(45)
        with pytest.raises(HubUnreachable, match="no link to the hub for 60 s"):
            await running.serving


@pytest.mark.parametrize("wrong", [-1, "soon"])
def test_what_is_no_time_to_give_up_after_is_refused(wrong: Any) -> None:
    with pytest.raises(Misconfigured, match="give_up_after"):
        Agent("worker", give_up_after=wrong)
