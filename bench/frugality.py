"""What the hub needs: time to start, memory, fsyncs, and a commit when its event loop has no moment to spare."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import procs
from bench.figures import Figure, Settings
from bench.hub import Bystanders, hub, round_trips
from bench.load import ws_connect

AGENTS = 2000

STEPS = 3.0
"""Durable steps of a task: the request, its result, the acknowledgment of that."""


def measure(settings: Settings) -> Iterable[Figure]:
    with hub(settings) as (proc, ready):
        time.sleep(1)  # until it has settled
        idle = proc.usage().rss / 1e6
        yield Figure(suite="hub-idle", extra={"rss_mb": idle, "start_ms": ready["start_ms"]})
        yield Figure(suite="hub-task-ls", extra={"ms": command_ms(ready)})
        count = AGENTS // 10 if settings.quick else AGENTS
        added = asyncio.run(idle_agents(proc, ready, count)) * AGENTS / count
        yield Figure(suite=f"hub-agents-{AGENTS}", extra={"added_mb": added})
    for transport in ("ws", "http"):
        yield from lonely_fsyncs(settings, transport)
    with hub(settings) as (proc, ready):
        before = commits(ready)
        figure = round_trips(settings, "ws", 256, proc, ready, "hub-saturated")
        p99 = quantile(before, commits(ready), 0.99)
        yield Figure(
            suite="hub-saturated",
            rate=figure.rate,
            extra={"commit_p99_ms": p99 * 1000, "loop_busy": figure.extra["server_busy"]},
        )


def lonely_fsyncs(settings: Settings, transport: str) -> Iterable[Figure]:
    """How often the hub asks the disk for one task after the other, with nothing else to do: counted, not timed."""
    if shutil.which("strace") is None:
        print("  fsyncs are not counted: there is no strace here (apt-get install strace)")
        return
    with hub(settings) as (proc, ready), tempfile.NamedTemporaryFile("r") as seen:
        with traced(proc.group, "fsync,fdatasync", Path(seen.name)):
            before = commands(ready, "Finish")
            round_trips(settings, transport, 1, proc, ready, f"hub-lonely-{transport}")
            tasks = commands(ready, "Finish") - before
        fsyncs = len(re.findall(r"\bf(?:data)?sync\(", seen.read()))
    yield Figure(suite=f"hub-lonely-{transport}", extra={"tasks": tasks, "fsyncs_a_step": fsyncs / (STEPS * tasks)})


@contextmanager
def traced(group: int, calls: str, into: Path) -> Iterator[None]:
    """Note these system calls of a group of processes."""
    pids = [str(one) for one in procs.group_usage(group)]
    command = ["strace", "-f", "-qq", "-e", f"trace={calls}", "-o", str(into), *(f"--attach={one}" for one in pids)]
    tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not all("TracerPid:\t0" not in Path(f"/proc/{one}/status").read_text() for one in pids):
            if tracer.poll() is not None:
                raise RuntimeError("strace may not look at the hub; run as its user, or as root")
            time.sleep(0.01)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)


def commands(ready: dict[str, str], name: str) -> float:
    """How many of these the hub has accepted."""
    with urllib.request.urlopen(ready["http"] + "/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r"^dragoman_commands_total\{([^}]*)\} ([0-9.e+]+)", text, re.MULTILINE)
    return sum(float(count) for labels, count in found if f'"{name}"' in labels and '"ok"' in labels)


def command_ms(ready: dict[str, str]) -> float:
    """The whole command as a shell sees it, median of nine."""
    command = [str(procs.ROOT / ".venv/bin/dragoman"), "task", "ls", "--data", ready["data"]]
    times = []
    for _ in range(9):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


async def idle_agents(proc: procs.Proc, ready: dict[str, str], count: int) -> float:
    """Megabytes that `count` connected agents with nothing to do cost."""
    tokens = Bystanders.cast(proc, ready, 0, count)["agents"]
    before = proc.usage().rss
    url = ready["http"].replace("http://", "ws://", 1) + "/api/agent/ws"
    lost: list[str] = []
    links = [
        await ws_connect(url, lambda frame: None, lost.append, {"authorization": f"Bearer {token}"}) for token in tokens
    ]
    await asyncio.sleep(1)
    added = (proc.usage().rss - before) / 1e6
    if lost:
        raise RuntimeError(f"{len(lost)} idle agents were dropped, first: {lost[0]}")
    for link in links:
        link.close()
    return added


def commits(ready: dict[str, str]) -> dict[float, float]:
    """The hub's own histogram of commit times: upper bound in seconds → how many."""
    with urllib.request.urlopen(ready["http"] + "/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'dragoman_commit_seconds_bucket\{le="([^"]+)"\} ([0-9.]+)', text)
    return {float(bound): float(count) for bound, count in found}


def quantile(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """The upper bound of the bucket in which the quantile lies: never flattering."""
    counts = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = counts[max(counts)]
    return next(bound for bound, count in counts.items() if count >= share * total)
