"""Two agents that never met, and a real hub between them: the document's lifecycle, step by step, over HTTP."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Plain, code_of, error_of, now, seal
from tests.support.chiffon import Door
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running

Json = dict[str, Any]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_RULES__IDLE_SECONDS="600") as hub:
        yield hub


@pytest.fixture(scope="module")
def cast(hub: HubProcess) -> tuple[Plain, Plain]:
    """The document's two agents, of two domains, as a person adds them."""
    agents = []
    for id, domain, version in (
        ("sdlc-test-agent", "a_domain", "1.2.3"),
        ("dataset-provisioning-agent", "medtronic_poc", "2.1.0"),
    ):
        added = dragoman(
            "agent", "add", id, "--protocol", "a2acp", "--domain", domain, "--version", version,
            "--capability", "read:datasets", "--capability", "write:test_scenarios", "-o", "json", hub=hub,
        )  # fmt: skip
        assert added.code == 0, added
        grants = ("read:datasets", "write:test_scenarios")
        agents.append(Plain(hub, id, domain, grants=grants, version=version, secret=added.json["token"]))
    assert dragoman("policy", "allow", "a_domain", "medtronic_poc", hub=hub).code == 0
    agents[1].serves(PROVISION)
    return agents[0], agents[1]


@pytest.fixture(autouse=True)
def empty(cast: tuple[Plain, Plain]) -> None:
    for one in cast:
        one.hear()


@pytest.fixture
def bond(cast: tuple[Plain, Plain]) -> Bond:
    return cast[0].shake(cast[1])


# -- what is published


@pytest.mark.requirement("A2-MSG-10")
def test_the_schema_is_served_and_takes_the_documents_examples(hub: HubProcess, examples: Json) -> None:
    import jsonschema_rs

    schema = Door(hub.url).get("/schemas/a2acp.json").json
    assert schema == examples["schema"]
    takes = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid
    assert takes(examples["request"])
    assert takes(examples["response"])
    assert not takes({name: value for name, value in examples["request"].items() if name != "timestamp"})


# -- tokens


@pytest.mark.requirement("A2-TOK-11", "a2acp-D5")
@pytest.mark.parametrize("how", ["basic", "bearer"])
def test_a_token_is_had_with_the_agents_secret_and_is_accepted(
    hub: HubProcess, cast: tuple[Plain, Plain], how: str
) -> None:
    ada, _ = cast
    said = f"Bearer {ada.secret}"
    if how == "basic":
        said = "Basic " + base64.b64encode(f"{ada.id}:{ada.secret}".encode()).decode()
    answer = Door(hub.url).post("/auth/token", ada.wish(BROKER["agent_id"], ttl=600), Authorization=said)
    assert answer.status == 200, answer
    assert set(answer.json) >= {"token", "expires_at"}
    assert answer.json["expires_at"].endswith("Z")
    asked = ada.message("request", BROKER, "discover_capabilities", {}, token=answer.json["token"])
    assert ada.send(asked).status == 200


@pytest.mark.requirement("A2-TOK-2", "A2-TOK-11", "a2acp-D3")
def test_anybody_may_verify_a_token_with_the_published_keys(hub: HubProcess, cast: tuple[Plain, Plain]) -> None:
    import jwt

    ada, bob = cast
    token = ada.token(bob.id, ttl=600)
    keys = jwt.PyJWKSet.from_dict(Door(hub.url).get("/.well-known/jwks.json").json)
    kid = jwt.get_unverified_header(token)["kid"]
    claims = jwt.decode(token, keys[kid], ["EdDSA"], audience=bob.id, issuer="a_domain-auth-service")
    assert {name: claims[name] for name in ("sub", "aud", "domain", "capabilities")} == {
        "sub": ada.id,
        "aud": bob.id,
        "domain": "a_domain",
        "capabilities": ["read:datasets", "write:test_scenarios"],
    }
    assert claims["exp"] - claims["iat"] == 600


@pytest.mark.requirement("A2-TOK-4", "A2-TOK-9", "A2-RTE-2")
def test_a_token_is_checked_before_anything_else_is_looked_at(bond: Bond) -> None:
    good = bond.request()
    other = bond.source.token(bond.target.id, ttl=60)
    head, body, _ = good["security"]["auth_token"].split(".")
    forged = f"{head}.{body}.{other.rpartition('.')[2]}"
    for payload in (good["payload"], {"contract_id": "no such"}, {"nothing": "fits"}):
        told = bond.source.refused({**good, "payload": payload, "security": {"auth_token": forged}})
        assert (told["code"], told["details"]["rule"], told["retry_after"]) == ("AUTH_FAILED", "signature", 0)
    assert bond.target.hear() == []


