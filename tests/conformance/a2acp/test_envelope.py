"""The message: its fields, formats, sizes and versions, the codes of its errors, and what is read and written where."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.a2acp.samples import ADA, BOB, BODIES, START, TOKEN, tree

from dragoman.protocols.a2acp import codec, errors, intents, published, types
from dragoman.protocols.a2acp.errors import A2acpError, Code, Refusal
from dragoman.protocols.a2acp.types import MessageType, Stamp
from dragoman.wire import LocalProtocolError, Stage
from dragoman.wire.schema import library as schemas

STAMP = Stamp("22222222-2222-4222-8222-222222222222", START, TOKEN)

DOCUMENT = schemas.compile(published.MESSAGE)


def refused(said: Any) -> A2acpError:
    with pytest.raises(A2acpError) as caught:
        codec.decode(said if isinstance(said, bytes) else json.dumps(said).encode())
    return caught.value


def read(said: dict[str, Any]) -> types.Message:
    return codec.decode(json.dumps(said).encode())


def changed(place: str, value: Any, kind: str = "request") -> dict[str, Any]:
    said = copy.deepcopy(tree(kind))
    inner = said
    *path, last = place.split(".")
    for step in path:
        inner = inner[step]
    inner[last] = value
    return said


# -- the document's own --


@pytest.mark.requirement("A2-EXM-1", "A2-EXM-2", "A2-MSG-9", "a2acp-D9")
@pytest.mark.parametrize("name", ["request", "response"])
def test_the_documents_messages_are_read_and_written_back_equal(examples: dict[str, Any], name: str) -> None:
    message = read(examples[name])
    assert (message.message_type, message.intent) == (name, "provision_test_dataset")
    assert (message.correlation_id, message.thread) == ("correlation-789", "correlation-789")
    assert message.contract_id == ("contract-456" if name == "request" else None)
    assert json.loads(codec.encode(message)) == examples[name]
    assert DOCUMENT.accepts(examples[name])


@pytest.mark.requirement("A2-EXM-3", "a2acp-D1", "A2-ERR-2", "a2acp-D9")
def test_the_documents_error_is_read_but_for_its_id(examples: dict[str, Any]) -> None:
    said = examples["error"]
    error = refused(said)
    assert (error.stage, error.field, error.what) == (Stage.SHAPE, "message_id", "expected a UUID")
    assert (error.about, error.thread) == (None, "correlation-789")
    message = read({**said, "message_id": "77000600-040d-43f6-8938-668877662222"})
    assert message.correlation_id == "correlation-789"
    body = codec.error(message)
    assert (body.code, body.retry_after, body.retryable) == (Code.SCHEMA_MISMATCH, 0, False)
    assert set(body.details) == {"expected_schema", "received_schema"}


@pytest.mark.requirement("A2-MSG-9")
def test_what_the_codec_takes_fits_the_documents_schema_and_what_it_lacks_does_not() -> None:
    for kind in MessageType:
        assert DOCUMENT.accepts(tree(kind))
    for name in published.MESSAGE["required"]:
        lacking = tree()
        del lacking[name]
        assert not DOCUMENT.accepts(lacking)
    jsonschema_rs.meta.validate(published.MESSAGE)


# -- fields --


@pytest.mark.requirement("A2-MSG-1")
@pytest.mark.parametrize("field", ["protocol_version", "message_id", "timestamp", "source_agent", "target_agent",
                                   "message_type"])  # fmt: skip
def test_a_missing_field_is_named(field: str) -> None:
    said = tree()
    del said[field]
    error = refused(said)
    assert (error.stage, error.field, error.what) == (Stage.SHAPE, field, "missing required field")
    assert (error.code, error.thread) == (Code.SCHEMA_MISMATCH, "k-1")


@pytest.mark.requirement("A2-MSG-2", "A2-MSG-3", "A2-MSG-4", "A2-MSG-5", "A2-MSG-6", "A2-MSG-7", "A2-MSG-8")
@pytest.mark.requirement("a2acp-D1", "a2acp/all-D2")
@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("protocol_version", "1"),
        ("protocol_version", "1.0.0"),
        ("protocol_version", "1.0\n"),
        ("protocol_version", "١.٠"),
        ("protocol_version", 1.0),
        ("message_id", "1"),
        ("message_id", "11111111-1111-0111-8111-111111111111"),
        ("message_id", "11111111-1111-4111-8111-111111111111\n"),
        ("timestamp", "2026-03-01T12:00:00"),
        ("timestamp", "yesterday"),
        ("timestamp", 1706371800),
        ("source_agent", "ada"),
        ("source_agent.agent_id", ""),
        ("source_agent.version", "1.2"),
        ("source_agent.version", "1.2.3-beta"),
        ("target_agent.domain", None),
        ("target_agent.version", "v1.2.3"),
        ("message_type", "Request"),
        ("message_type", "notification"),
        ("intent", 5),
        ("payload", []),
        ("payload", "text"),
        ("payload.contract_id", 5),
        ("payload.correlation_id", ["k"]),
        ("security.auth_token", 5),
        ("security.encryption", "rot13"),
        ("security", "none"),
    ],
)
def test_a_field_of_another_form_is_named(place: str, value: Any) -> None:
    error = refused(changed(place, value))
    assert error.stage is Stage.SHAPE
    assert error.field == place
    assert error.answer.code is Code.SCHEMA_MISMATCH
    assert error.answer.details["field"] == error.field


@pytest.mark.requirement("A2-TOK-1", "a2acp-D2")
@pytest.mark.parametrize("security", [None, {}, {"auth_token": None}, {"auth_token": ""}, {"encryption": "none"}])
def test_a_message_without_a_token_fails_to_authenticate(security: Any) -> None:
    """The document's schema lets it pass: this is no question of form."""
    said = {name: value for name, value in {**tree(), "security": security}.items() if value is not None}
    error = refused(said)
    assert (error.field, error.answer.code) == ("security.auth_token", Code.AUTH_FAILED)
    assert error.answer.details["reason"] == "missing"


