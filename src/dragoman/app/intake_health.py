"""Whether the intake keeps up: how long its unit of work takes, how long commands wait, and why a commit failed. The
readiness of the hub and its metrics read it; nothing decides by it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dragoman.core.ids import SECOND, Instant

FAILURE_SHOWN = SECOND
"""How long at least a commit that failed counts against the hub's readiness."""


class IntakeHealth:
    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._failure: tuple[str, Instant] | None = None
        self._committed_since = False
        self._began: Instant | None = None
        """When the unit under way began."""
        self._taken = 0
        self._marks: deque[tuple[int, Instant]] = deque()
        """How many commands had come in all when a unit began, for units behind which commands wait."""

    # -- what the intake reports ------------------------------------------------------------------------------------

    def unit_begins(self, taken: int, *, waiting: int) -> None:
        """A unit begins with so many commands: remember when, for those that wait for the next."""
        self._began = self._now()
        self._taken += taken
        marks = self._marks
        while marks and marks[0][0] <= self._taken:
            marks.popleft()
        if waiting:
            marks.append((self._taken + waiting, self._began))

    def unit_ends(self) -> None:
        self._began = None

    def committed(self) -> None:
        self._committed_since = True

    def failed(self, why: str) -> None:
        self._failure, self._committed_since = (why, self._now()), False

    # -- what readiness and metrics read ----------------------------------------------------------------------------

    @property
    def last_failure(self) -> str | None:
        """Why the last commit failed, also for a moment after one that succeeded: where there is room for small units
        only, they must not hide that larger ones fail."""
        if self._failure is None:
            return None
        why, at = self._failure
        return None if self._committed_since and self._now() - at >= FAILURE_SHOWN else why

    @property
    def stalled(self) -> tuple[int, int]:
        """For how long the unit under way has been, and the oldest command that waits has waited: in microseconds, 0 if
        there is none. The second is known to the length of a unit, which spares every command a look at the clock."""
        now = self._now()
        unit = 0 if self._began is None else max(0, now - self._began)
        waits = max(0, now - self._marks[0][1]) if self._marks else 0
        return unit, waits

    def why_stalled(self, seconds: float, depth: int) -> str | None:
        """Why the store does not keep up, where a step has taken longer than this. `depth`: how many commands wait."""
        unit, waits = (age / SECOND for age in self.stalled)
        if unit > seconds:
            return f"a commit has been under way for {unit:.0f} s: the disk does not answer, or the writer is stopped"
        if waits > seconds:
            return f"the oldest of {depth} commands has waited for {waits:.0f} s: the disk is too slow for this"
        return None
