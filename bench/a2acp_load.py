"""A2acp's agents in the load process: pairs of a source and a target, who ask and answer over WebSockets.

Messages are put together from pieces made before, and of what comes only what is needed is read. What an operation is:

    Requests      a request under a contract, its response, and the source's acknowledgment
    Handshakes    initiate_handshake, the target's yes, the contract; and the target's acknowledgment of its news
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.hub import uuid4
from bench.load import Meter, WsConnection, ws_connect

BROKER = {"agent_id": "protocol-broker-agent", "domain": "a_domain", "version": "1.0.0"}
INTENT = "provision_test_dataset"
GRANT = "write:test_scenarios"


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


class Pair(msgspec.Struct):
    """A source and a target, with their secrets, their tokens for each other and for the broker, and contracts."""

    source: dict[str, str]
    target: dict[str, str]
    secrets: list[str]
    tokens: dict[str, str]
    contracts: list[str] = []


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
