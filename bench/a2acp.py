"""Ours: requests between a2acp agents over WebSockets, under contracts, through a hub in a process of its own.

    hub-a2acp             a request and its response: both verified (token, replay, rates), both payloads validated
    hub-a2acp-unchecked   the same hub, agents and bytes with exactly these checks taken out (bench/unchecked.py)
    hub-a2acp-N           the same as the first, with N contracts in the store, any of which may be next
    hub-a2acp-handshake   initiate_handshake until the source has its contract: proposed, accepted, stored, told
    hub-a2acp-token       POST /auth/token

What the checks cost is the difference of the first two, which are timed in turns. Beside another protocol's route it
would be mixed with what that protocol's words cost; so the one hub is started twice, once without them, and everything
else is the same: codec, contract, routing, rows and commits (but for the row that remembers a message's id, which
belongs to the replay check).

Limits are so high that nobody meets them; they are counted all the same.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench import procs
from bench.a2acp_load import BROKER, GRANT, INTENT, Handshakes, Pair, Requests
from bench.cast import Office
from bench.figures import Figure, Settings, median_run
from bench.hub import SIDES, hub, uuid4
from bench.load import Meter
from bench.load import measure as load

INPUT = {
    "type": "object",
    "properties": {
        "test_scenario_id": {"type": "string", "minLength": 1, "maxLength": 200},
        "dataset_type": {"type": "string", "pattern": "^[a-z_]+$"},
        "record_count": {"type": "integer", "minimum": 1, "maximum": 100_000},
        "text": {"type": "string"},
    },
    "required": ["test_scenario_id", "dataset_type"],
    "additionalProperties": False,
}
OUTPUT = {
    "type": "object",
    "properties": {
        "dataset_id": {"type": "string"},
        "connection_string": {"type": "string"},
        "record_count": {"type": "integer"},
        "schema_version": {"type": "string"},
    },
    "required": ["dataset_id"],
}
UNLIMITED = {f"DRAGOMAN_A2ACP__MESSAGES_PER_{whose}": "1000000000" for whose in ("AGENT", "COLLABORATION", "BROKER")}
REQUESTS, HANDSHAKES = "bench.a2acp_load:Requests", "bench.a2acp_load:Handshakes"
LEVEL = 32
FEW, MANY = 10, 10_000
WINDOW = 64
"""Handshakes at once while contracts are made for later."""


# -- who takes part ----------------------------------------------------------------------------------------------


def cast(ready: dict[str, Any], count: int) -> list[Pair]:
    office, made = Office(ready), []
    for _ in range(count):
        pair = Pair(source={}, target={}, secrets=[], tokens={})
        for role, grants in (("source", [GRANT]), ("target", [])):
            me = {"agent_id": f"{role}-{uuid4()[:8]}", "domain": "bench", "version": "1.0.0"}
            body = {**me, "protocol": "a2acp", "capabilities": grants}
            pair.secrets.append(office.ask("POST", "/api/v1/agents", body)["token"])
            setattr(pair, role, me)
        mine, theirs = pair.source["agent_id"], pair.target["agent_id"]
        offer = {
            "intent": INTENT,
            "version": "1.0.0",
            "input_schema": INPUT,
            "output_schema": OUTPUT,
            "required_capabilities": [GRANT],
        }
        doors = [Office({**ready, "admin_token": secret}) for secret in pair.secrets]
        doors[1].ask("POST", "/a2acp/agents", {**pair.target, "capabilities": [offer], "max_concurrent": 10_000})
        for door, who, whom, grants in (
            (doors[0], mine, theirs, [GRANT]),
            (doors[0], mine, BROKER["agent_id"], [GRANT]),
            (doors[1], theirs, mine, []),
            (doors[1], theirs, BROKER["agent_id"], []),
        ):
            wish = {"agent_id": who, "target_agent_id": whom, "requested_capabilities": grants, "ttl": 86_400}
            pair.tokens[f"{who}>{whom}"] = door.ask("POST", "/auth/token", wish)["token"]
        made.append(pair)
    return made


class _Counting(Meter):
    """Stops after so many operations."""

    def __init__(self, in_flight: int, count: int) -> None:
        super().__init__(in_flight)
        self.left = count
        self.over = asyncio.get_running_loop().create_future()

    def finish(self, slot: int, at: float = 0.0) -> None:
        self.left -= 1
        if self.left <= 0:
            self.stop()
            if self.left <= 1 - len(self.began) and not self.over.done():  # those under way have ended, too
                self.over.set_result(None)
        super().finish(slot, at)


async def _run(scenario: Any, count: int) -> None:
    """So many operations, in this process, and not timed."""
    meter = _Counting(min(WINDOW, count), count)
    await scenario.open(meter, len(meter.began))
    meter.run(scenario.begin)
    await asyncio.wait([meter.over, meter.broken], timeout=300, return_when=asyncio.FIRST_COMPLETED)
    scenario.close()
    if meter.broken.done():
        meter.broken.result()
    if meter.errors or meter.left > 0:
        raise RuntimeError(f"{meter.left} of {count} are missing, {meter.errors} went wrong: {meter.last_error}")


@contextmanager
def _cast(ready: dict[str, Any], pairs: int, contracts: int) -> Iterator[str]:
    """A file that says who takes part."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        people = cast(ready, pairs)

        def write() -> None:
            Path(file.name).write_bytes(msgspec.json.encode(people))

        write()
        if contracts:
            shaking = Handshakes(ready["http"], file.name)
            asyncio.run(_run(shaking, contracts))
            for pair, names in zip(people, shaking.made, strict=True):
                pair.contracts = names
            write()
            most = max(len(pair.contracts) for pair in people)
            asyncio.run(_run(Requests(ready["http"], file.name, sweep=most), most * pairs))
        yield file.name


