"""The dashboard's figures: what a page costs its reader, and what pages cost the hub.

`page-list` asks the task list over HTTP, one request after the other: each filter, pairs, three together, words, and
deep pages. `page-streams-N` is tasks at a given rate with N dashboards open and with none, in turns. `page-hub` is the
hub beside its older self, in turns. The rest is seen by a real Chromium (`page_browser`). Stores are kept in
bench/results, since a large one takes minutes to fill.

    PAGE=list,browser   only these parts: size, list, streams, before, browser
    BEFORE=DIR          a checkout of an older commit that was set up; without it, that part is left out
    RATE=1000           tasks a second beside the dashboards
    MINUTES=10          how long the heap is watched
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import itertools
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec

from bench import procs
from bench.figures import Figure, Settings, percentile
from bench.hub import Bystanders, hub, round_trips
from bench.load import measure as load
from bench.stored_tasks import RARE, store_tasks

LISTED, OPENED = 1_000_000, 100_000
DASHBOARDS = 200
ASSETS = procs.ROOT / "src/dragoman/api/dashboard"

FILTERS: dict[str, tuple[dict[str, str], ...]] = {
    "status": ({"status": "completed"}, {"status": "failed"}, {"status": "failed,cancelled"}),
    "type": ({"type": "build"}, {"type": "lint"}, {"type": "migrate"}),
    "agent": ({"agent": "ops-chiffon"}, {"agent": "web-coven"}),
    "principal": ({"principal": "a2acp-caller-1"},),
    "protocol": ({"protocol": "coven"}, {"protocol": "forge"}),
    "since": ({"since": "12h"},),
}
WORDS = (RARE, "kuma", "kuma gateway", "registry refused", "tests failed payment", "bui", "release 77", "q")
DEEP = 40
"""Pages that are turned to reach a deep cursor."""


def measure(settings: Settings) -> Iterable[Figure]:
    parts = set(filter(None, os.environ.get("PAGE", "").split(","))) or {"size", "list", "streams", "before", "browser"}
    if "size" in parts:
        yield bundle()
    if "list" in parts:
        yield from lists(settings)
    if "streams" in parts:
        yield from streams(settings)
    if "before" in parts and os.environ.get("BEFORE"):
        yield from before(settings, Path(os.environ["BEFORE"]))
    if "browser" in parts:
        if shutil.which("chromium") is None:
            print("  the figures of the browser are left out: apt-get install chromium", file=sys.stderr)
            return
        from bench import page_browser

        yield from page_browser.measure(settings)


# -- the page's size ---------------------------------------------------------------------------------------------------


def bundle() -> Figure:
    """All that is loaded before a page shows: the document, and what it names."""
    index = (ASSETS / "index.html").read_text()
    named = [ASSETS / name.lstrip("/") for name in re.findall(r'(?:src|href)="(/assets/[^"]+)"', index)]
    sizes = [len(gzip.compress(path.read_bytes(), 9)) for path in (ASSETS / "index.html", *named)]
    return Figure(suite="page-bundle", extra={"kb": sum(sizes) / 1000, "files": float(len(sizes))})


# -- the list of tasks -------------------------------------------------------------------------------------------------


@contextmanager
def stored(settings: Settings, tasks: int) -> Iterator[tuple[procs.Proc, dict[str, Any]]]:
    """A hub with so many tasks in its store, when it has read what it has."""
    data = procs.ROOT / "bench" / "results" / f"page-{tasks}"
    if not (data / "hub.sqlite").exists():
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="filling-", dir=data.parent) as place:
            asyncio.run(store_tasks(Path(place, "hub.sqlite"), tasks))
            Path(place, "hub.sqlite").rename(data / "hub.sqlite")
        print(f"  filled with {tasks:,} tasks in {time.monotonic() - begun:.0f} s", file=sys.stderr)
    with hub(settings, data=str(data)) as (proc, ready):
        proc.settle()
        yield proc, ready


class Reader:
    """One person's requests, over one connection."""

    def __init__(self, ready: dict[str, Any]) -> None:
        place = urlsplit(ready["http"])
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._headers = {"authorization": f"Bearer {ready['admin_token']}"}

    def get(self, path: str) -> Any:
        self._connection.request("GET", f"/api/v1{path}", headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:300]!r}")
        return msgspec.json.decode(body)

    def close(self) -> None:
        self._connection.close()


