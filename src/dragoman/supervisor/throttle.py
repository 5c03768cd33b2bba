"""How much of a child's output is taken: pure arithmetic over buckets that fill with time.

Two limits, for two reasons:

    what is *kept*   100 messages a second with a burst of 200 (forge-D9); 200 log lines with a burst of 2000. Beyond,
                     lines are counted, and one line says how many.
    what is *read*   so much that a child can cost a few hundredths of a core, whatever it prints. Beyond, its pipe
                     is not read for a moment: the pipe fills, and the child waits, not the hub.

    reading            costs
    -----------------  ------
    a line             1
    a message          25         it is parsed, and perhaps answered
    1 KiB              3
"""

from __future__ import annotations

LINE, MESSAGE, KIB = 1.0, 25.0, 3.0

READ_RATE, READ_BURST = 20_000.0, 20_000.0
LOG_RATE, LOG_BURST = 200.0, 2000.0
LONGEST_REST = 0.25
"""Seconds for which a pipe is left alone at most: whoever drowned us is heard again soon."""


class TokenBucket:
    """Tokens that come at a steady rate, up to a burst. Time is a value: seconds on any one clock."""

    __slots__ = ("_burst", "_rate", "_since", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._since = burst, now

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._since) * self._rate)
        self._since = now

    def take(self, now: float) -> bool:
        """One token, if there is one."""
        self._fill(now)
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def spend(self, cost: float, now: float) -> float:
        """Take this much, into debt if need be; how many seconds to rest until the debt is paid."""
        self._fill(now)
        self._tokens = max(self._tokens - cost, -LONGEST_REST * self._rate)
        return 0.0 if self._tokens >= 0 else -self._tokens / self._rate
