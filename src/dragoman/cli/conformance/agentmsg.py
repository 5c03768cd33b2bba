"""Agentmsg over HTTP: `ada` asks, `bob` works and helps."""

from __future__ import annotations

import uuid
from typing import Any

from dragoman.cli.conformance.cast import Answer, Cast, Mailbox, Player, now, without
from dragoman.cli.conformance.checklist import Checklist, expect

DOOR = "/agentmsg"
checks: Checklist[Scene] = Checklist("agentmsg")


class Scene:
    def __init__(self, cast: Cast) -> None:
        self.ada = cast.admit("agentmsg", "ada")
        self.bob = cast.admit("agentmsg", "bob")
        self.mail = {one.id: Mailbox(one, f"{DOOR}/messages", f"{DOOR}/ack") for one in (self.ada, self.bob)}
        self.task = f"conformance {uuid.uuid4().hex[:8]}"
        self.assignment: dict[str, Any] = {}


def message(by: Player, to: str, kind: str, payload: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()), "timestamp": now(), "from": by.id, "to": to, "type": kind, "payload": payload,
        "metadata": {"priority": "high", "retry_count": 0, "max_retries": 3, **metadata},
    }  # fmt: skip


def send(player: Player, said: Any) -> Answer:
    return player.post(f"{DOOR}/messages", said)


def taken(player: Player, said: Any) -> None:
    answer = send(player, said)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")


def assigned(scene: Scene) -> dict[str, Any]:
    context = {
        "task_id": scene.task, "task_type": "conformance", "priority": "high", "metadata": {"repo": "x"},
        "dependencies": [], "history": [],
    }  # fmt: skip
    task = {
        "task_id": scene.task, "task_type": "conformance", "description": "look at it", "context": context,
        "input": {"n": 1},
    }  # fmt: skip
    return message(scene.ada, scene.bob.id, "TASK_ASSIGNMENT", {"task": task})


@checks("agentmsg/AUT", "A message without a good token is refused.")
def bad_token(scene: Scene) -> None:
    stranger = Player(scene.ada.hub, scene.ada.id, "0" * 32)
    answer = send(stranger, assigned(scene))
    expect(answer.status == 401, f"it was answered with {answer.status}")


@checks("AM-MSG-1", "A message that lacks a field is refused, and the field named.")
def missing_field(scene: Scene) -> None:
    for field in ("id", "timestamp", "to", "type", "payload"):
        answer = send(scene.ada, without(assigned(scene), field))
        expect(400 <= answer.status < 500, f"without {field} it was answered with {answer.status}")
        expect(field in answer.body.decode(errors="replace"), f"the refusal does not name {field}")


@checks("AM-TYP-1", "The document's ten types are known, and no others but ours.")
def unknown_type(scene: Scene) -> None:
    answer = send(scene.ada, message(scene.ada, scene.bob.id, "GOSSIP", {}))
    expect(400 <= answer.status < 500, f"it was answered with {answer.status}")


@checks("AM-LNK-1", "Each end says only what it may, and only in its own name.")
def spoofed(scene: Scene) -> None:
    answer = send(scene.ada, {**assigned(scene), "from": scene.bob.id})
    expect(answer.status in (401, 403), f"it was answered with {answer.status}")


@checks("AM-DLV-1", "A task reaches its agent, whole; the same message again is acted on once.")
def task_arrives(scene: Scene) -> None:
    scene.assignment = assigned(scene)
    for _ in range(2):
        taken(scene.ada, scene.assignment)
    mail = scene.mail[scene.bob.id]
    task = mail.next(lambda one: one["type"] == "TASK_ASSIGNMENT", "the assignment")["payload"]["task"]
    expect((task["task_id"], task["input"]) == (scene.task, {"n": 1}), "the task is another")
    expect(task["context"]["metadata"].get("repo") == "x", "its context did not arrive")
    mail.quiet(lambda one: one["type"] == "TASK_ASSIGNMENT", "a second assignment")


