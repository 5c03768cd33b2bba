"""Requests under a contract: routed, counted once, traced, cancelled."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Plain, now
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess

Json = dict[str, Any]


# -- routing


@pytest.mark.requirement("A2-RTE-1", "A2-RTE-3", "A2-RTE-4", "A2-RTE-5", "A2-EXM-1", "A2-EXM-2", "A2-MSG-9")
def test_the_documents_request_and_response(hub: HubProcess, bond: Bond, examples: Json) -> None:
    import jsonschema_rs

    ada, bob = bond.source, bond.target
    fresh = {"message_id": str(uuid.uuid4()), "timestamp": now()}
    asked = examples["request"] | fresh
    asked["payload"] = asked["payload"] | {"contract_id": bond.id}
    asked["security"] = {"auth_token": ada.token(bob.id), "encryption": "none"}
    with ada.sending(asked) as waiting:
        work = bob.hears("request", PROVISION["intent"])
        assert (work["source_agent"], work["target_agent"]) == (ada.party, bob.party)
        assert work["payload"]["contract_id"] == bond.id
        assert bond.content(work) == WANTED
        answered = examples["response"] | {"message_id": str(uuid.uuid4()), "timestamp": now()}
        same = {"correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}
        answered["payload"] = answered["payload"] | same
        answered["security"] = {"auth_token": bob.token(ada.id), "encryption": "none"}
        bob.say(answered)
        answer = waiting.result(10)
    assert answer.status == 200, answer
    told = answer.json
    assert (told["message_type"], told["source_agent"], told["target_agent"]) == ("response", bob.party, ada.party)
    expected = {name: value for name, value in examples["response"]["payload"].items() if name != "correlation_id"}
    assert bond.content(told) == expected
    assert told["payload"]["contract_id"] == bond.id
    assert told["payload"]["correlation_id"] == "correlation-789"
    takes = jsonschema_rs.validator_for(
        HttpClient(hub.url).get("/schemas/a2acp.json").json, validate_formats=True
    ).is_valid
    assert takes(work)
    assert takes(told)
    assert uuid.UUID(work["message_id"]).version == 4
    assert ada.hear() == []  # it was told once


@pytest.mark.requirement("A2-RTE-2", "A2-CTR-5", "A2-CTR-6", "a2acp-D8")
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"contract_id": None}, "CONTRACT_VIOLATION"),
        ({"contract_id": "contract-456"}, "CONTRACT_VIOLATION"),
        ({"record_count": 0}, "CONTRACT_VIOLATION"),
        ({"dataset_type": None}, "CONTRACT_VIOLATION"),
        ({"canary": "canary"}, "CONTRACT_VIOLATION"),
    ],
)
def test_what_the_contract_does_not_allow_is_not_routed(bond: Bond, payload: Json, code: str) -> None:
    asked = bond.request()
    changed = {name: value for name, value in {**asked["payload"], **payload}.items() if value is not None}
    told = bond.source.refused({**asked, "payload": changed}, later=False)
    assert (told["code"], told["retry_after"]) == (code, 0)
    assert told["correlation_id"] == asked["payload"]["correlation_id"]
    assert bond.target.hear() == []


@pytest.mark.requirement("A2-LNK-1")
def test_an_agent_says_only_its_part_of_the_brokers_intents(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    for message, field in (
        (ada.message("request", bob.party, "discover_capabilities", {}), "target_agent.agent_id"),
        (ada.message("response", BROKER, "discover_capabilities", {"capabilities": []}), "intent"),
    ):
        assert ada.refused(message, later=False)["details"]["field"] == field
    assert bob.hear() == []


@pytest.mark.requirement("A2-LNK-2")
def test_a_broken_frame_is_answered_and_the_connection_goes_on(cast: tuple[Plain, Plain]) -> None:
    ada, _ = cast
    with ada.link() as link:
        for frame in ("", "{", "[]", json.dumps(ada.message("shout", BROKER, None, {}))):
            link.socket.send(frame)
            told = link.hears("error")["payload"]["error"]
            assert (told["code"], told["retry_after"]) == ("SCHEMA_MISMATCH", 0)
        link.say(ada.message("error", BROKER, None, {"error": {}}))  # a broken error is not answered
        link.say(ada.message("request", BROKER, "discover_capabilities", {"correlation_id": "next"}))
        assert link.hears("response")["payload"]["correlation_id"] == "next"


@pytest.mark.requirement("A2-LNK-5", "A2-RTE-3")
def test_a_connection_carries_the_same_messages_both_ways(bond: Bond) -> None:
    ada, bob = bond.source, bond.target
    with ada.link() as left, bob.link() as right:
        left.say(ada.initiate(bob, PROVISION["intent"]))
        proposal = right.hears("request", "accept_handshake")
        yes = {"accepted": True, "correlation_id": proposal["payload"]["handshake_id"]}
        right.say(bob.message("response", BROKER, "accept_handshake", yes))
        contract = left.hears("response", "initiate_handshake")["payload"]["contract"]
        right.hears("event", "accept_handshake")
        over = bond._replace(terms=contract)
        asked = left.say(over.request())
        work = right.hears("request", PROVISION["intent"])
        assert over.content(work) == WANTED
        right.say(bob.message("event", ada, "progress", {
            "percent": 40, "message": "halfway", "correlation_id": work["payload"]["correlation_id"],
        }))  # fmt: skip
        assert left.hears("event", "progress")["payload"]["percent"] == 40
        right.say(over.response(work, {"dataset_id": "d-3"}))
        told = left.hears("response", PROVISION["intent"])
        assert over.content(told) == {"dataset_id": "d-3"}
        assert told["payload"]["correlation_id"] == asked["payload"]["correlation_id"]
        left.say(over.request({"nothing": "fits"}))
        assert left.hears("error")["payload"]["error"]["code"] == "CONTRACT_VIOLATION"
        left.say(ada.message("request", BROKER, "terminate_collaboration",
                             {"collaboration_id": contract["collaboration_id"], "reason": "done"}))  # fmt: skip
        assert left.hears("response", "terminate_collaboration")["payload"]["by"] == ada.id
        assert right.hears("event", "terminate_collaboration")["payload"]["reason"] == "done"
        left.say(over.request())
        assert left.hears("error")["payload"]["error"]["details"]["standing"] == "terminated"


# -- what holds for all protocols


@pytest.mark.requirement("a2acp/all-D5", "a2acp-D15")
def test_a_message_id_counts_once_whatever_it_says(bond: Bond) -> None:
    asked = bond.request()
    bond.source.say(asked)
    for again in (asked, {**asked, "timestamp": now()}, bond.request() | {"message_id": asked["message_id"]}):
        told = bond.source.refused(again)
        assert (told["code"], told["details"]["reason"]) == ("AUTH_FAILED", "replayed"), told
    work = bond.target.hears("request")
    bond.target.say(bond.response(work, {"dataset_id": "d-4"}))
    bond.source.hears("response", PROVISION["intent"])
    assert bond.target.hear() == []


@pytest.mark.requirement("a2acp/all-D7")
def test_the_trace_travels_in_the_payload(hub: HubProcess, bond: Bond) -> None:
    trace = uuid.uuid4().hex
    asked = bond.request()
    asked["payload"]["traceparent"] = f"00-{trace}-00f067aa0ba902b7-01"
    bond.source.say(asked)
    work = bond.target.hears("request")
    assert work["payload"]["traceparent"].split("-")[1] == trace
    bond.target.say(bond.response(work, {"dataset_id": "d"}))
    assert bond.source.hears("response", PROVISION["intent"])["payload"]["traceparent"].split("-")[1] == trace
    task = next(one for one in hub.tasks(limit="5") if one["trace_id"].replace("-", "") == trace)
    assert task["type"] == PROVISION["intent"]


@pytest.mark.requirement("a2acp/all-D8", "a2acp/all-D1")
def test_a_request_is_a_task_like_any_other(hub: HubProcess, bond: Bond) -> None:
    work = bond.ask()
    id = work["task"]["id"]
    progress = {"percent": 10, "correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}
    bond.target.say(bond.target.message("event", bond.source, "progress", progress))
    assert hub.status(id) == "running"
    bond.target.say(bond.response(work, {"dataset_id": "d"}))
    task = hub.task(id)
    assert (task["status"], task["protocol_in"], task["protocol_out"]) == ("completed", "a2acp", "a2acp")
    assert (task["type"], task["agent"]) == (PROVISION["intent"], bond.target.id)
    work = bond.ask()
    error = {"code": "INTERNAL_ERROR", "message": "out of paper", "retry_after": 7}
    said = {"error": error, "contract_id": bond.id, "correlation_id": work["payload"]["correlation_id"]}
    bond.target.say(bond.target.message("error", bond.source, PROVISION["intent"], said))
    assert hub.status(work["task"]["id"]) == "failed"
    bond.source.hears("response")
    told = bond.source.hears("error")["payload"]["error"]
    assert (told["code"], told["message"], told["retry_after"]) == ("INTERNAL_ERROR", "out of paper", 7)


@pytest.mark.requirement("a2acp/B4")
@pytest.mark.parametrize("by", ["source", "person"])
def test_a_cancel_reaches_the_agent_that_works(hub: HubProcess, bond: Bond, by: str) -> None:
    asked = bond.request()
    bond.source.say(asked)
    work = bond.target.hears("request")
    id, thread = work["task"]["id"], asked["payload"]["correlation_id"]
    if by == "source":
        said = {"correlation_id": thread, "reason": "not needed"}
        bond.source.say(bond.source.message("event", bond.target, "cancel", said))
    else:
        assert hub.admin.post(f"/api/v1/tasks/{id}/cancel", {"reason": "not needed"}).status < 300
    told = bond.target.hears("event", "cancel")
    assert (told["payload"]["correlation_id"], told["payload"]["contract_id"]) == (thread, bond.id)
    assert told["task"] == {"id": id}
    assert bond.source.hears("error")["payload"]["error"]["correlation_id"] == thread
    assert hub.status(id) == "cancelled"
    assert bond.target.refused(bond.response(work, {"dataset_id": "late"}))["retry_after"] == 0


@pytest.mark.requirement("A2-LNK-3")
def test_another_agents_task_is_not_there(hub: HubProcess, bond: Bond) -> None:
    """In the same words as one that never was."""
    eve = Plain(hub, f"eve-{uuid.uuid4().hex[:8]}", "medtronic_poc")
    ada, bob = bond.source, bond.target
    ada.say(ada.message("request", bob, "provision_test_dataset", {**WANTED, "contract_id": bond.id}))
    work = bob.hears("request", "provision_test_dataset")
    told = []
    for named in (work["payload"]["correlation_id"], work["message_id"], str(uuid.uuid4())):
        payload = {"dataset_id": "stolen", "contract_id": bond.id, "correlation_id": named}
        error = eve.refused(eve.message("response", ada, "provision_test_dataset", payload))
        assert error.pop("correlation_id") == named
        told.append(error)
    assert told[0] == told[1] == told[2]
    payload = {"dataset_id": "d-1", "correlation_id": work["payload"]["correlation_id"]}
    bob.say(bob.message("response", ada, "provision_test_dataset", payload))
