"""Who is who: tokens, claimed senders, other people's tasks, ids that are taken."""

from __future__ import annotations

import json
import re

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.chiffon import (
    Answer,
    HttpClient,
    Worker,
    error,
    new_id,
    task_of,
    work_request,
    work_result,
    work_status,
)
from tests.support.hubproc import HubProcess

NOBODYS = "550e8400-e29b-41d4-a716-4466554400ff"
CHIFFON = [
    ("POST", "/api/agent/message", work_request()),
    ("POST", "/api/agent/register", {"agent_id": "i1", "agent_type": "infra", "supported_versions": ["1.0"]}),
    ("GET", "/api/agent/messages?wait=1", None),
    ("POST", "/api/agent/ack", {"delivery_ids": [NOBODYS]}),
    ("POST", f"/api/tasks/{NOBODYS}/cancel", {}),
    ("POST", f"/api/tasks/{NOBODYS}/pause", {}),
    ("POST", f"/api/tasks/{NOBODYS}/resume", {}),
]
TOKENS = {
    "missing": (None, "missing"),
    "unknown": ("0123456789abcdef0123456789abcdef", "invalid"),
    "empty": ("", "missing"),
    "too long": ("a" * 5000, "invalid"),
}


@pytest.mark.requirement("CH-AUT-3")
@pytest.mark.requirement("CH-AUT-4")
@pytest.mark.parametrize("token", TOKENS)
@pytest.mark.parametrize(("method", "path", "body"), CHIFFON)
def test_every_endpoint_refuses_a_token_nobody_has(
    hub: HubProcess, method: str, path: str, body: object, token: str
) -> None:
    data = None if body is None else json.dumps(body).encode()
    answer = HttpClient(hub.url, TOKENS[token][0]).ask(method, path, data)
    assert (answer.status, answer.code) == (401, 5004)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert set(answer.error["error_context"]) == {"agent_id", "token_status"}


@pytest.mark.parametrize("scheme", ["Basic {}", "Token {}", "{}", "bearer{}", "Bearer"])
def test_a_good_token_under_another_scheme_is_none(hub: HubProcess, scheme: str) -> None:
    token = hub.token("boss", "orchestrator")
    answer = HttpClient(hub.url).ask("GET", "/api/agent/messages", None, {"Authorization": scheme.format(token)})
    assert (answer.status, answer.code) == (401, 5004)


def test_a_websocket_without_a_good_token_is_not_opened(hub: HubProcess) -> None:
    for token in (None, "0123456789abcdef0123456789abcdef"):
        with pytest.raises(InvalidStatus) as refused:
            Worker(hub.url, token, "i1", "infra").websocket()  # type: ignore[arg-type]
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body)["payload"]["error_code"] == 5004


@pytest.mark.requirement("CH-AUT-1")
def test_every_agent_has_its_own_random_token_of_32_characters(hub: HubProcess) -> None:
    tokens = [hub.token(f"token-{n}", "infra") for n in range(5)]
    assert len(set(tokens)) == 5
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in tokens)


def test_a_replaced_token_ends_at_once_with_its_connections(hub: HubProcess) -> None:
    agent = hub.worker("rotated", "rotated")
    link = agent.websocket()
    made = hub.admin.post("/api/v1/agents/rotated/token")
    assert made.status == 200
    assert agent.get("/api/agent/messages").status == 401
    with pytest.raises(Exception, match="4001"):
        link.recv()
    agent.token = made.json["token"]
    assert agent.get("/api/agent/messages").status == 200


# -- spoofed senders --------------------------------------------------------------------------------------------


@pytest.mark.requirement("all-D1")
def test_a_sender_that_is_not_the_tokens_is_refused(hub: HubProcess) -> None:
    agent = hub.worker("spoof-1", "spoof")
    hub.worker("spoof-2", "spoof")
    boss = hub.orchestrator("spoof-boss")
    boss.submit(to_agent="spoof")
    work = agent.work()
    for lie in (
        work_status(work, from_agent="orchestrator"),
        work_status(work, from_agent="code"),
        work_status(work, from_agent="hub"),
        work_status(work, x_custom_fields={"agent_id": "spoof-2"}),
        work_result(work, x_custom_fields={"agent_id": "spoof-boss"}),
        work_request(from_agent="orchestrator"),
    ):
        answer = agent.send(lie)
        assert (answer.status, answer.code) == (401, 5004), lie
    with agent.websocket() as link:
        link.send(work_status(work, from_agent="orchestrator"))
        assert link.recv()["payload"]["error_code"] == 5004
    assert agent.send(work_result(work)).status == 202


def test_an_agent_cannot_register_as_another(hub: HubProcess) -> None:
    victim, thief = hub.worker("victim", "infra"), hub.worker("thief", "infra")
    for lie in ({"agent_id": "victim"}, {"agent_type": "orchestrator"}, {"agent_id": "admin"}, {"agent_id": "hub"}):
        answer = thief.register(**lie)
        assert (answer.status, answer.code) == (401, 5004), lie
    assert victim.get("/api/agent/messages").status == 200


