"""What is published, and how two agents that never met come to terms and part."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Plain, code_of, error_of
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess

Json = dict[str, Any]


# -- what is published


@pytest.mark.requirement("A2-MSG-10")
def test_the_schema_is_served_and_takes_the_documents_examples(hub: HubProcess, examples: Json) -> None:
    import jsonschema_rs

    schema = HttpClient(hub.url).get("/schemas/a2acp.json").json
    assert schema == examples["schema"]
    takes = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    assert takes(examples["request"])
    assert takes(examples["response"])
    assert not takes({name: value for name, value in examples["request"].items() if name != "timestamp"})


# -- the handshake


@pytest.mark.requirement("A2-HSK-7", "A2-HSK-3", "A2-HSK-5", "A2-CTR-1", "A2-CTR-4", "A2-FLW-2", "a2acp-D7")
def test_strangers_find_each_other_and_come_to_terms(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    found = ada.send(ada.message("request", BROKER, "discover_capabilities", {"intent": PROVISION["intent"]}))
    [offering] = found.json["payload"]["capabilities"]
    assert offering["agent"] == bob.party
    with ada.sending(ada.initiate(offering["agent"]["agent_id"], PROVISION["intent"], correlation_id="k-1")) as asked:
        proposal = bob.accept()
        answer = asked.result(10)
    assert (answer.status, answer.json["message_type"]) == (200, "response"), answer
    assert proposal["source_agent"] == BROKER
    assert proposal["payload"]["requested_intent"] == PROVISION["intent"]
    told = answer.json["payload"]
    contract = told["contract"]
    assert told["collaboration_id"] == contract["collaboration_id"]
    assert told["correlation_id"] == "k-1"
    assert (contract["source_agent"], contract["target_agent"]) == (ada.party, bob.party)
    assert (contract["input_schema"], contract["output_schema"]) == (
        PROVISION["input_schema"],
        PROVISION["output_schema"],
    )
    made, over = (datetime.fromisoformat(contract[name]) for name in ("created_at", "expires_at"))
    assert over - made == timedelta(hours=24)
    assert contract == proposal["payload"]["contract"]  # what was agreed to is what stands
    assert bob.hears("event", "accept_handshake")["payload"]["contract"] == contract  # both are told


@pytest.mark.requirement("A2-HSK-4")
def test_a_target_may_say_no_and_why(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    with ada.sending(ada.initiate(bob, PROVISION["intent"])) as asked:
        bob.accept(False, reason="closed on Sundays")
        told = error_of(asked.result(10))
    assert told["code"] == "CONTRACT_VIOLATION"
    assert "closed on Sundays" in told["message"]
    assert told["retry_after"] == 0
    assert bob.hear() == []


@pytest.mark.requirement("A2-HSK-2", "A2-CTR-2", "A2-CTR-3", "A2-VER-4", "a2acp-D19")
@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"target_agent_id": "nobody"}, "CAPABILITY_NOT_FOUND"),
        ({"requested_intent": "provision_test_datasets"}, "CAPABILITY_NOT_FOUND"),
        ({"target_version": "1.9.9"}, "SCHEMA_MISMATCH"),
        ({"request_schema": {"type": "object", "properties": {"scenario_id": {"type": "string"}}}}, "SCHEMA_MISMATCH"),
        ({"response_schema": {"type": "object", "required": ["price"]}}, "SCHEMA_MISMATCH"),
        ({"target_agent_id": "far", "requested_intent": "look"}, "SECURITY_POLICY_VIOLATION"),
        ({"target_agent_id": "own", "requested_intent": "look"}, "AUTH_FAILED"),
    ],
    ids=["target", "intent", "version", "request schema", "response schema", "domain", "permission"],
)
def test_a_handshake_that_cannot_be_is_refused_before_its_target_hears_of_it(
    hub: HubProcess, cast: tuple[Plain, Plain], changed: Json, code: str
) -> None:
    ada, bob = cast
    watchers = [bob]
    named = changed.get("target_agent_id")
    if named in ("far", "own"):
        domain = "elsewhere" if named == "far" else "a_domain"
        other = Plain(hub, f"{named}-{uuid.uuid4().hex[:6]}", domain)
        other.serves({"intent": "look", "input_schema": True, "required_capabilities": ["see:all"]})
        changed = {**changed, "target_agent_id": other.id}
        watchers.append(other)
    told = ada.refused(ada.initiate(bob, PROVISION["intent"]) | {
        "payload": {"target_agent_id": bob.id, "requested_intent": PROVISION["intent"], **changed}
    }, later=False)  # fmt: skip
    assert told["code"] == code, told
    if "target_version" in changed:
        assert told["details"]["field"] == "payload.target_version"
    assert all(one.hear() == [] for one in watchers)


@pytest.mark.requirement("A2-HSK-6")
def test_a_handshake_is_answered_once_and_by_whom_it_was_put_to(hub: HubProcess, cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    eve = Plain(hub, f"eve-{uuid.uuid4().hex[:6]}", "medtronic_poc")
    ada.say(ada.initiate(bob, PROVISION["intent"]))
    question = bob.hears("request", "accept_handshake")["payload"]["handshake_id"]
    yes = {"accepted": True, "correlation_id": question}
    for stranger in (eve, ada):
        told = stranger.refused(stranger.message("response", BROKER, "accept_handshake", yes))
        assert told["code"] == "CAPABILITY_NOT_FOUND", told
    bob.say(bob.message("response", BROKER, "accept_handshake", yes))
    again = bob.refused(bob.message("response", BROKER, "accept_handshake", {**yes, "accepted": False}))
    assert again["retry_after"] == 0
    assert ada.hears("response", "initiate_handshake")["payload"]["contract"]["contract_id"]


@pytest.mark.requirement("A2-TOK-11")
def test_registering_again_replaces_what_is_served_and_leaves_contracts_alone(bond: Bond) -> None:
    bob = bond.target
    try:
        bob.serves({**PROVISION, "input_schema": {"type": "object", "required": ["everything"]}})
        work = bond.ask()
        assert bond.content(work) == WANTED
        bob.say(bond.response(work, {"dataset_id": "d"}))
    finally:
        bob.serves(PROVISION)
    assert code_of(bob.register({**PROVISION, "intent": "initiate_handshake"})) == "SCHEMA_MISMATCH"


# -- answers as the document shows them


@pytest.mark.requirement("A2-HSK-4")
@pytest.mark.parametrize("names", ["nothing", "no intent", "handshake_id", "message_id"])
def test_a_handshake_is_accepted_as_the_document_shows_it(cast: tuple[Plain, Plain], names: str) -> None:
    """A response with `accepted` and `reason`: what can only mean one proposal names it."""
    ada, bob = cast
    with ada.sending(ada.initiate(bob, "provision_test_dataset")) as sending:
        proposal = bob.hears("request", "accept_handshake")
        named = {
            "handshake_id": {"handshake_id": proposal["payload"]["handshake_id"]},
            "message_id": {"correlation_id": proposal["message_id"]},
        }.get(names, {})
        intent = None if names == "no intent" else "accept_handshake"
        bob.say(bob.message("response", BROKER, intent, {"accepted": True, "reason": None, **named}))
        answer = sending.result()
    assert (answer.status, set(answer.json["payload"]) >= {"collaboration_id", "contract"}) == (200, True)


@pytest.mark.requirement("A2-HSK-4")
@pytest.mark.parametrize("name", ["handshake_id", "message_id"])
def test_a_handshake_is_declined_by_an_error_as_the_document_shows_it(cast: tuple[Plain, Plain], name: str) -> None:
    """The document's error has no intent; its `correlation_id` stands in the error."""
    ada, bob = cast
    with ada.sending(ada.initiate(bob, "provision_test_dataset")) as sending:
        proposal = bob.hears("request", "accept_handshake")
        about = proposal.get(name) or proposal["payload"][name]
        error = {"code": "INTERNAL_ERROR", "message": "no disk", "retry_after": 1, "correlation_id": about}
        bob.say(bob.message("error", BROKER, None, {"error": error}))
        told = error_of(sending.result())
    assert (told["code"], told["details"]["reason"]) == ("CONTRACT_VIOLATION", "INTERNAL_ERROR: no disk")


