"""Ours: requests between a2acp agents over WebSockets, under contracts, through a hub in a process of its own.

    hub-a2acp             a request and its response: both verified (token, replay, rates), both payloads validated
    hub-a2acp-unchecked   the same hub, agents and bytes with exactly these checks taken out (bench/unchecked.py)
    hub-a2acp-N           the same as the first, with N contracts in the store, any of which may be next
    hub-a2acp-handshake   initiate_handshake until the source has its contract: proposed, accepted, stored, told
    hub-a2acp-token       POST /auth/token
    token-…               making and verifying one token in this process, beside the libraries that do the cryptography

What the checks cost is the difference of the first two, which are timed in turns. Beside another protocol's route it
would be mixed with what that protocol's words cost; so the one hub is started twice, once without them, and everything
else is the same: codec, contract, routing, rows and commits (but for the row that remembers a message's id, which
belongs to the replay check).

Limits are so high that nobody meets them; they are counted all the same.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench import procs
from bench.cast import Office
from bench.figures import Figure, Settings, median_run
from bench.hub import SIDES, hub, uuid4
from bench.load import Meter, WsConnection, ws_connect
from bench.load import measure as load

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
INTENT = "provision_test_dataset"
GRANT = "write:test_scenarios"
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
LEVEL = 32
FEW, MANY = 10, 10_000
WINDOW = 64
"""Handshakes at once while contracts are made for later."""


class _Payload(msgspec.Struct):
    correlation_id: str = ""
    contract_id: str = ""
    error: msgspec.Raw = msgspec.Raw(b"")


class _Heard(msgspec.Struct):
    message_id: str
    message_type: str
    intent: str = ""
    payload: _Payload = msgspec.field(default_factory=_Payload)


_hear = msgspec.json.Decoder(_Heard).decode


# -- who takes part ----------------------------------------------------------------------------------------------


class Pair(msgspec.Struct):
    """A source and a target, with their secrets, their tokens for each other and for the broker, and contracts."""

    source: dict[str, str]
    target: dict[str, str]
    secrets: list[str]
    tokens: dict[str, str]
    contracts: list[str] = []


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


class Words:
    """Messages of one agent to another, put together from pieces made before."""

    def __init__(self, pair: Pair, of: dict[str, str], to: dict[str, str], kind: str, intent: str) -> None:
        token = pair.tokens[f"{of['agent_id']}>{to['agent_id']}"]
        rest = {"source_agent": of, "target_agent": to, "message_type": kind, "intent": intent}
        self._middle = b'",' + msgspec.json.encode(rest)[1:-1] + b',"payload":{'
        end = {"auth_token": token, "encryption": "none"}
        self._end = b'},"security":' + msgspec.json.encode(end) + b"}"

    def make(self, id: bytes, payload: bytes) -> bytes:
        return b'{"protocol_version":"1.0","message_id":"%b","timestamp":"%b%b%b%b' % (
            id, _now(), self._middle, payload, self._end,
        )  # fmt: skip


_stamped = (0, b"")


def _now() -> bytes:
    """The time, made anew each second."""
    global _stamped
    second = int(time.time())
    if second != _stamped[0]:
        _stamped = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode()
    return _stamped[1]


# -- the two sides -----------------------------------------------------------------------------------------------


class Side:
    """One agent's link, which acknowledges what is kept for it once for each turn of the loop."""

    def __init__(self, hear: Callable[[_Heard, bytes], None]) -> None:
        self._hear = hear
        self._acks: list[bytes] = []
        self._soon = asyncio.get_running_loop().call_soon
        self.link: WsConnection | None = None

    async def connect(self, url: str, secret: str, lose: Callable[[str], None]) -> None:
        headers = {"authorization": f"Bearer {secret}", "sec-websocket-protocol": "a2acp.v1"}
        self.link = await ws_connect(url.replace("http://", "ws://", 1) + "/a2acp/ws", self._take, lose, headers)

    def _take(self, frame: bytes) -> None:
        self._hear(_hear(frame), frame)

    def acknowledge(self, heard: _Heard) -> None:
        if not self._acks:
            self._soon(self._flush)
        self._acks.append(heard.message_id.encode())

    def send(self, message: bytes) -> None:
        if self.link is None:  # what it answers was waiting, and came with the handshake
            self._soon(self.send, message)
        else:
            self.link.send(message)

    def _flush(self) -> None:
        self.send(b'{"ack":["' + b'","'.join(self._acks) + b'"]}')
        self._acks.clear()