# -- measuring ---------------------------------------------------------------------------------------------------


@contextmanager
def unchecked_hub(settings: Settings) -> Iterator[tuple[procs.Proc, dict[str, Any]]]:
    """As `bench.hub.hub`, without the checks."""
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    with tempfile.TemporaryDirectory(prefix="hub-", dir=place) as scratch:
        flags = ["--port", "0", "--grpc-port", "0", "--data", scratch, "--ready-json"]
        environment = {"DRAGOMAN_LOG_LEVEL": "warning"}
        with procs.python("bench.unchecked", "dev", *flags, env=environment) as proc:
            yield proc, proc.ready()


class Route(msgspec.Struct):
    """A hub with pairs of agents and their contracts, on which requests can be timed as often as one likes."""

    suite: str
    proc: Any
    options: dict[str, Any]

    def once(self, settings: Settings, in_flight: int) -> Figure:
        once = msgspec.structs.replace(settings, repeats=1)
        return load(
            "bench.a2acp_load:Requests",
            self.options,
            suite=self.suite,
            in_flight=in_flight,
            settings=once,
            server=self.proc,
        )


@contextmanager
def route(
    settings: Settings, suite: str, in_flight: int, contracts: int = 0, *, checked: bool = True
) -> Iterator[Route]:
    pairs = SIDES.get(in_flight, 4)
    serving = hub(settings, **UNLIMITED) if checked else unchecked_hub(settings)
    with serving as (proc, ready), _cast(ready, pairs, contracts or pairs) as file:
        yield Route(suite, proc, {"url": ready["http"], "cast": file, "size": settings.body})


def side_by_side(settings: Settings, in_flight: int, one: Route, other: Route) -> Iterable[Figure]:
    """Both in turns, so that whatever else the machine does hits both. With the first: what it costs more, and how many
    times as much, as the median of the turns."""
    turns = [(one.once(settings, in_flight), other.once(settings, in_flight)) for _ in range(4 * settings.repeats + 1)]
    more = statistics.median(a.server_cpu - b.server_cpu for a, b in turns)
    times = statistics.median(a.server_cpu / b.server_cpu for a, b in turns)
    first = median_run([a for a, _ in turns])
    yield msgspec.structs.replace(first, extra={**first.extra, "more_cpu": more, "times_cpu": times})
    yield median_run([b for _, b in turns])


def handshakes(settings: Settings, in_flight: int) -> Figure:
    with hub(settings, **UNLIMITED) as (proc, ready), _cast(ready, SIDES.get(in_flight, 4), 0) as file:
        options = {"url": ready["http"], "cast": file}
        suite = "hub-a2acp-handshake"
        return load(
            "bench.a2acp_load:Handshakes", options, suite=suite, in_flight=in_flight, settings=settings, server=proc
        )


def issuing(settings: Settings) -> Figure:
    with hub(settings, **UNLIMITED) as (proc, ready):
        pair = cast(ready, 1)[0]
        wish = {"agent_id": pair.source["agent_id"], "target_agent_id": pair.target["agent_id"]}
        body = {**wish, "requested_capabilities": [GRANT], "ttl": 3600}
        options = {
            "url": ready["http"],
            "path": "/auth/token",
            "body": json.dumps(body),
            "headers": {"authorization": f"Bearer {pair.secrets[0]}"},
            "contains": '"token"',
        }
        suite = "hub-a2acp-token"
        return load("bench.load:HttpPost", options, suite=suite, in_flight=LEVEL, settings=settings, server=proc)


def measure(settings: Settings) -> Iterable[Figure]:
    yield issuing(settings)
    for in_flight in (level for level in settings.levels if level <= LEVEL):
        yield handshakes(settings, in_flight)
        with (
            route(settings, "hub-a2acp", in_flight) as ours,
            route(settings, "hub-a2acp-unchecked", in_flight, checked=False) as bare,
        ):
            yield from side_by_side(settings, in_flight, ours, bare)
    many = 1000 if settings.quick else MANY
    with (
        route(settings, f"hub-a2acp-{many}", LEVEL, many) as crowded,
        route(settings, f"hub-a2acp-{FEW}", LEVEL, FEW) as quiet,
    ):
        yield from side_by_side(settings, LEVEL, crowded, quiet)
