"""What a measurement is: one frozen value per (suite, in flight), and how they are kept together.

Every suite, in whichever process it ran, ends as a list of `Figure`. The targets read them, the table prints
them, the JSON keeps them. Nothing here measures anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

LEVELS = (1, 32, 256)
"""Operations in flight, at which everything is measured."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often; the same for every suite of a run, so that the ratios are fair."""

    seconds: float = 4.0
    warmup: float = 1.0
    repeats: int = 3
    levels: tuple[int, ...] = LEVELS
    body: int = 700
    """Bytes of a request's body: about what a chiffon work_request with small parameters weighs."""
    quick: bool = False
    data: str = ""
    """Where durable files go; a real disk, never tmpfs. Empty: below bench/results."""
    messages: int = 1_000_000
    lanes: int = 10_000
    """The backlog of the suite `lanes`."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured point. Times in microseconds; CPU is user + system, per completed operation."""

    suite: str
    in_flight: int = 0
    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    server_cpu: float = 0.0
    client_cpu: float = 0.0
    rss_mb: float = 0.0
    errors: int = 0
    operations: int = 0
    extra: dict[str, float] = {}
    """What only this suite has: `durable_steps`, `rows`, `fsync_p50`, `ms`, …"""


class Figures:
    """The figures of one run, found by suite and level. A missing one is None, never an error."""

    def __init__(self, figures: Iterable[Figure] = ()) -> None:
        self._points: dict[tuple[str, int], Figure] = {}
        for figure in figures:
            self.add(figure)

    def add(self, figure: Figure) -> None:
        self._points[figure.suite, figure.in_flight] = figure

    def get(self, suite: str, in_flight: int = 0) -> Figure | None:
        return self._points.get((suite, in_flight))

    def all(self) -> Sequence[Figure]:
        return tuple(self._points.values())


def percentile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of an already sorted sequence."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median_run(runs: Sequence[Figure]) -> Figure:
    """The run with the median rate, whole: its percentiles and its CPU belong together.

    The spread of the rates is kept, because on a noisy machine it says how far to trust the ratio.
    """
    ordered = sorted(runs, key=lambda run: run.rate)
    middle = ordered[len(ordered) // 2]
    extra = {**middle.extra, "rate_min": ordered[0].rate, "rate_max": ordered[-1].rate}
    return msgspec.structs.replace(middle, extra=extra, errors=sum(run.errors for run in runs))
