"""Agentmsg's endpoints on a real hub: curl, `websockets` and the standard library, nothing of ours at the agents'
end."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.request import Request, urlopen

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.support.hubproc import PATIENCE, HubProcess, running, until


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class Speaker:
    """An agent that knows the document and nothing else."""

    def __init__(self, hub: HubProcess, id: str | None = None, **fields: Any) -> None:
        self.hub = hub
        self.id = id or f"a-{uuid.uuid4().hex[:8]}"
        made = hub.admin.post("/api/v1/agents", {"agent_id": self.id, "protocol": "agentmsg", **fields})
        assert made.status == 201, made
        self.token = made.json["token"]

    def message(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        return {
            "id": str(uuid.uuid4()),
            "timestamp": now(),
            "from": self.id,
            "to": to,
            "type": type,
            "payload": payload,
            "metadata": {"priority": "normal", "retry_count": 0, "max_retries": 3, **metadata},
        }

    # -- HTTP, by curl

    def curl(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        command = ["curl", "-sS", "-m", str(PATIENCE), "-X", method, f"{self.hub.url}/agentmsg{path}"]
        command += ["-H", f"Authorization: Bearer {token or self.token}", "-w", "\n%{http_code}"]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        said = None if body is None else json.dumps(body).encode()
        out = subprocess.run(command, input=said, capture_output=True, check=True, timeout=PATIENCE + 5).stdout
        content, _, status = out.rpartition(b"\n")
        return int(status), json.loads(content) if content else None

    def send(self, *said: Any, **metadata: Any) -> dict[str, Any]:
        status, answer = self.curl("POST", "/messages", self.message(*said, **metadata))
        assert status == 202, answer
        return dict(answer)

    def poll(self, wait: float = 5, most: int = 10) -> list[dict[str, Any]]:
        status, answer = self.curl("GET", f"/messages?wait={wait:g}&max={most}")
        assert status == 200, answer
        return list(answer["messages"])

    def next(self, type: str) -> dict[str, Any]:
        """The next message of a type; others are acknowledged on the way, and it, too."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            got = self.poll(2, 1)
            if got:
                self.curl("POST", "/ack", {"delivery_ids": [one["delivery_id"] for one in got]})
            found.extend(one["message"] for one in got if one["message"]["type"] == type)
            return bool(found)

        until(look, type)
        return found[0]

    # -- WebSocket

    @contextmanager
    def link(self) -> Iterator[Link]:
        url = f"{self.hub.url.replace('http', 'ws')}/agentmsg/ws"
        headers = {"Authorization": f"Bearer {self.token}"}
        with connect(url, subprotocols=["agentmsg.v1"], additional_headers=headers, proxy=None) as socket:  # type: ignore[list-item]
            yield Link(self, socket)


class Link:
    def __init__(self, agent: Speaker, socket: ClientConnection) -> None:
        self.agent = agent
        self.socket = socket
        self.heard: list[dict[str, Any]] = []

    def say(self, *said: Any, **metadata: Any) -> dict[str, Any]:
        message = self.agent.message(*said, **metadata)
        self.socket.send(json.dumps(message))
        return message

    def ack(self, *messages: dict[str, Any]) -> None:
        ids = [one["id"] for one in messages]
        self.say("ACK", "hub", {"message_ids": ids} if len(ids) > 1 else {}, correlation_id=ids[0])

    def next(self, type: str, about: str | None = None) -> dict[str, Any]:
        """The next of a type; what comes before it is kept in `heard`."""
        while True:
            message = json.loads(self.socket.recv(timeout=PATIENCE))
            self.heard.append(message)
            if message["type"] == type and about in (None, message["metadata"].get("correlation_id")):
                return dict(message)

    def acked(self, *said: dict[str, Any]) -> None:
        """Until the hub has acknowledged these, by one ACK or several."""
        waiting = {one["id"] for one in said}
        while waiting:
            ack = self.next("ACK")
            waiting -= {ack["metadata"]["correlation_id"], *ack["payload"].get("message_ids", ())}


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def assignment(task: str, **fields: Any) -> dict[str, Any]:
    return {"task": {"task_id": task, "task_type": "review", "input": {"file": "a.py"}, **fields}}