@pytest.mark.requirement("A2-HSK-4", "A2-HSK-6")
def test_an_answer_that_may_mean_two_handshakes_is_refused(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    for _ in range(2):
        ada.say(ada.initiate(bob, "provision_test_dataset"))
    proposals = [bob.hears("request", "accept_handshake") for _ in range(2)]
    told = bob.refused(bob.message("response", BROKER, "accept_handshake", {"accepted": True}))
    assert (told["code"], told["details"]["field"]) == ("SCHEMA_MISMATCH", "payload.correlation_id")
    for one in proposals:
        payload = {"accepted": False, "correlation_id": one["payload"]["correlation_id"]}
        bob.say(bob.message("response", BROKER, "accept_handshake", payload))


@pytest.mark.requirement("a2acp-D14")
def test_a_collaboration_ends_by_the_name_of_its_contract(hub: HubProcess, bond: Bond) -> None:
    ada, bob = bond.source, bond.target
    eve = Plain(hub, f"eve-{uuid.uuid4().hex[:8]}", "medtronic_poc")
    said = {"contract_id": bond.id}
    for named in (bond.id, "contract-nobody-has"):
        told = eve.refused(eve.message("request", BROKER, "terminate_collaboration", {"contract_id": named}))
        assert told["details"].pop("fault")["kind"] == "not_found"
        assert (told["code"], told["details"]) == (
            "CAPABILITY_NOT_FOUND", {"kind": "not_found", "field": "payload.contract_id"},
        )  # fmt: skip
    told = ada.refused(ada.message("request", BROKER, "terminate_collaboration", {}))
    assert told["details"]["field"] == "payload.collaboration_id"
    answer = ada.send(ada.message("request", BROKER, "terminate_collaboration", said))
    assert (answer.status, answer.json["payload"]["collaboration_id"]) == (200, bond.collaboration)
    assert bob.hears("event", "terminate_collaboration")["payload"]["contract_id"] == bond.id


@pytest.mark.requirement("A2-CTR-2")
def test_schemas_that_do_not_fit_are_refused_as_in_the_documents_example(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    wrong = {"type": "object", "properties": {"scenario_id": {"type": "string"}}, "required": ["scenario_id"]}
    told = ada.refused(ada.initiate(bob, "provision_test_dataset", request_schema=wrong), later=False)
    assert told["code"] == "SCHEMA_MISMATCH"
    assert told["details"]["expected_schema"] == PROVISION["input_schema"]
    assert told["details"]["received_schema"] == wrong


@pytest.mark.requirement("A2-VER-1", "A2-VER-4", "a2acp-D11")
def test_an_agent_that_speaks_another_version_of_the_protocol_cannot_declare_itself(hub: HubProcess) -> None:
    mine = Plain(hub, f"speaks-{uuid.uuid4().hex[:8]}")
    told = error_of(mine.http.post("/a2acp/agents", {**mine.party, "protocol_version": "7.0"}))
    assert (told["code"], told["details"]["field"]) == ("SCHEMA_MISMATCH", "protocol_version")
    assert (told["details"]["supported_versions"], told["details"]["received_version"]) == (["1.x"], "7.0")
    minor = mine.http.post("/a2acp/agents", {**mine.party, "protocol_version": "1.7"})
    assert (minor.status, minor.json["protocol_version"]) == (200, "1.0")


@pytest.mark.requirement("a2acp-D6", "A2-VER-3")
def test_a_capability_has_a_version_of_its_own_form(hub: HubProcess, cast: tuple[Plain, Plain]) -> None:
    ada, _ = cast
    mine = Plain(hub, f"versions-{uuid.uuid4().hex[:8]}")
    mine.serves({"intent": "count", "version": "2.0", "input_schema": {}, "pii": None, "timeout_seconds": None})
    for wanted, found in (("2.1", 1), ("2.0.7", 1), ("2", 1), ("1.0", 0)):
        payload = {"agent_id": mine.id, "version": wanted}
        told = ada.send(ada.message("request", BROKER, "discover_capabilities", payload)).json["payload"]
        assert [one["capability"]["version"] for one in told["capabilities"]] == ["2.0"] * found
    never = mine.register({"intent": "count", "input_schema": {}, "timeout_seconds": 0})
    assert error_of(never)["details"]["field"] == "capabilities[0].timeout_seconds"
    wrong = mine.register({"intent": "count", "version": "two", "input_schema": {}})
    assert error_of(wrong)["details"]["field"] == "capabilities[0].version"
    assert "regex" not in error_of(wrong)["message"]
