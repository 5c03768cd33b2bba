"""Other people's contracts, mail and names, and borders between domains."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.a2acp.plain import BROKER, PROVISION, WANTED, Bond, Pair, Plain, error_of
from tests.security.a2acp.ground import INTENT
from tests.support.chiffon import HttpClient
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, running, until


@pytest.mark.requirement("A2-CTR-5", "a2acp-D8")
def test_a_contract_is_for_its_parties_its_intent_and_its_target(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, bob, cid, eve = (cast[id] for id in ("ada", "bob", "cid", "eve"))
    payload = {**WANTED, "contract_id": bond.id}
    for who, to, intent in (
        (eve, bob, INTENT),  # somebody else's
        (eve, ada, INTENT),
        (bob, ada, INTENT),  # the other way round
        (ada, cid, INTENT),  # another target
        (ada, bob, "other"),  # another intent
        (ada, bob, "loose"),
        (ada, bob, "nothing such"),
    ):
        told = who.refused(who.message("request", to, intent, payload))
        assert (told["code"], told["retry_after"]) == ("CONTRACT_VIOLATION", 0), (who.id, to.id, intent, told)
    unknown = eve.refused(eve.message("request", bob, INTENT, {**payload, "contract_id": f"contract-{uuid.uuid4()}"}))
    foreign = eve.refused(eve.message("request", bob, INTENT, payload))
    assert unknown["message"] == foreign["message"]  # whether there is one is nobody's business
    assert [one.hear() for one in (ada, bob, cid, eve)] == [[], [], [], []]


@pytest.mark.requirement("A2-CTR-5", "a2acp-D14")
def test_a_terminated_contract_is_over_and_only_its_parties_end_it(cast: dict[str, Plain]) -> None:
    ada, bob, eve = (cast[id] for id in ("ada", "bob", "eve"))
    bond = ada.shake(bob)
    end = {"collaboration_id": bond.collaboration}
    for intent, payload in (
        ("terminate_collaboration", end),
        ("rotate_key", {**end, "public_key": Pair().public_key}),
        ("initiate_handshake", {**end, "target_agent_id": "bob", "requested_intent": INTENT}),
    ):
        told = eve.refused(eve.message("request", BROKER, intent, payload), later=False)
        assert told["code"] == "CAPABILITY_NOT_FOUND", told
    assert bob.send(bob.message("request", BROKER, "terminate_collaboration", end)).status == 200
    told = ada.refused(bond.request())
    assert (told["code"], told["details"]["standing"]) == ("CONTRACT_VIOLATION", "terminated")
    for who in (ada, bob):  # nor does it come back
        said = who.message("request", BROKER, "terminate_collaboration", end)
        assert who.refused(said, later=False)["code"] == "CONTRACT_VIOLATION"


@pytest.mark.requirement("A2-CTR-5", "a2acp-D7")
def test_an_expired_contract_is_over(tmp_path: Path) -> None:
    settings = {"DRAGOMAN_A2ACP__CONTRACT_HOURS": "0.0003", "DRAGOMAN_A2ACP__MESSAGES_PER_COLLABORATION": "0"}
    with running(tmp_path, **settings, DRAGOMAN_A2ACP__MESSAGES_PER_AGENT="0") as hub:
        bond = Plain(hub, "ada").shake(Plain(hub, "bob").serves(PROVISION))
        answers = []

        def over() -> bool:
            answers.append(bond.source.send(bond.request(), later=True))
            return answers[-1].status != 202

        until(over, "it expires")
        told = error_of(answers[-1])
        assert (told["code"], told["details"]["standing"]) == ("CONTRACT_VIOLATION", "expired")


def test_only_the_owner_answers_and_only_the_caller_cancels(bond: Bond, cast: dict[str, Plain]) -> None:
    ada, bob, eve = bond.source, bond.target, cast["eve"]
    asked = bond.request()
    ada.say(asked)
    work = bob.hears("request")
    id, thread = work["task"]["id"], asked["payload"]["correlation_id"]
    error = {"code": "INTERNAL_ERROR", "message": "x", "retry_after": 1}
    for name in (id, thread, asked["message_id"]):
        around = {"correlation_id": name, "contract_id": bond.id}
        for kind, intent, payload in (
            ("response", INTENT, {"dataset_id": "eve's", **around}),
            ("response", INTENT, {"dataset_id": "eve's", "correlation_id": name}),
            ("error", INTENT, {"error": error, **around}),
            ("event", "progress", {"percent": 99, **around}),
            ("event", "cancel", around),
        ):
            for to in (ada, bob):
                told = eve.refused(eve.message(kind, to, intent, payload))
                assert told["retry_after"] == 0, told
    assert bob.refused(bob.message("event", ada, "cancel", {"correlation_id": id}))["retry_after"] == 0
    bob.say(bond.response(work, {"dataset_id": "bob's"}))
    told = [one for one in ada.hear() if one["payload"]["correlation_id"] == thread]
    assert [(one["message_type"], bond.content(one)) for one in told] == [("response", {"dataset_id": "bob's"})]


def test_no_agent_reads_or_acknowledges_anothers_messages(hub: HubProcess, bond: Bond, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    bond.source.say(bond.request())
    [one] = until(lambda: bond.target.poll(1), "it waits")
    assert eve.ack(one) == 0
    assert eve.poll() == []
    for token in (None, "0" * 32, hub.ready["admin_token"], hub.token("chi", "infra"), bond.target.token("ada")):
        for method, path, body in (
            ("GET", "/a2acp/messages?wait=0", None),
            ("POST", "/a2acp/ack", b"{}"),
            ("POST", "/a2acp/agents", b"{}"),
        ):
            answer = HttpClient(hub.url, token).ask(method, path, body)
            assert answer.status in (401, 403), (path, answer)
        with pytest.raises(InvalidStatus) as refused, Plain(hub, "bob", secret=token or "").link():
            pass
        assert refused.value.response.status_code in (401, 403)
    assert bond.target.ack(one) == 1
    bond.target.say(bond.response(one["message"], {"dataset_id": "d"}))


def test_registering_gives_no_other_name_domain_or_rights(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    for changed, status in (
        ({"agent_id": "bob"}, 401),
        ({"agent_id": BROKER["agent_id"]}, 401),
        ({"domain": "medtronic_poc"}, 403),
    ):
        answer = eve.http.post("/a2acp/agents", {**eve.party, **changed, "capabilities": []})
        assert answer.status == status, answer
    answer = eve.http.post("/a2acp/agents", {**eve.party, "capabilities": [], "grants": ["admin:all"], "trusted": True})
    assert answer.json["grants"] == ["read:datasets"]
    assert hub.admin.get("/api/v1/agents/bob").json["domain"] == "a_domain"


def test_a_handshake_is_not_answered_by_a_stranger(cast: dict[str, Plain]) -> None:
    ada, bob, eve = (cast[id] for id in ("ada", "bob", "eve"))
    for one in (ada, bob):
        one.hear()
    ada.say(ada.initiate(bob, INTENT))
    proposal = bob.hears("request", "accept_handshake")
    yes = {"accepted": True, "correlation_id": proposal["payload"]["handshake_id"], "public_key": Pair().public_key}
    for who, source in ((eve, eve.party), (ada, ada.party), (eve, bob.party), (eve, BROKER)):
        said = who.message("response", BROKER, "accept_handshake", yes, source_agent=source)
        assert who.refused(said)["retry_after"] == 0
    assert ada.hear() == []
    bob.say(bob.message("response", BROKER, "accept_handshake", {**yes, "accepted": False}))
    assert ada.hears("error")["payload"]["error"]["code"] == "CONTRACT_VIOLATION"


@pytest.mark.requirement("a2acp-D19")
def test_a_border_is_closed_until_a_person_opens_it(hub: HubProcess, cast: dict[str, Plain]) -> None:
    name = uuid.uuid4().hex[:6]
    here, there = f"here-{name}", f"there-{name}"
    source, target = Plain(hub, f"s-{name}", here), Plain(hub, f"t-{name}", there).serves(PROVISION)
    asked = source.initiate(target, INTENT)
    assert source.refused(asked, later=False)["code"] == "SECURITY_POLICY_VIOLATION"
    lied = {**source.initiate(target, INTENT), "source_agent": {**source.party, "domain": there}}
    assert source.refused(lied, later=False)["code"] == "AUTH_FAILED"
    state = {"operation": "UPDATE", "entity_type": "POLICY", "entity_id": "policy",
             "changes": {"domains": [{"source": "*", "target": "*"}]}, "version": 1}  # fmt: skip
    assert source.http.post("/agentmsg/state", state).status in (401, 403)
    assert source.http.post("/api/v1/policies/domains", {"source": here, "target": there}).status in (401, 403, 404)
    assert dragoman("policy", "allow", there, here, hub=hub).code == 0  # the other way round is another way
    assert source.refused(source.initiate(target, INTENT), later=False)["code"] == "SECURITY_POLICY_VIOLATION"
    assert dragoman("policy", "allow", here, there, hub=hub).code == 0
    assert source.shake(target).terms["target_agent"]["domain"] == there
    assert target.hear() == []


@pytest.mark.requirement("a2acp-D19")
def test_a_border_that_is_closed_again_holds_for_contracts_that_stand(hub: HubProcess) -> None:
    name = uuid.uuid4().hex[:6]
    here, there = f"here-{name}", f"there-{name}"
    source, target = Plain(hub, f"s-{name}", here), Plain(hub, f"t-{name}", there).serves(PROVISION)
    assert dragoman("policy", "allow", here, there, hub=hub).code == 0
    bond = source.shake(target)
    assert dragoman("policy", "forbid", here, there, hub=hub).code == 0
    told = source.refused(bond.request())
    assert told["code"] == "SECURITY_POLICY_VIOLATION", told
    assert target.hear() == []
