"""Agentmsg over HTTP: `caller` asks, `worker` works and helps."""

from __future__ import annotations

import uuid
from typing import Any

from dragoman.cli.scenarios.fake_agents import Answer, FakeAgent, FakeAgents, now, without
from dragoman.cli.scenarios.steps import Checks, expect

BASE = "/agentmsg"
checks: Checks[Scenario] = Checks()


class Scenario:
    def __init__(self, fakes: FakeAgents) -> None:
        self.caller = fakes.admit("agentmsg", "caller")
        self.worker = fakes.admit("agentmsg", "worker")
        self.task = f"conformance {uuid.uuid4().hex[:8]}"
        self.assignment: dict[str, Any] = {}


def message(by: FakeAgent, to: str, kind: str, payload: Any, **metadata: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()), "timestamp": now(), "from": by.id, "to": to, "type": kind, "payload": payload,
        "metadata": {"priority": "high", "retry_count": 0, "max_retries": 3, **metadata},
    }  # fmt: skip


def send(agent: FakeAgent, sent: Any) -> Answer:
    return agent.post(f"{BASE}/messages", sent)


def taken(agent: FakeAgent, sent: Any) -> None:
    answer = send(agent, sent)
    expect(answer.status == 202, f"it was answered with {answer.status}: {answer.body[:200]!r}")


def assigned(scenario: Scenario) -> dict[str, Any]:
    context = {
        "task_id": scenario.task, "task_type": "conformance", "priority": "high", "metadata": {"repo": "x"},
        "dependencies": [], "history": [],
    }  # fmt: skip
    task = {
        "task_id": scenario.task, "task_type": "conformance", "description": "look at it", "context": context,
        "input": {"n": 1},
    }  # fmt: skip
    return message(scenario.caller, scenario.worker.id, "TASK_ASSIGNMENT", {"task": task})


@checks("agentmsg/AUT", "A message without a good token is refused.")
def bad_token(scenario: Scenario) -> None:
    stranger = FakeAgent(scenario.caller.hub, scenario.caller.id, "0" * 32)
    answer = send(stranger, assigned(scenario))
    expect(answer.status == 401, f"it was answered with {answer.status}")


@checks("AM-MSG-1", "A message that lacks a field is refused, and the field named.")
def missing_field(scenario: Scenario) -> None:
    for field in ("id", "timestamp", "to", "type", "payload"):
        answer = send(scenario.caller, without(assigned(scenario), field))
        expect(400 <= answer.status < 500, f"without {field} it was answered with {answer.status}")
        expect(field in answer.body.decode(errors="replace"), f"the refusal does not name {field}")


@checks("AM-TYP-1", "The document's ten types are known, and no others but ours.")
def unknown_type(scenario: Scenario) -> None:
    answer = send(scenario.caller, message(scenario.caller, scenario.worker.id, "GOSSIP", {}))
    expect(400 <= answer.status < 500, f"it was answered with {answer.status}")


@checks("AM-LNK-1", "Each end says only what it may, and only in its own name.")
def spoofed(scenario: Scenario) -> None:
    answer = send(scenario.caller, {**assigned(scenario), "from": scenario.worker.id})
    expect(answer.status in (401, 403), f"it was answered with {answer.status}")


@checks("AM-DLV-1", "A task reaches its agent, whole; the same message again is acted on once.")
def task_arrives(scenario: Scenario) -> None:
    scenario.assignment = assigned(scenario)
    for _ in range(2):
        taken(scenario.caller, scenario.assignment)
    inbox = scenario.worker.inbox
    task = inbox.next(lambda one: one["type"] == "TASK_ASSIGNMENT", "the assignment")["payload"]["task"]
    expect((task["task_id"], task["input"]) == (scenario.task, {"n": 1}), "the task is another")
    expect(task["context"]["metadata"].get("repo") == "x", "its context did not arrive")
    inbox.quiet(lambda one: one["type"] == "TASK_ASSIGNMENT", "a second assignment")