def test_a_connected_agent_cannot_be_pushed_out_by_another_token(hub: HubProcess) -> None:
    victim, thief = hub.worker("seated", "seated"), hub.worker("pusher", "pusher")
    boss = hub.orchestrator("seat-boss")
    with victim.websocket() as link, thief.websocket() as other:
        other.send({"agent_id": "seated", "agent_type": "seated", "supported_versions": ["1.0"], "work_types": []})
        assert other.recv()["payload"]["error_code"] == 5003
        boss.submit(to_agent="seated")
        assert link.recv()["type"] == "work_request"  # it still comes to its owner
        with pytest.raises(TimeoutError):
            other.recv(0.2)


def test_an_agents_id_cannot_be_added_twice(hub: HubProcess) -> None:
    hub.token("once", "infra")
    for id in ("once", "admin", "hub"):
        assert hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "chiffon"}).status in (409, 422)


# -- other people's tasks ---------------------------------------------------------------------------------------


def about(answer: Answer, task: str) -> tuple[int, str]:
    """What an answer says, without what is its own."""
    text = answer.body.decode().replace(task, "TASK")
    return answer.status, re.sub(r'"(message_id|timestamp|request_id|trace_id|refused_message_id)":"[^"]*"', "", text)


def test_another_agents_task_looks_like_one_that_does_not_exist(hub: HubProcess) -> None:
    boss, owner, thief = hub.orchestrator("mine"), hub.worker("owner", "owner"), hub.worker("burglar", "burglar")
    boss.submit(to_agent="owner")
    theirs = owner.work() | {"to_agent": "burglar"}
    nothing = work_request(to_agent="burglar")
    for message in (work_status, work_result):
        other, none = thief.send(message(theirs)), thief.send(message(nothing))
        assert (other.status, other.code) == (404, 5003)
        assert about(other, task_of(theirs)) == about(none, task_of(nothing))
    other, none = thief.send(error(theirs, 5005)), thief.send(error(nothing, 5005))
    assert about(other, task_of(theirs)) == about(none, task_of(nothing))
    assert hub.status(task_of(theirs)) == "assigned"


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_another_orchestrators_task_cannot_be_steered_or_seen(hub: HubProcess, verb: str) -> None:
    boss, rival = hub.orchestrator("own"), hub.orchestrator("rival")
    hub.worker("steered", "steered")
    request, _ = boss.submit(to_agent="steered")
    nothing = new_id()
    for party in (rival, hub.worker("bystander", "bystander")):
        other, none = party.post(f"/api/tasks/{task_of(request)}/{verb}"), party.post(f"/api/tasks/{nothing}/{verb}")
        assert (other.status, other.code) == (404, 5003)
        assert about(other, task_of(request)) == about(none, nothing)


def test_another_orchestrators_request_id_and_task_id_give_nothing_away(hub: HubProcess) -> None:
    """Request ids are one's own: the same one from another sender is another request, and its task another task."""
    boss, rival, worker = hub.orchestrator("first"), hub.orchestrator("second"), hub.worker("shared", "shared")
    request, _ = boss.submit(to_agent="shared")
    worker.send(work_result(worker.work(), output="for the first one only"))
    boss.take()
    again = rival.send(request)  # the same request id and task id: the id of the task is taken
    assert again.status == 409
    assert b"for the first one only" not in again.body
    assert rival.poll() == []
    other = rival.send(work_request(to_agent="shared", request_id=request["request_id"]))
    assert other.status == 202
    assert worker.work()["payload"]["task_id"] != task_of(request)


def test_another_agents_deliveries_cannot_be_acknowledged(hub: HubProcess) -> None:
    boss, rival, worker = hub.orchestrator("inbox"), hub.orchestrator("outbox"), hub.worker("post", "post")
    boss.submit(to_agent="post")
    worker.send(work_result(worker.work()))
    (told,) = boss.poll(wait=60)
    assert rival.ack(told).json == {"acknowledged": 0}
    assert boss.ack(told).json == {"acknowledged": 1}


# -- the management API -----------------------------------------------------------------------------------------

MANAGEMENT = [
    ("GET", "/api/v1/agents"),
    ("POST", "/api/v1/agents"),
    ("DELETE", "/api/v1/agents/boss"),
    ("POST", "/api/v1/agents/boss/token"),
    ("GET", "/api/v1/tasks"),
    ("POST", "/api/v1/tasks"),
    ("GET", f"/api/v1/tasks/{NOBODYS}"),
    ("GET", f"/api/v1/tasks/{NOBODYS}/events"),
    ("POST", f"/api/v1/tasks/{NOBODYS}/cancel"),
    ("POST", f"/api/v1/tasks/{NOBODYS}/retry"),
    ("GET", "/api/v1/questions"),
    ("GET", "/api/v1/deadletters"),
    ("GET", "/api/v1/audit"),
    ("POST", "/api/v1/backup"),
]


@pytest.mark.parametrize(("method", "path"), MANAGEMENT)
def test_the_management_api_takes_the_admins_token_and_no_other(hub: HubProcess, method: str, path: str) -> None:
    for token in (None, "0" * 32, hub.token("boss", "orchestrator")):
        answer = HttpClient(hub.url, token).ask(method, path, b"{}" if method == "POST" else None)
        assert answer.status in (401, 403), (token, answer)
        assert answer.headers["content-type"].startswith("application/problem+json")
        assert answer.json["status"] == answer.status


def test_the_admins_token_is_no_agents_token(hub: HubProcess) -> None:
    answer = HttpClient(hub.url, hub.ready["admin_token"]).post("/api/agent/message", work_request())
    assert (answer.status, answer.code) == (401, 5004)