@pytest.mark.requirement("a2acp-D2", "A2-MSG-7", "A2-ERR-2")
@pytest.mark.parametrize(
    ("kind", "field", "lacking"),
    [
        ("request", "intent", {"intent": None}),
        ("request", "payload", {"payload": None}),
        ("error", "payload", {"payload": None}),
        ("error", "payload.error", {"payload": {}}),
        ("error", "payload.error.code", {"payload": {"error": {"message": "m", "retry_after": 0}}}),
        ("error", "payload.error.message", {"payload": {"error": {"code": "TIMEOUT", "retry_after": 1}}}),
        ("error", "payload.error.retry_after", {"payload": {"error": {"code": "TIMEOUT", "message": "m"}}}),
        ("error", "payload.error.code", {"payload": {"error": {"code": "OOPS", "message": "m", "retry_after": 0}}}),
        ("error", "payload.error.retry_after",
         {"payload": {"error": {"code": "TIMEOUT", "message": "m", "retry_after": -1}}}),
    ],
)  # fmt: skip
def test_what_a_type_needs_is_missed_by_name(kind: str, field: str, lacking: dict[str, Any]) -> None:
    assert refused(tree(kind, **lacking)).field == field


@pytest.mark.requirement("a2acp-D2", "A2-MSG-8")
def test_what_a_type_does_not_need_may_be_left_out() -> None:
    for kind in ("response", "event"):
        message = read(tree(kind, intent=None, payload=None, security={"auth_token": TOKEN}))
        assert (message.intent, message.payload, message.security.encryption) == (None, None, "none")


@pytest.mark.requirement("A2-MSG-3", "A2-MSG-4", "a2acp-D1", "a2acp/all-D2")
def test_values_are_canonical() -> None:
    message = read(tree(message_id="11111111-1111-7111-8111-11111111111A", timestamp="2026-03-01T14:00:00+02:00"))
    assert (message.message_id, message.timestamp) == ("11111111-1111-7111-8111-11111111111a", START)
    made = codec.message(MessageType.EVENT, STAMP, source=ADA, target=BOB)
    assert json.loads(codec.encode(made))["timestamp"] == "2026-03-01T12:00:00Z"
    with pytest.raises(LocalProtocolError, match="version 4"):
        codec.message(MessageType.EVENT, Stamp(message.message_id, START, TOKEN), source=ADA, target=BOB)
    assert refused(tree(timestamp="0001-01-01T00:00:00+12:00")).stage is Stage.MEANING


# -- order of checks, sizes --


@pytest.mark.requirement("a2acp/all-D3", "a2acp-D10", "A2-SIZ-1")
def test_checks_come_in_their_order() -> None:
    bad: list[tuple[bytes, Stage]] = [
        (b"[" * 1_000_001, Stage.SIZE),
        (b"[" * 500_000, Stage.DEPTH),
        (b'{"a":NaN}', Stage.JSON),
        (b'{"a":1,"a":2}', Stage.JSON),
        (b'{"a":"\\ud800"}', Stage.JSON),
        (b"[]", Stage.SHAPE),
        (b"{}", Stage.SHAPE),
        (json.dumps(tree(protocol_version="9.0", message_id="x")).encode(), Stage.MEANING),
    ]
    assert [refused(data).stage for data, _ in bad] == [stage for _, stage in bad]
    assert all(refused(data).answer.code is Code.SCHEMA_MISMATCH for data, _ in bad)
    assert refused(bad[0][0]).answer.details["limit"] == 1_000_000


