"""One whole payload for each form a payload has, as JSON, and a message to carry it: `ada` to `bob`, or to the hub."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from itertools import count
from typing import Any

from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.connection import Connection, Outbox
from dragoman.protocols.agentmsg.types import Message, Stamp
from dragoman.wire import Role

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
TIME = "2026-03-01T12:00:00Z"

EVENT = {"timestamp": TIME, "event_type": "created", "agent_id": "ada", "details": {"why": "asked"}}
CONTEXT = {
    "task_id": "t-1",
    "task_type": "review",
    "priority": "normal",
    "metadata": {"repo": "x"},
    "dependencies": ["t-0"],
    "history": [EVENT],
}
CONSTRAINTS = {
    "max_tokens": 1000,
    "deadline": "2026-03-01T13:00:00Z",
    "required_capabilities": ["python"],
    "budget_usd": 1.5,
    "quality_threshold": 0.8,
}
ATTEMPT = {"attempt_number": 1, "timestamp": TIME, "strategy": "wait", "outcome": "failure", "details": "no"}
REPORT = {
    "error_id": "e-1",
    "agent_id": "ada",
    "task_id": "t-1",
    "error_type": "TIMEOUT",
    "severity": "high",
    "message": "too slow",
    "stack_trace": "line 1",
    "context": {"input_data": {"a": 1}, "configuration": "c", "environment": ["e"]},
    "recovery_attempts": [ATTEMPT],
    "suggested_actions": ["try again"],
}
USAGE = {"tokens_used": 5, "tokens_remaining": 95, "cost_usd": 0.25, "cpu_usage": 12.5, "memory_usage": 40}
STATUS = {
    "state": "BUSY",
    "capability_level": 80,
    "error_rate": 0.1,
    "avg_response_time_ms": 120.5,
    "last_heartbeat": TIME,
}

#: Name of the payload's class, type of message, recipient, payload.
PAYLOADS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "TaskAssignment": ("TASK_ASSIGNMENT", "bob", {"task": {
        "task_id": "t-1", "task_type": "review", "description": "look at it", "context": CONTEXT,
        "constraints": CONSTRAINTS, "input": {"file": "a.py"}}}),
    "TaskHandoffRequest": ("TASK_HANDOFF", "bob", {
        "task_id": "t-1", "from_agent": "ada", "to_agent": "bob", "reason": "ESCALATION", "context": CONTEXT,
        "constraints": CONSTRAINTS, "deadline": "2026-03-01T14:00:00Z"}),
    "TaskHandoffResponse": ("TASK_HANDOFF", "bob", {
        "accepted": True, "agent_id": "ada", "estimated_completion": TIME, "requirements": ["time"],
        "constraints": CONSTRAINTS, "error": "none"}),
    "TaskUpdate": ("TASK_UPDATE", "hub", {"task_id": "t-1", "progress": 50, "message": "half", "output": "text"}),
    "TaskComplete": ("TASK_COMPLETE", "hub", {"task_id": "t-1", "result": {"ok": [1, 2]}}),
    "TaskFailed": ("TASK_FAILED", "hub", {"task_id": "t-1", "error": REPORT}),
    "HelpRequest": ("HELP_REQUEST", "bob", {
        "requester_id": "ada", "task_id": "t-1", "help_type": "CODE_REVIEW", "description": "stuck",
        "context": {"current_state": "open", "error_details": "?", "attempted_solutions": ["tea"]},
        "urgency": "medium", "deadline": TIME}),
    "HelpResponse": ("HELP_RESPONSE", "bob", {
        "responder_id": "ada", "request_id": "r-1", "response_type": "DIRECT_ANSWER", "content": "do this",
        "resources": [{"type": "api", "url": "https://example.org", "title": "T", "description": "D"}],
        "follow_up_required": False, "estimated_effort": 5}),
    "StatusUpdate": ("STATUS_UPDATE", "hub", {
        "agent_id": "ada", "status": STATUS, "current_tasks": ["t-1"], "resource_usage": USAGE,
        "health_metrics": {"uptime_seconds": 9, "success_rate": 1, "avg_latency_ms": 3, "error_count": 0,
                           "last_error": TIME},
        "next_available": TIME}),
    "Heartbeat": ("HEARTBEAT", "hub", {"agent_id": "ada", "state": "IDLE"}),
    "ErrorReport": ("ERROR_REPORT", "hub", REPORT),
    "StateUpdate": ("STATE_UPDATE", "hub", {
        "operation": "UPDATE", "entity_type": "TASK", "entity_id": "t-1", "changes": {"status": "completed"},
        "version": 3, "timestamp": TIME}),
    "StateQuery": ("STATE_QUERY", "hub", {"entity_type": "TASK", "entity_id": "t-1", "watch": True, "cursor": 4}),
    "StateAnswer": ("STATE_QUERY", "hub", {
        "entities": [{"entity_type": "TASK", "entity_id": "t-1", "version": 3, "value": {"id": "t-1"}}],
        "last_updated": TIME, "cursor": 5}),
    "Ack": ("ACK", "hub", {"message_ids": ["m-1", "m-2"]}),
    "Register": ("REGISTER", "hub", {
        "agent_id": "ada", "name": "Ada", "capabilities": ["python"], "task_types": ["review"], "version": "1",
        "max_concurrent": 2}),
    "Welcome": ("WELCOME", "hub", {"agent_id": "ada", "heartbeat_interval_ms": 10000, "protocol": "agentmsg.v1"}),
}  # fmt: skip


def tree(
    name: str = "HelpRequest", id: str = "11111111-1111-4111-8111-111111111111", **metadata: Any
) -> dict[str, Any]:
    """A whole message as JSON. What the hub alone says comes from it."""
    kind, to, payload = PAYLOADS[name]
    by_hub = name in ("Welcome", "StateAnswer")
    return {
        "id": id,
        "timestamp": TIME,
        "from": "hub" if by_hub else "ada",
        "to": "ada" if by_hub else to,
        "type": kind,
        "payload": payload,
        "metadata": {
            "correlation_id": "22222222-2222-4222-8222-222222222222",
            "priority": "low",
            "ttl_ms": 60000,
            "retry_count": 0,
            "max_retries": 3,
            **metadata,
        },
    }


def decode(data: bytes) -> Message:
    """The message in `data`, checked whole."""
    return codec.interpret(codec.parse(data))


class Link:
    """The hub and the agent `ada`, with nothing between them but bytes, both keeping what they sent."""

    def __init__(self) -> None:
        self.hub: Any = Connection(Role.HUB, "ada", outbox=Outbox())
        self.agent: Any = Connection(Role.AGENT, "ada", outbox=Outbox())
        self._numbers = count(1)

    def stamp(self, at: datetime = START) -> Stamp:
        return Stamp(str(uuid.UUID(int=next(self._numbers), version=4)), at)
