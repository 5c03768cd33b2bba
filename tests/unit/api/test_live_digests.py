"""Many dashboards at once: what one of them was sent, the others are sent, too, and none of it is made again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest

from dragoman.api import events, live
from dragoman.api.bodies import StreamQuery
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.core.ports import Changes

PAGES = 20
PATIENCE = 20.0


class Counted:
    """How often the hub read its counts, and encoded a task for a page."""

    def __init__(self, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads = self.rows = 0
        read, row = world.store.counts, events.task_row

        async def counts() -> Mapping[str, int]:
            self.reads += 1
            await asyncio.sleep(0)  # as the store's thread does, it lets the other pages come
            return dict(await read())

        def task_row(context: Any, task: Task) -> events.TaskRow:
            self.rows += 1
            return row(context, task)

        monkeypatch.setattr(world.store, "counts", counts)
        monkeypatch.setattr(events, "task_row", task_row)


async def test_a_digest_is_made_once_for_all_pages_also_when_the_counts_are_old(
    world: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TICK_SECONDS", 0.0)
    assert live.FEW < PAGES
    counted = Counted(world, monkeypatch)
    context = world.context
    context.waiters.heartbeat = PATIENCE
    task = make.task()
    event: Event = make.event(task, 1, EventKind.SUBMITTED)
    query = StreamQuery(detail="digest")

    async def first_change(ready: asyncio.Semaphore) -> bytes:
        async with aclosing(events._digests(context, query, None)) as frames:  # type: ignore[type-var]
            assert (await anext(frames)).startswith(b"retry:")
            assert b'"tasks":[]' in await anext(frames)
            waiting = asyncio.ensure_future(anext(frames))
            ready.release()
            return bytes(await waiting)

    ready = asyncio.Semaphore(0)
    async with asyncio.timeout(PATIENCE):
        pages = [asyncio.create_task(first_change(ready)) for _ in range(PAGES)]
        for _ in pages:
            await ready.acquire()
        context._counts = (float("-inf"), {})
        counted.reads = 0
        context.live.committed(Changes(added=[task, event]))
        frames = await asyncio.gather(*pages)
    assert task.id.encode() in frames[0]
    assert set(frames) == {frames[0]}
    assert (counted.reads, counted.rows) == (1, 1)
