"""Files that belong to no task any more are removed, with their room in the quota.

A task's hold on its files ends in the commit that forgets it (`core.tasks.forgetting`); the bytes go afterwards, here.
So no task ever names bytes that are not there, and what a crash leaves in between, or between keeping a file and naming
it, is found like everything else: it is old, and the store knows no task it belongs to.

Nothing is removed that was kept or asked for a short while ago: its owner may be about to name it in a task. That is
asked in this order: is it old, is it nobody's, is it still old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import structlog

from dragoman.core.ids import HOUR, MINUTE, SECOND, Instant
from dragoman.core.ports import Files, Store, StoreFailed

log = structlog.get_logger("dragoman.unused_files")


async def remove_unused(store: Store, files: Files, before: Instant) -> int:
    """Remove the files that nobody kept or asked for since then and that belong to no task. How many that were."""
    removed = 0
    async with aclosing(files.unwanted(before)) as pages:
        async for page in pages:
            attached = await store.attached(page)
            for id in page:
                if id not in attached:
                    removed += await files.drop_unwanted(id, before)
    return removed


async def remove_unused_regularly(
    store: Store,
    files: Files,
    *,
    now: Callable[[], Instant],
    keep_unused: int,
    on_removed: Callable[[int], None],
) -> None:
    """A minute after the start, then every hour; more often where unused files are kept for less than a day."""
    every = min(HOUR, max(MINUTE, keep_unused // 24))
    wait = MINUTE
    while keep_unused:
        await asyncio.sleep(wait / SECOND)
        wait = every
        try:
            removed = await remove_unused(store, files, Instant(now() - keep_unused))
        except (StoreFailed, OSError) as error:
            log.error("could not look for files that nobody uses", why=str(error))
            continue
        if removed:
            on_removed(removed)
            log.info("removed files that belong to no task", files=removed)
