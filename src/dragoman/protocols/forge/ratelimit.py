"""How fast an agent may send: a token bucket, as a pure value (D9).

A bucket holds up to `burst` tokens and fills at `rate` a second; each message takes one. Time is given, in seconds of
a clock that never jumps. The hub keeps one for each principal, not for each link: reconnecting fills nothing.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

RATE = 100.0
BURST = 200.0


class Bucket(Struct, frozen=True, kw_only=True):
    """Immutable: `take` gives the bucket as it is afterwards."""

    tokens: float = BURST
    at: float = 0.0
    rate: float = RATE
    burst: float = BURST

    def take(self, now: float, wanted: int = 1) -> tuple[Bucket, int]:
        """The bucket afterwards, and how many of the wanted messages may pass: the first ones."""
        full = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        granted = min(wanted, int(full))
        return replace(self, tokens=full - granted, at=max(now, self.at)), granted

    def wait(self, now: float) -> float:
        """Seconds until the next message may pass."""
        tokens = min(self.burst, self.tokens + max(0.0, now - self.at) * self.rate)
        return max(0.0, (1 - tokens) / self.rate)
