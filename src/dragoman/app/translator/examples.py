"""An example message of each kind in each protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ID, TASK = "3b2f6c1e-8a44-4f0d-9a53-0d1e2f3a4b5c", "6f1d2c80-5d0a-4c0b-9d53-6472616700aa"
REQUEST, TRACE = "9d1e2f3a-4b5c-4d6e-8f70-112233445566", "7c9e6679-7425-40de-944b-e07fc1f90ae7"
AT = "2026-01-19T04:21:04.000000Z"
INPUT = {"playbook": "site.yml", "hosts": ["db-01"]}
RESULT = {"changed": 3, "url": "https://kuma.lan"}


def _chiffon(kind: str, payload: dict[str, Any], **custom: Any) -> dict[str, Any]:
    by, to = ("planner", "infra") if kind == "work_request" else ("infra", "planner")
    return {
        "protocol_version": "1.0", "message_id": ID, "timestamp": AT, "from_agent": by, "to_agent": to,
        "type": kind, "trace_id": TRACE, "request_id": REQUEST, "payload": payload,
        **({"x_custom_fields": custom} if custom else {}),
    }  # fmt: skip


def _forge(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"id": ID, "type": kind, "timestamp": AT, "agentId": "planner", "payload": payload}


def _agentmsg(kind: str, by: str, to: str, payload: dict[str, Any], priority: str = "high") -> dict[str, Any]:
    return {
        "id": ID, "timestamp": AT, "from": by, "to": to, "type": kind, "payload": payload,
        "metadata": {"priority": priority, "retry_count": 0, "max_retries": 3},
    }  # fmt: skip


def _a2acp(kind: str, intent: str, payload: dict[str, Any]) -> dict[str, Any]:
    planner, infra = (
        {"agent_id": id, "domain": domain, "version": "1.0.0"} for id, domain in (("planner", "ops"), ("infra", "lab"))
    )
    by, to = (planner, infra) if kind == "request" else (infra, planner)
    return {
        "protocol_version": "1.0", "message_id": ID, "timestamp": AT, "source_agent": by, "target_agent": to,
        "message_type": kind, "intent": intent, "payload": payload,
        "security": {"auth_token": "…", "encryption": "none"},
    }  # fmt: skip


EXAMPLES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "chiffon": {
        "request": _chiffon(
            "work_request",
            {
                "task_id": TASK, "work_type": "run_playbook", "parameters": INPUT,
                "hints": {"max_duration_seconds": 600},
            },
            priority="high",
        ),
        "progress": _chiffon(
            "work_status",
            {
                "task_id": TASK, "status": "running", "progress_percent": 50,
                "step": {"number": 2, "name": "configure", "output": "3 monitors added\n"},
            },
        ),
        "result": _chiffon(
            "work_result",
            {"task_id": TASK, "status": "success", "exit_code": 0, "output": "changed=3\n",
             "resources_used": {"duration_seconds": 12, "cpu_time_ms": 640}},
            result=RESULT,
        ),
        "error": _chiffon(
            "error",
            {"error_code": 5005, "error_message": "Out of memory",
             "error_context": {"limit_name": "memory_mb", "available": 128, "required": 512}},
            task_id=TASK,
        ),
    },
    "coven": {
        "request": {
            "request_id": REQUEST, "sender": "planner", "content": "Run site.yml on db-01", "thread_id": "deploys",
            "work_type": "run_playbook", "input_json": '{"playbook":"site.yml","hosts":["db-01"]}',
        },
        "progress": {
            "request_id": REQUEST, "task_id": TASK, "text": "3 monitors added\n",
            "progress": {"percent": 50, "step": "configure", "number": 2, "total": 4},
        },
        "result": {
            "request_id": REQUEST, "task_id": TASK,
            "done": {"full_response": "changed=3", "result_json": '{"changed":3,"url":"https://kuma.lan"}'},
        },
        "error": {"request_id": REQUEST, "task_id": TASK, "error": "Out of memory"},
    },
    "forge": {
        "request": _forge(
            "request:submit-task",
            {"type": "run_playbook", "name": "deploy", "description": "Bring db-01 up to date", "priority": 2,
             "payload": INPUT, "timeout": 600_000},
        ),
        "progress": _forge(
            "event:progress",
            {"taskId": TASK, "progress": 0.5, "message": "configure", "output": "3 monitors added\n",
             "step": {"number": 2, "name": "configure", "total": 4}},
        ),
        "result": _forge(
            "request:update-task",
            {"taskId": TASK, "status": "completed", "result": RESULT, "output": "changed=3\n"},
        ),
        "error": _forge(
            "request:update-task", {"taskId": TASK, "status": "failed", "error": "Out of memory"},
        ),
    },
    "agentmsg": {
        "request": _agentmsg(
            "TASK_ASSIGNMENT", "planner", "infra",
            {
                "task": {
                    "task_id": TASK, "task_type": "run_playbook", "description": "Bring db-01 up to date",
                    "context": {"task_id": TASK, "task_type": "run_playbook", "priority": "high", "metadata": {},
                                "dependencies": [], "history": []},
                    "constraints": {"budget_usd": 2, "deadline": "2026-01-19T05:21:04Z",
                                    "required_capabilities": ["ansible"]},
                    "input": INPUT,
                }
            },
        ),
        "progress": _agentmsg(
            "TASK_UPDATE", "infra", "planner",
            {"task_id": TASK, "status": "in_progress", "progress": 50, "message": "configure",
             "output": "3 monitors added\n"},
            "normal",
        ),
        "result": _agentmsg(
            "TASK_COMPLETE", "infra", "planner",
            {"task_id": TASK, "result": RESULT, "usage": {"tokens_used": 1200, "cost_usd": 0.02}},
        ),
        "error": _agentmsg(
            "TASK_FAILED", "infra", "planner",
            {
                "task_id": TASK,
                "error": {
                    "error_id": ID, "agent_id": "infra", "task_id": TASK, "error_type": "RESOURCE_EXHAUSTED",
                    "severity": "high", "message": "Out of memory", "context": {}, "recovery_attempts": [],
                    "suggested_actions": [],
                },
            },
        ),
    },
    "a2acp": {
        "request": _a2acp("request", "run_playbook", {**INPUT, "contract_id": "contract-1", "correlation_id": "job-7"}),
        "progress": _a2acp(
            "event", "progress", {"percent": 50, "message": "configure", "correlation_id": TASK},
        ),
        "result": _a2acp("response", "run_playbook", {**RESULT, "correlation_id": TASK}),
        "error": _a2acp(
            "error", "run_playbook",
            {"error": {"code": "INTERNAL_ERROR", "message": "Out of memory", "details": {}, "retry_after": 1},
             "correlation_id": TASK},
        ),
    },
}  # fmt: skip
