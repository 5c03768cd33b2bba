"""What sees each commit: the counters for Prometheus, the figures of the plots, the pages that watch."""

from __future__ import annotations

from dragoman.api.live import Live
from dragoman.api.series import Series
from dragoman.app.intake import Observer
from dragoman.app.metrics import Counters
from dragoman.core.ports import Changes


class Observers(Observer):
    def __init__(self, counters: Counters, series: Series, live: Live) -> None:
        self._counters = counters
        self._series = series
        self._live = live
        # The counters alone see the rest; bound here, so that a decision costs no call more.
        self.decided = counters.decided  # type: ignore[method-assign]
        self.failed = counters.failed  # type: ignore[method-assign]
        self.sent = counters.sent  # type: ignore[method-assign]

    def committed(self, changes: Changes, commands: int, seconds: float) -> None:
        self._counters.committed(changes, commands, seconds)
        self._series.committed(changes)
        self._live.committed(changes)
