"""Answers as the document shows them: by which names they find what they answer, and what comes with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.conformance.a2acp.plain import PROVISION, WANTED, Bond, Plain, code_of, error_of, seal

Json = dict[str, Any]


@pytest.mark.requirement("A2-RTE-3")
def test_a_caller_that_does_not_wait_gets_the_answer_in_its_inbox(bond: Bond) -> None:
    asked = bond.request()
    taken = bond.source.send(asked, later=True)
    assert (taken.status, taken.json["status"], taken.json["message_id"]) == (202, "accepted", asked["message_id"])
    work = bond.target.hears("request")
    bond.target.say(bond.response(work, {"dataset_id": "d-1"}))
    told = bond.source.hears("response", PROVISION["intent"])
    assert bond.content(told) == {"dataset_id": "d-1"}
    assert told["payload"]["correlation_id"] == asked["payload"]["correlation_id"]


@pytest.mark.requirement("A2-RTE-5", "A2-CTR-6", "A2-ERR-2")
def test_a_response_that_breaks_the_contract_does_not_reach_the_source_as_one(bond: Bond) -> None:
    ada, bob = bond.source, bond.target
    with ada.sending(bond.request()) as waiting:
        work = bob.hears("request")
        told = bob.refused(bond.response(work, {"dataset": "canary-value"}))
        assert told["code"] == "CONTRACT_VIOLATION"
        assert "canary" not in json.dumps(told)
        answer = waiting.result(10)
    assert code_of(answer) == "CONTRACT_VIOLATION"
    assert error_of(answer)["retry_after"] == 0
    assert b"canary" not in answer.body
    assert bob.refused(bond.response(work, {"dataset_id": "d-2"}))["retry_after"] == 0  # it had its turn


@pytest.mark.requirement("a2acp/all-D5")
def test_a_response_again_changes_nothing(bond: Bond) -> None:
    work = bond.ask()
    bond.target.say(bond.response(work, {"dataset_id": "first"}))
    bond.target.say(bond.response(work, {"dataset_id": "first"}))  # its answer was lost, it thinks
    told = bond.target.refused(bond.response(work, {"dataset_id": "second"}))
    assert told["retry_after"] == 0
    assert [bond.content(one) for one in bond.source.hear()] == [{"dataset_id": "first"}]


@pytest.mark.requirement("A2-RTE-4", "a2acp-D8")
@pytest.mark.parametrize("names", ["contract", "nothing", "message_id", "the callers"])
def test_a_response_finds_the_one_request_that_it_can_mean(bond: Bond, names: str) -> None:
    ada, bob = bond.source, bond.target
    payload = {**WANTED, "contract_id": bond.id, "correlation_id": "correlation-789"}
    asked = ada.say(ada.message("request", bob, "provision_test_dataset", payload))
    work = bob.hears("request", "provision_test_dataset")
    named: Json = {
        "contract": {"contract_id": bond.id},
        "nothing": {},
        "message_id": {"correlation_id": work["message_id"]},
        "the callers": {"correlation_id": "correlation-789"},
    }[names]
    bob.say(bob.message("response", ada, "provision_test_dataset", {"dataset_id": "d-1", **named}))
    told = ada.hears("response", "provision_test_dataset")["payload"]
    assert (told["dataset_id"], told["correlation_id"]) == ("d-1", "correlation-789")
    assert asked["message_id"] != work["message_id"]


@pytest.mark.requirement("A2-RTE-4", "a2acp-D9")
def test_both_sides_call_a_request_by_the_same_name(bond: Bond) -> None:
    """And two that are called the same are not confused."""
    ada, bob = bond.source, bond.target
    payload = {**WANTED, "contract_id": bond.id, "correlation_id": "correlation-789"}
    for record_count in (1, 2):
        asked = {**payload, "record_count": record_count}
        ada.say(ada.message("request", bob, "provision_test_dataset", asked))
    work = [bob.hears("request", "provision_test_dataset") for _ in range(2)]
    assert work[0]["payload"]["correlation_id"] == "correlation-789"
    assert work[1]["payload"]["correlation_id"] != "correlation-789"
    for one in reversed(work):
        answer = {"dataset_id": f"d-{one['payload']['record_count']}"}
        answer["correlation_id"] = one["payload"]["correlation_id"]
        bob.say(bob.message("response", ada, "provision_test_dataset", answer))
    told = [ada.hears("response", "provision_test_dataset")["payload"] for _ in range(2)]
    assert [one["correlation_id"] for one in told] == ["correlation-789"] * 2
    assert sorted(one["dataset_id"] for one in told) == ["d-1", "d-2"]
    ada.say(ada.message("request", bob, "provision_test_dataset", payload))
    again = bob.hears("request", "provision_test_dataset")
    assert again["payload"]["correlation_id"] == "correlation-789"
    ada.say(ada.message("event", bob, "cancel", {"correlation_id": "correlation-789"}))
    assert bob.hears("event", "cancel")["payload"]["correlation_id"] == "correlation-789"


@pytest.mark.requirement("a2acp/all-D6")
@pytest.mark.parametrize("mode", ["broker", "end-to-end"])
def test_fields_nobody_knows_reach_the_other_side_both_ways(cast: tuple[Plain, Plain], mode: str) -> None:
    ada, bob = cast
    bond = ada.shake(bob, mode=mode)
    asked = bond.request()
    ada.say({**asked, "x_asked": {"deep": [1]}})
    work = bob.hears("request", "provision_test_dataset")
    assert work["x_asked"] == {"deep": [1]}
    bob.say({**bond.response(work, {"dataset_id": "d"}), "x_answered": 2})
    told = ada.hears("response", "provision_test_dataset")
    assert (told["x_answered"], bond.content(told)) == (2, {"dataset_id": "d"})


@pytest.mark.requirement("a2acp/all-D6")
@pytest.mark.parametrize(
    "sealed", [{}, {"encrypt": True}, {"mode": "end-to-end"}], ids=["clear", "sealed", "between two"]
)
def test_fields_nobody_knows_come_with_progress_and_errors(cast: tuple[Plain, Plain], sealed: dict[str, Any]) -> None:
    """Where payloads are sealed only what stands beside them: of those, errors repeat nothing (D13)."""
    ada, bob = cast
    bond = ada.shake(bob, **sealed)
    work = bond.ask()
    thread = {"correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}
    told = bob.message("event", ada, "progress", thread if sealed else {**thread, "percent": 5, "x_told": 1})
    bob.say({**(seal(bond.keys[bond.kid], bond.kid, told, {"percent": 5}) if sealed else told), "x_beside": [1]})
    heard = ada.hears("event", "progress", lambda one: one["payload"]["contract_id"] == bond.id)
    assert (heard["x_beside"], heard["payload"].get("x_told")) == ([1], None if sealed else 1)
    assert bond.content(heard) == ({"percent": 5} if sealed else {"percent": 5, "x_told": 1})
    error = {"code": "INTERNAL_ERROR", "message": "no", "retry_after": 3, "details": {"a": 1}, "x_in": "here"}
    failed = bob.message("error", ada, "provision_test_dataset", {**thread, "error": error, "x_around": [2]})
    bob.say({**failed, "x_beside": {"deep": [3]}})
    heard = ada.hears("error", "provision_test_dataset", lambda one: one["payload"].get("contract_id") == bond.id)
    assert heard["x_beside"] == {"deep": [3]}
    if sealed:
        assert "here" not in json.dumps(heard)
        assert "x_around" not in heard["payload"]
    else:
        assert heard["payload"]["error"] == {**error, "correlation_id": heard["payload"]["correlation_id"]}
        assert heard["payload"]["x_around"] == [2]


@pytest.mark.requirement("A2-RTE-4", "a2acp-D8")
def test_a_response_that_may_mean_two_requests_is_refused(bond: Bond) -> None:
    ada, bob = bond.source, bond.target
    for _ in range(2):
        ada.say(ada.message("request", bob, "provision_test_dataset", {**WANTED, "contract_id": bond.id}))
    work = [bob.hears("request", "provision_test_dataset") for _ in range(2)]
    payload = {"dataset_id": "d-1", "contract_id": bond.id}
    told = bob.refused(bob.message("response", ada, "provision_test_dataset", payload))
    assert (told["code"], told["details"]["field"]) == ("SCHEMA_MISMATCH", "payload.correlation_id")
    for one in work:
        answer = {**payload, "correlation_id": one["payload"]["correlation_id"]}
        bob.say(bob.message("response", ada, "provision_test_dataset", answer))
