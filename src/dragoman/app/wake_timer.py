"""The wake timer: has the intake look at the rows whose wake time has come.

It sleeps until the earliest `wake_at` it knows of, or until the intake learns of an earlier one. Durations are
measured on the monotonic clock, so a jump of the wall clock neither wakes a row early nor leaves one asleep.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from dragoman.app.intake import Intake
from dragoman.core.ids import SECOND
from dragoman.core.ports import StoreFailed

log = structlog.get_logger("dragoman.wake_timer")

LONGEST_SLEEP = 30.0
"""Look at least so often: cheap, and it forgives whatever else might go wrong."""


async def run(intake: Intake) -> None:
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