@checks("AM-DLV-3", "The messages of one task arrive in order, and its result last.")
def progress_and_result(scenario: Scenario) -> None:
    for percent in (25, 50, 75):
        taken(
            scenario.worker,
            message(
                scenario.worker, scenario.caller.id, "TASK_UPDATE", {"task_id": scenario.task, "progress": percent}
            ),
        )
    done = {"task_id": scenario.task, "result": {"ok": True}}
    taken(scenario.worker, message(scenario.worker, scenario.caller.id, "TASK_COMPLETE", done))
    inbox = scenario.caller.inbox
    received: list[dict[str, Any]] = []
    while not received or received[-1]["type"] != "TASK_COMPLETE":
        received.append(inbox.next(lambda one: one["type"] in ("TASK_UPDATE", "TASK_COMPLETE"), "the result"))
    percents = [one["payload"]["progress"] for one in received[:-1] if one["payload"].get("progress") is not None]
    expect(percents == sorted(percents), f"progress came as {percents}")
    expect(received[-1]["payload"]["result"] == {"ok": True}, "the result is another")


@checks("AM-MTA-3", "After ttl_ms a message is not delivered any more.")
def outlived(scenario: Scenario) -> None:
    old = {**message(scenario.caller, scenario.worker.id, "HELP_REQUEST", help_payload(scenario), ttl_ms=1)}
    old["timestamp"] = "2020-01-01T00:00:00Z"
    answer = send(scenario.caller, old)
    expect(answer.status >= 400, f"it was answered with {answer.status}")


def help_payload(scenario: Scenario) -> dict[str, Any]:
    return {
        "requester_id": scenario.caller.id, "task_id": scenario.task, "help_type": "CODE_REVIEW", "urgency": "high",
        "description": "which way?",
        "context": {"current_state": "open", "error_details": "", "attempted_solutions": []},
    }  # fmt: skip


@checks("AM-HLP-6", "A request for help reaches whom it names, and the response returns.")
def help_reaches(scenario: Scenario) -> None:
    asked = message(scenario.caller, scenario.worker.id, "HELP_REQUEST", help_payload(scenario))
    taken(scenario.caller, asked)
    received = scenario.worker.inbox.next(lambda one: one["type"] == "HELP_REQUEST", "the request for help")
    expect(received["payload"]["description"] == "which way?", "its description is another")
    answer = {
        "responder_id": scenario.worker.id, "request_id": received["id"], "response_type": "DIRECT_ANSWER",
        "content": "left", "resources": [], "follow_up_required": False, "estimated_effort": 1,
    }  # fmt: skip
    taken(
        scenario.worker,
        message(scenario.worker, scenario.caller.id, "HELP_RESPONSE", answer, correlation_id=received["id"]),
    )
    shown = scenario.caller.inbox.next(lambda one: one["type"] == "HELP_RESPONSE", "the response")
    expect(shown["payload"]["content"] == "left", "the response is another")


@checks("AM-STA-4", "The registry shows the last status that an agent reported.")
def status_is_shown(scenario: Scenario) -> None:
    status = {
        "state": "BUSY", "capability_level": 80, "error_rate": 0.1, "avg_response_time_ms": 5, "last_heartbeat": now(),
    }  # fmt: skip
    usage = {"tokens_used": 0, "tokens_remaining": 100, "cost_usd": 0, "cpu_usage": 1, "memory_usage": 1}
    health = {"uptime_seconds": 9, "success_rate": 1, "avg_latency_ms": 3, "error_count": 0}
    payload = {
        "agent_id": scenario.worker.id, "status": status, "current_tasks": [], "resource_usage": usage,
        "health_metrics": health,
    }  # fmt: skip
    answer = send(scenario.worker, message(scenario.worker, "hub", "STATUS_UPDATE", payload, priority="normal"))
    expect(answer.status == 202, f"the status was answered with {answer.status}: {answer.body[:300]!r}")
    shown = scenario.caller.get(f"{BASE}/state/AGENT/{scenario.worker.id}").json
    expect("BUSY" in str(shown), f"the registry says {str(shown)[:200]}")


@checks("AM-SST-3", "The state can be read, whole and by entity.")
def state_is_read(scenario: Scenario) -> None:
    whole = scenario.caller.get(f"{BASE}/state")
    expect(whole.status == 200, f"status {whole.status}")
    for registry in ("task_registry", "agent_registry", "resource_allocations", "policy_state"):
        expect(registry in whole.json, f"{registry} is missing")
