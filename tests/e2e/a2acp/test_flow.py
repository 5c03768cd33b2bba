"""Two agents meet, agree and work; what comes twice, late, broken or too often."""

from __future__ import annotations

import json
from pathlib import Path

import jwt

from tests.e2e.a2acp.speaking import (
    BROKER,
    INTENT,
    ROWS,
    Json,
    Speaker,
    code,
    code_of_bare,
    compact,
    dataset,
    details,
    now,
)
from tests.support.hubproc import HubProcess, running, until


def test_two_agents_meet_agree_and_work_over_http(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    status, found = ada.ask(BROKER, "discover_capabilities", {"intent": "provision", "agent_id": bob.id})
    (offered,) = found["payload"]["capabilities"]
    assert (status, offered["agent"]["agent_id"], offered["capability"]["input_schema"]) == (200, bob.id, ROWS)
    with bob.working(dataset(bob)) as heard:
        told = ada.shake_hands(bob, "provision", request_schema=ROWS)
        contract = told["contract"]
        assert told["collaboration_id"] == contract["collaboration_id"]
        assert (contract["intent"], contract["security"]["encryption"]) == ("provision", "none")
        wish = {"rows": 3, "contract_id": contract["contract_id"], "correlation_id": "k-1"}
        status, answer = ada.ask(bob, "provision", wish)
        assert (status, answer["message_type"], answer["source_agent"]["agent_id"]) == (200, "response", bob.id)
        said = {name: answer["payload"][name] for name in ("dataset_id", "contract_id", "correlation_id")}
        assert said == {"dataset_id": "d-3", "contract_id": contract["contract_id"], "correlation_id": "k-1"}

        later = ada.message("request", bob, "provision", {**wish, "correlation_id": "k-2"})
        status, answer = ada.post(later, prefer="respond-async")
        assert (status, answer["message_id"]) == (202, later["message_id"])
        assert ada.next("response", "provision")["payload"]["correlation_id"] == "k-2"

        ended = {"collaboration_id": told["collaboration_id"], "reason": "enough"}
        status, answer = ada.ask(BROKER, "terminate_collaboration", ended)
        assert (status, answer["payload"]["by"]) == (200, ada.id)
        assert code(ada.ask(bob, "provision", wish)[1]) == "CONTRACT_VIOLATION"
        kinds = [("event", "accept_handshake"), ("event", "terminate_collaboration")]
        until(lambda: all(kind in [(one["message_type"], one["intent"]) for one in heard] for kind in kinds))
    request = next(one for one in heard if (one["message_type"], one["intent"]) == ("request", "provision"))
    assert request["source_agent"]["agent_id"] == ada.id
    aud = jwt.decode(request["security"]["auth_token"], options={"verify_signature": False})
    assert (aud["sub"], aud["aud"]) == (BROKER, bob.id)


def test_both_sides_are_held_to_the_contract(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: bob.response(request, {"dataset_id": 7})) as heard:
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
        canary = "Zaphod-Beeblebrox"
        for payload, field in (
            ({"rows": canary, "contract_id": contract}, "payload"),
            ({"rows": 1, "extra": canary, "contract_id": contract}, "payload"),
            ({"rows": 1}, "payload.contract_id"),
            ({"rows": 1, "contract_id": "contract-nobody-has"}, "payload.contract_id"),
        ):
            status, answer = ada.ask(bob, "provision", payload)
            assert (status, code(answer), details(answer).get("field")) == (422, "CONTRACT_VIOLATION", field), answer
            assert canary not in json.dumps(answer)
            assert answer["payload"]["error"]["retry_after"] == 0
        assert code(ada.ask(bob, "slow", {"contract_id": contract})[1]) == "CONTRACT_VIOLATION"
        bare = ada.token(bob.id, requested_capabilities=[])
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract}, token=bare)
        assert (status, code(answer), details(answer)["missing"]) == (401, "AUTH_FAILED", ["write:datasets"])
        # the answer is not what was promised
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract})
        assert (status, code(answer), details(answer)["faults"][0]["pointer"]) == (
            422,
            "CONTRACT_VIOLATION",
            "/dataset_id",
        )
    assert len([one for one in heard if one["intent"] == "provision"]) == 1


