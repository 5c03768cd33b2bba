"""The real clock, and fresh ids.

Time inside the hub is the wall clock at start plus what the monotonic clock says has passed since: leases, retries
and deadlines do not care if somebody sets the wall clock while we run. (What was written before a restart is
compared with the wall clock of the restart; a jump in between moves due times by that much, once.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from dragoman.core.ids import Instant


class SystemClock:
    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> Instant:
        return Instant((time.monotonic_ns() + self._offset) // 1000)


class Mint:
    """Version 7 UUIDs that only ever grow, so that rows made later sort later.

    After the milliseconds comes a counter that begins anew, at random, each millisecond, then bits of this process:
    unique and ordered, at a microsecond apiece. They are names, not secrets.
    """

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._millis = 0
        self._counter = 0
        self._head = ""
        self._mine = os.urandom(5).hex()

    def __call__(self) -> str:
        millis = self._now() // 1000
        if millis > self._millis:
            self._begin(millis, int.from_bytes(os.urandom(3)) & 0x3F_FFFF)
        elif self._counter < 0x3FF_FFFF:  # the same millisecond, or one that has been used up
            self._counter += 1
        else:
            self._begin(self._millis + 1, 0)
        counter = self._counter  # 26 bits: 12 after the version, 14 after the variant
        check = (self._millis * 31 + counter) & 0xFF
        return f"{self._head}{counter >> 14:03x}-{0x8000 | counter & 0x3FFF:04x}-{self._mine}{check:02x}"

    def _begin(self, millis: int, counter: int) -> None:
        self._millis, self._counter = millis, counter
        text = f"{millis:012x}"
        self._head = f"{text[:8]}-{text[8:]}-7"