class _Scenario:
    """Pairs, with a link for each of the two; slots take turns with them."""

    def __init__(self, url: str, cast: str, size: int = 0) -> None:
        self._url = url
        self._pairs = msgspec.json.decode(Path(cast).read_bytes(), type=list[Pair])
        self._size = size
        self._run = uuid4()[:8]
        self._sources: list[Side] = []
        self._targets: list[Side] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._meter = meter
        for pair in self._pairs:
            target, source = Side(self._target(pair)), Side(self._source(pair))
            self._targets.append(target)
            self._sources.append(source)
            await target.connect(self._url, pair.secrets[1], meter.lose)
            await source.connect(self._url, pair.secrets[0], meter.lose)

    def thread(self, slot: int) -> bytes:
        """What answers are known by. Those to an earlier run, which nobody waited for, are none of this one's."""
        return f"{self._run}.{slot}".encode()

    def ended(self, place: int, heard: _Heard, frame: bytes, intent: str) -> None:
        """The source of a pair hears how something ended."""
        self._sources[place].acknowledge(heard)
        run, _, slot = heard.payload.correlation_id.partition(".")
        if heard.message_type == "error":
            if run == self._run:
                self._meter.fail(int(slot), frame[:500].decode())
            else:
                self._meter.lose(frame[:500].decode())
        elif run == self._run and heard.message_type == "response" and heard.intent == intent:
            self.took(place, heard)
            self._meter.finish(int(slot))

    def took(self, place: int, heard: _Heard) -> None:
        """An answer that counts."""

    def _target(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        raise NotImplementedError

    def _source(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        raise NotImplementedError

    def close(self) -> None:
        for side in (*self._sources, *self._targets):
            if side.link is not None:
                side.link.close()


class Requests(_Scenario):
    """A request under a contract and its response, acknowledged. `sweep`: so many contracts are used in their order."""

    def __init__(self, url: str, cast: str, size: int = 0, sweep: int = 0) -> None:
        super().__init__(url, cast, size)
        self._sweep = sweep

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._asks = [Words(pair, pair.source, pair.target, "request", INTENT) for pair in self._pairs]
        self._turns = [0] * len(self._pairs)
        said = b'"test_scenario_id":"scenario-123","dataset_type":"patient_demographics","record_count":1000,"text":"'
        spare = max(1, self._size - len(said) - 120)
        self._said = said + b"x" * spare + b'","contract_id":"%b","correlation_id":"%b"'
        await super().open(meter, in_flight)

    def _target(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        words = Words(pair, pair.target, pair.source, "response", INTENT)
        place = len(self._targets)
        result = (
            b'"dataset_id":"dataset-abc","connection_string":"postgresql://test-db:5432/scenario_123",'
            b'"record_count":1000,"schema_version":"1.0","contract_id":"%b","correlation_id":"%b"'
        )

        def hear(heard: _Heard, frame: bytes) -> None:
            if heard.intent != INTENT:  # late news of a handshake
                self._targets[place].acknowledge(heard)
            elif heard.message_type == "request":
                told = result % (heard.payload.contract_id.encode(), heard.payload.correlation_id.encode())
                self._targets[place].send(words.make(uuid4().encode(), told))
            elif heard.message_type == "error":
                self._meter.lose(frame[:500].decode())

        return hear

    def _source(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        place = len(self._sources)
        return lambda heard, frame: self.ended(place, heard, frame, INTENT)

    def begin(self, slot: int) -> None:
        place = slot % len(self._pairs)
        contracts = self._pairs[place].contracts
        turn = self._turns[place]
        self._turns[place] = turn + 1
        # One after the other first, so that all have been used; then as it comes.
        which = turn if turn < self._sweep else random.randrange(len(contracts))
        payload = self._said % (contracts[which % len(contracts)].encode(), self.thread(slot))
        self._sources[place].send(self._asks[place].make(uuid4().encode(), payload))


class Handshakes(_Scenario):
    """initiate_handshake, accept_handshake, the contract; the target's news of it is acknowledged, too."""

    async def open(self, meter: Meter, in_flight: int) -> None:
        self.made: list[list[str]] = [[] for _ in self._pairs]
        self._asks = [Words(pair, pair.source, BROKER, "request", "initiate_handshake") for pair in self._pairs]
        await super().open(meter, in_flight)

    def _target(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        words = Words(pair, pair.target, BROKER, "response", "accept_handshake")
        place = len(self._targets)

        def hear(heard: _Heard, frame: bytes) -> None:
            if heard.message_type == "request":
                told = b'"accepted":true,"reason":"","correlation_id":"%b"' % heard.payload.correlation_id.encode()
                self._targets[place].send(words.make(uuid4().encode(), told))
            elif heard.message_type == "error":
                self._meter.lose(frame[:500].decode())
            self._targets[place].acknowledge(heard)

        return hear

    def _source(self, pair: Pair) -> Callable[[_Heard, bytes], None]:
        place = len(self._sources)
        return lambda heard, frame: self.ended(place, heard, frame, "initiate_handshake")

    def took(self, place: int, heard: _Heard) -> None:
        self.made[place].append(heard.payload.contract_id)

    def begin(self, slot: int) -> None:
        place = slot % len(self._pairs)
        payload = b'"target_agent_id":"%b","requested_intent":"%b","correlation_id":"%b"' % (
            self._pairs[place].target["agent_id"].encode(), INTENT.encode(), self.thread(slot),
        )  # fmt: skip
        self._sources[place].send(self._asks[place].make(uuid4().encode(), payload))


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
            "bench.a2acp:Requests", self.options, suite=self.suite, in_flight=in_flight, settings=once, server=self.proc
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
    turns = [(one.once(settings, in_flight), other.once(settings, in_flight)) for _ in range(2 * settings.repeats + 1)]
    more = statistics.median(a.server_cpu - b.server_cpu for a, b in turns)
    times = statistics.median(a.server_cpu / b.server_cpu for a, b in turns)
    first = median_run([a for a, _ in turns])
    yield msgspec.structs.replace(first, extra={**first.extra, "more_cpu": more, "times_cpu": times})
    yield median_run([b for _, b in turns])


def handshakes(settings: Settings, in_flight: int) -> Figure:
    with hub(settings, **UNLIMITED) as (proc, ready), _cast(ready, SIDES.get(in_flight, 4), 0) as file:
        options = {"url": ready["http"], "cast": file}
        suite = "hub-a2acp-handshake"
        return load("bench.a2acp:Handshakes", options, suite=suite, in_flight=in_flight, settings=settings, server=proc)


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


def tokens() -> Iterable[Figure]:
    """CPU of one operation, the best of five rounds: nothing but computing happens in it."""
    import jwt as pyjwt

    from dragoman.security.jwt import Authority, Issued
    from dragoman.security.keys import KeyRing, new_key

    now, rounds = int(time.time()), 5
    ring = KeyRing([new_key(now)])
    remembering, forgetting = Authority(ring), Authority(ring, remembered=0)
    us, them, words = "sdlc-test-agent", "dataset-provisioning-agent", ["read:datasets", GRANT]

    def issue() -> str:
        made = remembering.issue(
            subject=us, audience=them, domain="a_domain", capabilities=words, ttl=3600, now=now
        )  # fmt: skip
        assert isinstance(made, Issued)
        return made.token

    key: Any = ring.signing
    token = issue()
    claims = pyjwt.decode(token, options={"verify_signature": False})
    head = {"kid": key.kid}
    signed = token.rpartition(".")[0].encode()
    signature = key.material.sign(signed)
    whose = {"audience": them, "now": now, "subject": us, "domain": "a_domain"}
    acts: dict[str, tuple[Callable[[], object], int]] = {
        "token-issue": (issue, 400),
        "token-issue-pyjwt": (lambda: pyjwt.encode(claims, key.material, "EdDSA", headers=head), 400),
        "token-issue-cryptography": (lambda: key.material.sign(signed), 400),
        "token-verify": (lambda: forgetting.verify(token, **whose), 400),
        "token-verify-again": (lambda: remembering.verify(token, **whose), 20_000),
        "token-verify-pyjwt": (lambda: pyjwt.decode(token, key.verifier, ["EdDSA"], audience=them), 400),
        "token-verify-cryptography": (lambda: key.verifier.verify(signature, signed), 400),
    }
    for suite, (act, times) in acts.items():
        act()
        best = float("inf")
        for _ in range(rounds):
            began = time.process_time()
            for _ in range(times):
                act()
            best = min(best, (time.process_time() - began) / times)
        yield Figure(suite=suite, rate=1 / best, server_cpu=best * 1e6, operations=rounds * times)


def measure(settings: Settings) -> Iterable[Figure]:
    yield from tokens()
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
