"""What the hub does beside serving: it wakes rows whose time has come, and removes files that belong to no task."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing

import structlog

from dragoman.app.intake import Intake
from dragoman.core.ids import HOUR, MINUTE, SECOND, Instant
from dragoman.core.ports import Files, Store, StoreFailed

log = structlog.get_logger("dragoman.background")

LONGEST_SLEEP = 30.0
"""Check at least so often: it is cheap, and bounds the harm of a missed wake time."""


async def wake_rows(intake: Intake) -> None:
    """The wake timer: has the intake look at the rows whose wake time has come. It sleeps until the earliest wake time,
    or until the intake learns of an earlier one. Durations are measured on the monotonic clock, so a jump of the wall
    clock neither wakes a row early nor leaves one asleep."""
    while True:
        try:
            await intake.wake_due()
        except StoreFailed as error:
            log.error("could not ask what is due", why=str(error))
            await asyncio.sleep(1)
            continue
        intake.wake_changed.clear()
        seconds = LONGEST_SLEEP
        if intake.next_wake is not None:
            seconds = min(seconds, max(0.0, (intake.next_wake - intake.now()) / SECOND))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await intake.wake_changed.wait()


async def remove_unused(store: Store, files: Files, before: Instant) -> int:
    """Remove the files that were neither uploaded nor read since then and that belong to no task. How many that were.

    A task's hold on its files ends in the commit that forgets it (`core.tasks.forgetting`); the bytes go afterwards,
    here. So no task ever names bytes that are not there, and what a crash leaves behind is found by its age. A file
    that was uploaded or read a short while ago stays, since its owner may be about to name it in a task.
    """
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
            log.error("could not look for unused files", why=str(error))
            continue
        if removed:
            on_removed(removed)
            log.info("removed files that belong to no task", files=removed)
