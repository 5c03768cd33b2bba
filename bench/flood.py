"""A child that floods its stdout, and what the others feel of it.

The others are 16 more children and 4 agents on WebSockets, who share 8 round trips in flight, as in bench/hub.py: few
enough that no child comes near the 100 messages a second that its protocol allows. Their p99 is measured quiet, then
while a child writes 1 GB without a newline, then while it writes lines as fast as it can (a million a second, if it
were let). The ratios are what counts. A flood that ended before the measurement did makes the figure void.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bench.cast import Office
from bench.figures import Figure, Settings
from bench.forge import COMMAND
from bench.hub import Bystanders, hub
from bench.load import measure as load

IN_FLIGHT = 8
OTHERS = 16
FLOODS = ("flood-bytes", "flood-lines")


def measure(settings: Settings) -> Iterable[Figure]:
    with hub(settings) as (proc, ready):
        office = Office(ready)
        cast = Bystanders.cast(proc, ready, 4, 4)
        office.children(OTHERS, COMMAND)

        def others(suite: str) -> Figure:
            return load(
                "bench.hub:ChiffonWs",
                {**cast, "size": settings.body},
                suite=suite,
                in_flight=IN_FLIGHT,
                settings=settings,
                server=proc,
            )

        quiet = others("flood-quiet")
        yield msgspec.structs.replace(quiet, in_flight=0, extra={**quiet.extra, "p99_ms": quiet.p99 / 1000})
        for what in FLOODS:
            (child,) = office.children(1, COMMAND, what)
            until_long_after = settings.repeats * (settings.seconds + settings.warmup + 2) + 30
            task = office.ask(
                "POST",
                "/api/v1/tasks",
                {"type": what, "agent": child, "input": {"seconds": until_long_after}},
            )["id"]
            office.await_running(task)
            figure = others(what)
            told = office.ask("GET", f"/api/v1/tasks/{task}")
            flooding = told["status"] in ("assigned", "running")
            extra = {"ratio": figure.p99 / quiet.p99, "p99_ms": figure.p99 / 1000, "p99_ms_quiet": quiet.p99 / 1000}
            extra["hub_busy"] = figure.extra["leader_cpu"] * figure.rate / 1e6
            yield msgspec.structs.replace(figure, in_flight=0, extra=extra, errors=figure.errors + (not flooding))
            office.ask("DELETE", f"/api/v1/agents/{child}")