@needs_curl
def test_a_task_goes_from_one_agent_to_another_and_back_by_curl(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    task = f"review-{uuid.uuid4().hex[:6]}"
    accepted = ada.send("TASK_ASSIGNMENT", bob.id, assignment(task))
    assert set(accepted) == {"status", "message_id"}
    order = bob.next("TASK_ASSIGNMENT")
    assert (order["from"], order["to"], order["payload"]["task"]["task_id"]) == (ada.id, bob.id, task)
    bob.send("TASK_UPDATE", ada.id, {"task_id": task, "progress": 50, "message": "half"})
    bob.send("TASK_COMPLETE", ada.id, {"task_id": task, "result": {"verdict": "fine"}})
    done = ada.next("TASK_COMPLETE")
    assert (done["from"], done["payload"]["task_id"], done["payload"]["result"]) == (bob.id, task, {"verdict": "fine"})
    status, known = ada.curl("GET", f"/state/TASK/{task}")
    assert (status, known["value"]["status"], known["value"]["assigned_agent"]) == (200, "completed", bob.id)


@needs_curl
def test_refusals_are_error_reports(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    said = ada.message("HEARTBEAT", "hub", {"agent_id": ada.id})
    for token, body, status, error_type in (
        ("f" * 32, said, 401, "AUTHENTICATION_ERROR"),
        (bob.token, said, 403, "AUTHENTICATION_ERROR"),
        (ada.token, {**said, "type": "SHOUT"}, 400, "VALIDATION_ERROR"),
        (ada.token, {**said, "payload": {"agent_id": bob.id}}, 403, "AUTHENTICATION_ERROR"),
    ):
        found, report = ada.curl("POST", "/messages", body, token)
        assert (found, report["error_type"]) == (status, error_type)
        assert report["agent_id"] == "hub"
        assert report["suggested_actions"]
    found, report = ada.curl("POST", "/messages", ada.message("HEARTBEAT", "nobody-here", {"agent_id": ada.id}))
    assert found == 404, report


@needs_curl
def test_shared_state_is_written_by_version_and_watched_from_a_cursor(hub: HubProcess) -> None:
    ada = Speaker(hub)
    entity = f"job-{uuid.uuid4().hex[:6]}"

    def change(operation: str, version: int, changes: dict[str, Any]) -> tuple[int, Any]:
        update = {
            "operation": operation, "entity_type": "TASK", "entity_id": entity, "changes": changes,
            "version": version, "timestamp": now(),
        }  # fmt: skip
        return ada.curl("POST", "/state", update)

    _, whole = ada.curl("GET", "/state")
    assert {"task_registry", "agent_registry", "resource_allocations", "policy_state", "last_updated"} <= set(whole)
    status, made = change("CREATE", 0, {"status": "pending"})
    assert (status, made["version"], made["entity_id"]) == (200, 1, entity)
    assert change("UPDATE", 1, {"status": "in_progress"})[1]["version"] == 2
    status, late = change("UPDATE", 1, {"status": "failed"})
    assert (status, late["context"]["details"]["version"]) == (409, 2)
    status, one = ada.curl("GET", f"/state/TASK/{entity}", token=hub.ready["admin_token"])
    assert (status, one["version"], one["value"]["status"]) == (200, 2, "in_progress")

    def watched(cursor: int, count: int) -> list[dict[str, Any]]:
        url = f"{hub.url}/agentmsg/state/watch?entity_type=TASK&entity_id={entity}"
        headers = {"Authorization": f"Bearer {ada.token}", "Last-Event-ID": str(cursor)}
        found: list[dict[str, Any]] = []
        with urlopen(Request(url, headers=headers), timeout=PATIENCE) as stream:
            while len(found) < count:
                line = stream.readline()
                if line.startswith(b"data: "):
                    found.append(json.loads(line[6:]))
        return found

    first, second = watched(whole["cursor"], 2)
    assert [(one["operation"], one["version"]) for one in (first, second)] == [("CREATE", 1), ("UPDATE", 2)]
    assert watched(first["cursor"], 1) == [second]


def test_a_conversation_over_websockets(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    task = f"t-{uuid.uuid4().hex[:6]}"
    with ada.link() as boss, bob.link() as worker:
        assert worker.socket.subprotocol == "agentmsg.v1"
        hello = worker.say("REGISTER", "hub", {"agent_id": bob.id, "capabilities": ["review"]})
        assert worker.next("WELCOME", hello["id"])["payload"]["heartbeat_interval_ms"] == 10_000
        said = boss.say("TASK_ASSIGNMENT", bob.id, assignment(task))
        boss.acked(said)
        order = worker.next("TASK_ASSIGNMENT")
        worker.ack(order)
        worker.say("TASK_UPDATE", ada.id, {"task_id": task, "progress": 50})
        done = worker.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": "ok"})
        worker.acked(done)
        result = boss.next("TASK_COMPLETE")
        assert result["payload"]["result"] == "ok"
        assert [one["payload"]["progress"] for one in boss.heard if one["type"] == "TASK_UPDATE"] == [50]
        boss.ack(result)

        word = boss.say("ERROR_REPORT", bob.id, {
            "error_id": "e-1", "agent_id": ada.id, "error_type": "TIMEOUT", "severity": "low", "message": "slow",
            "context": {"environment": {"x": 1}}, "recovery_attempts": [], "suggested_actions": [], "extra": "kept",
        })  # fmt: skip
        boss.acked(word)
        heard = worker.next("ERROR_REPORT")
        assert (heard["id"], heard["payload"]["extra"]) == (word["id"], "kept")
        worker.ack(heard)
        worker.say("HEARTBEAT", ada.id, {"agent_id": bob.id, "state": "IDLE"})
        assert boss.next("HEARTBEAT")["from"] == bob.id


def test_what_is_not_acknowledged_comes_again_as_the_same_message(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    with bob.link() as worker:
        task = f"t-{uuid.uuid4().hex[:6]}"
        ada.send("TASK_ASSIGNMENT", bob.id, assignment(task))
        first = worker.next("TASK_ASSIGNMENT")
        again = worker.next("TASK_ASSIGNMENT")
        assert (again["id"], again["metadata"]["retry_count"]) == (first["id"], 1)
        assert again["metadata"]["delivery_id"] == first["metadata"]["delivery_id"]
        worker.ack(again)
        worker.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1})
        until(lambda: ada.next("TASK_COMPLETE"))


def test_a_watch_over_the_websocket_follows_the_state(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    with ada.link() as watcher, bob.link() as other:
        query = watcher.say("STATE_QUERY", "hub", {"entity_type": "AGENT", "entity_id": bob.id, "watch": True})
        answer = watcher.next("STATE_QUERY", query["id"])
        assert [one["entity_id"] for one in answer["payload"]["entities"]] == [bob.id]
        other.say("STATUS_UPDATE", "hub", {
            "agent_id": bob.id,
            "status": {
                "state": "MAINTENANCE", "capability_level": 10, "error_rate": 0, "avg_response_time_ms": 5,
                "last_heartbeat": now(),
            },
            "current_tasks": [],
            "resource_usage": {
                "tokens_used": 1, "tokens_remaining": 2, "cost_usd": 0.5, "cpu_usage": 1, "memory_usage": 1,
            },
            "health_metrics": {"uptime_seconds": 1, "success_rate": 1, "avg_latency_ms": 1, "error_count": 0},
        })  # fmt: skip
        update = watcher.next("STATE_UPDATE", query["id"])
        assert (update["from"], update["payload"]["changes"]["state"]) == ("hub", "MAINTENANCE")
        cursor = update["payload"]["cursor"]
        resumed = watcher.say("STATE_QUERY", "hub", {"entity_type": "AGENT", "watch": True, "cursor": cursor - 1})
        assert watcher.next("STATE_QUERY", resumed["id"])["payload"]["entities"] == []
        assert watcher.next("STATE_UPDATE", resumed["id"])["payload"]["cursor"] == cursor
    told = hub.admin.get(f"/api/v1/agents/{bob.id}").json["reported"]
    assert told["status"]["state"] == "MAINTENANCE"


def test_what_waits_for_an_allocation_of_all_together_goes_on_when_that_expires(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    expires_at = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    made = hub.admin.post("/agentmsg/state", {
        "operation": "CREATE", "entity_type": "RESOURCE", "entity_id": "hub:cpu", "version": 0, "timestamp": now(),
        "changes": {"limit": 120, "allocated": 40, "expires_at": expires_at},
    })  # fmt: skip
    assert made.status == 200, made
    with ada.link() as boss, bob.link() as worker:
        for task in (str(uuid.uuid4()), str(uuid.uuid4())):
            context = {
                "task_id": task, "task_type": "review", "priority": "normal", "metadata": {"cpu": 60},
                "dependencies": [], "history": [],
            }  # fmt: skip
            boss.acked(boss.say("TASK_ASSIGNMENT", bob.id, assignment(task, context=context)))
            order = worker.next("TASK_ASSIGNMENT")
            worker.ack(order)
            worker.say("HEARTBEAT", "hub", {"agent_id": bob.id})
        account = hub.admin.get("/agentmsg/state/RESOURCE/hub:cpu").json["value"]
        assert (account["limit"], account["allocated"], "expires_at" in account) == (120, 120, False)


def test_a_newer_connection_replaces_the_older(hub: HubProcess) -> None:
    ada = Speaker(hub)
    with ada.link() as older:
        hello = older.say("REGISTER", "hub", {"agent_id": ada.id})
        older.next("WELCOME", hello["id"])
        with ada.link() as newer:
            hello = newer.say("REGISTER", "hub", {"agent_id": ada.id})
            newer.next("WELCOME", hello["id"])
            with pytest.raises(ConnectionClosed):
                older.next("WELCOME")
            assert older.socket.close_code == 4009


def test_what_was_accepted_survives_a_kill(tmp_path: Any) -> None:
    with running(tmp_path) as hub:
        ada, bob = Speaker(hub), Speaker(hub)
        task = f"t-{uuid.uuid4().hex[:6]}"
        word = {"agent_id": ada.id, "error_id": "e", "error_type": "TIMEOUT", "severity": "low", "message": "m",
                "context": {}, "recovery_attempts": [], "suggested_actions": []}  # fmt: skip
        with ada.link() as link:
            link.acked(link.say("TASK_ASSIGNMENT", bob.id, assignment(task)), link.say("ERROR_REPORT", bob.id, word))
        hub.restart()
        with bob.link() as link:
            order = link.next("TASK_ASSIGNMENT")
            report = next((one for one in link.heard if one["type"] == "ERROR_REPORT"), None)
            link.ack(order, report or link.next("ERROR_REPORT"))
            link.acked(link.say("TASK_COMPLETE", ada.id, {"task_id": task, "result": 1}))
        hub.restart()
        with ada.link() as link:
            done = link.next("TASK_COMPLETE")
            assert done["payload"]["result"] == 1
            link.ack(done)


def test_metrics_name_the_protocol(hub: HubProcess) -> None:
    ada, bob = Speaker(hub), Speaker(hub)
    ada.send("TASK_ASSIGNMENT", bob.id, assignment(f"t-{uuid.uuid4().hex[:6]}"))
    bob.next("TASK_ASSIGNMENT")
    with urlopen(f"{hub.url}/metrics", timeout=PATIENCE) as answer:
        assert b'dragoman_deliveries_sent_total{protocol="agentmsg"}' in answer.read()
    with urlopen(f"{hub.url}/schemas/agentmsg.json", timeout=PATIENCE) as answer:
        assert len(json.loads(answer.read())["oneOf"]) == 17
