"""Keeps the hub's figures over time (`core.model.series`): counts commits into the open bucket, and has closed buckets
stored, so that a restart loses at most the last few seconds of a plot.

Only the open bucket of the finest step is in memory. Coarser buckets are sums of stored ones, made when they close.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise

import structlog

from dragoman.core.commands import KeepSeries
from dragoman.core.ids import SECOND, AgentId, Instant
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.series import RANGES, STEPS, Bucket, bin_of, bucket_of, row_of, total
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.core.ports import Changes, Intake, Store, StoreFailed
from dragoman.messages.faults import Refused
from dragoman.messages.tasks import Failure, Result

log = structlog.get_logger("dragoman.app")

FINEST = STEPS[0]
ENDS = frozenset({EventKind.COMPLETED, EventKind.FAILED, EventKind.CANCELLED})
COST = "cost_usd"
COST_IN_JSON = b'"cost_usd"'
COUNTED = {
    EventKind.SUBMITTED: "submitted",
    EventKind.COMPLETED: "completed",
    EventKind.FAILED: "failed",
    EventKind.CANCELLED: "cancelled",
    EventKind.ATTEMPT_FAILED: "retried",
}


def _cost(task: Task, event: Event) -> float:
    """US dollars: what the hub counted against a budget, else what the agent says its result cost."""
    if task.spending.spent is not None:
        return task.spending.spent.total(COST)
    if COST_IN_JSON not in bytes(event.body):  # most results say nothing, and then are not decoded
        return 0.0
    content = event.content
    usage = content.usage if isinstance(content, Result | Failure) else None
    cost = (usage or {}).get(COST)
    return float(cost) if isinstance(cost, int | float) and 0 < cost < math.inf else 0.0


class Series:
    def __init__(
        self,
        now: Callable[[], Instant],
        protocol_of: Callable[[AgentId], str | None],
        queued: Callable[[], int],
    ) -> None:
        self._now = now
        self._protocol_of = protocol_of
        self._queued = queued
        self._open = Bucket(FINEST, 0)
        self._closed: list[Bucket] = []

    # -- counting ------------------------------------------------------------------------------------------------------

    def committed(self, changes: Changes) -> None:
        bucket: Bucket | None = None
        ended: list[Event] = []
        for row in changes.added:
            if type(row) is Event:
                name = COUNTED.get(row.kind)
                if name is not None:
                    bucket = bucket or self._bucket()
                    setattr(bucket, name, getattr(bucket, name) + 1)
                    if row.kind in ENDS:
                        ended.append(row)
            elif type(row) is DeadLetter:
                bucket = bucket or self._bucket()
                bucket.dead_lettered += 1
        if ended and bucket is not None:
            tasks = {row.id: row for rows in (changes.changed, changes.added) for row in rows if type(row) is Task}
            for event in ended:
                if (task := tasks.get(event.task)) is not None:
                    self._count_end(bucket, task, event)

    def _count_end(self, bucket: Bucket, task: Task, event: Event) -> None:
        bin = bin_of((event.at - task.created_at) / SECOND)
        bucket.times[bin] = bucket.times.get(bin, 0) + 1
        if task.owner is None:
            return
        spoken = self._protocol_of(task.owner)
        if spoken is not None:
            pair = f"{task.origin.protocol} {spoken}"
            bucket.traffic[pair] = bucket.traffic.get(pair, 0) + 1
        figures = bucket.of_agent(task.owner)
        if event.kind is EventKind.COMPLETED:
            figures.completed += 1
        elif event.kind is EventKind.FAILED:
            figures.failed += 1
        figures.cost += _cost(task, event)

    def _bucket(self) -> Bucket:
        """The bucket of now. The one before it is closed."""
        at = self._now() // SECOND // FINEST * FINEST
        if at != self._open.at:
            if self._open.at:
                self._closed.append(self._open)
            self._open = Bucket(FINEST, at, times={}, traffic={}, agents={})
        return self._open

    # -- keeping -------------------------------------------------------------------------------------------------------

    async def run(self, intake: Intake, store: Store) -> None:
        """Have closed buckets stored, as long as the hub runs."""
        while True:
            await asyncio.sleep(FINEST - self._now() / SECOND % FINEST + 0.05)
            try:
                await self.keep(intake, store)
            except (Refused, StoreFailed) as error:
                log.warning("the figures of the plots were not stored", why=str(error))

    async def keep(self, intake: Intake, store: Store) -> None:
        waiting = self._queued()
        if waiting:
            bucket = self._bucket()
            bucket.queue_depth = max(bucket.queue_depth, waiting)
        elif self._open.at:
            self._bucket()
        closed, self._closed = self._closed, []
        if not closed:
            return
        try:
            await intake.execute(KeepSeries(rows=tuple(map(row_of, closed))))
        except Refused:
            self._closed = closed + self._closed
            raise
        await self._sum_up(intake, store, closed)

    async def _sum_up(self, intake: Intake, store: Store, closed: list[Bucket]) -> None:
        """Coarser buckets: each is the sum of the finer ones that lie in it."""
        for fine, coarse in pairwise(STEPS):
            for at in {bucket.at // coarse * coarse for bucket in closed}:
                rows = await store.series(fine, since=at, until=at + coarse)
                summed = total([bucket_of(row) for row in rows], coarse, at)
                await intake.execute(KeepSeries(rows=(row_of(summed),)))

    # -- reading -------------------------------------------------------------------------------------------------------

    async def read(self, store: Store, range: str) -> list[Bucket]:
        """The buckets of a range (`RANGES`), the oldest first, with the open one; those in which nothing happened are
        not there."""
        seconds, step = RANGES[range]
        since = (self._now() // SECOND - seconds) // step * step
        found = [bucket_of(row) for row in await store.series(step, since=since)]
        for bucket in await self._recent():
            at = bucket.at // step * step
            if found and found[-1].at == at:
                found[-1].plus(bucket)
            else:
                found.append(total([bucket], step, at))
        return found

    @property
    def recent(self) -> list[Bucket]:
        """The buckets that are not stored yet, the oldest first."""
        return [bucket for bucket in (*self._closed, self._open) if bucket.at]

    async def _recent(self) -> list[Bucket]:
        return self.recent
