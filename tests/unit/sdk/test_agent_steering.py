"""An agent that is cancelled, paused, asked to stop, given too much, or too slow."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, Running, for_ever, settle

from dragoman import Agent, SyncTask, Task
from dragoman.protocols.chiffon import errors


async def test_a_cancel_stops_the_handler_and_nothing_more_is_sent(agent: Agent, hub: FakeHub) -> None:
    seen: list[bool] = []

    @agent.on("sleep")
    async def sleep(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(task.cancelled)
            raise

    async with Running(agent, hub):
        request = hub.request("sleep")
        await settle()
        delivery = hub.cancel(request)
        await settle()
        assert seen == [True]
        assert delivery in hub.acked
        await hub.runtime.advance(60)
    assert hub.said == []


async def test_a_plain_function_that_waits_for_a_person_is_let_go_by_a_cancel(agent: Agent, hub: FakeHub) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    @agent.on("deploy")
    def deploy(task: SyncTask) -> None:
        try:
            task.ask("Restart?")
        finally:
            loop.call_soon_threadsafe(ended.put_nowait, f"cancelled: {task.cancelled}")

    async with Running(agent, hub), asyncio.timeout(PATIENCE):
        request = hub.request("deploy")
        await hub.next("work_status")
        hub.cancel(request)
        assert await ended.get() == "cancelled: True"


async def test_questions_asked_at_once_are_put_one_after_the_other(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> list[str]:
        return list(await asyncio.gather(task.ask("one?"), task.ask("two?")))

    async with Running(agent, hub):
        request = hub.request("deploy")
        for question, answer in (("one?", "1"), ("two?", "2")):
            asked = await hub.next("work_status")
            assert asked.x_custom_fields["question"]["question"] == question
            await settle()
            assert hub.nothing_more()
            hub.request("deploy", {"answer": answer}, task_id=request.payload.task_id)
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == ["1", "2"]


async def test_an_error_about_our_message_ends_the_work_too(agent: Agent, hub: FakeHub) -> None:
    agent.on("sleep")(for_ever)
    async with Running(agent, hub) as running:
        request = hub.request("sleep")
        await settle()
        hub.control(request, errors.error(5003, validation_error="no such task", field_name="payload.task_id"))
        await hub.runtime.advance(60)
        assert not running.agent._engine._runner.tasks  # type: ignore[union-attr]


async def test_pause_and_resume_reach_the_handler_as_events(agent: Agent, hub: FakeHub) -> None:
    history: list[str] = []

    @agent.on("steps")
    async def steps(task: Task) -> None:
        await task.held.wait()
        history.append("held")
        await task.checkpoint()
        history.append("released")

    async with Running(agent, hub):
        request = hub.request("steps")
        await settle()
        hub.steer(request, "paused")
        await hub.runtime.advance(60)
        assert history == ["held"]
        assert hub.said == []  # no sign of life while it is held
        hub.steer(request, "running")
        await hub.next("work_result")
    assert history == ["held", "released"]


async def test_a_handler_that_takes_too_long_fails_with_124(agent: Agent, hub: FakeHub) -> None:
    agent.on("sleep", timeout=5)(for_ever)
    async with Running(agent, hub):
        hub.request("sleep")
        await hub.runtime.advance(7)
        result = await hub.next("work_result")
    assert (result.payload.exit_code, result.payload.output) == (124, "not done within 5 s")


async def test_no_more_than_the_concurrency_run_at_once_and_the_rest_wait_their_turn(
    runtime: FakeRuntime, hub: FakeHub
) -> None:
    agent = Agent("worker", runtime=runtime, concurrency=2)
    gates: list[asyncio.Future[None]] = []

    @agent.on("wait")
    async def wait() -> None:
        gates.append(asyncio.get_running_loop().create_future())
        await gates[-1]

    async with Running(agent, hub):
        for _ in range(5):
            hub.request("wait")
        await settle()
        assert len(gates) == 2
        gates[0].set_result(None)
        await hub.next("work_result")
        await settle()
        assert len(gates) == 3


@pytest.mark.parametrize("plain", [False, True], ids=["coroutine", "plain function"])
async def test_a_handler_that_waits_for_a_person_leaves_its_place_to_others(
    runtime: FakeRuntime, hub: FakeHub, plain: bool
) -> None:
    """With all places taken by waiting handlers, the next work waited for a place, and the answers for that work."""
    agent = Agent("worker", runtime=runtime, concurrency=1)

    def ask_plainly(task: SyncTask) -> str:
        return str(task.ask("Go on?"))

    async def ask(task: Task) -> str:
        return str(await task.ask("Go on?"))

    agent.on("ask")(ask_plainly if plain else ask)
    agent.on("work")((lambda: "done") if plain else for_ever)
    async with Running(agent, hub):
        asking = hub.request("ask")
        assert (await hub.next()).payload.status == "paused"
        work = hub.request("work")
        if plain:
            assert (await hub.next("work_result")).request_id == work.request_id
        answer = hub.request("ask", {"answer": "yes"}, task_id=asking.payload.task_id)
        await settle()
        if not plain:  # its place is somebody else's, until that one ends
            assert hub.count("work_result") == 0
            await runtime.advance(20)
            assert answer.request_id in {said.request_id for said in hub.said}  # it shows that it is well
            hub.cancel(work)
        result = await hub.next("work_result")
        assert (result.request_id, result.payload.output) == (answer.request_id, "yes")


async def test_a_cancel_while_a_client_waits_to_reconnect_leaves_every_place_free(
    runtime: FakeRuntime, hub: FakeHub
) -> None:
    agent = Agent("worker", runtime=runtime, concurrency=1)
    agent.on("work")(for_ever)

    @agent.on("ask")
    def ask(task: SyncTask) -> str:
        return str(task.ask("Go on?"))

    @agent.on("add")
    async def add() -> int:
        return 2

    async with Running(agent, hub):
        first, second = hub.request("ask"), hub.request("ask")
        for _ in range(2):
            assert (await hub.next()).payload.status == "paused"
        work = hub.request("work")
        await settle()
        answer = hub.request("ask", {"answer": "yes"}, task_id=first.payload.task_id)
        await settle()
        for request in (answer, second, work):
            hub.cancel(request)
        await settle()
        last = hub.request("add")
        result = await hub.next("work_result")
    assert (result.request_id, result.payload.output) == (last.request_id, "2")


async def test_stop_lets_running_work_end_and_takes_no_more(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent("worker", runtime=runtime, grace=30)
    gate = asyncio.Event()

    @agent.on("wait")
    async def wait() -> str:
        await gate.wait()
        return "finished"

    async with Running(agent, hub) as running:
        hub.request("wait")
        await settle()
        agent.stop()
        late = hub.request("wait")
        await runtime.advance(5)
        assert not running.serving.done()
        gate.set()
        result = await hub.next("work_result")
        await runtime.advance(1)
        assert running.serving.done()
    assert result.payload.output == "finished"
    assert hub.count("work_result") == 1
    assert late.x_custom_fields["delivery_id"] not in hub.acked


async def test_stop_does_not_wait_longer_than_the_grace_time(runtime: FakeRuntime, hub: FakeHub) -> None:
    agent = Agent("worker", runtime=runtime, grace=30)
    agent.on("sleep")(for_ever)
    async with Running(agent, hub) as running:
        hub.request("sleep")
        await settle()
        agent.stop()
        await runtime.advance(29)
        assert not running.serving.done()
        await runtime.advance(2)
        assert running.serving.done()