@pytest.mark.requirement("A2-SIZ-1", "A2-SIZ-2", "a2acp-D10")
def test_sizes_are_decimal_and_exact() -> None:
    def sized(payload: int, whole: int = 0) -> bytes:
        text = json.dumps(tree(payload={"x": "P"}, extra="Q"), separators=(",", ":"))
        text = text.replace('"P"', '"' + "p" * (payload - 8) + '"')
        return text.replace('"Q"', '"' + "q" * max(0, whole - len(text)) + '"').encode()

    assert codec.decode(sized(900_000)).payload == {"x": "p" * 899_992}
    error = refused(sized(900_001))
    assert (error.stage, error.field, error.details) == (Stage.SIZE, "payload", {"limit": 900_000, "size": 900_001})
    assert error.about == tree()["message_id"]
    exact = sized(800_000, 999_999)
    exact = exact.replace(b"qq", b"q" * (2 + 1_000_000 - len(exact)), 1)
    assert len(exact) == 1_000_000
    codec.decode(exact)
    assert refused(exact + b" ").details == {"limit": 1_000_000, "size": 1_000_001}
    made = codec.message(MessageType.EVENT, STAMP, source=ADA, target=BOB, payload={"x": "p" * 900_000})
    with pytest.raises(LocalProtocolError, match="payload"):
        codec.encode(made)


# -- correlation, errors --


@pytest.mark.requirement("a2acp-D9", "A2-RTE-4")
def test_the_correlation_id_is_read_and_written_in_both_places() -> None:
    inner = {"code": "TIMEOUT", "message": "m", "retry_after": 1}
    assert read(tree("error", payload={"error": {**inner, "correlation_id": "x"}})).correlation_id == "x"
    assert read(tree("error", payload={"error": inner, "correlation_id": "x"})).correlation_id == "x"
    both = {"error": {**inner, "correlation_id": "x"}, "correlation_id": "y"}
    assert refused(tree("error", payload=both)).field == "payload.error.correlation_id"
    asked = read(tree())
    failure = Refusal(code=Code.TIMEOUT, message="m").payload(asked.thread)
    assert (failure["correlation_id"], failure["error"]["correlation_id"]) == ("k-1", "k-1")
    answer = codec.answer(asked, STAMP, {"dataset_id": "d"}, source=BOB)
    assert answer.payload == {"dataset_id": "d", "contract_id": "c-1", "correlation_id": "k-1"}
    assert (answer.intent, answer.target_agent) == ("provision", ADA)
    without = read(tree(payload={}))
    assert codec.answer(without, STAMP, {}, source=BOB).correlation_id == without.message_id


RETRIED = {"TIMEOUT", "INTERNAL_ERROR", "RATE_LIMIT_EXCEEDED"}


