"""A clock that only the test moves.

    whose                                    what moves it
    ---------------------------------------  -----------------------------------------------------------------
    the hub's: retries, timeouts, deadlines  `advance` alone. Between two of them it stands still, so a slow
                                             machine makes no timeout
    the agents' and clients': heartbeats,    `advance`, and real time as well: an agent whose link broke comes
    pauses before the next try, timeouts     back by itself, as fast as it always does
    the network's: handshakes, pings, polls  real time: bytes take as long as they take

`advance` goes from one due timer to the next, in their order, and lets the hub and the agents exchange their messages
in between. So a living agent has sent its sign of life before the hub checks for it.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dragoman.core.ids import SECOND, Instant
from dragoman.sdk.runtime import SystemRuntime
from dragoman.testing.loop import Misused

if TYPE_CHECKING:
    from dragoman.testing.environment import Environment
    from dragoman.testing.loop import LoopThread


class Timer:
    """Fires once: when the time has passed on its loop, or when the test moved the clock."""

    def __init__(self, due: float, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        self.due = due
        self.loop = loop
        self.over = False
        self._call = call

    def fire(self) -> None:
        if not self.over:
            self.over = True
            self._call()


class VirtualRuntime(SystemRuntime):
    """`sdk.runtime.Runtime` for agents and clients on any loop; `instant` is the hub's clock."""

    def __init__(self) -> None:
        self._hub = Instant(int(time.time()) * SECOND)
        self._passed = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def instant(self) -> Instant:
        return self._hub

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._hub / SECOND, UTC)

    def monotonic(self) -> float:
        return time.monotonic() + self._passed

    def chance(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        timer, handle = self._set(seconds, lambda: None if woken.done() else woken.set_result(None))
        try:
            await woken
        finally:
            timer.over = True
            handle.cancel()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._set(seconds, call)

    def _set(self, seconds: float, call: Callable[[], None]) -> tuple[Timer, asyncio.TimerHandle]:
        loop = asyncio.get_running_loop()
        timer = Timer(self.monotonic() + seconds, loop, call)
        with self._lock:
            self._drop_fired()
            heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        return timer, loop.call_later(seconds, timer.fire)

    def _drop_fired(self) -> None:
        while self._timers and self._timers[0][2].over:
            heapq.heappop(self._timers)

    # --- for the scheduler, which moves it ---

    @property
    def next_due(self) -> float | None:
        """In how many seconds the next timer fires."""
        with self._lock:
            self._drop_fired()
            return max(0.0, self._timers[0][0] - self.monotonic()) if self._timers else None

    def move(self, micros: int) -> None:
        """Move the clock: timers that become due fire, each on its own loop. Called on the hub's loop."""
        self._hub = Instant(self._hub + micros)
        self._passed += micros / SECOND
        due = []
        with self._lock:
            while self._timers and self._timers[0][0] <= self.monotonic():
                due.append(heapq.heappop(self._timers)[2])
        here = asyncio.get_running_loop()
        for timer in due:
            if timer.loop is here:
                here.call_soon(timer.fire)
            elif not timer.loop.is_closed():
                timer.loop.call_soon_threadsafe(timer.fire)


class Clock:
    """The hub's clock, moved by the test."""

    def __init__(self, thread: LoopThread, environment: Environment) -> None:
        self._thread = thread
        self._environment = environment

    @property
    def now(self) -> datetime:
        return self._environment.runtime.now()

    def advance(self, seconds: float | timedelta) -> None:
        """Let so much time pass, at once: everything that becomes due on the way happens, in its order."""
        self._thread.do(self._environment.scheduler.advance(self.micros(seconds)))
        self._environment.raise_noted()

    async def sleep(self, seconds: float) -> None:
        """For handlers: wait until so much of this time has passed. (`asyncio.sleep` waits for real.)"""
        await self._environment.runtime.sleep(seconds)

    @staticmethod
    def micros(seconds: float | timedelta) -> int:
        span = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if not span >= 0:
            raise Misused(f"time only goes forward: advance by 0 seconds or more, not by {span:g}")
        return round(span * SECOND)
