"""The one place that commits: what nobody may hear of before, and how much may wait behind a slow disk."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.world import World

from dragoman.app import intake
from dragoman.app.intake_health import FAILURE_SHOWN
from dragoman.core.commands import Cancel, CloseLink, RegisterAgent, RemoveAgent
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant
from dragoman.core.lookups import TaskById
from dragoman.core.model.tasks import Status, Task
from dragoman.core.ports import Fenced, StoreFailed
from dragoman.messages.faults import Kind, Refused
from dragoman.stores.memory import MemoryStore
from dragoman.stores.shared import StoreUnit


async def peopled(store: MemoryStore | None = None) -> World:
    world = await World(store).start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


async def test_what_was_not_committed_is_refused_and_leaves_for_nobody() -> None:
    world = await peopled()
    agent = await world.connect("i1")
    world.store.fail_next_commit()
    fault = await world.refused(request := world.request())
    assert (fault.kind, fault.retryable) == (Kind.OVERLOADED, True)
    assert agent.inbox == []
    assert await world.store.task(request.task_id) is None
    assert (await world.ask(request)).id == request.task_id
    assert agent.work == [request.task_id]


async def test_each_change_of_a_callback_url_is_told_after_its_commit_and_nothing_else() -> None:
    world = await peopled()
    told: list[str | None] = []

    def changed(id: AgentId) -> None:
        agent = world.intake.agent(id)
        told.append("gone" if agent is None else agent.callback_url)

    world.intake.watch_callbacks(changed)
    i1 = AgentId("i1")
    for url in ("http://one", "http://one", "http://two", None):
        await world.ask(RegisterAgent(principal=i1, callback_url=url))
    await world.ask(world.request())
    world.store.fail_next_commit()
    await world.refused(RegisterAgent(principal=i1, callback_url="http://three"))
    await world.ask(RegisterAgent(principal=i1, callback_url="http://four"))
    await world.ask(RemoveAgent(principal=ADMIN, agent=i1))
    assert told == ["http://one", "http://two", None, "http://four", "gone"]
    world.intake.watch_callbacks(None)


async def test_a_small_commit_does_not_hide_at_once_that_one_failed() -> None:
    world = await peopled()
    world.store.fail_next_commit()
    await world.refused(world.request())
    await world.submit()
    assert world.intake.last_failure is not None
    await world.advance(FAILURE_SHOWN / SECOND)
    assert world.intake.last_failure is None


async def test_a_command_whose_rows_cannot_be_read_is_refused_as_retryable_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await peopled()
    first = await world.submit()
    honest = MemoryStore._answer

    def unreadable(store: MemoryStore, lookup: Any) -> list[Any]:
        if lookup == TaskById(first.id):
            raise StoreFailed("the store could not read: disk I/O error")
        return honest(store, lookup)

    monkeypatch.setattr(MemoryStore, "_answer", unreadable)
    cancel = Cancel(principal=AgentId("boss"), task_id=first.id, reason="?")
    refused, submitted = await asyncio.gather(
        world.intake.execute(cancel), world.intake.execute(world.request()), return_exceptions=True
    )
    assert isinstance(refused, Refused)
    assert (refused.fault.kind, refused.fault.retryable) == (Kind.OVERLOADED, True)
    assert isinstance(submitted, Task)
    monkeypatch.undo()
    assert (await world.intake.execute(cancel)).status is Status.CANCELLED


async def test_a_stop_ends_though_nothing_can_be_stored_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled()
    agent = await world.connect("i1")
    await world.submit()
    tried = 0

    async def full(unit: StoreUnit, changes: object) -> None:
        nonlocal tried
        tried += 1
        if tried < 100:
            raise StoreFailed("the disk is full")

    monkeypatch.setattr(StoreUnit, "commit", full)
    world.intake._enqueue(CloseLink(principal=agent.agent, session=agent.session))
    await world.intake.stop()
    assert tried == 1


async def test_behind_a_disk_that_stands_still_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled()
    going = asyncio.Event()
    honest = StoreUnit.commit

    async def slow(unit: StoreUnit, changes: object) -> None:
        await going.wait()
        await honest(unit, changes)

    monkeypatch.setattr(StoreUnit, "commit", slow)
    monkeypatch.setattr(intake, "DEEPEST", 5)
    enqueue = world.intake.enqueue
    first = enqueue(world.request())
    while world.intake.depth:
        await asyncio.sleep(0)
    later = [enqueue(world.request()) for _ in range(8)]
    assert [future.done() for future in (first, *later)] == [False] * 6 + [True] * 3
    faults = [error.fault for future in later[5:] if isinstance(error := future.exception(), Refused)]
    assert [(fault.kind, fault.retryable) for fault in faults] == [(Kind.OVERLOADED, True)] * 3
    going.set()
    await asyncio.gather(first, *later[:5])
    await world.submit()  # as ever


async def test_it_is_known_since_when_a_commit_is_under_way_and_the_oldest_command_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await peopled()
    steps = asyncio.Semaphore(0)
    honest = StoreUnit.commit

    async def slow(unit: StoreUnit, changes: object) -> None:
        await steps.acquire()
        await honest(unit, changes)

    assert world.intake.stalled == (0, 0)
    monkeypatch.setattr(StoreUnit, "commit", slow)
    monkeypatch.setattr(intake, "LARGEST_UNIT", 1)
    futures = [world.intake.enqueue(world.request()) for _ in range(3)]
    while world.intake.depth != 2:
        await asyncio.sleep(0)
    world.time = Instant(world.time + 5 * SECOND)
    assert world.intake.stalled == (5 * SECOND, 5 * SECOND)
    steps.release()
    await futures[0]
    while world.intake.depth != 1:
        await asyncio.sleep(0)
    world.time = Instant(world.time + 7 * SECOND)
    assert world.intake.stalled == (7 * SECOND, 12 * SECOND)
    for _ in range(9):
        steps.release()
    await asyncio.gather(*futures)
    while world.intake.stalled != (0, 0):
        await asyncio.sleep(0)


async def test_a_fenced_intake_neither_acknowledges_nor_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way, what waited behind it, and what comes afterwards: no caller hears of any."""
    world = await peopled()
    agent = await world.connect("i1")

    async def fenced(unit: StoreUnit, changes: object) -> None:
        raise Fenced("epoch 3 is over: epoch 4 leads")

    monkeypatch.setattr(StoreUnit, "commit", fenced)
    monkeypatch.setattr(intake, "LARGEST_UNIT", 1)
    under_way, behind = world.intake.enqueue(world.request()), world.intake.enqueue(world.request())
    async with asyncio.timeout(5):
        await world.intake.fenced.wait()
    later = world.intake.enqueue(world.request())
    world.intake.enqueue_and_forget(CloseLink(principal=agent.agent, session=agent.session))
    async with asyncio.timeout(5):
        await world.intake.stop()
    assert [one.done() for one in (under_way, behind, later)] == [False, False, False]
    assert agent.inbox == []


async def test_a_node_that_stepped_down_during_a_commit_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled()
    honest = StoreUnit.commit

    async def slow(unit: StoreUnit, changes: Any) -> None:
        world.intake.fence()
        await honest(unit, changes)

    monkeypatch.setattr(StoreUnit, "commit", slow)
    asked = world.intake.enqueue(request := world.request())
    for _ in range(100):
        await asyncio.sleep(0)
    assert await world.store.task(request.task_id) is not None
    assert not asked.done()
    await world.intake.stop()


async def test_the_stop_of_a_fenced_intake_does_not_wait_for_a_commit_that_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await peopled()
    begun, never = asyncio.Event(), asyncio.Event()

    async def hangs(unit: StoreUnit, changes: object) -> None:
        begun.set()
        await never.wait()

    monkeypatch.setattr(StoreUnit, "commit", hangs)
    asked = world.intake.enqueue(world.request())
    async with asyncio.timeout(5):
        await begun.wait()
        world.intake.fence()
        await world.intake.stop()
    assert not asked.done()
