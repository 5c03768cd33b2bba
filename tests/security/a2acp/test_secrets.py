"""Personal data and credentials show nowhere."""

from __future__ import annotations

import json
import uuid

import pytest

from tests.conformance.a2acp.plain import Bond, Plain, seal
from tests.security.a2acp.ground import CANARY, RECORD, Json, audited
from tests.support.children import program
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess, until


@pytest.mark.requirement("A2-PII-1", "A2-PII-3", "a2acp-D13")
def test_personal_data_in_clear_is_refused_and_on_record(hub: HubProcess, cast: dict[str, Plain]) -> None:
    ada, bob = cast["ada"], cast["bob"]
    bond = ada.shake(bob, "read_record", sealed=True)
    before = audited(hub, ada).count(("pii.refused", "refused"))
    bare = ada.message("request", bob, "read_record", {"patient": CANARY})
    assert ada.refused(bare)["code"] == "SECURITY_POLICY_VIOLATION"  # without a contract
    assert ada.refused(bond.request({"patient": CANARY}, clear=True))["code"] == "SECURITY_POLICY_VIOLATION"
    with ada.link() as link:
        link.say(bond.request({"patient": CANARY}, clear=True))
        assert link.hears("error", "read_record")["payload"]["error"]["code"] == "SECURITY_POLICY_VIOLATION"
    until(lambda: audited(hub, ada).count(("pii.refused", "refused")) == before + 3, "each attempt is on record")
    work = bond.ask({"patient": "x"})
    told = bob.refused(bond.response(work, {"ward": CANARY}, clear=True))
    assert told["code"] == "SECURITY_POLICY_VIOLATION"
    assert ("pii.refused", "refused") in audited(hub, bob)
    bob.say(bond.response(work, {"ward": 1}))


@pytest.mark.requirement("A2-PII-3", "a2acp-D13")
def test_personal_data_shows_nowhere(hub: HubProcess, cast: dict[str, Plain]) -> None:
    """In a result, an error, a progress, a dead letter, a name within a payload, a reason; in the API, the events, the
    logs, and in every file."""
    ada, bob = cast["ada"], cast["bob"]
    for one in (ada, bob):
        one.hear()
    bond = ada.shake(bob, "read_record", sealed=True)
    secret = f"secret-{uuid.uuid4().hex[:8]}"

    def around(work: Json) -> Json:
        return {"correlation_id": work["payload"]["correlation_id"], "contract_id": bond.id}

    done, failed, broken = (bond.ask({"patient": f"{secret} {n}"}) for n in range(3))
    progress = bob.message("event", ada, "progress", around(done))
    bob.say(seal(bond.keys[bond.kid], bond.kid, progress, {"percent": 5, "message": secret, "output": secret}))
    bob.say(bond.response(done, {"ward": secret, "output": secret}))
    error = {"code": "INTERNAL_ERROR", "message": secret, "details": {"patient": secret}, "retry_after": 1}
    bob.say(bob.message("error", ada, "read_record", {"error": error, **around(failed)}))
    refused = [ada.refused(bond.request({"patient": "x", "visits": {secret: "no number"}}))]
    refused += [bob.refused(bond.response(broken, {"wrong": secret}))]
    named, over, open_ = (bond.ask({"patient": f"{secret} {n}"}) for n in range(3))  # more would not be given to one
    refused += [bob.refused(bond.response(named, {"ward": 1, "beds": {secret: 1}}))]
    assert [one["details"]["faults"][0]["pointer"] for one in refused] == ["/visits/*", "", "/beds"]
    ada.say(ada.message("event", bob, "cancel", {**around(over), "reason": secret}))
    assert secret not in json.dumps([refused, bob.hears("event", "cancel")])
    told = [ada.hears("response", "read_record"), *(ada.hears("error") for _ in range(4))]
    assert bond.content(told[0])["ward"] == secret
    assert secret not in json.dumps([*told, *ada.hear()])
    shown = ["/tasks?limit=500", "/deadletters", "/audit?limit=500", "/contracts", "/questions", "/agents"]
    for work in (done, failed, broken, named, over, open_):
        id = work["task"]["id"]
        shown += [f"/tasks/{id}", f"/tasks/{id}?history=1", f"/tasks/{id}/why"]
        assert secret not in dragoman("task", "show", id, hub=hub).out
    for path in shown:
        assert secret.encode() not in hub.admin.get(f"/api/v1{path}").body, path
    for work in (done, failed, broken, named, over):
        events = hub.admin.get(f"/api/v1/tasks/{work['task']['id']}/events")
        assert events.body
        assert secret.encode() not in events.body
    for path in ("/metrics", "/"):
        assert secret.encode() not in hub.admin.get(path).body
    assert secret not in hub.log.read_text()
    for file in (one for one in hub.data.rglob("*") if one.is_file()):
        assert secret.encode() not in file.read_bytes(), file
    bob.say(bond.response(open_, {"ward": 1}))


CHATTY = """
import json, sys
def say(type, **payload):
    print(json.dumps({'type': type, 'id': type, 'timestamp': '2026-01-01T00:00:00Z', 'payload': payload}), flush=True)
for line in sys.stdin:
    heard = json.loads(line)
    if heard['type'] == 'notify:task-assigned':
        task = heard['payload']['task']
        print('out', task['payload'], flush=True)
        print('err', task['payload'], file=sys.stderr, flush=True)
        say('event:log', level='info', message=str(task['payload']), taskId=task['id'])
        say('request:update-task', taskId=task['id'], status='completed', result={'ward': 1})
"""


@pytest.mark.requirement("A2-PII-3", "a2acp-D13")
def test_what_a_child_prints_about_personal_work_is_in_no_log(hub: HubProcess) -> None:
    id, secret = f"chatty-{uuid.uuid4().hex[:8]}", f"secret-{uuid.uuid4().hex[:8]}"
    agent = {"agent_id": id, "protocol": "forge", "command": program(CHATTY), "offers": [RECORD]}
    assert hub.admin.post("/api/v1/agents", agent).status == 201
    made = hub.admin.post("/api/v1/tasks", {"type": "read_record", "agent": id, "input": {"patient": secret}})
    path = f"/api/v1/tasks/{made.json['id']}"
    until(lambda: hub.admin.get(path).json["status"] == "completed", "it is done")
    until(lambda: hub.admin.get(f"/api/v1/agents/{id}/logs").body.count(b"[personal]") == 3, "it was printed")
    assert secret.encode() not in hub.admin.get(f"/api/v1/agents/{id}/logs").body
    assert hub.admin.ask("DELETE", f"/api/v1/agents/{id}").status == 204
    for file in (one for one in hub.data.rglob("*") if one.is_file()):
        assert secret.encode() not in file.read_bytes(), file


@pytest.mark.requirement("a2acp/all-D4")
def test_no_credential_is_kept_or_shown(hub: HubProcess, bond: Bond) -> None:
    asked = bond.request()
    bond.source.say(asked)
    work = bond.target.hears("request")
    bond.target.say(bond.response(work, {"dataset_id": "d"}))
    canaries = [asked["security"]["auth_token"].rpartition(".")[2], bond.source.secret, bond.target.secret]
    id = work["task"]["id"]
    told = [hub.admin.get(f"/api/v1/tasks/{id}?history=1").body, hub.admin.get("/api/v1/audit?limit=500").body]
    told += [hub.log.read_bytes(), json.dumps(work).encode()]
    told += [one.read_bytes() for one in hub.data.rglob("*") if one.is_file()]
    for canary in canaries:
        assert not [one for one in told if canary.encode() in one], canary
