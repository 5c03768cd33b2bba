"""Hostile input: the codec refuses each attack by name, and the hub's connection serves the next message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.support import chiffon

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import InvalidMessage
from dragoman.wire import Stage

HALF_A_MILLION = 500_000
ATTACKS = {
    "nested brackets": (b"[" * HALF_A_MILLION + b"]" * HALF_A_MILLION, Stage.DEPTH),
    "unclosed brackets": (b"[" * (2 * HALF_A_MILLION), Stage.DEPTH),
    "nested objects": (b'{"a":' * HALF_A_MILLION, Stage.DEPTH),
    "a million empty arrays": (b"[" + b"[]," * 1_000_000 + b"[]]", Stage.DEPTH),
    "brackets behind an open string": (b'"' + b"[" * HALF_A_MILLION, Stage.JSON),
    "escaped quotes without end": (b'"' + b'\\"' * HALF_A_MILLION + b"[" * 100, Stage.JSON),
    "a huge integer": (b'{"a":' + b"9" * 1_000_000 + b"}", Stage.JSON),
    "an integer of 65 bits": (b'{"a":18446744073709551616}', Stage.JSON),
    "NaN": (b'{"a":NaN}', Stage.JSON),
    "Infinity": (b'{"a":-Infinity}', Stage.JSON),
    "a number beyond a double": (b'{"a":1e999}', Stage.JSON),
    "a lone surrogate": (b'{"a":"\\ud800"}', Stage.JSON),
    "surrogates in the wrong order": (b'{"a":"\\udc00\\ud800"}', Stage.JSON),
    "a surrogate in UTF-8": (b'{"a":"\xed\xa0\x80"}', Stage.JSON),
    "invalid UTF-8": (b'{"a":"\xff"}', Stage.JSON),
    "overlong UTF-8": (b'{"a":"\xc0\xaf"}', Stage.JSON),
    "duplicate keys": (b'{"a":1,"a":1}', Stage.JSON),
    "duplicate keys, one escaped": (b'{"a":1,"\\u0061":1}', Stage.JSON),
    "duplicate keys behind an escaped colon": (b'{"a":1,"a":"\\u003a"}', Stage.JSON),
    "a byte order mark": (b"\xef\xbb\xbf{}", Stage.JSON),
    "two values": (b"{}{}", Stage.JSON),
    "nothing": (b"", Stage.JSON),
    "more bytes than allowed": (b" " * (8 * 1024 * 1024 + 1), Stage.SIZE),
}


def refusal(data: bytes) -> InvalidMessage:
    with pytest.raises(InvalidMessage) as caught:
        codec.decode(data)
    return caught.value


@pytest.mark.requirement("all-D3")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_by_name(name: str) -> None:
    data, stage = ATTACKS[name]
    refused = refusal(data)
    assert (refused.stage, refused.answer.error_code) == (stage, 5003)


@pytest.mark.requirement("all-D3")
async def test_the_hub_refuses_every_attack_and_the_connection_serves_on(infra: Any, work: Any) -> None:
    for percent, (data, _) in enumerate(ATTACKS.values()):
        assert (await infra.refused(data))["error_code"] == 5003
        await infra.tells(chiffon.work_status(work, percent))


@pytest.mark.requirement("all-D3")
def test_a_refusal_names_the_field() -> None:
    assert refusal(b'{"payload":{"parameters":[{"a":1,"a":2}]}}').field == "payload.parameters[0].a"


@pytest.mark.requirement("all-D2")
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_no_calendar_has_in_utc_is_refused(moment: str, examples: dict[str, Any]) -> None:
    refused = refusal(json.dumps({**examples["envelope"], "timestamp": moment}).encode())
    assert (refused.stage, refused.field) == (Stage.MEANING, "timestamp")
