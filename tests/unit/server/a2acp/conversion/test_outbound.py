"""What a2acp's agents are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.core.ids import SECOND
from dragoman.core.model.agents import Offer
from dragoman.core.model.contracts import Standing
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.policy import DomainPolicy
from dragoman.core.model.tasks import EventKind
from dragoman.messages.faults import Fault, Kind, Refused, new_fault
from dragoman.protocols.a2acp.errors import TABLE, refusal_of, retry_after, status_of
from dragoman.protocols.a2acp.intents import Discover
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES
from dragoman.server.a2acp.contracts import capability_of, discovered, held_of, offer_of
from dragoman.server.a2acp.frames import delivery_named
from dragoman.server.a2acp.outbound import wanted_contract


def test_work_is_a_request_from_the_caller(kit: Any) -> None:
    told = kit.encoded(
        kit.outgoing(MessageKind.WORK, {"input": {"rows": 3}, "extra": {"note": "kept"}}), row=kit.contract()
    )
    assert (told["message_type"], told["intent"], told["source_agent"]["agent_id"]) == ("request", "provision", "ada")
    payload = told["payload"]
    assert (payload["rows"], payload["contract_id"], payload["correlation_id"]) == (3, "c-1", kit.task_id)
    assert payload["traceparent"].startswith("00-550e8400e29b41d4a716446655440002-")
    assert (told["note"], told["security"]["auth_token"]) == ("kept", "for-bob")
    assert told["message_id"] != kit.delivery_id
    assert delivery_named(told["message_id"]) == kit.delivery_id


def test_work_of_another_protocol_has_no_contract(kit: Any) -> None:
    told = kit.encoded(kit.outgoing(MessageKind.WORK, {"input": {"rows": 3}}, contract=None))
    assert "contract_id" not in told["payload"]


def test_personal_work_is_never_sent_in_clear(kit: Any) -> None:
    outgoing = kit.outgoing(MessageKind.WORK, {"input": {"patient": "Zaphod"}}, contract=None, personal=True)
    with pytest.raises(Refused, match="no key to reach bob") as refused:
        kit.encoded(outgoing)
    assert refused.value.fault.kind is Kind.FORBIDDEN


def test_what_the_contract_wants_sealed_is_sealed(kit: Any) -> None:
    row = kit.contract(encrypted=True, secret=kit.secret)
    told = kit.encoded(kit.outgoing(MessageKind.WORK, {"input": {"patient": "Zaphod"}}), row=row)
    assert told["security"]["encryption"] == "aes256"
    assert set(told["payload"]) == {"alg", "kid", "nonce", "ciphertext", "contract_id", "correlation_id", "traceparent"}
    assert "Zaphod" not in str(told)


def test_a_ciphertext_of_the_agents_own_goes_on_in_its_envelope(kit: Any) -> None:
    row = kit.contract(encrypted=True, end_to_end=True, secret=kit.secret)
    sealed = {"alg": "A256GCM", "kid": "k-1", "nonce": "N" * 16, "ciphertext": "c" * 22}
    envelope = {"message_id": kit.request_id, "contract_id": "c-1", "correlation_id": "k-1"}
    told = kit.encoded(kit.outgoing(MessageKind.WORK, {"input": sealed, "envelope": envelope}), row=row)
    assert (told["message_id"], told["payload"]["correlation_id"]) == (kit.request_id, "k-1")
    assert told["payload"]["ciphertext"] == sealed["ciphertext"]
    stop = kit.encoded(kit.outgoing(MessageKind.CANCEL, {"reason": "late"}, EventKind.CANCELLED), row=row)
    assert stop["payload"]["correlation_id"] == "k-1"


def test_a_result_answers_the_request_in_its_own_thread(kit: Any) -> None:
    done = kit.outgoing(MessageKind.RESULT, {"result": {"dataset_id": "d"}}, EventKind.COMPLETED, agent="bob")
    told = kit.encoded(done, kit.ada, kit.contract())
    assert (told["message_type"], told["source_agent"]["agent_id"]) == ("response", "bob")
    assert (told["payload"]["dataset_id"], told["payload"]["correlation_id"]) == ("d", "k-1")
    unnamed = kit.outgoing(MessageKind.RESULT, {"result": {}}, EventKind.COMPLETED, agent="bob", called=None)
    assert kit.encoded(unnamed, kit.ada, kit.contract())["payload"]["correlation_id"] == kit.request_id


def test_a_failure_is_an_error_with_its_code(kit: Any) -> None:
    fault = Fault(kind=Kind.TIMEOUT, message="no sign of life", retryable=True, facts={"attempted_retries": 3})
    failed = kit.outgoing(MessageKind.FAILURE, {"fault": msgspec.to_builtins(fault)}, EventKind.FAILED)
    told = kit.encoded(failed, kit.ada, kit.contract())
    error = told["payload"]["error"]
    assert (told["source_agent"]["agent_id"], error["code"], error["retry_after"]) == (
        "protocol-broker-agent",
        "TIMEOUT",
        1,
    )
    fault_told = {"kind": "timeout", "message": "no sign of life"}  # for programs, without advice
    assert error["details"] == {"attempted_retries": 3, "kind": "timeout", "fault": fault_told}
    own = {
        "kind": "work_failed",
        "message": "x",
        "facts": {"error": {"code": "INTERNAL_ERROR", "message": "no disk", "details": {"d": 1}}},
    }
    told = kit.encoded(
        kit.outgoing(MessageKind.FAILURE, {"fault": own}, EventKind.FAILED, agent="bob", protocol="a2acp"), kit.ada
    )
    assert (told["source_agent"]["agent_id"], told["payload"]["error"]["message"]) == ("bob", "no disk")


def test_progress_is_an_event(kit: Any) -> None:
    half = kit.outgoing(
        MessageKind.PROGRESS, {"percent": 50, "message": "half", "chunk": [0, 1, 2]}, EventKind.PROGRESS, agent="bob"
    )
    told = kit.encoded(half, kit.ada, kit.contract())
    assert (told["message_type"], told["intent"]) == ("event", "progress")
    assert {name: told["payload"][name] for name in ("percent", "message")} == {"percent": 50, "message": "half"}
    assert "chunk" not in told["payload"]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-400, False)])
def test_no_message_of_ours_is_larger_than_one_may_be(kit: Any, spare: int, fits: bool) -> None:
    content = {"rows": "x" * (PAYLOAD_BYTES - len('{"rows":"","correlation_id":"k-1","contract_id":"c-1"}') - spare)}
    work = kit.outgoing(MessageKind.WORK, {"input": content})
    done = kit.outgoing(MessageKind.RESULT, {"result": content}, EventKind.COMPLETED, agent="bob")
    half = kit.outgoing(MessageKind.PROGRESS, {"extra": content}, EventKind.PROGRESS, agent="bob")
    told, news = (kit.encoded(one, kit.ada, kit.contract())["payload"] for one in (done, half))
    if fits:
        asked = kit.encoded(work, row=kit.contract())
        assert (asked["payload"]["rows"], "traceparent" in asked["payload"]) == (content["rows"], False)
        assert told["rows"] == news["rows"] == content["rows"]
        return
    with pytest.raises(Refused) as refused:
        kit.encoded(work, row=kit.contract())
    assert (refused.value.fault.kind, refused.value.fault.facts["limit"]) == (Kind.TOO_LARGE, PAYLOAD_BYTES)
    assert told["error"]["details"]["limit"] == news["limit"] == PAYLOAD_BYTES


@pytest.mark.parametrize("message_kind", [MessageKind.WORK, MessageKind.RESULT])
def test_nor_is_a_ciphertext_that_goes_on(kit: Any, message_kind: MessageKind) -> None:
    row = kit.contract(encrypted=True, end_to_end=True, secret=kit.secret)
    envelope = {"message_id": kit.request_id, "contract_id": "c-1", "correlation_id": "k-1"}
    empty = {"alg": "A256GCM", "kid": "k-1", "nonce": "N" * 16, "ciphertext": ""}
    around = {"contract_id": "c-1", "correlation_id": "k-1"}
    room = PAYLOAD_BYTES - len(msgspec.json.encode({**empty, **around}))
    name, kind, by, to = (
        ("input", EventKind.SUBMITTED, "ada", kit.bob)
        if message_kind is MessageKind.WORK
        else ("result", EventKind.COMPLETED, "bob", kit.ada)
    )
    sealed = {**empty, "ciphertext": "c" * room}
    told = kit.encoded(kit.outgoing(message_kind, {name: sealed, "envelope": envelope}, kind, agent=by), to, row)
    assert (told["payload"]["ciphertext"], set(told["payload"])) == (sealed["ciphertext"], {*empty, *around})


def test_discovery_lists_as_much_as_a_message_holds(kit: Any) -> None:
    long = {"description": "x" * 90_000}
    offers = tuple(Offer(intent=f"i-{n:02}", input_schema=long, output_schema=long) for n in range(6))
    found = discovered(
        Discover(), kit.agent("ada", "ward", "1.0.0"), [(kit.agent("bob", "ward", "2.1.0", offers=offers), True)]
    )
    assert ([one.capability.intent for one in found.capabilities], found.more) == (
        ["i-00", "i-01", "i-02", "i-03"],
        True,
    )


def test_a_proposal_has_the_terms_that_will_stand(kit: Any) -> None:
    told = kit.encoded(kit.news(MessageKind.PROPOSAL, kit.question()))
    payload = told["payload"]
    assert (told["intent"], payload["handshake_id"], payload["correlation_id"]) == ("accept_handshake", "q-1", "q-1")
    assert (payload["contract"]["contract_id"], payload["contract"]["kid"]) == ("c-1", "k-1")
    assert "public_key" not in payload  # only where the two make the key themselves
    assert "locked" not in str(told)


def test_the_end_of_a_handshake_is_a_contract_or_an_error(kit: Any) -> None:
    agreed = kit.news(MessageKind.ANSWER, kit.question({"contract_id": "c-1"}))
    assert wanted_contract(agreed) == "c-1"
    told = kit.encoded(agreed, kit.ada, kit.contract(encrypted=True, secret=kit.secret))
    assert (told["message_type"], told["payload"]["collaboration_id"]) == ("response", "l-1")
    assert (told["payload"]["correlation_id"], told["payload"]["key"]["kid"]) == ("h-1", "k-1")
    fault = {"kind": "contract", "message": "bob declined: no", "facts": {"reason": "no"}}
    told = kit.encoded(kit.news(MessageKind.ANSWER, kit.question({"fault": fault})), kit.ada)
    assert told["payload"]["error"]["code"] == "CONTRACT_VIOLATION"
    assert told["payload"]["error"]["correlation_id"] == "h-1"


@pytest.mark.parametrize(
    ("changed", "intent"),
    [
        ({}, "accept_handshake"),
        ({"standing": Standing.TERMINATED, "by": "ada", "reason": "r"}, "terminate_collaboration"),
        ({"rotated_at": 9, "since": 0}, "accept_handshake"),
        ({"rotated_at": 0, "since": -1}, "rotate_key"),
        ({"rotated_at": 9, "since": -1}, "rotate_key"),  # and once more since then
        ({"rotated_at": -1, "since": -2}, "accept_handshake"),  # a person renewed it after that
    ],
)
def test_news_of_a_contract(kit: Any, changed: dict[str, Any], intent: str) -> None:
    now = kit.news(MessageKind.CONTRACT, None).delivery.created_at
    changed = {name: now + value if type(value) is int else value for name, value in changed.items()}
    told = kit.encoded(kit.news(MessageKind.CONTRACT, kit.contract(encrypted=True, secret=kit.secret, **changed)))
    assert (told["message_type"], told["intent"], told["payload"]["collaboration_id"]) == ("event", intent, "l-1")


# -- values ------------------------------------------------------------------------------------------------------


def test_offers_and_capabilities_are_the_same_thing(kit: Any) -> None:
    assert offer_of(capability_of(kit.offer)) == kit.offer


def test_a_contract_is_judged_by_the_documents_own_rules(kit: Any) -> None:
    held = held_of(kit.contract(encrypted=True, secret=kit.secret, former=None))
    assert (held.contract.parties, held.contract.security.encryption) == (("ada", "bob"), "aes256")
    assert held.contract.timeout_seconds == 30.0
    assert held_of(kit.contract(sandbox="bubblewrap")).contract.timeout_seconds == 60.0


def test_discovery_finds_by_everything_that_is_given(kit: Any) -> None:
    ada = kit.agent("ada", "lab", "1.0.0", offers=(kit.offer,))
    bob = kit.agent("bob", "ward", "2.1.0", offers=(kit.offer, Offer(intent="other", timeout=SECOND)))
    cat = kit.agent("cat", "lab", "x", protocol="chiffon", work_types=("echo",))
    dan = kit.agent("dan", "lab", "x", protocol="coven")
    eve = kit.agent("eve", "lab", "x", work_types=("echo",))
    agents = [(dan, True), (ada, True), (bob, True), (cat, False), (eve, True)]
    drawn: tuple[DomainPolicy, ...] = (DomainPolicy("lab", "ward"),)

    def found(**asked: Any) -> list[tuple[str, str]]:
        told = discovered(Discover(**asked), ada, agents, drawn).capabilities
        return [(one.agent.agent_id, one.capability.intent) for one in told if one.allowed]

    assert found() == [("bob", "other"), ("bob", "provision"), ("cat", "echo"), ("dan", "*")]
    assert found(intent="provision", version="1.0.0", capability="write:datasets", domain="ward") == [
        ("bob", "provision")
    ]
    assert found(intent="provision") == [("bob", "provision"), ("dan", "*")]
    assert found(version="2.0.0") == found(domain="elsewhere") == found(capability="fly") == []
    assert found(agent_id="cat") == [("cat", "echo")]
    assert discovered(Discover(limit=1), ada, agents, drawn).more
    drawn = (DomainPolicy("lab", "ward", intents=("other",)),)
    assert found(domain="ward") == [("bob", "other")]
    drawn = ()
    assert found() == [("cat", "echo"), ("dan", "*")]
    told = discovered(Discover(domain="ward"), ada, agents, drawn).capabilities
    assert [(one.capability.intent, one.allowed) for one in told] == [("other", False), ("provision", False)]


@pytest.mark.parametrize("kind", list(Kind))
def test_every_fault_has_its_code_and_its_status(kind: Kind) -> None:
    fault = Fault(kind=kind, message="it went wrong", field="contract_id", facts={"retry_after": 7})
    refusal = refusal_of(fault)
    assert refusal.details["field"] == "payload.contract_id"
    assert retry_after(refusal.code, refusal.after) == (7 if TABLE[refusal.code].retry else 0)
    assert 400 <= status_of(fault) < 600


def test_a_cancel_of_personal_work_is_reported_too_with_what_to_do() -> None:
    told = refusal_of(Fault(kind=Kind.CANCELLED, message="Zaphod died", facts={"who": "Zaphod"}), personal=True)
    assert "Zaphod" not in str(told)
    assert (told.message.startswith("It was cancelled"), "if it is still wanted" in told.message) == (True, True)
    assert told.details == {"kind": "cancelled", "retryable": False}


def test_nobody_of_that_name_is_not_found_and_nobody_there_now_is_timed_out() -> None:
    unknown = new_fault(Kind.UNAVAILABLE, "no agent is called 'x'", next="add one", field="to_agent", retryable=True)
    told = refusal_of(unknown).payload("k")["error"]
    assert (told["code"], told["retry_after"], status_of(unknown)) == ("CAPABILITY_NOT_FOUND", 0, 404)
    away = Fault(kind=Kind.UNAVAILABLE, message="x is away", retryable=True)
    assert (refusal_of(away).code, status_of(away)) == ("TIMEOUT", 504)
