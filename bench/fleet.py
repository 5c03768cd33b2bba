"""A fleet: 100 coven agents stream text to their callers, half of these on SSE, half on a chiffon WebSocket.

`fleet-100` is 30 pieces a second from each: how long a piece is under way from agent to caller, what the hub's
processes use, that none is lost or doubled, and that readers who leave and come back with Last-Event-ID go on
without a gap. Then the rate is raised, a quarter at a time. `fleet-full` is the first rate at which the hub's process
fills a core; `fleet-capacity` the last one that was carried: pieces arrive as fast as they are made, and 99 of 100
within a second. They differ because a full hub puts more pieces together.

Durable, as everything: what a caller has seen is committed. Pieces are put together for storage, so an event may
hold several.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from bench import procs
from bench.cast import Office
from bench.figures import Figure, Settings, median_run
from bench.fleet_load import SETTLING
from bench.hub import hub

AGENTS = 100
RATE = 30.0
STEP = 1.25
FULL = 0.95
"""Of a core, used by the hub's process."""
LATE = 1e6
BEHIND = 0.95


def measure(settings: Settings) -> Iterable[Figure]:
    seconds = settings.seconds + 2 * SETTLING
    with hub(settings) as (proc, ready):
        office = Office(ready)
        fleet = office.coven(AGENTS, "streamer")
        token = office.callers(1)[0]
        cast = msgspec.json.encode({"grpc": ready["grpc"], "agents": fleet}).decode()
        with procs.python("bench.fleet_load", "agents", cast) as agents:
            agents.ready(60)

            def run(suite: str, rate: float) -> Figure:
                before = agents.usage().cpu
                order: dict[str, Any] = {
                    "url": ready["http"],
                    "admin_token": ready["admin_token"],
                    "caller_token": token,
                    "agents": [id for id, _ in fleet],
                    "suite": suite,
                    "rate": rate,
                    "seconds": seconds,
                    "group": proc.group,
                }
                with procs.python("bench.fleet_load", "callers", msgspec.json.encode(order).decode()) as callers:
                    figure = msgspec.convert(callers.ready(seconds + 60), Figure)
                busy = (agents.usage().cpu - before) / seconds
                return msgspec.structs.replace(figure, extra={**figure.extra, "agents_busy": busy})

            least = median_run([run(f"fleet-{AGENTS}", RATE) for _ in range(settings.repeats)])
            yield least
            tried = [least]
            for step in range(1, 3 if settings.quick else 15):
                if not carried(tried[-1]):
                    break
                try:
                    tried.append(run("", RATE * STEP**step))
                except RuntimeError as overrun:
                    print(f"  {overrun}", file=sys.stderr)
                    break
            held = [figure for figure in tried if carried(figure)]
            full = [figure for figure in held if figure.extra["hub_busy"] >= FULL]
            for suite, found in (("fleet-full", full[:1]), ("fleet-capacity", held[-1:])):
                yield from (msgspec.structs.replace(figure, suite=suite) for figure in found)


def carried(figure: Figure) -> bool:
    return figure.p99 <= LATE and figure.rate >= BEHIND * figure.extra["offered_a_second"] and not figure.errors
