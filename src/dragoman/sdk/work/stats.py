"""How an agent is: what it counts of its own work, for its status reports. Pure but for the process's own figures."""

from __future__ import annotations

import os
import resource
import sys
import time
from datetime import datetime
from typing import Any

from dragoman.sdk.runtime import Runtime

SMOOTHING = 0.2
"""How much the newest piece of work counts in the average time."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class WorkStats:
    """Counts since the agent began to serve."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since = runtime.monotonic()
        self._last_look = (time.perf_counter(), time.process_time())
        self.done = 0
        self.failed = 0
        self.average_ms = 0.0
        self.last_error: datetime | None = None
        self.beaten_at = runtime.now()
        self.said: dict[str, Any] = {}
        """What the agent itself said of its state and usage: it holds until it says otherwise."""
        self.used = {"tokens_used": 0.0, "cost_usd": 0.0}

    def ended(self, seconds: float, *, failed: bool, usage: dict[str, float] | None = None) -> None:
        """A piece of work came to its end."""
        self.done += not failed
        self.failed += failed
        if failed:
            self.last_error = self._runtime.now()
        first = self.done + self.failed == 1
        self.average_ms += (seconds * 1000 - self.average_ms) * (1 if first else SMOOTHING)
        for name, amount in (usage or {}).items():
            self.used[name] = self.used.get(name, 0.0) + amount

    @property
    def error_rate(self) -> float:
        return self.failed / max(1, self.done + self.failed)

    @property
    def uptime(self) -> float:
        return self._runtime.monotonic() - self._since

    def cpu_percent(self) -> float:
        """Of one processor, since the last look."""
        now = (time.perf_counter(), time.process_time())
        (wall, cpu), self._last_look = self._last_look, now
        return round(min(100.0, 100 * (now[1] - cpu) / max(now[0] - wall, 1e-3)), 1)

    def memory_percent(self) -> float:
        """Of what the machine has, at most so far."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return round(min(100.0, 100 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / total), 1)
