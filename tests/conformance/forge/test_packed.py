"""MessagePack says the same as JSON, and hides nothing that JSON could not say."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocols.forge import codec, packed
from dragoman.protocols.forge.codec import Invalid, LogReceived, RequestReceived
from dragoman.protocols.forge.types import Encoding
from dragoman.wire import RemoteProtocolError, Role, Stage

LIMITS = codec.LIMITS
pack = msgspec.msgpack.encode

TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=15,
)


def refused(data: bytes) -> Stage:
    with pytest.raises(RemoteProtocolError) as caught:
        packed.unpack(data, LIMITS)
    return caught.value.stage


@pytest.mark.requirement("FG-FUT-2")
@given(TREES)
def test_anything_json_can_say_comes_through(tree: Any) -> None:
    assert packed.unpack(packed.pack(tree), LIMITS)[0] == tree


@given(TREES)
def test_counting_pairs_agrees_with_reading_them(tree: Any) -> None:
    assert packed._pairs(pack(tree)) == packed._pairs_in(tree)


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        tree, text = packed.unpack(data, LIMITS)
    except RemoteProtocolError:
        return
    assert json.loads(text) == tree


@pytest.mark.requirement("FG-FUT-2", "forge-all-D3")
def test_attacks_are_refused() -> None:
    twice = b"\x82\xa1a\x01\xa1a\x02"
    assert refused(twice) is Stage.JSON
    assert refused(b"\x92" + twice + b"\xca\x3f\x80\x00\x00") is Stage.JSON  # hidden behind a float of four bytes
    assert refused(b"\x91" * 1_000_000) is Stage.DEPTH
    assert refused(b"\x91" * 100 + b"\x01") is Stage.DEPTH
    assert refused(b"\xcb" + struct.pack(">d", float("nan"))) is Stage.JSON
    assert refused(b"\xca" + struct.pack(">f", float("inf"))) is Stage.JSON
    assert refused(pack(msgspec.msgpack.Ext(5, b"x"))) is Stage.JSON
    assert refused(b"\x01\x02") is Stage.JSON
    assert refused(b"") is Stage.JSON
    assert refused(b"\xdd\xff\xff\xff\xff") is Stage.JSON
    assert refused(b"x" * (LIMITS.bytes + 1)) is Stage.SIZE
    assert refused(b"\xdd\x00\x0f\x00\x00" + b"\x00" * 0xEFFFF + b"\xca\x00\x00\x00\x00") is Stage.DEPTH


def test_unusual_but_honest_encodings_are_read() -> None:
    assert packed.unpack(b"\xcd\x00\x01", LIMITS)[0] == 1
    assert packed.unpack(b"\x81\xd9\x01a\xca\x3f\x80\x00\x00", LIMITS)[0] == {"a": 1.0}
    assert packed.unpack(b"\xc4\x02hi", LIMITS)[0] == "aGk="


@pytest.mark.requirement("FG-FUT-2")
def test_a_frame_that_cannot_be_read_is_answered_and_one_that_is_no_message_is_a_log_line() -> None:
    [event] = codec.read(b"\xc1", Role.HUB, encoding=Encoding.MSGPACK)
    assert isinstance(event, Invalid)
    assert (event.asks, event.about) == (True, None)
    assert codec.read(pack({"hello": 1}), Role.HUB, encoding=Encoding.MSGPACK) == [LogReceived('{"hello":1}')]
    asked = {"type": "request:query-tasks", "id": "r", "timestamp": "2026-02-04T14:30:00Z", "payload": {}}
    [event] = codec.read(pack(asked), Role.HUB, encoding=Encoding.MSGPACK)
    assert isinstance(event, RequestReceived)


@pytest.mark.requirement("FG-FUT-2", "forge-all-D3")
@pytest.mark.parametrize("value", [float("nan"), msgspec.msgpack.Ext(5, b"x"), [[]]])
def test_a_refusal_names_the_request_if_that_can_be_read(value: Any) -> None:
    """Whoever waits for its answer must find it."""
    for _ in range(100 if value == [[]] else 0):
        value = [value]
    for kind, asks in (("request:query-agents", True), ("event:log", False)):
        frame = pack({"type": kind, "id": "r-1", "timestamp": "2026-02-04T14:30:00Z", "payload": {"x": value}})
        (event,) = codec.read(frame, Role.HUB, encoding=Encoding.MSGPACK)
        assert isinstance(event, Invalid)
        assert (event.about, event.asks) == ("r-1", asks)
