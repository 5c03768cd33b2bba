"""False names, other people's tasks, answers nobody asked for."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import HttpClient
from tests.support.hubproc import HubProcess

ENDPOINTS = (
    ("POST", "/messages", {}),
    ("GET", "/messages?wait=0", None),
    ("POST", "/ack", {"delivery_ids": []}),
    ("GET", "/state", None),
    ("GET", "/state/TASK/x", None),
    ("POST", "/state", {}),
    ("GET", "/state/watch", None),
)


@pytest.mark.requirement("agentmsg/all-D1")
def test_every_endpoint_wants_a_token_of_this_protocol(hub: HubProcess) -> None:
    forge = hub.admin.post("/api/v1/agents", {"agent_id": "smith", "protocol": "forge"}).json["token"]
    others = [(None, 401), ("0" * 32, 401), ("a" * 5000, 401), (forge, 403), (hub.token("chi", "infra"), 403)]
    for method, path, body in ENDPOINTS:
        data = None if body is None else json.dumps(body).encode()
        for token, status in others:
            answer = HttpClient(hub.url, token).ask(method, f"/agentmsg{path}", data)
            assert (answer.status, answer.json["error_type"]) == (status, "AUTHENTICATION_ERROR"), (path, token)
            assert answer.json["agent_id"] == "hub"
    for token, status in [*others, (hub.ready["admin_token"], 401)]:
        with pytest.raises(InvalidStatus) as refused, Plain(hub, "x", token or "").link():
            pass
        assert refused.value.response.status_code == status
        assert json.loads(refused.value.response.body)["error_type"] == "AUTHENTICATION_ERROR"


@pytest.mark.requirement("agentmsg/all-D1")
def test_a_token_in_the_address_is_none(hub: HubProcess, cast: dict[str, Plain]) -> None:
    token = cast["eve"].token
    for query in (f"token={token}", f"access_token={token}", f"authorization=Bearer%20{token}"):
        assert HttpClient(hub.url).get(f"/agentmsg/messages?wait=0&{query}").status == 401


@pytest.mark.requirement("agentmsg/all-D1")
@pytest.mark.parametrize("name", ["bob", "hub", "*", "EVE", "eve ", "eve\u200b", "", "admin", "person"])
def test_no_agent_speaks_in_another_name(cast: dict[str, Plain], name: str) -> None:
    eve = cast["eve"]
    said = {**eve.message("STATUS_UPDATE", "hub", words.status(name or "x", words.now(), state="ERROR")), "from": name}
    answer = eve.send(said)
    assert answer.status in (400, 403), answer
    with eve.link() as link:
        link.socket.send(json.dumps(said))
        told = link.hears("ERROR_REPORT")
        assert told["payload"]["error_type"] in ("AUTHENTICATION_ERROR", "VALIDATION_ERROR")
    if name == "bob":
        assert eve.get("/state/AGENT/bob").json["value"]["state"] != "ERROR"


@pytest.mark.requirement("agentmsg/all-D1")
@pytest.mark.parametrize("id", ["hub", "*", "admin"])
def test_nobody_is_added_under_a_name_of_the_hubs_own(hub: HubProcess, id: str) -> None:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "agentmsg"})
    assert made.status in (400, 409, 422), made


def test_registering_gives_no_rights(hub: HubProcess, cast: dict[str, Plain]) -> None:
    eve = cast["eve"]
    wish = {"agent_id": "eve", "role": "planner", "admin": True, "capabilities": ["anything"], "max_concurrent": 1}
    eve.say("REGISTER", "hub", wish)
    assert hub.admin.get("/api/v1/agents/eve").json.get("role") != "planner"
    policy = words.change("UPDATE", "POLICY", "policy", {"enabled_chains": []}, 1, words.now())
    assert eve.post("/state", policy).status == 403


def test_anothers_ack_changes_nothing(cast: dict[str, Plain]) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    bob.hear()
    said = ada.say("ERROR_REPORT", "bob", words.error("ada", message="for bob"))
    [one] = bob.poll(60)
    assert eve.ack(one) == 0
    for correlation in (said["id"], one["delivery_id"]):
        eve.say("ACK", "hub", {"message_ids": [said["id"]]}, correlation_id=correlation)
        eve.say("ACK", "hub", {}, correlation_id=correlation, delivery_id=one["delivery_id"])
    with eve.link() as link:
        link.say("ACK", "hub", {"message_ids": [said["id"], one["delivery_id"]]}, correlation_id=said["id"])
        link.settled()
    assert bob.ack(one) == 1  # it was still his to acknowledge


def attempts_on(task: str) -> dict[str, tuple[str, dict[str, Any]]]:
    failure = {"task_id": task, "error": words.error("eve", task)}
    return {
        "finish": ("TASK_COMPLETE", {"task_id": task, "result": "forged"}),
        "fail": ("TASK_FAILED", failure),
        "report": ("TASK_UPDATE", {"task_id": task, "progress": 99, "output": "forged"}),
        "end": ("TASK_UPDATE", {"task_id": task, "status": "completed", "output": "forged"}),
        "cancel": ("TASK_UPDATE", {"task_id": task, "status": "cancelled"}),
        "hand over": ("TASK_HANDOFF", words.handoff(task, "eve", "hub")),
    }


@pytest.mark.parametrize("attempt", attempts_on(""))
def test_anothers_task_is_not_there(cast: dict[str, Plain], task: str, attempt: str) -> None:
    eve = cast["eve"]
    kind, payload = attempts_on(task)[attempt]
    status, report = eve.refused(kind, "hub", payload)
    assert (status, report["error_type"]) == (404, "VALIDATION_ERROR")
    if attempt == "hand over":
        return  # a task that nobody knows may be handed over: it is taken down as the giver's own
    nowhere = str(uuid.uuid4())
    kind, payload = attempts_on(nowhere)[attempt]
    other = eve.refused(kind, "hub", payload)[1]
    ids = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
    told = [
        ids.sub("ID", json.dumps({**one, "error_id": ""}).replace(named, "ID"))  # it is told back what it said itself
        for one, named in ((report, task), (other, nowhere))
    ]
    assert told[0] == told[1]  # no hint that one of them exists


@pytest.mark.parametrize("attempt", ["finish", "fail", "end"])
def test_a_stranger_cannot_report_the_end_of_a_task_to_its_caller(
    hub: HubProcess, cast: dict[str, Plain], attempt: str
) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    name = f"forged {uuid.uuid4().hex[:6]}"
    bob.hear()
    bob.works(ada, name)
    ada.hear()
    kind, payload = attempts_on(name)[attempt]
    answer = eve.send(eve.message(kind, "ada", payload, priority="high"))
    heard = [(one["from"], one["type"]) for one in ada.hear()]
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": 1})
    ada.hear()
    assert heard == []
    assert answer.status in (403, 404)


def test_an_agent_cannot_answer_a_question_that_was_not_put_to_it(cast: dict[str, Plain], task: str) -> None:
    bob, cid, eve = cast["bob"], cast["cid"], cast["eve"]
    asked = bob.say("HELP_REQUEST", "cid", words.help_request("bob", task))
    cid.hears("HELP_REQUEST")
    forged = words.help_response("eve", asked["id"], content="rm -rf /")
    for to in ("hub", "bob"):
        assert eve.refused("HELP_RESPONSE", to, forged)[0] == 404
    cid.say("HELP_RESPONSE", "bob", words.help_response("cid", asked["id"]))
    assert bob.hears("HELP_RESPONSE")["from"] == "cid"

    handed = bob.say("TASK_HANDOFF", "cid", words.handoff(task, "bob", "cid"))
    cid.hears("TASK_HANDOFF")
    for to in ("bob", "hub"):
        status, _ = eve.refused("TASK_HANDOFF", to, words.yes("eve"), correlation_id=handed["id"])
        assert status == 404
    cid.say("TASK_HANDOFF", "bob", words.no("cid"), correlation_id=handed["id"])
    told = bob.hears("TASK_HANDOFF")
    assert (told["from"], told["payload"]["accepted"]) == ("cid", False)
    assert eve.hear() == []


def test_state_is_written_only_by_agents_that_may(hub: HubProcess, cast: dict[str, Plain], task: str) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    plan = f"plan {uuid.uuid4().hex[:6]}"
    assert ada.post("/state", words.change("CREATE", "TASK", plan, {}, 0, words.now())).status == 200
    version = ada.get(f"/state/TASK/{task.replace(' ', '%20')}").json["version"]
    attempts: list[tuple[Plain, str, str, str, dict[str, Any], int]] = [
        (eve, "UPDATE", "TASK", plan, {"status": "completed"}, 1),
        (eve, "DELETE", "TASK", plan, {}, 1),
        (eve, "UPDATE", "TASK", task, {"context": {"metadata": {"x": 1}}}, version),
        (eve, "UPDATE", "TASK", task, {"status": "cancelled"}, version),
        (bob, "UPDATE", "TASK", task, {"status": "cancelled"}, version),
        (eve, "DELETE", "TASK", task, {}, version),
        (eve, "UPDATE", "AGENT", "bob", {"state": "OFFLINE"}, 0),
        (eve, "UPDATE", "AGENT", "eve", {"errors": []}, 0),
        (eve, "CREATE", "RESOURCE", "bob:budget", {"consumed": 1e9}, 0),
        (eve, "CREATE", "RESOURCE", "eve:budget", {"limit": 1e12}, 0),
        (eve, "CREATE", "RESOURCE", "hub:budget", {"limit": 1e12}, 0),
        (eve, "UPDATE", "POLICY", "policy", {"budget_limits": {"total": 1e12}}, 1),
        (eve, "DELETE", "POLICY", "policy", {}, 1),
    ]
    for who, operation, kind, id, changes, read in attempts:
        update = words.change(operation, kind, id, changes, read, words.now())
        assert who.post("/state", update).status == 403, update
        status, report = who.refused("STATE_UPDATE", "hub", update)
        assert (status, report["error_type"]) == (403, "AUTHENTICATION_ERROR"), update


def test_a_stranger_reads_heads_and_no_contents(cast: dict[str, Plain]) -> None:
    ada, bob, eve = cast["ada"], cast["bob"], cast["eve"]
    bob.hear()
    name = f"private {uuid.uuid4().hex[:6]}"
    given = words.context(name, metadata={"key": "canary-in"})
    bob.works(ada, name, context=given, input={"secret": "canary-in"})
    bob.say("TASK_COMPLETE", "ada", {"task_id": name, "result": "canary-out"})
    ada.hear()
    seen = [eve.get("/state").body, eve.get(f"/state/TASK/{name.replace(' ', '%20')}").body]
    asked = eve.message("STATE_QUERY", "hub", {"entity_type": "TASK"})
    seen.append(eve.send(asked).body)
    with eve.link() as link:
        query = link.say("STATE_QUERY", "hub", {"watch": True, "cursor": 0})
        link.hears("STATE_QUERY", query["id"])
        while link.hears("STATE_UPDATE", query["id"])["payload"]["entity_id"] != name:
            continue  # what other tests changed before
        link.settled()
        seen.append(json.dumps(link.heard).encode())
    assert b"canary" not in b"".join(seen)