@pytest.mark.requirement("A2-TOK-7", "A2-RTE-2")
def test_a_token_without_the_capability_does_not_serve(bond: Bond) -> None:
    weak = bond.source.token(bond.target.id, requested_capabilities=["write:test_scenarios"])
    told = bond.source.refused(bond.request(token=weak))
    assert (told["code"], told["details"]["missing"]) == ("AUTH_FAILED", ["read:datasets"])
    assert bond.target.hear() == []


# -- the handshake


@pytest.mark.requirement("A2-HSK-7", "A2-HSK-3", "A2-HSK-5", "A2-CTR-1", "A2-CTR-4", "A2-FLW-2")
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
    takes = jsonschema_rs.validator_for(Door(hub.url).get("/schemas/a2acp.json").json, validate_formats=True).is_valid
    assert takes(work)
    assert takes(told)
    assert uuid.UUID(work["message_id"]).version == 4
    assert ada.hear() == []  # it was told once


@pytest.mark.requirement("A2-RTE-3")
def test_whoever_will_not_wait_gets_the_answer_in_its_inbox(bond: Bond) -> None:
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


@pytest.mark.requirement("A2-LNK-5", "A2-RTE-3")
def test_a_link_carries_the_same_messages_both_ways(bond: Bond) -> None:
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


@pytest.mark.requirement("a2acp/all-D5")
def test_a_response_again_changes_nothing(bond: Bond) -> None:
    work = bond.ask()
    bond.target.say(bond.response(work, {"dataset_id": "first"}))
    bond.target.say(bond.response(work, {"dataset_id": "first"}))  # its answer was lost, it thinks
    told = bond.target.refused(bond.response(work, {"dataset_id": "second"}))
    assert told["retry_after"] == 0
    assert [bond.content(one) for one in bond.source.hear()] == [{"dataset_id": "first"}]


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


@pytest.mark.requirement("a2acp-D14")
def test_a_collaboration_ends_by_the_name_of_its_contract(hub: HubProcess, bond: Bond) -> None:
    ada, bob = bond.source, bond.target
    eve = Plain(hub, f"eve-{uuid.uuid4().hex[:8]}", "medtronic_poc")
    said = {"contract_id": bond.id}
    for named in (bond.id, "contract-nobody-has"):
        told = eve.refused(eve.message("request", BROKER, "terminate_collaboration", {"contract_id": named}))
        assert (told["code"], told["details"]) == (
            "CAPABILITY_NOT_FOUND", {"kind": "not_found", "field": "payload.contract_id"},
        )  # fmt: skip
    told = ada.refused(ada.message("request", BROKER, "terminate_collaboration", {}))
    assert told["details"]["field"] == "payload.collaboration_id"
    answer = ada.send(ada.message("request", BROKER, "terminate_collaboration", said))
    assert (answer.status, answer.json["payload"]["collaboration_id"]) == (200, bond.collaboration)
    assert bob.hears("event", "terminate_collaboration")["payload"]["contract_id"] == bond.id


@pytest.mark.requirement("A2-CTR-2")
def test_schemas_that_do_not_fit_are_told_as_in_the_documents_example(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    wrong = {"type": "object", "properties": {"scenario_id": {"type": "string"}}, "required": ["scenario_id"]}
    told = ada.refused(ada.initiate(bob, "provision_test_dataset", request_schema=wrong), later=False)
    assert told["code"] == "SCHEMA_MISMATCH"
    assert told["details"]["expected_schema"] == PROVISION["input_schema"]
    assert told["details"]["received_schema"] == wrong


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


def test_a_wish_for_a_token_is_refused_by_its_field(cast: tuple[Plain, Plain]) -> None:
    ada, bob = cast
    for changed, field in (({"target_agent_id": None}, "target_agent_id"), ({"ttl": 10**9}, "ttl")):
        answer = ada.door.post("/auth/token", ada.wish(bob.id) | changed)
        assert (answer.status, code_of(answer), error_of(answer)["details"]["field"]) == (400, "SCHEMA_MISMATCH", field)