@pytest.mark.requirement("A2-ERR-1", "A2-ERR-3", "a2acp-D10")
def test_retry_after_follows_from_the_code() -> None:
    assert len(Code) == 8
    assert set(errors.TABLE) == set(Code)
    assert {code.value for code in Code if errors.TABLE[code].retry} == RETRIED
    for code in Code:
        for seconds in (None, 0, 0.2, 7, 7.01):
            expected = 0 if code not in RETRIED else max(1, -(-int((seconds or 0) * 100) // 100))
            assert errors.retry_after(code, seconds) == expected
            payload = Refusal(code=code, message="m", after=seconds).payload("k")
            assert (payload["error"]["retry_after"] >= 1) == (code in RETRIED)
            assert set(payload["error"]) == {"code", "message", "details", "retry_after", "correlation_id"}


@pytest.mark.requirement("A2-ERR-2")
def test_an_error_of_a_peer_is_read_whatever_it_says_about_waiting() -> None:
    said = {"code": "TIMEOUT", "message": "m", "retry_after": 0}
    body = codec.error(read(tree("error", payload={"error": said})))
    assert (body.retry_after, body.retryable, body.details) == (0, True, {})


# -- versions --


def backwards(tree: dict[str, Any]) -> dict[str, Any]:
    """An invented major 0: the intent was called `action`."""
    return {("action" if name == "intent" else name): value for name, value in tree.items()}


def forwards(tree: dict[str, Any]) -> dict[str, Any]:
    return {("intent" if name == "action" else name): value for name, value in tree.items()}


OLD = {(0, 1): forwards, (1, 0): backwards}


@pytest.mark.requirement("A2-VER-1", "A2-VER-2", "A2-VER-4", "a2acp-D11")
def test_versions_are_understood_translated_or_refused() -> None:
    assert read(tree(protocol_version="1.7")).protocol_version == "1.7"
    for unknown in ("0.9", "2.0", "3.0"):
        error = refused(tree(protocol_version=unknown))
        assert (error.field, error.code) == ("protocol_version", Code.SCHEMA_MISMATCH)
        assert error.details == {"supported_versions": ["1.x"], "received_version": unknown}
    old = backwards(tree(protocol_version="0.9"))
    message = codec.decode(json.dumps(old).encode(), translations=OLD)
    assert (message.protocol_version, message.intent) == ("1.0", "provision")
    assert codec.supported(translations=OLD) == ["1.x", "0.x"]
    assert not codec.understands("2.0", "0.9", {(2, 0): forwards})


@pytest.mark.requirement("A2-VER-3", "a2acp-D11")
def test_agents_of_one_major_are_compatible() -> None:
    assert codec.compatible("2.0.0", "2.9.1")
    assert not codec.compatible("2.9.1", "3.0.0")
    with pytest.raises(ValueError, match="not a version"):
        codec.major("two")


# -- what travels on, and what does not --


@pytest.mark.requirement("a2acp/all-D4")
def test_a_credential_is_never_shown() -> None:
    message = read(tree())
    assert TOKEN not in repr(message) + repr(list(message.security.__rich_repr__()))
    error = refused(tree(message_type="x"))
    assert TOKEN not in repr(error) + repr(error.answer)


def test_a_fingerprint_depends_on_the_content_and_not_on_its_spelling() -> None:
    said = tree()
    turned = dict(reversed(said.items()))
    assert codec.fingerprint(said) == codec.fingerprint({**turned, "timestamp": "x", "security": {}})
    assert codec.fingerprint(said) != codec.fingerprint({**said, "payload": {}})


# -- the broker's intents --


@pytest.mark.requirement("a2acp-D14", "A2-HSK-1", "A2-HSK-3", "A2-HSK-4", "A2-HSK-5", "a2acp-D6")
@pytest.mark.parametrize(("intent", "kind", "speaker", "body"), BODIES)
def test_every_payload_of_the_broker_is_read_back_equal(intent: str, kind: str, speaker: Any, body: Any) -> None:
    message = read(tree(kind, intent=intent, payload=intents.payload(body)))
    assert intents.read(message) == body
    assert message.intent in intents.INTENTS
    error = refused(tree(kind, intent=intent, payload={"correlation_id": 5}))
    assert error.field == "payload.correlation_id"


@pytest.mark.requirement("a2acp-D14")
def test_the_broker_has_five_intents_and_a_way_to_cancel() -> None:
    assert set(intents.INTENTS) - {"cancel"} == {
        "discover_capabilities", "initiate_handshake", "accept_handshake", "terminate_collaboration", "rotate_key",
    }  # fmt: skip
    assert refused(tree("request", intent="cancel")).field == "intent"
    assert refused(tree("event", intent=intents.DISCOVER)).field == "intent"
    sealed = {"auth_token": TOKEN, "encryption": "aes256"}
    body = intents.payload(intents.Terminate(collaboration_id="l-1"))
    assert refused(tree(intent=intents.TERMINATE, payload=body, security=sealed)).field == "security.encryption"


@pytest.mark.requirement("A2-HSK-1", "A2-HSK-4", "A2-SEC-3")
@pytest.mark.parametrize(
    ("intent", "kind", "payload", "field"),
    [
        (intents.INITIATE, "request", {"requested_intent": "x"}, "target_agent_id"),
        (intents.INITIATE, "request", {"target_agent_id": "x"}, "requested_intent"),
        (intents.INITIATE, "request", {"target_agent_id": "x", "requested_intent": "y", "mode": "odd"}, "mode"),
        (intents.INITIATE, "request", {"target_agent_id": "x", "requested_intent": "y", "public_key": "k"},
         "public_key"),
        (intents.ACCEPT, "response", {"reason": "x"}, "accepted"),
        (intents.ACCEPT, "response", {"accepted": "yes"}, "accepted"),
        (intents.ROTATE, "request", {"collaboration_id": "l-1"}, "public_key"),
        (intents.TERMINATE, "request", {}, "collaboration_id"),
        (intents.DISCOVER, "request", {"limit": 0}, "limit"),
    ],
)  # fmt: skip
def test_a_broken_payload_of_the_broker_is_named(intent: str, kind: str, payload: Any, field: str) -> None:
    assert refused(tree(kind, intent=intent, payload=payload)).field == f"payload.{field}"


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*tree(), "error", "code"]), inner),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_whatever_bytes_are_read_or_refused_with_an_answer(data: bytes) -> None:
    try:
        message = codec.decode(data)
    except A2acpError as error:
        payload = error.answer.payload(error.thread)
        message = codec.message(MessageType.ERROR, STAMP, source=BOB, target=ADA, payload=payload)
    assert codec.decode(codec.encode(message)) == message
