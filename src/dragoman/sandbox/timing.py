"""How long a start takes, per level: `python -m dragoman.sandbox.timing`.

From asking for it until a program that does nothing has ended inside. Beside it the same program without a sandbox, in
the same run.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from dragoman.sandbox.bubblewrap import Bubblewrap
from dragoman.sandbox.landlock import Landlock
from dragoman.sandbox.levels import NoSandbox, SandboxBackend, SandboxLevels
from dragoman.sandbox.model import Level, Sandbox
from dragoman.sandbox.wasm import Warm, Wasm

RUNS = 30
NOTHING = '(module (memory (export "memory") 1) (func (export "_start")))'
PROGRAM = "/bin/true"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    level: Level
    best_ms: float
    p50_ms: float
    p90_ms: float
    cpu_ms: float | None
    """A run, of processes that we started and those they waited for: on a machine that others use too it says more than
    the clock. Bubblewrap does not wait for what is inside: that half is missing."""
    runs: int


def measure(runs: int = RUNS) -> tuple[Start, ...]:
    """Only levels that passed their self-test here."""
    wasm = Wasm()
    backends: tuple[SandboxBackend, ...] = (wasm, Bubblewrap(), Landlock(), NoSandbox())
    standing = {report.level for report in SandboxLevels(backends).reports() if report.passed}
    found = []
    with tempfile.TemporaryDirectory(prefix="dragoman-timing-") as place:
        module = str(Path(place) / "nothing.wat")
        Path(module).write_text(NOTHING)
        cached = Wasm(cache=place)
        for backend in (each for each in backends if each.level in standing):
            if backend is wasm:
                with Warm(cached) as warm:
                    found.append(_timed("wasm, warm host", Level.WASM, partial(_warm, warm, module), runs))
                argv = cached.argv(Sandbox(), (module,))
            else:
                argv = backend.argv(Sandbox(), (PROGRAM,))
            found.append(_timed(f"{backend.level}, own process", backend.level, partial(_own, argv), runs))
    return tuple(found)


def _warm(warm: Warm, module: str) -> None:
    outcome = warm.run(Sandbox(), (module,))
    if outcome.code != 0:
        raise RuntimeError(f"the module did not run: {outcome}")


def _own(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=30)


def _timed(what: str, level: Level, once: Callable[[], None], runs: int) -> Start:
    once()
    took, before = [], _cpu()
    for _ in range(runs):
        began = time.perf_counter()
        once()
        took.append((time.perf_counter() - began) * 1000)
    tenths = statistics.quantiles(took, n=10)
    return Start(
        what=what,
        level=level,
        best_ms=round(min(took), 2),
        p50_ms=round(tenths[4], 2),
        p90_ms=round(tenths[8], 2),
        cpu_ms=round((_cpu() - before) * 1000 / runs, 2) or None,
        runs=runs,
    )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    for start in measure():
        sys.stdout.write(msgspec.json.encode(start).decode() + "\n")
