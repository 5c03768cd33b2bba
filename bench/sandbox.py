"""How long a program that does nothing takes to start and end in each sandbox that stands on this machine.

sandbox-none, sandbox-landlock+seccomp, sandbox-bubblewrap    a process of its own
sandbox-wasm          a module in a process of its own, an interpreter's start included
sandbox-wasm-warm     a module in a host that runs already
"""

from __future__ import annotations

from collections.abc import Iterable

from bench.figures import Figure, Settings
from dragoman.sandbox import timing


def measure(settings: Settings) -> Iterable[Figure]:
    for start in timing.measure(15 if settings.quick else timing.RUNS):
        warm = "-warm" if "warm" in start.what else ""
        extra = {"best_ms": start.best_ms, "p50_ms": start.p50_ms, "p90_ms": start.p90_ms}
        if start.cpu_ms is not None:
            extra["cpu_ms"] = start.cpu_ms
        yield Figure(
            suite=f"sandbox-{start.level}{warm}",
            in_flight=1,
            rate=1000 / start.p50_ms,
            p50=start.p50_ms * 1000,
            operations=start.runs,
            extra=extra,
        )