@checks("AM-DLV-3", "The messages of one task arrive in order, and its result last.")
def progress_and_result(scene: Scene) -> None:
    for percent in (25, 50, 75):
        taken(scene.bob, message(scene.bob, scene.ada.id, "TASK_UPDATE", {"task_id": scene.task, "progress": percent}))
    done = {"task_id": scene.task, "result": {"ok": True}}
    taken(scene.bob, message(scene.bob, scene.ada.id, "TASK_COMPLETE", done))
    mail = scene.mail[scene.ada.id]
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["type"] != "TASK_COMPLETE":
        heard.append(mail.next(lambda one: one["type"] in ("TASK_UPDATE", "TASK_COMPLETE"), "the result"))
    percents = [one["payload"]["progress"] for one in heard[:-1] if one["payload"].get("progress") is not None]
    expect(percents == sorted(percents), f"progress came as {percents}")
    expect(heard[-1]["payload"]["result"] == {"ok": True}, "the result is another")


@checks("AM-MTA-3", "After ttl_ms a message is not delivered any more.")
def outlived(scene: Scene) -> None:
    old = {**message(scene.ada, scene.bob.id, "HELP_REQUEST", help_payload(scene), ttl_ms=1)}
    old["timestamp"] = "2020-01-01T00:00:00Z"
    answer = send(scene.ada, old)
    expect(answer.status >= 400, f"it was answered with {answer.status}")


def help_payload(scene: Scene) -> dict[str, Any]:
    return {
        "requester_id": scene.ada.id, "task_id": scene.task, "help_type": "CODE_REVIEW", "urgency": "high",
        "description": "which way?",
        "context": {"current_state": "open", "error_details": "", "attempted_solutions": []},
    }  # fmt: skip


@checks("AM-HLP-6", "A request for help reaches whom it names, and the response returns.")
def help_reaches(scene: Scene) -> None:
    asked = message(scene.ada, scene.bob.id, "HELP_REQUEST", help_payload(scene))
    taken(scene.ada, asked)
    heard = scene.mail[scene.bob.id].next(lambda one: one["type"] == "HELP_REQUEST", "the request for help")
    expect(heard["payload"]["description"] == "which way?", "its words are others")
    answer = {
        "responder_id": scene.bob.id, "request_id": heard["id"], "response_type": "DIRECT_ANSWER", "content": "left",
        "resources": [], "follow_up_required": False, "estimated_effort": 1,
    }  # fmt: skip
    taken(scene.bob, message(scene.bob, scene.ada.id, "HELP_RESPONSE", answer, correlation_id=heard["id"]))
    told = scene.mail[scene.ada.id].next(lambda one: one["type"] == "HELP_RESPONSE", "the response")
    expect(told["payload"]["content"] == "left", "the response is another")


@checks("AM-STA-4", "The registry shows what an agent said last.")
def status_is_shown(scene: Scene) -> None:
    status = {
        "state": "BUSY", "capability_level": 80, "error_rate": 0.1, "avg_response_time_ms": 5, "last_heartbeat": now(),
    }  # fmt: skip
    usage = {"tokens_used": 0, "tokens_remaining": 100, "cost_usd": 0, "cpu_usage": 1, "memory_usage": 1}
    health = {"uptime_seconds": 9, "success_rate": 1, "avg_latency_ms": 3, "error_count": 0}
    payload = {
        "agent_id": scene.bob.id, "status": status, "current_tasks": [], "resource_usage": usage,
        "health_metrics": health,
    }  # fmt: skip
    answer = send(scene.bob, message(scene.bob, "hub", "STATUS_UPDATE", payload, priority="normal"))
    expect(answer.status == 202, f"the status was answered with {answer.status}: {answer.body[:300]!r}")
    told = scene.ada.get(f"{DOOR}/state/AGENT/{scene.bob.id}").json
    expect("BUSY" in str(told), f"the registry says {str(told)[:200]}")


@checks("AM-SST-3", "The state can be read, whole and by entity.")
def state_is_read(scene: Scene) -> None:
    whole = scene.ada.get(f"{DOOR}/state")
    expect(whole.status == 200, f"status {whole.status}")
    for registry in ("task_registry", "agent_registry", "resource_allocations", "policy_state"):
        expect(registry in whole.json, f"{registry} is missing")
