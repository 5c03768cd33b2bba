"""What a program prints is not all protocol: lines, logs, batches, and hostile input."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.forge import End

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import Dropped, EventReceived, Invalid, LogReceived, RequestReceived
from dragoman.protocols.forge.errors import Code
from dragoman.protocols.forge.types import Encoding
from dragoman.wire import Role, Stage

MIB = 1024 * 1024
ASKED = {"type": "request:query-tasks", "id": "r", "timestamp": "2026-02-04T14:30:00Z", "payload": {}}
PROGRESS = {
    "type": "event:progress",
    "id": "e",
    "timestamp": "2026-02-04T14:30:00Z",
    "payload": {"taskId": "t", "progress": 0.5},
}


@pytest.mark.requirement("FG-PRI-4", "FG-PAR-1", "forge-D3")
@pytest.mark.parametrize(
    "line",
    [
        "Compiling 14 files…",
        "{not json",
        '{"type": "request:query-tasks", "id": ',
        "42",
        '"a string"',
        "null",
        "[]",
        "[1, 2]",
        '{"level": "info", "msg": "structured log"}',
        '{"type": "metric", "value": 1}',
        '{"type": "requests:many"}',
        '{"type": 7}',
        '{"type": "request"}',
    ],
)
def test_what_is_no_message_is_a_log_line(line: str) -> None:
    assert codec.read(line.encode(), Role.HUB) == [LogReceived(line)]


def test_bytes_that_are_no_text_are_a_log_line_too() -> None:
    assert codec.read(b"\xff\xfe\x00", Role.HUB) == [LogReceived("\\xff\\xfe\x00")]
    assert codec.read(b'{"type": "caf\xe9', Role.HUB) == [LogReceived('{"type": "caf\\xe9')]
    assert codec.read(b"  \t ", Role.HUB) == []


@pytest.mark.parametrize("blanks", [b" ", b"\t" * 64, b" \r" * 500])
def test_blanks_before_a_message_are_skipped(blanks: bytes) -> None:
    [asked] = codec.read(blanks + json.dumps(ASKED).encode(), Role.HUB)
    assert isinstance(asked, RequestReceived)
    each = codec.read(blanks + json.dumps([ASKED, PROGRESS]).encode(), Role.HUB)
    assert list(map(type, each)) == [RequestReceived, EventReceived]


@pytest.mark.requirement("forge-D3")
def test_an_unknown_request_is_answered_and_an_unknown_event_is_a_log_line() -> None:
    [event] = codec.read(json.dumps({**ASKED, "type": "request:make-coffee"}).encode(), Role.HUB)
    assert isinstance(event, Invalid)
    assert (event.answer.code, event.about, event.asks) == (Code.INVALID_MESSAGE_TYPE, "r", True)
    assert event.answer.details["type"] == "request:make-coffee"
    [event] = codec.read(json.dumps({**PROGRESS, "type": "event:mood"}).encode(), Role.HUB)
    assert isinstance(event, LogReceived)
    assert event.type == "event:mood"


@pytest.mark.requirement("forge-D1")
def test_many_messages_in_one_piece_and_one_message_in_many() -> None:
    hub = End(Role.HUB, lines=True)
    line = json.dumps(ASKED).encode() + b"\n"
    events = hub.receive(line + b"hello\r\n" + line)
    assert [type(event) for event in events] == [RequestReceived, LogReceived, RequestReceived]
    assert events[1] == LogReceived("hello")
    assert hub.receive(line[:10]) == []
    assert hub.receive(line[10:-1]) == []
    assert [type(event) for event in hub.receive(b"\n")] == [RequestReceived]
    assert hub.receive(b"last words") == []
    assert hub.ended() == [LogReceived("last words")]


@pytest.mark.requirement("forge-D1")
def test_a_line_above_a_mebibyte_is_dropped_and_noted() -> None:
    hub = End(Role.HUB, lines=True)
    fits = b"x" * MIB
    assert hub.receive(fits + b"\n") == [LogReceived(fits.decode())]
    assert hub.receive(fits) == []
    assert hub.receive(b"x") == []
    events = hub.receive(b"\n" + json.dumps(PROGRESS).encode() + b"\n")
    assert events[0] == Dropped(MIB + 1)
    assert isinstance(events[1], EventReceived)


@given(st.lists(st.sampled_from(["hello", json.dumps(ASKED), json.dumps(PROGRESS), "{", ""]), max_size=6), st.data())
def test_lines_mean_the_same_however_they_are_cut(lines: list[str], data: Any) -> None:
    stream = "".join(f"{line}\n" for line in lines).encode()
    whole = End(Role.HUB, lines=True).receive(stream)
    bytewise, pieces = End(Role.HUB, lines=True), End(Role.HUB, lines=True)
    assert [event for byte in stream for event in bytewise.receive(bytes([byte]))] == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    places = [0, *cuts, len(stream)]
    shuffled = [stream[start:end] for start, end in pairwise(places)]
    assert [event for piece in shuffled for event in pieces.receive(piece)] == whole


@pytest.mark.requirement("FG-FUT-3")
def test_a_batch_is_each_of_its_messages_in_order() -> None:
    events = codec.read(json.dumps([ASKED, {"x": 1}, PROGRESS, {**ASKED, "id": ""}]).encode(), Role.HUB)
    assert [type(event) for event in events] == [RequestReceived, LogReceived, EventReceived, Invalid]


BROKEN = (b'{"a":1,"a":2}', b'{"a":NaN}', b'{"a":"caf\xe9"}', b'{"a":' + b"[" * 100 + b"]" * 100 + b"}")


@pytest.mark.requirement("FG-FUT-3", "forge-all-D3")
@pytest.mark.parametrize("payload", BROKEN)
def test_a_broken_message_in_a_batch_is_refused_and_the_others_count(payload: bytes) -> None:
    broken = json.dumps({**ASKED, "id": "broken"}).encode()[:-3] + payload + b"}"
    good = json.dumps(ASKED).encode()
    batch = b" [ " + good + b" , " + broken + b"," + good + b" ] "
    before, refused, after = codec.read(batch, Role.HUB)
    assert isinstance(refused, Invalid)
    assert (refused.about, refused.asks) == ("broken", True)
    assert [before, after] == codec.read(good, Role.HUB) * 2
    assert codec.split(batch) == [good, broken, good]


@pytest.mark.requirement("FG-FUT-3", "forge-all-D3")
@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize(("nested", "asks"), [([[ASKED]], True), ([PROGRESS, 1], False), ([[[PROGRESS], ASKED]], True)])
def test_a_batch_in_a_batch_is_refused_and_the_others_count(nested: Any, asks: bool, encoding: Encoding) -> None:
    frame = msgspec.msgpack.encode if encoding is Encoding.MSGPACK else msgspec.json.encode
    batch = frame([ASKED, nested, PROGRESS])
    before, refused, after = codec.read(batch, Role.HUB, encoding=encoding)
    assert isinstance(refused, Invalid)
    assert (refused.about, refused.asks, refused.answer.code) == (None, asks, "INVALID_REQUEST")
    assert refused.what == "an array inside a batch; put all messages into one array"
    assert [type(before), type(after)] == [RequestReceived, EventReceived]
    parts = codec.split(batch, encoding=encoding)
    assert [event for part in parts for event in codec.read(part, Role.HUB, encoding=encoding)] == [
        before, refused, after,
    ]  # fmt: skip
    assert [codec.split(part, encoding=encoding) for part in parts] == [[], [], []]
    assert codec.read(frame([nested]), Role.HUB, encoding=encoding) == [refused]


@pytest.mark.requirement("forge-D3")
def test_an_array_without_messages_is_a_log_line_also_in_a_batch() -> None:
    batch = json.dumps([ASKED, [1, [2]]]).encode()
    assert codec.read(batch, Role.HUB)[1] == LogReceived("[1,[2]]")
    assert codec.read(codec.split(batch)[1], Role.HUB) == [LogReceived("[1,[2]]")]


@pytest.mark.parametrize(
    "data", [b"[NaN]", b'[{"type":"request:x"},NaN', b'[{"type":"request:x"} NaN]', b"[NaN]]", b"[,NaN]"]
)
def test_what_is_no_batch_is_not_cut(data: bytes) -> None:
    assert codec.split(data) == []
    assert [type(event) for event in codec.read(data, Role.HUB)] == [LogReceived]


@pytest.mark.requirement("FG-FUT-3")
def test_a_batch_without_measure_is_refused() -> None:
    [event] = codec.read(json.dumps([ASKED] * 1001).encode(), Role.HUB)
    assert isinstance(event, Invalid)
    assert (event.stage, event.asks) == (Stage.SIZE, True)


HALF_A_MILLION = 500_000
DEEP = b"[" * HALF_A_MILLION + b"]" * HALF_A_MILLION
REQUEST = json.dumps(ASKED).encode()[:-3]
ATTACKS = {
    "deep nesting in a request": (REQUEST + b'{"a":' + b"[" * 100 + b"]" * 100 + b"}}", Stage.DEPTH),
    "a key twice": (REQUEST + b'{"a":1,"a":2}}', Stage.JSON),
    "NaN": (REQUEST + b'{"a":NaN}}', Stage.JSON),
    "half a surrogate": (REQUEST + b'{"a":"\\ud800"}}', Stage.JSON),
    "no UTF-8": (REQUEST + b'{"a":"caf\xe9"}}', Stage.JSON),
    "an integer of 65 bits": (REQUEST + b'{"a":18446744073709551616}}', Stage.JSON),
}


@pytest.mark.requirement("forge-all-D3")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_in_a_request_is_refused_and_answered(name: str) -> None:
    data, stage = ATTACKS[name]
    [event] = codec.read(data, Role.HUB)
    assert isinstance(event, Invalid)
    assert (event.stage, event.about, event.asks) == (stage, "r", True)
    assert event.answer.code == Code.INVALID_REQUEST


@pytest.mark.requirement("forge-all-D3")
@pytest.mark.parametrize("data", [DEEP, b"[" * MIB, b'{"a":' * 100_000, b'{"a":NaN}', b"[[]," * 100_000])
def test_an_attack_that_is_no_request_is_a_log_line_and_the_connection_serves_on(data: bytes) -> None:
    hub = End(Role.HUB, lines=True)
    [event] = hub.receive(data + b"\n")
    assert isinstance(event, LogReceived)
    assert [type(event) for event in hub.receive(json.dumps(ASKED).encode() + b"\n")] == [RequestReceived]
