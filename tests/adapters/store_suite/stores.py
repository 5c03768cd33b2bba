"""The stores, and what their tests have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from dragoman.core.lookups import Lookup, Row
from dragoman.core.model.state import Registry
from dragoman.core.ports import Changes, Store, TaskFilter
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import every_lookup
from tests.support.leading import LeadingStore

PATIENCE = 60.0

Make = Callable[[Path], Store]

KINDS: dict[str, Make] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda directory: SqliteStore(directory / "hub.db"),
    "sqlite-uncached": lambda directory: SqliteStore(directory / "hub.db", cached_rows=0),
    "sqlite-tiny-cache": lambda directory: SqliteStore(directory / "hub.db", cached_rows=2),
    "postgres": LeadingStore,
    "postgres-uncached": lambda directory: LeadingStore(directory, cached_rows=0),
    "postgres-tiny-cache": lambda directory: LeadingStore(directory, cached_rows=2),
}

every_store = pytest.mark.parametrize("kind", KINDS)


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Store]:
    with TemporaryDirectory() as directory:
        made = KINDS[kind](Path(directory))
        await made.open()
        try:
            yield made
        finally:
            await made.close()


async def commit(store: Store, *added: Row, **changes: Sequence[Any]) -> None:
    async with store.unit() as unit:
        await unit.commit(Changes(added=added, **changes))


async def load(store: Store, *lookups: Lookup[Any]) -> list[list[Any]]:
    async with store.unit() as unit:
        found = await unit.load(lookups)
        return [list(found[lookup]) for lookup in lookups]


def bounded(scenario: Awaitable[None]) -> None:
    """Run one example of a property."""

    async def run() -> None:
        async with asyncio.timeout(PATIENCE):
            await scenario

    asyncio.run(run())


property_test = settings(
    max_examples=settings().max_examples // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


async def everything(store: Store) -> dict[str, Any]:
    tasks, _ = await store.tasks(TaskFilter(), after=None, limit=1000)
    return {
        "tasks": list(tasks),
        "events": [list(await store.events(task.id, after=-1)) for task in tasks],
        "deliveries": list(await store.deliveries()),
        "dead letters": list(await store.dead_letters()),
        "questions": list(await store.questions()),
        "audit": list(await store.audit()),
        "entities": list(await store.entities(Registry.TASK)),
        "changes": list(await store.changes()),
        "counts": dict(await store.counts()),
        "loaded": await load(store, *every_lookup([])),
    }
