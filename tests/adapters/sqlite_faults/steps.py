"""What the embedded store does when things go wrong: the steps that its tests share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from dragoman.core.ports import Changes, TaskFilter
from dragoman.stores.sqlite.store import SqliteStore

PATIENCE = 60.0


async def commit(store: SqliteStore, *added: object, **changes: object) -> None:
    async with asyncio.timeout(PATIENCE):
        async with store.unit() as unit:
            await unit.commit(Changes(added=added, **changes))  # type: ignore[arg-type]


async def stored(store: SqliteStore) -> set[str]:
    tasks, _ = await store.tasks(TaskFilter(), after=None, limit=100_000)
    return {task.id for task in tasks}


@contextlib.contextmanager
def hub(directory: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.hub_process", str(directory), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]
