"""The real clock, and fresh ids.

Time inside the hub is the wall clock at start plus what the monotonic clock says has passed since: leases, retries
and deadlines do not care if somebody sets the wall clock while we run. (What was written before a restart is
compared with the wall clock of the restart; a jump in between moves due times by that much, once.)
"""

from __future__ import annotations

import os
import time

from dragoman.core.ids import Instant, uuid7


class SystemClock:
    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> Instant:
        return Instant((time.monotonic_ns() + self._offset) // 1000)


class Mint:
    """Version 7 UUIDs that only ever grow, so that rows made later sort later."""

    def __init__(self, now: SystemClock) -> None:
        self._now = now
        self._last = 0

    def __call__(self) -> str:
        millis = self._now() // 1000
        counter = self._last & 0xFFFF_FFFF
        if millis <= self._last >> 32:
            counter += 1 + os.urandom(1)[0]
            millis = self._last >> 32
        else:
            counter = int.from_bytes(os.urandom(3))
        self._last = (millis << 32) + counter
        millis, counter = self._last >> 32, self._last & 0xFFFF_FFFF
        entropy = ((counter << 42) | int.from_bytes(os.urandom(6)) >> 6) & ((1 << 74) - 1)
        # uuid7 takes its 12 leading bits from the low end of the entropy; put the counter's head there
        return uuid7(Instant(millis * 1000), ((entropy >> 62) & 0xFFF) | (entropy & ((1 << 62) - 1)) << 12)
