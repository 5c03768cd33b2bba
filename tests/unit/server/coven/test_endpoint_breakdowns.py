"""Handlers that break, stores that fail or are slow, hubs that were killed, agents that never end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import msgspec
from tests.support import coven as outside
from tests.support.coven_world import RULES, gateway

from dragoman.core.commands import Cancel, Finish, Pause, Resume
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.ports import StoreFailed
from dragoman.stores.memory import MemoryStore

Code = grpc.StatusCode


# --- breakdowns ---


async def test_a_handler_that_breaks_ends_its_stream_and_the_endpoint_stays_open(monkeypatch: Any) -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        (link,) = hub.endpoint._streams
        monkeypatch.setattr(link.session.stream, "receive", lambda data: 1 / 0)
        await agent.heartbeat()
        assert await agent.code() is Code.INTERNAL
        again = await hub.agent("worker")
        assert (await again.work()).request_id == work.request_id
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")


class Moody(MemoryStore):
    """A store that can be told to fail."""

    failing = False

    def unit(self) -> Any:
        if self.failing:
            raise StoreFailed("the disk is full")
        return super().unit()


async def test_what_cannot_be_stored_ends_the_stream_and_is_done_again_whole() -> None:
    store = Moody()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="kept ")
        await hub.status(task.id, "running")
        store.failing = True
        await agent.respond(work.request_id, text="not kept")
        assert await agent.code() is Code.UNAVAILABLE
        store.failing = False
        again = await hub.agent("worker")
        work = await again.work()
        await again.respond(work.request_id, text="all of it")
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")
        assert (await hub.bodies(task.id, "completed")) == [{"output": "all of it"}]


async def test_a_slow_store_slows_the_agent_and_loses_nothing() -> None:
    async with gateway(limits={"unanswered": 4, "pending_bytes": 50_000}) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="first")
        await hub.status(task.id, "running")
        (link,) = hub.endpoint._streams
        gate = asyncio.Event()
        handed = hub.intake.enqueue_then
        hub.intake.enqueue_then = lambda command, then: asyncio.ensure_future(later(command, then))  # type: ignore[method-assign]

        async def later(command: Any, then: Any) -> None:
            await gate.wait()
            handed(command, then)

        piece = "x" * 10_000
        sending = asyncio.create_task(flood(agent, work.request_id, piece, 300))
        await hub.until(lambda: not link._reading.is_set())
        held = link.loop._pieces_size
        assert held < 100_000
        gate.set()
        await outside.soon(sending)
        await agent.respond(work.request_id, done={})
        await hub.status(task.id, "completed")
        (done,) = await hub.bodies(task.id, "completed")
        assert done["output"] == "first" + piece * 300
        told = "".join(body.get("output", "") for body in await hub.bodies(task.id))
        assert told == done["output"]
        assert len(await hub.bodies(task.id)) < 300  # pieces were joined


async def flood(agent: outside.Agent, request_id: str, piece: str, times: int) -> None:
    for _ in range(times):
        await agent.respond(request_id, text=piece)


async def test_what_an_agent_held_when_the_hub_was_killed_is_done_again_at_once(monkeypatch: Any) -> None:
    store = MemoryStore()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="half")
        await hub.status(task.id, "running")
        monkeypatch.setattr(
            hub.endpoint, "_close", lambda link: None
        )  # nobody is left to say that the connection broke
    async with gateway(store=store) as hub:
        again = await hub.agent("worker")
        assert (await again.work()).request_id == work.request_id
        await again.respond(work.request_id, done={"full_response": "whole"})
        await hub.status(task.id, "completed")


async def test_a_health_check_is_answered_by_the_stream_and_never_sent() -> None:
    rules = msgspec.structs.replace(RULES, breaker_threshold=1, breaker_pause=50_000)
    async with gateway(rules=rules) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit(input={"content": "real work"})
        await agent.work()
        agent.vanish()
        await hub.until(lambda: hub.intake.agent(AgentId("worker")).breaker.state != "closed")  # type: ignore[union-attr]
        again = await hub.agent("worker")
        work = await again.work()
        assert work.content == "real work"
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")


# --- given up ---


async def test_the_hub_ignores_an_agent_that_works_on_a_finished_task() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await hub.intake.execute(Finish(principal=AgentId("worker"), task_id=task.id, digest="by another way"))
        await agent.respond(work.request_id, text="still at it")
        (link,) = hub.endpoint._streams
        await hub.until(lambda: link.session.stream.abandoned)
        await agent.respond(work.request_id, done={})
        following = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(following.id, "completed")
        assert hub.endpoint.counts["ignored.abandoned_request"] == 1


async def test_what_an_agent_still_says_of_a_turn_that_a_person_ended_is_not_taken_for_the_next() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit(input={"content": "go"})
        first = await agent.work()
        await hub.intake.execute(Pause(principal=ADMIN, task_id=task.id))
        await hub.intake.execute(Resume(principal=ADMIN, task_id=task.id, answer="left", has_answer=True))
        await agent.respond(first.request_id, text="straight on")
        await agent.respond(first.request_id, done={})
        second = await agent.work()
        assert (second.content, second.request_id == first.request_id) == ("left", False)
        await agent.respond(second.request_id, done={"full_response": "turned left"})
        await hub.status(task.id, "completed")
        ends = [event for event in await hub.store.events(task.id) if event.kind == "completed"]
        assert [msgspec.to_builtins(end.content) for end in ends] == [{"output": "turned left"}]


async def test_an_agent_that_never_ends_a_cancelled_request_is_let_go_when_other_work_waits() -> None:
    async with gateway(limits={"cancel_seconds": 0.2}) as hub:
        agent = await hub.agent("worker")
        first = await hub.submit()
        await agent.work()
        await hub.intake.execute(Cancel(principal=ADMIN, task_id=first.id))
        second = await hub.submit(input={"content": "2"})
        assert await agent.code() is Code.UNAVAILABLE
        again = await hub.agent("worker")
        work = await again.work()
        assert work.content == "2"
        await again.respond(work.request_id, done={})
        await hub.status(second.id, "completed")


async def test_work_cancelled_before_it_could_leave_is_never_sent() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        tasks = [await hub.submit(input={"content": str(n)}) for n in range(3)]
        work = await agent.work()
        await hub.intake.execute(Cancel(principal=ADMIN, task_id=tasks[0].id))
        await hub.status(tasks[1].id, "assigned")
        await hub.intake.execute(Cancel(principal=ADMIN, task_id=tasks[1].id))
        await agent.respond(work.request_id, error="cancelled")
        assert (await agent.work()).content == "2"


async def test_more_output_than_a_task_may_have_fails_it(monkeypatch: Any) -> None:

    async with gateway(rules=msgspec.structs.replace(RULES, output_quota=1000)) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="x" * 2000)
        failed = await hub.status(task.id, "failed")
        assert failed.outcome.fault is not None
        assert failed.outcome.fault.kind == "invalid"
        await agent.respond(work.request_id, done={})
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(task.id, "completed")