def combined(count: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for names in itertools.combinations(FILTERS, count):
        picks = itertools.product(*(FILTERS[name] for name in names))
        found += [{name: value for one in picked for name, value in one.items()} for picked in picks]
    return found


def lists(settings: Settings) -> Iterable[Figure]:
    turns = 3 if settings.quick else 10
    with stored(settings, 20_000 if settings.quick else LISTED) as (proc, ready):
        reader = Reader(ready)
        for count, name in enumerate(("all", "one", "two", "three")):
            queries = combined(count)
            queries *= max(1, 3 * turns // len(queries))
            yield asked(proc, reader, f"page-list-{name}", queries)
        deep = []
        for query in (*combined(0), *combined(1), {"status": "failed", "type": "build", "protocol": "coven"}):
            cursor = None
            for _ in range(DEEP):
                page = reader.get(
                    f"/tasks?{urlencode({**query, 'limit': 500} | ({'cursor': cursor} if cursor else {}))}"
                )
                if (on := page["next"]) is None:
                    break
                cursor = on
            deep.append({**query, **({"cursor": cursor} if cursor else {})})
        yield asked(proc, reader, "page-list-deep", deep * turns)
        begun = time.monotonic()
        while reader.get("/tasks?q=kuma")["searched"] is not None:  # the index of words is made by the first search
            time.sleep(0.5)
        print(f"  all words were found after {time.monotonic() - begun:.0f} s", file=sys.stderr)
        words = [{"q": text} for text in WORDS] + [{"q": text, "status": "failed"} for text in WORDS]
        words += [{"q": text, "type": "build", "protocol": "coven"} for text in WORDS]
        yield asked(proc, reader, "page-list-words", words * turns)
        reader.close()


def asked(proc: procs.Proc, reader: Reader, suite: str, queries: list[dict[str, str]]) -> Figure:
    for query in queries[:5]:
        reader.get(f"/tasks?{urlencode({**query, 'limit': 100})}")
    times, slowest, short = [], (0.0, {}), 0
    before, begun = proc.usage().cpu, time.perf_counter()
    for query in queries:
        at = time.perf_counter()
        page = reader.get(f"/tasks?{urlencode({**query, 'limit': 100})}")
        times.append(time.perf_counter() - at)
        slowest = max(slowest, (times[-1], query), key=lambda one: one[0])
        short += page["next"] is not None and len(page["tasks"]) < 100
    seconds, cpu = time.perf_counter() - begun, proc.usage().cpu - before
    print(f"  {suite}: slowest {1000 * slowest[0]:.0f} ms {slowest[1]}", file=sys.stderr)
    ordered = sorted(times)
    return Figure(
        suite=suite,
        in_flight=1,
        rate=len(times) / seconds,
        p50=1e6 * percentile(ordered, 0.5),
        p99=1e6 * percentile(ordered, 0.99),
        server_cpu=1e6 * cpu / len(times),
        operations=len(times),
        extra={"short": short / len(times)},
    )


# -- open dashboards ---------------------------------------------------------------------------------------------------


@contextmanager
def watching(ready: dict[str, Any], count: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.page_load", ready["http"], ready["admin_token"], str(count)]
    with subprocess.Popen(command, cwd=procs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        if not child.stdout.readline():
            raise RuntimeError("the dashboards could not be opened")
        yield child


def paced(settings: Settings, proc: procs.Proc, ready: dict[str, Any], rate: float, suite: str) -> Figure:
    """Tasks at this rate, for the seconds of a point, once."""
    once = msgspec.structs.replace(settings, repeats=1)
    options = {**Bystanders.cast(proc, ready, 4, 4), "size": settings.body, "rate": rate}
    return load("bench.page_load:PacedWs", options, suite=suite, in_flight=64, settings=once, server=proc)


def streams(settings: Settings, rate: float = float(os.environ.get("RATE", "1000"))) -> Iterable[Figure]:
    """The same rate with and without the dashboards, in turns: what the hub's CPU for a task becomes."""
    ratios, figures, digests = [], [], 0.0
    with hub(settings) as (proc, ready):
        paced(settings, proc, ready, rate, "page-streams-0")
        for _ in range(max(2, settings.repeats)):
            alone = paced(settings, proc, ready, rate, "page-streams-0")
            with watching(ready, DASHBOARDS) as child:
                watched = paced(settings, proc, ready, rate, f"page-streams-{DASHBOARDS}")
                said, _ = child.communicate()
            told = msgspec.json.decode(said)
            digests = told["digests"] / DASHBOARDS
            ratios.append(watched.server_cpu / alone.server_cpu)
            figures += [alone, msgspec.structs.replace(watched, errors=watched.errors + told["broken"])]
            print(
                f"  {rate:.0f}/s: {alone.rate:.0f} and {watched.rate:.0f} tasks/s, CPU × {ratios[-1]:.3f}, "
                f"{told['bytes'] / max(1, told['digests']) / 1000:.1f} kB a digest",
                file=sys.stderr,
            )
    extra = {"ratio": statistics.median(ratios), "digests": digests}
    yield figures[-2]
    yield msgspec.structs.replace(figures[-1], extra={**figures[-1].extra, **extra})


# -- the hub without a page, beside its older self ---------------------------------------------------------------------


def before(settings: Settings, checkout: Path) -> Iterable[Figure]:
    """CPU of a round trip, in short turns: many count more than long ones."""
    once = msgspec.structs.replace(settings, repeats=1)
    command = str(checkout / ".venv/bin/dragoman")
    ratios: dict[str, list[float]] = {"leader_cpu": [], "all": []}
    last: list[Figure] = []
    with hub(settings) as (new, ready), hub(settings, command=command) as (old, old_ready):
        for turn in range(2 * max(3, settings.repeats)):
            sides = [("page-hub", new, ready), ("page-hub-before", old, old_ready)]
            found = {
                suite: round_trips(once, "ws", 32, proc, at, suite)
                for suite, proc, at in (sides if turn % 2 else sides[::-1])
            }
            last = [found["page-hub"], found["page-hub-before"]]
            ratios["all"].append(last[1].server_cpu / last[0].server_cpu)
            ratios["leader_cpu"].append(last[1].extra["leader_cpu"] / last[0].extra["leader_cpu"])
            print(f"  before ÷ now: {ratios['all'][-1]:.3f}, hub alone {ratios['leader_cpu'][-1]:.3f}", file=sys.stderr)
    extra = {"speed": statistics.median(ratios["all"]), "leader_speed": statistics.median(ratios["leader_cpu"])}
    yield msgspec.structs.replace(last[0], extra={**last[0].extra, **extra})
    yield last[1]
