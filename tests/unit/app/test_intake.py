"""The one place that commits: what nobody may hear of before, and how much may wait behind a slow disk."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.world import World

from dragoman.app import intake
from dragoman.core.commands import CloseLink
from dragoman.core.errors import Kind, Refused
from dragoman.core.ports import StoreFailed
from dragoman.stores.memory import MemoryStore, MemoryUnit


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


async def test_a_stop_ends_though_nothing_can_be_stored_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled()
    agent = await world.connect("i1")
    await world.submit()
    tried = 0

    async def full(unit: MemoryUnit, changes: object) -> None:
        nonlocal tried
        tried += 1
        if tried < 100:
            raise StoreFailed("the disk is full")

    monkeypatch.setattr(MemoryUnit, "commit", full)
    world.intake.tell(CloseLink(principal=agent.agent, session=agent.session))
    await world.intake.stop()
    assert tried == 1


async def test_behind_a_disk_that_stands_still_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await peopled()
    going = asyncio.Event()
    honest = MemoryUnit.commit

    async def slow(unit: MemoryUnit, changes: object) -> None:
        await going.wait()
        await honest(unit, changes)

    monkeypatch.setattr(MemoryUnit, "commit", slow)
    monkeypatch.setattr(intake, "DEEPEST", 5)
    post = world.intake.post
    first = post(world.request())
    while world.intake.depth:
        await asyncio.sleep(0)
    later = [post(world.request()) for _ in range(8)]
    assert [future.done() for future in (first, *later)] == [False] * 6 + [True] * 3
    faults = [error.fault for future in later[5:] if isinstance(error := future.exception(), Refused)]
    assert [(fault.kind, fault.retryable) for fault in faults] == [(Kind.OVERLOADED, True)] * 3
    going.set()
    await asyncio.gather(first, *later[:5])
    await world.submit()  # as ever
