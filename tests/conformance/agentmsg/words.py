"""Messages of agents who know the document and nothing of ours: payloads by name, and the base message around them."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

from tests.conformance.agentmsg.samples import USAGE

FAR = "2099-01-01T00:00:00Z"


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def message(sender: str, type: str, to: str, payload: dict[str, Any], at: str, **metadata: Any) -> dict[str, Any]:
    return {
        "id": metadata.pop("id", None) or str(uuid.uuid4()),
        "timestamp": at,
        "from": sender,
        "to": to,
        "type": type,
        "payload": payload,
        "metadata": {"priority": "normal", "retry_count": 0, "max_retries": 3, **metadata},
    }


def constraints(**fields: Any) -> dict[str, Any]:
    return {"required_capabilities": [], **fields}


def context(task: str, **fields: Any) -> dict[str, Any]:
    return {
        "task_id": task, "task_type": "review", "priority": "normal", "metadata": {}, "dependencies": [],
        "history": [], **fields,
    }  # fmt: skip


def assignment(task: str, **fields: Any) -> dict[str, Any]:
    return {"task": {"task_id": task, "task_type": "review", "input": {"file": "a.py"}, **fields}}


def handoff(task: str, giver: str, to: str, **fields: Any) -> dict[str, Any]:
    return {
        "task_id": task, "from_agent": giver, "to_agent": to, "reason": "LOAD_BALANCING", "context": context(task),
        "constraints": constraints(), "deadline": FAR, **fields,
    }  # fmt: skip


def yes(agent: str, **fields: Any) -> dict[str, Any]:
    terms = {"estimated_completion": FAR, "requirements": [], "constraints": constraints()}
    return {"accepted": True, "agent_id": agent, **terms, **fields}


def no(agent: str, why: str = "busy") -> dict[str, Any]:
    return {"accepted": False, "agent_id": agent, "error": why}


def help_request(asker: str, task: str, **fields: Any) -> dict[str, Any]:
    return {
        "requester_id": asker, "task_id": task, "help_type": "CODE_REVIEW", "description": "is this right?",
        "context": {"current_state": "stuck", "attempted_solutions": ["tea"]}, "urgency": "medium", **fields,
    }  # fmt: skip


def help_response(helper: str, request: str, **fields: Any) -> dict[str, Any]:
    return {
        "responder_id": helper, "request_id": request, "response_type": "DIRECT_ANSWER", "content": "it is",
        "follow_up_required": False, "estimated_effort": 5, **fields,
    }  # fmt: skip


def status(agent: str, at: str, **fields: Any) -> dict[str, Any]:
    """`fields` of the status itself, or of the update around it."""
    own = {
        "state": "IDLE", "capability_level": 90, "error_rate": 0, "avg_response_time_ms": 5, "last_heartbeat": at,
    }  # fmt: skip
    told = {name: fields.pop(name) for name in tuple(fields) if name in own}
    return {
        "agent_id": agent,
        "status": own | told,
        "current_tasks": [],
        "resource_usage": dict(USAGE),
        "health_metrics": {"uptime_seconds": 1, "success_rate": 1, "avg_latency_ms": 1, "error_count": 0},
        **fields,
    }


def error(agent: str, task: str | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "error_id": str(uuid.uuid4()), "agent_id": agent, "error_type": "TIMEOUT", "severity": "low",
        "message": "too slow", "context": {}, "recovery_attempts": [], "suggested_actions": [],
        **({} if task is None else {"task_id": task}), **fields,
    }  # fmt: skip


def change(operation: str, kind: str, id: str, changes: dict[str, Any], version: int, at: str) -> dict[str, Any]:
    return {
        "operation": operation, "entity_type": kind, "entity_id": id, "changes": changes, "version": version,
        "timestamp": at,
    }  # fmt: skip
