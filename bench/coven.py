"""Coven: the bare echo, the peer, and ours, in one run.

One operation of ours is a whole durable task, as in bench/hub.py, done by an agent that speaks coven: the caller's
work_request is committed, a SendMessage goes down the agent's stream, its `done` is committed, the caller has the
result and acknowledges it. The caller is a chiffon WebSocket: in a trial beside it, callers over coven's own client
rpc had two fifths of its rate at 32 in flight. Agents have a stream and a connection each, registered with their
token. An agent does one thing at a time (coven-D5): over 1 stream everything waits for one agent, whatever is in
flight.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bench import peer_autogen, raw_grpc
from bench.cast import Office
from bench.figures import Figure, Settings, median_run
from bench.hub import SIDES, hub
from bench.load import measure as load


def measure(settings: Settings) -> Iterable[Figure]:
    yield from raw_grpc.measure(settings)
    yield from peer_autogen.measure(settings)
    yield from ours(settings)


def ours(settings: Settings) -> Iterable[Figure]:
    once = msgspec.structs.replace(settings, repeats=1)
    for streams in raw_grpc.STREAMS:
        for in_flight in settings.levels:
            # A fresh hub for every run: what the last one left unfinished would stand before the next one's work.
            yield median_run([point(once, streams, in_flight) for _ in range(settings.repeats)])


def point(settings: Settings, streams: int, in_flight: int) -> Figure:
    with hub(settings) as (proc, ready):
        office = Office(ready)
        return load(
            "bench.coven_load:CovenTasks",
            {
                "url": ready["http"],
                "grpc": ready["grpc"],
                "clients": office.callers(SIDES.get(in_flight, 4)),
                "agents": office.coven(streams),
                "size": settings.body,
            },
            suite=f"hub-coven-{streams}",
            in_flight=in_flight,
            settings=settings,
            server=proc,
        )
