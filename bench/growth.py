"""How the cost grows with history: the same round trips with ever more finished tasks in the store.

The store is filled through the hub's own adapter with whole tasks (head, three events, two audit records), as they
would lie there after real work; then a real hub starts on it. It is measured when it has read the names of what it has
(ADR 24), which goes on beside the work for a moment after a start.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench import procs
from bench.figures import Figure, Settings, median_run
from bench.hub import RESULT, hub, request, round_trips, uuid4
from dragoman.core.ids import DAY, SECOND, AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import AuditRecord, seal
from dragoman.core.model.tasks import (
    Attempt,
    Event,
    EventKind,
    Origin,
    Status,
    Task,
    TaskLineage,
    TaskOutcome,
    TaskOutput,
    TaskRouting,
    TaskTiming,
)
from dragoman.core.ports import Changes
from dragoman.core.routing.routes import Route
from dragoman.stores.sqlite.store import SqliteStore

SIZES = (1_000, 100_000, 1_000_000)
BATCH = 2_000
BORN = time.time_ns() // 1000 - DAY
"""Yesterday: older ones would be forgotten while we measure."""
RETAINED = DAY - 600 * SECOND
"""From then to some minutes ago."""

Make = Callable[[int, int], tuple[Task, list[Event]]]
"""The task with a number, of those that began to come at an instant."""


def measure(settings: Settings) -> Iterable[Figure]:
    """The hubs stand side by side and are driven in turns, so that they share the machine's moods."""
    sizes = tuple(size for size in SIZES if size <= 100_000) if settings.quick else SIZES
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as ends:
        hubs: dict[int, tuple[procs.Proc, dict[str, Any]]] = {}
        for size in sizes:
            data = ends.enter_context(tempfile.TemporaryDirectory(prefix="growth-", dir=place))
            asyncio.run(fill(Path(data, "hub.sqlite"), size))
            hubs[size] = ends.enter_context(hub(settings, data=data))
            settled = hubs[size][0].settle()
            print(f"  with {size:,} it was busy with its start for {settled:.1f} s", file=sys.stderr)
        once = msgspec.structs.replace(settings, repeats=1)
        turns: dict[int, list[Figure]] = {size: [] for size in sizes}
        for _ in range(settings.repeats):
            for size, (proc, ready) in hubs.items():
                turns[size].append(round_trips(once, "ws", 32, proc, ready, f"hub-stored-{size}"))
        for figures in turns.values():
            yield median_run(figures)


async def fill(
    path: Path, wanted: int, *, make: Make | None = None, audited: bool = True, first: Sequence[Agent] = ()
) -> None:
    """So many finished tasks, as a client with random ids would have left them, or as `make` makes them."""
    os.umask(0o077)
    store = SqliteStore(path)
    recovered = await store.open()
    seq, prev = recovered.audit_seq, recovered.audit_hash
    make = make or _Alike()
    if first:
        async with store.unit() as unit:
            await unit.commit(Changes(added=first))
    for start in range(0, wanted, BATCH):
        added: list[Task | Event] = []
        audit: list[AuditRecord] = []
        for n in range(start, min(start + BATCH, wanted)):
            task, events = make(n, BORN)
            added += [task, *events]
            for action in ("task.submit", "task.finish") if audited else ():
                seq += 1
                record = AuditRecord(
                    seq=seq,
                    at=task.created_at,
                    principal="orchestrator-1",
                    action=action,
                    outcome="accepted",
                    prev=prev,
                    protocol="chiffon",
                    subject=task.id,
                    digest=task.origin.digest,
                )
                audit.append(seal(record))
                prev = audit[-1].hash
        async with store.unit() as unit:
            await unit.commit(Changes(added=added, audit=audit))
        if start % 100_000 == 0:
            print(f"  filled {start:,} of {wanted:,}", file=sys.stderr)
    await store.close()


class _Alike:
    def __init__(self) -> None:
        self._order = request(700)

    def __call__(self, n: int, born: int) -> tuple[Task, list[Event]]:
        return finished(n, born, self._order)


def finished(n: int, born: int, order: bytes) -> tuple[Task, list[Event]]:
    at = Instant(born + n * 1000)
    task_id, request_id, trace = TaskId(uuid4()), uuid4(), uuid4()
    raw = order % (uuid4().encode(), trace.encode(), request_id.encode(), task_id.encode())
    result = RESULT % tuple(id.encode() for id in (uuid4(), trace, request_id, task_id))
    agent = AgentId("infra-1")
    task = Task(
        id=task_id,
        type="run_playbook",
        status=Status.COMPLETED,
        origin=Origin(
            principal=AgentId("orchestrator-1"), protocol="chiffon", request_id=request_id, digest=os.urandom(32).hex()
        ),
        created_at=at,
        updated_at=at,
        rank=at,
        owner=agent,
        finished_at=at,
        seq=3,
        routing=TaskRouting(route=Route(type="run_playbook", kind="infra").queue, kind="infra"),
        timing=TaskTiming(deadline=Instant(at + 3_600_000_000), idle_limit=300_000_000),
        lineage=TaskLineage(trace_id=trace.replace("-", "")),
        attempt=Attempt(count=1),
        output=TaskOutput(progress=100),
        outcome=TaskOutcome(digest=os.urandom(32).hex(), event=3),
    )
    body = msgspec.Raw(b'{"input":{"playbook":"deploy_kuma.yml"},"hints":{"max_duration_seconds":300}}')
    return task, [
        Event(task=task_id, seq=1, at=at, kind=EventKind.SUBMITTED, body=body, protocol="chiffon", raw=raw),
        Event(task=task_id, seq=2, at=at, kind=EventKind.ASSIGNED, agent=agent, body=body),
        Event(
            task=task_id, seq=3, at=at, kind=EventKind.COMPLETED, agent=agent, body=body, protocol="chiffon", raw=result
        ),
    ]
