"""Forge: bare pipes, the peer, and ours, in one run; and a crowd of children.

One operation of ours is a whole durable task, as in bench/hub.py, done by a child process of the hub that speaks
JSON lines over its pipes: the caller's work_request is committed, notify:task-assigned goes down the child's stdin,
its request:update-task comes up its stdout and is committed and answered, the caller has the result and acknowledges
it. The caller is a chiffon WebSocket, the fastest door for one. The child is a plain program (bench/forge_child.py).

The protocol allows an agent 100 messages a second, and a finished task is one: over 1 child that is the limit.

`hub-children-200` is responsiveness: 200 children, work for all of them, and beside it, one at a time, GET /livez
and a task between two other agents.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import msgspec

from bench import peer_acp, procs, raw_pipe
from bench.cast import Office
from bench.figures import Figure, Settings, median_run
from bench.hub import Bystanders, ChiffonWs, hub
from bench.load import HttpConnection, Meter, http_connect
from bench.load import measure as load

CHILDREN = {1: (1, 32), 32: (1, 32)}
"""How many child processes, by operations in flight."""
CROWD = 200
CROWD_IN_FLIGHT = 32
COMMAND = [sys.executable, "-I", "-S", str(procs.ROOT / "bench" / "forge_child.py")]


class ForgeTasks(ChiffonWs):
    """Callers as in `hub-ws`; the agents are the hub's own children, so there is nobody else to connect."""

    def __init__(self, url: str, clients: list[str], size: int) -> None:
        super().__init__(url, clients, [], size)


class Livez:
    """GET /livez, one after the other."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._meter = meter
        self._line: HttpConnection = await http_connect(self._url, meter.lose)

    def begin(self, slot: int) -> None:
        def hear(status: int, body: bytes) -> None:
            if status == 200:
                self._meter.finish(slot)
            else:
                self._meter.fail(slot, f"{status} {body[:100]!r}")

        self._line.request(b"GET /livez HTTP/1.1\r\nhost: hub\r\n\r\n", hear)

    def close(self) -> None:
        self._line.close()


def measure(settings: Settings) -> Iterable[Figure]:
    yield from raw_pipe.measure(settings)
    yield from peer_acp.measure(settings)
    yield from ours(settings)
    yield from crowd(settings)


def ours(settings: Settings) -> Iterable[Figure]:
    once = msgspec.structs.replace(settings, repeats=1)
    for in_flight, counts in CHILDREN.items():
        for children in counts:
            # A fresh hub for every run: what the last one left unfinished would stand before the next one's work.
            yield median_run([point(once, children, in_flight) for _ in range(settings.repeats)])


def point(settings: Settings, children: int, in_flight: int) -> Figure:
    with hub(settings) as (proc, ready):
        office = Office(ready)
        office.children(children, COMMAND)
        return load(
            "bench.forge:ForgeTasks",
            {"url": ready["http"], "clients": office.callers(4), "size": settings.body},
            suite=f"hub-forge-{children}",
            in_flight=in_flight,
            settings=settings,
            server=proc,
        )


def crowd(settings: Settings) -> Iterable[Figure]:
    """All of them at once. The load runs beside the pings, for a little longer than they do."""
    once = msgspec.structs.replace(settings, repeats=1)
    with hub(settings) as (proc, ready):
        office = Office(ready)
        office.children(CROWD, COMMAND)
        memory = proc.usage().rss / 1e6
        pings = cast_pings(proc, ready)
        quiet = {name: ping(once) for name, ping in pings.items()}
        options = {"url": ready["http"], "clients": office.callers(4), "size": settings.body}
        longer = msgspec.structs.replace(once, seconds=2 * (settings.seconds + settings.warmup) + 1)
        beside = Beside(
            lambda: load(
                "bench.forge:ForgeTasks",
                options,
                suite=f"hub-children-{CROWD}",
                in_flight=CROWD_IN_FLIGHT,
                settings=longer,
                server=proc,
            )
        )
        loud = {name: ping(once) for name, ping in pings.items()}
        figure = beside.result()
    extra = {"hub_rss_mb": memory, "hub_busy": figure.extra["server_busy"]}
    for name in pings:
        extra[f"{name}_p99_ms_quiet"] = quiet[name].p99 / 1000
        extra[f"{name}_p99_ms_under_load"] = loud[name].p99 / 1000
    yield msgspec.structs.replace(figure, extra=extra)


def cast_pings(proc: procs.Proc, ready: dict[str, Any]) -> dict[str, Any]:
    """Ways to ask the hub for a sign of life, each a function of the settings."""
    cast = Bystanders.cast(proc, ready, 1, 1, kind="pong")

    def livez(settings: Settings) -> Figure:
        return load("bench.forge:Livez", {"url": ready["http"]}, suite="livez", in_flight=1, settings=settings)

    def task(settings: Settings) -> Figure:
        options = {**cast, "size": settings.body, "kind": "pong"}
        return load("bench.hub:ChiffonWs", options, suite="task", in_flight=1, settings=settings)

    return {"livez": livez, "task": task}


class Beside:
    """Something that is measured while other things are measured, too."""

    def __init__(self, measured: Any) -> None:
        self._found: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._found.append(measured()), daemon=True)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(120)
        if not self._found:
            raise RuntimeError("what ran beside the measurement failed")
        return self._found[0]
