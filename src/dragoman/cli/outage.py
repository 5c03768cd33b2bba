"""A hub that was there and is away, seen by a command that waits: it may only be restarted."""

from __future__ import annotations

import time

from dragoman.cli import printing
from dragoman.cli.deadline import NEVER, Deadline
from dragoman.cli.errors import CommandError, Exit

ABSENCE = 120.0
"""Seconds for which it may be away: time to restart it, agents that finish first included."""
PAUSE = 0.5


class Outage:
    """`over` when it answered; `wait` when it did not. `kept` says what is not lost meanwhile. One that was not `there`
    to begin with is not waited for."""

    def __init__(self, kept: str = "", *, there: bool = True, deadline: Deadline = NEVER) -> None:
        self._kept = f" ({kept})" if kept else ""
        self._there = there
        self._deadline = deadline
        self._since: float | None = None

    def over(self) -> None:
        self._since, self._there = None, True

    def wait(self, failure: CommandError) -> None:
        """Wait a moment; raises what it is given, if that is something else or has lasted too long."""
        if failure.code is not Exit.UNREACHABLE or not self._there:
            raise failure
        now = time.monotonic()
        if self._since is None:
            self._since = now
            printing.note(f"  the hub is away; waiting for it{self._kept}")
        if now - self._since > ABSENCE:
            raise failure
        self._deadline.pause(PAUSE)
