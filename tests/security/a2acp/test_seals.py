"""Broken seals, and keys that are none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

import pytest

from tests.conformance.a2acp.plain import WANTED, Bond, Plain, b64, unb64
from tests.security.a2acp.ground import CANARY, INTENT, Json


def flipped(text: str, place: int) -> str:
    data = bytearray(unb64(text))
    data[place] ^= 1
    return b64(bytes(data))


@pytest.fixture
def sealed(cast: dict[str, Plain]) -> Bond:
    for one in cast.values():
        one.hear()
    return cast["ada"].shake(cast["bob"], encrypt=True)


SEALS: dict[str, tuple[str, Callable[[Bond], Json]]] = {
    "ciphertext": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: flipped(one, 0))),
    "tag": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: flipped(one, -1))),
    "nonce": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, nonce=lambda one: flipped(one, 0))),
    "cut": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, ciphertext=lambda one: one[:32])),
    "algorithm": ("SCHEMA_MISMATCH", lambda b: changed(b, alg=lambda one: "A128GCM")),
    "no algorithm": ("SCHEMA_MISMATCH", lambda b: changed(b, alg=lambda one: None)),
    "wrong key": ("SECURITY_POLICY_VIOLATION", lambda b: b._replace(keys={b.kid: bytes(32)}).request()),
    "unknown key": ("CONTRACT_VIOLATION", lambda b: b._replace(keys={"other": bytes(32)}).request()),
    "other envelope": ("SECURITY_POLICY_VIOLATION", lambda b: {**b.request(), "message_id": str(uuid.uuid4())}),
    "other thread": ("SECURITY_POLICY_VIOLATION", lambda b: changed(b, correlation_id=lambda one: "other")),
    "downgraded": ("SECURITY_POLICY_VIOLATION", lambda b: b.request(clear=True)),
    "downgraded in words": ("SECURITY_POLICY_VIOLATION", lambda b: plainly(b.request(), "none")),
    "sealed in words only": ("SECURITY_POLICY_VIOLATION", lambda b: plainly(b.request(clear=True), "aes256")),
}


def changed(bond: Bond, **fields: Callable[[str], str | None]) -> Json:
    made = bond.request()
    payload = {**made["payload"], **{name: how(made["payload"][name]) for name, how in fields.items()}}
    return {**made, "payload": {name: value for name, value in payload.items() if value is not None}}


def plainly(message: Json, encryption: str) -> Json:
    return {**message, "security": {**message["security"], "encryption": encryption}}


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
@pytest.mark.parametrize("name", list(SEALS))
def test_a_broken_seal_is_refused(sealed: Bond, name: str) -> None:
    code, make = SEALS[name]
    told = sealed.source.refused(make(sealed))
    assert (told["code"], told["retry_after"]) == (code, 0), told
    assert sealed.target.hear() == []


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_nonce_is_used_once(sealed: Bond) -> None:
    nonce = bytes(range(12))
    sealed.source.say(sealed.request(nonce=nonce))
    told = sealed.source.refused(sealed.request({**WANTED, "record_count": 1}, nonce=nonce))
    assert told["code"] == "SECURITY_POLICY_VIOLATION", told
    assert "nonce" in json.dumps(told)


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_nonce_is_used_up_by_a_message_that_was_refused(sealed: Bond) -> None:
    nonce = bytes(range(1, 13))
    assert sealed.source.refused(sealed.request({"nothing": "such"}, nonce=nonce))["code"] == "CONTRACT_VIOLATION"
    told = sealed.source.refused(sealed.request(nonce=nonce))
    assert (told["code"], told["details"]["reason"]) == ("SECURITY_POLICY_VIOLATION", "nonce")


@pytest.mark.requirement("A2-SEC-2", "a2acp-D12")
def test_a_key_opens_nothing_of_another_collaboration(cast: dict[str, Plain], sealed: Bond) -> None:
    other = cast["ada"].shake(cast["bob"], encrypt=True)
    told = sealed.source.refused(sealed._replace(keys=other.keys).request())
    assert told["code"] == "CONTRACT_VIOLATION"
    assert set(other.keys) != set(sealed.keys)


@pytest.mark.requirement("A2-SEC-2", "A2-PII-1")
def test_a_response_is_not_downgraded_either(sealed: Bond) -> None:
    with sealed.source.sending(sealed.request()) as waiting:
        work = sealed.target.hears("request")
        told = sealed.target.refused(sealed.response(work, {"dataset_id": CANARY}, clear=True))
        assert told["code"] == "SECURITY_POLICY_VIOLATION"
        sealed.target.say(sealed.response(work, {"dataset_id": "d"}))
        assert sealed.content(waiting.result(60).json) == {"dataset_id": "d"}


@pytest.mark.requirement("A2-SEC-3")
@pytest.mark.parametrize("key", ["A" * 43, b64(bytes(31) + b"\x00"), "x", "", b64(bytes([1]) + bytes(31))])
def test_a_key_of_small_order_is_no_key(cast: dict[str, Plain], key: str) -> None:
    told = cast["ada"].refused(cast["ada"].initiate("bob", INTENT, encrypt=True, public_key=key))
    assert told["code"] == "SCHEMA_MISMATCH", told
