"""How long a program that does nothing takes to start and end in each sandbox that stands on this machine.

sandbox-none, sandbox-landlock+seccomp, sandbox-bubblewrap    a process of its own
sandbox-wasm          a module in a process of its own, an interpreter's start included
sandbox-wasm-warm     a module in a fork of a host that runs already, as `supervisor.wasm_agent` runs one for each task

CPU time is that of the processes that we started and those they waited for: on a machine that others use too it says
more than the clock. Bubblewrap does not wait for what is inside: that half is missing.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figure, Settings
from dragoman.sandbox import wasm_host
from dragoman.sandbox.levels import NoSandbox, SandboxBackend
from dragoman.sandbox.model import Sandbox
from dragoman.sandbox.processes import Bubblewrap, Landlock
from dragoman.sandbox.wasm import Wasm

RUNS = 30
NOTHING = '(module (memory (export "memory") 1) (func (export "_start")))'
PROGRAM = "/bin/true"


def measure(settings: Settings) -> Iterable[Figure]:
    """Only levels that passed their self-test here."""
    runs = 15 if settings.quick else RUNS
    with tempfile.TemporaryDirectory(prefix="dragoman-bench-") as place:
        module = str(Path(place) / "nothing.wat")
        Path(module).write_text(NOTHING)
        cached = Wasm(cache=place)
        backends: tuple[SandboxBackend, ...] = (cached, Bubblewrap(), Landlock(), NoSandbox())
        for backend in backends:
            if not backend.self_test().passed:
                continue
            if backend is cached:
                command = (sys.executable, "-m", __name__, json.dumps(cached.plan(Sandbox())), module, str(runs))
                took = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=120).stdout)
                yield _figure("sandbox-wasm-warm", took, None)
                argv = cached.argv(Sandbox(), (module,))
            else:
                argv = backend.argv(Sandbox(), (PROGRAM,))
            before = _cpu()
            took = _timed(partial(_own_process, argv), runs)
            yield _figure(f"sandbox-{backend.level}", took, (_cpu() - before) * 1000 / (runs + 1))


def _figure(suite: str, took: list[float], cpu_ms: float | None) -> Figure:
    tenths = statistics.quantiles(took, n=10)
    extra = {"best_ms": round(min(took), 2), "p50_ms": round(tenths[4], 2), "p90_ms": round(tenths[8], 2)}
    if cpu_ms is not None:
        extra["cpu_ms"] = round(cpu_ms, 2)
    p50 = extra["p50_ms"]
    return Figure(suite=suite, in_flight=1, rate=1000 / p50, p50=p50 * 1000, operations=len(took), extra=extra)


def _timed(once: Callable[[], None], runs: int) -> list[float]:
    once()
    took = []
    for _ in range(runs):
        began = time.perf_counter()
        once()
        took.append((time.perf_counter() - began) * 1000)
    return took


def _own_process(argv: tuple[str, ...]) -> None:
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True, timeout=30)


def _fork(request: dict[str, Any], null: int, host: int) -> None:
    if (pid := os.fork()) == 0:
        wasm_host.become(request, [null, null, 2], host)
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the module did not run")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(plan: str, module: str, runs: str) -> None:
    import wasmtime  # noqa: F401  (before the first fork)

    wasm_host.engine(False)
    request = {"plan": json.loads(plan), "words": [module], "environ": {}}
    null = os.open(os.devnull, os.O_RDWR)
    print(json.dumps(_timed(partial(_fork, request, null, os.getpid()), int(runs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
