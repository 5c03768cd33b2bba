"""An agent over forge, and connections that break, refusals, control, the end."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.forge.harness import PROGRESS, UPDATE, FakeForge, Serving
from tests.unit.sdk.harness import PATIENCE, FakeRuntime, settle

from dragoman import Agent, NotAllowed, Task
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import ErrorBody


async def test_a_result_is_sent_again_until_the_hub_has_it(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda: "hello")
    forge_hub.answers[UPDATE] = lambda _: None
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        first = await forge_hub.next(UPDATE)
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
        again = await forge_hub.next(UPDATE)
        assert again == first
        forge_hub.succeed(again, {})
        await settle()
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
    assert forge_hub.count(UPDATE) == 2
    assert forge_hub.dialled == 3


async def test_the_same_order_again_joins_and_a_named_request_is_done_once(agent: Agent, forge_hub: FakeForge) -> None:
    runs: list[int] = []

    @agent.on("count")
    async def count() -> int:
        runs.append(1)
        return len(runs)

    async with Serving(agent, forge_hub):
        for attempt in (1, 2):  # the hub gives it out anew, in the same round
            forge_hub.assign("count", task_id="t1", requestId="r1", attempt=attempt)
            assert (await forge_hub.next(UPDATE)).payload.result == 1
        forge_hub.assign("count", task_id="t1", requestId="r2")  # a person wants it done again
        assert (await forge_hub.next(UPDATE)).payload.result == 2


async def test_refused_for_good_the_work_is_over_and_refused_for_now_it_is_sent_again(
    agent: Agent, forge_hub: FakeForge
) -> None:
    agent.on("say")(lambda: "hello")
    limited = ErrorBody(code="INVALID_REQUEST", message="slowly", details={"reason": "RATE_LIMITED"})
    gone = ErrorBody(code="NOT_FOUND", message="no such task")
    answers = iter([limited, gone])
    forge_hub.answers[UPDATE] = lambda _: next(answers)
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        first = await forge_hub.next(UPDATE)
        await forge_hub.runtime.advance(2)
        assert (await forge_hub.next(UPDATE)) == first
        await forge_hub.runtime.advance(60)
    assert forge_hub.count(UPDATE) == 2


async def test_a_cancelled_task_is_stopped_and_a_paused_one_holds(agent: Agent, forge_hub: FakeForge) -> None:
    seen: list[str] = []

    @agent.on("run")
    async def run(task: Task) -> None:
        try:
            await task.held.wait()
            seen.append("held")
            await task.checkpoint()
            seen.append("released")
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    async with Serving(agent, forge_hub):
        id = forge_hub.assign("run")
        for notice in (
            forge.TaskPaused(task_id=id),
            forge.TaskResumed(task_id=id),
            forge.TaskCancelled(task_id=id, reason="enough"),
        ):
            forge_hub.notify(notice)
            await settle()
    assert seen == ["held", "released", "ended"]
    assert forge_hub.count(UPDATE) == 0


async def test_a_silent_handler_is_kept_alive_by_progress(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("run")
    async def run() -> None:
        await asyncio.Event().wait()

    async with Serving(agent, forge_hub):
        forge_hub.assign("run")
        await forge_hub.runtime.advance(31)
    assert forge_hub.count(PROGRESS) == 4  # at once, and every ten seconds


async def test_messages_sent_too_fast_wait_for_their_turn_in_order(agent: Agent, forge_hub: FakeForge) -> None:
    @agent.on("count")
    async def count(task: Task) -> None:
        for n in range(500):
            await task.text(f"{n} ")

    async with Serving(agent, forge_hub):
        forge_hub.assign("count")
        await forge_hub.runtime.advance(1)
        said = forge_hub.count(UPDATE)
        assert said < 300  # 180 at once, 90 a second from then on
        await forge_hub.runtime.advance(5)
    pieces = [m.payload.output for m in forge_hub.said if m.type == UPDATE and m.payload.status == "running"]
    assert "".join(pieces) == "".join(f"{n} " for n in range(500))
    assert forge_hub.said[-1].payload.status == "completed"


async def test_an_orchestrator_that_knows_no_registration_is_served_and_one_that_refuses_it_is_not(
    agent: Agent, forge_hub: FakeForge
) -> None:
    agent.on("say")(lambda: "hello")
    forge_hub.answers["request:register"] = lambda _: ErrorBody(code="INVALID_MESSAGE_TYPE", message="what?")
    async with Serving(agent, forge_hub):
        forge_hub.assign("say")
        await forge_hub.next(UPDATE)
    forge_hub.answers["request:register"] = lambda _: ErrorBody(code="UNAUTHORIZED", message="not you")
    async with Serving(agent, forge_hub) as serving, asyncio.timeout(PATIENCE):
        with pytest.raises(NotAllowed, match="not you"):
            await serving


@pytest.mark.requirement("FG-NOT-3")
async def test_a_child_that_must_end_finishes_its_task_and_takes_no_more(agent: Agent, runtime: FakeRuntime) -> None:
    hub = FakeForge(runtime, is_child=True)
    go_on = asyncio.Event()

    @agent.on("run")
    async def run() -> str:
        await go_on.wait()
        return "done"

    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("run")
        await settle()
        hub.notify(forge.Shutdown(grace_period=10_000, reason="enough for today"))
        await settle()
        hub.assign("run")
        await runtime.advance(1)
        assert not serving.done()
        go_on.set()
        await hub.next(UPDATE)
        await runtime.advance(0.1)
        await serving
    assert hub.count(UPDATE) == 1


async def test_a_child_that_does_not_finish_in_time_ends_all_the_same(agent: Agent, runtime: FakeRuntime) -> None:
    hub = FakeForge(runtime, is_child=True)
    ended = asyncio.Event()

    @agent.on("run")
    async def run() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("run")
        await settle()
        hub.notify(forge.Shutdown(grace_period=10_000, reason="enough for today"))
        await runtime.advance(8)
        assert not serving.done()
        await runtime.advance(1.5)
        await serving
    assert ended.is_set()


@pytest.mark.parametrize("hears", [True, False])
async def test_a_child_whose_hub_is_gone_ends_without_waiting_for_receipts(
    agent: Agent, runtime: FakeRuntime, hears: bool
) -> None:
    hub = FakeForge(runtime, is_child=True)
    hub.answers[UPDATE] = lambda _: None
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub) as serving, asyncio.timeout(PATIENCE):
        hub.assign("say")
        await hub.next(UPDATE)
        hub.hang_up(hears=hears)
        await runtime.advance(0.1)
        await serving
    assert hub.dialled == 1


async def test_an_agent_elsewhere_outlives_the_hub(agent: Agent, forge_hub: FakeForge) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, forge_hub) as serving:
        forge_hub.notify(forge.Shutdown())
        await settle()
        forge_hub.cut()
        await forge_hub.runtime.advance(1)
        assert not serving.done()
        forge_hub.assign("say")
        await forge_hub.next(UPDATE)
    assert forge_hub.dialled == 2
