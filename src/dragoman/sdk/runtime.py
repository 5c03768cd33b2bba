"""Clock, timers, ids and randomness of an agent or a client: one port, so that tests bring their own.

Durations use `monotonic`, which no jump of the clock changes; only times on the wire and in long-lived memory use the
wall clock.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol


class Runtime(Protocol):
    """Everything the SDK asks of its surroundings besides the network and the disk."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call this on the event loop when the time has passed."""
        ...

    def mint(self) -> str:
        """A fresh UUID."""
        ...

    def chance(self) -> float:
        """A number in [0, 1): the jitter of delays."""
        ...


class SystemRuntime:
    """The system's clock and randomness."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(seconds, call)

    def mint(self) -> str:
        # A version 4 UUID at a fifth of uuid.uuid4's cost; the generator is seeded in every process.
        bits = f"{random.getrandbits(124):031x}"
        return f"{bits[:8]}-{bits[8:12]}-4{bits[12:15]}-{'89ab'[int(bits[30], 16) & 3]}{bits[15:18]}-{bits[18:30]}"

    def chance(self) -> float:
        return random.random()


FIRST_DELAY = 0.1
LONGEST_DELAY = 15.0


def backoff(failures: int, chance: float) -> float:
    """Seconds before the next try after `failures` in a row: doubling, capped, and jittered by up to a half.

    The first few come fast: the hub waits some seconds after a broken link before it gives the work to another agent.
    """
    full = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures, 16))
    return full * (0.5 + 0.5 * chance)
