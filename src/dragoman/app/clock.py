"""The real clock, and fresh ids.

The hub measures time with a monotonic clock, and steers it towards the wall clock by a hundredth at most. So setting
the wall clock while the hub runs does not disturb leases, retries and deadlines, and yet a hub that runs for months
agrees with other machines on the time. (Times from before a restart are compared with the wall clock at the restart; a
jump in between moves due times by that much, once.)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from dragoman.core.ids import Instant

STEERING = 100
"""The hub's clock gains or loses at most one part in so many towards the wall clock. Machines correct their own clocks
more slowly than that; a lease of half a minute is off by 0.3 s."""

FAR = 60 * 10**9
"""If the clocks are further apart, the wall clock was set, and the hub informs the operator."""

steady: Callable[[], int] = (
    partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic_ns
)
"""A clock that goes on while the machine sleeps, where the system has one."""


class SystemClock:
    def __init__(
        self,
        far: Callable[[int], None] = lambda seconds: None,
        *,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = steady,
    ) -> None:
        """`far` is called once when the wall clock was set, with the seconds."""
        self._tell_far = far
        self._wall = wall
        self._steady = steady
        self._read = steady(), wall()
        self._is_far = False

    def __call__(self) -> Instant:
        then, time_then = self._read
        now = self._steady()
        passed = now - then
        straight = time_then + passed
        gap = self._wall() - straight
        room = passed // STEERING
        if -room <= gap <= room:
            time_now = straight + gap
        else:
            time_now = straight + room if gap > 0 else straight - room
            self._notice(gap)
        self._read = now, time_now
        return Instant(time_now // 1000)

    def go_on_after(self, instant: Instant) -> None:
        """Never show this millisecond again, nor an earlier one: another machine has led, and its clock may be ahead of
        this one. From there on time passes as it does, and is steered back."""
        then, time_then = self._read
        now = self._steady()
        self._read = now, max(time_then + now - then, (instant // 1000 + 1) * 1_000_000)

    def _notice(self, gap: int) -> None:
        if (abs(gap) > FAR) is not self._is_far:
            self._is_far = not self._is_far
            if self._is_far:
                self._tell_far(gap // 10**9)


class Mint:
    """Version 7 UUIDs that only ever grow, so that rows made later sort later.

    After the milliseconds comes a counter that starts at a random number each millisecond, then bits of this process:
    unique and ordered, and each takes a microsecond to make. They are names, not secrets.
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