def test_handshakes_fail_with_their_codes(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    stranger = Speaker(hub, "elsewhere", "write:datasets")
    wish = {"target_agent_id": bob.id, "requested_intent": "provision"}
    for who, changed, told in (
        (ada, {"target_agent_id": "nobody"}, "CAPABILITY_NOT_FOUND"),
        (ada, {"requested_intent": "dance"}, "CAPABILITY_NOT_FOUND"),
        (ada, {"target_version": "2.0.0"}, "SCHEMA_MISMATCH"),
        (ada, {"request_schema": {"type": "object"}}, "SCHEMA_MISMATCH"),
        (ada, {"request_schema": {"$ref": "http://example.com/x"}}, "SCHEMA_MISMATCH"),
        (ada, {"requested_intent": "record"}, "SECURITY_POLICY_VIOLATION"),
        (stranger, {}, "SECURITY_POLICY_VIOLATION"),
        (bob, {"target_agent_id": ada.id}, "CAPABILITY_NOT_FOUND"),
    ):
        answer = who.ask(BROKER, "initiate_handshake", {**wish, **changed})[1]
        assert code(answer) == told, (changed, answer)
    with bob.working(lambda request: None, {"accepted": False, "reason": "not today"}):
        answer = ada.ask(BROKER, "initiate_handshake", wish)[1]
        assert (code(answer), details(answer)["reason"]) == ("CONTRACT_VIOLATION", "not today")


def test_an_agent_that_does_not_answer_in_time_is_timed_out(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    with bob.working(lambda request: None):
        contract = ada.shake_hands(bob, "slow")["contract"]["contract_id"]
        status, answer = ada.ask(bob, "slow", {"contract_id": contract})
        assert (status, code(answer)) == (504, "TIMEOUT")
        assert answer["payload"]["error"]["retry_after"] >= 1


def test_errors_cancels_and_progress_pass_between_agents(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair

    def fail(request: Json) -> Json:
        payload = {
            "error": {"code": "INTERNAL_ERROR", "message": "no disk", "details": {"disk": "a"}, "retry_after": 7}
        }
        told = bob.response(request, payload)
        return {**told, "message_type": "error"}

    with bob.working(fail):
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract, "correlation_id": "k"})
        assert (status, code(answer), details(answer)) == (503, "INTERNAL_ERROR", {"disk": "a"})
        assert (answer["payload"]["error"]["retry_after"], answer["payload"]["correlation_id"]) == (7, "k")
    wish = {"rows": 1, "contract_id": contract, "correlation_id": "k-9"}
    assert ada.post(ada.message("request", bob, "provision", wish), prefer="respond-async")[0] == 202
    request = bob.next("request", "provision")
    told = bob.response(request, {"percent": 40, "message": "half"})
    assert bob.post({**told, "message_type": "event", "intent": "progress"})[0] == 202
    heard = ada.next("event", "progress")["payload"]
    assert (heard["percent"], heard["message"], heard["correlation_id"]) == (40, "half", "k-9")
    stop = ada.message("event", bob, "cancel", {"correlation_id": "k-9", "contract_id": contract})
    assert ada.post(stop)[0] == 202
    assert bob.next("event", "cancel")["payload"]["correlation_id"] == request["payload"]["correlation_id"]
    assert code(bob.post(bob.response(request, {"dataset_id": "late"}))[1]) == "CONTRACT_VIOLATION"


def test_the_caller_of_cancelled_work_learns_so_and_not_to_retry(
    hub: HubProcess, pair: tuple[Speaker, Speaker]
) -> None:
    """The document has no code for it; the nearest is one that wants a `retry_after` (D10)."""
    ada, bob = pair

    def cancelled(request: Json) -> None:
        path = f"/api/v1/tasks/{request['task']['id']}/cancel"
        assert hub.admin.post(path, {"reason": "the study was stopped"}).status < 300

    with bob.working(cancelled):
        contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
        status, answer = ada.ask(bob, "provision", {"rows": 1, "contract_id": contract})
    assert (status, code(answer), details(answer)["kind"]) == (409, "INTERNAL_ERROR", "cancelled")
    error = answer["payload"]["error"]
    assert (details(answer)["retryable"], error["retry_after"]) == (False, 1)
    assert error["message"] == "The study was stopped. Send it again under a new message_id if it is still wanted."


def test_a_message_counts_once_and_only_in_its_time(hub: HubProcess, pair: tuple[Speaker, Speaker]) -> None:
    ada, _ = pair
    said = ada.message("request", BROKER, "discover_capabilities", {})
    assert ada.post(said)[0] == 200
    status, answer = ada.post(said)
    assert (status, code(answer), details(answer)["reason"]) == (401, "AUTH_FAILED", "replayed")
    changed = {**said, "payload": {"intent": "provision"}}
    assert details(ada.post(changed)[1])["reason"] == "replayed"
    for shift, reason in ((-310, "too_old"), (90, "in_the_future")):
        said = ada.message("request", BROKER, "discover_capabilities", {}, timestamp=now(seconds=shift))
        status, answer = ada.post(said)
        assert (status, details(answer)["reason"]) == (401, reason)
    hub_log = hub.admin.get(f"/api/v1/audit?principal={ada.id}&outcome=refused").json["records"]
    assert len(hub_log) >= 3


def test_a_replay_is_known_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        with bob.working(dataset(bob)):
            contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
            said = ada.message("request", bob, "provision", {"rows": 1, "contract_id": contract})
            assert ada.post(said)[0] == 200
        hub.restart()
        with bob.working(dataset(bob)) as heard:
            status, answer = ada.post(said)
            assert (status, details(answer)["reason"]) == (401, "replayed")
            status, answer = ada.ask(bob, "provision", {"rows": 2, "contract_id": contract})
            assert (status, answer["payload"]["dataset_id"]) == (200, "d-2")  # contract and signing key are still there
        assert len([one for one in heard if one["intent"] == "provision"]) == 1


def test_a_malformed_message_is_refused_with_its_field(pair: tuple[Speaker, Speaker]) -> None:
    ada, bob = pair
    good = ada.message("request", BROKER, "discover_capabilities", {})
    for changed, status, field in (
        ({"protocol_version": "3.0"}, 422, "protocol_version"),
        ({"message_id": "770g0600-g40d-63f6-c938-668877662222"}, 400, "message_id"),
        ({"timestamp": "2026-01-01T00:00:00"}, 400, "timestamp"),
        ({"message_type": "shout"}, 400, "message_type"),
        ({"intent": None}, 400, "intent"),
        ({"intent": "accept_handshake"}, 400, "payload.handshake_id"),
        ({"payload": {"limit": 0}}, 400, "payload.limit"),
    ):
        answered, answer = ada.post({n: v for n, v in {**good, **changed}.items() if v is not None})
        assert (answered, code_of_bare(answer), details(answer).get("field")) == (status, "SCHEMA_MISMATCH", field)
    for security in (None, {}, {"auth_token": ""}):
        answered, answer = ada.post({n: v for n, v in {**good, "security": security}.items() if v is not None})
        assert (answered, code_of_bare(answer), details(answer)["field"]) == (401, "AUTH_FAILED", "security.auth_token")
    for body, limit in ((compact({**good, "payload": {"x": "y" * 900_001}}), 900_000), (b" " * 1_000_001, 1_000_000)):
        answered, answer = ada.call("POST", "/a2acp/messages", body)
        assert (answered, code_of_bare(answer), details(answer)["limit"]) == (413, "SCHEMA_MISMATCH", limit)
    status, answer = ada.ask(bob, "discover_capabilities", {})
    assert (status, code(answer), details(answer)["field"]) == (422, "SCHEMA_MISMATCH", "target_agent.agent_id")
    assert code(ada.ask(BROKER, "dance", {})[1]) == "CAPABILITY_NOT_FOUND"
    schema = ada.call("GET", "/schemas/a2acp.json")[1]
    assert schema["required"] == [
        "protocol_version", "message_id", "timestamp", "source_agent", "target_agent", "message_type",
    ]  # fmt: skip


def test_too_many_in_a_minute_are_refused_with_the_time_to_wait(tmp_path: Path) -> None:
    with running(tmp_path, DRAGOMAN_A2ACP__MESSAGES_PER_COLLABORATION="3") as hub:
        ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
        bob.serve(INTENT)
        with bob.working(dataset(bob)):
            contract = ada.shake_hands(bob, "provision")["contract"]["contract_id"]
            wish = {"rows": 1, "contract_id": contract}
            assert [ada.ask(bob, "provision", wish)[0] for _ in range(3)] == [200, 200, 200]
            status, answer = ada.ask(bob, "provision", wish)
            assert (status, code(answer), details(answer)["scope"]) == (429, "RATE_LIMIT_EXCEEDED", "collaboration")
            assert 1 <= answer["payload"]["error"]["retry_after"] <= 60
