"""Tasks and agents as forge shows them, and who may see which (D5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.core.ids import TaskId, rfc3339
from dragoman.core.model import authorization
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Event, Status, Task
from dragoman.core.queries.tasks import PERSONAL
from dragoman.core.queries.transcript import Account
from dragoman.core.routing.routes import route_of, serves
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import read_request
from dragoman.protocols.forge.types import PLANNER, AgentStatus, SubmitTask
from dragoman.server.content import resource_limits, task_context
from dragoman.server.forge.failures import error_of
from dragoman.server.forge.vocabulary import PRIORITY_OUT, PROTOCOL, agent_status, status_of

LIMITS = {
    "max_memory_mb": "maxMemoryMb",
    "max_gpu_vram_mb": "maxGpuVramMb",
    "quality_threshold": "qualityThreshold",
}
"""Limits of other protocols' callers, as forge would write them."""

_read = msgspec.json.Decoder().decode
_SUBMITTED = frozenset(field.encode_name for field in msgspec.structs.fields(SubmitTask))
_TASK_FIELDS = frozenset(
    {"id", "status", "assignedTo", "submittedBy", "progress", "result", "error", "output", "createdAt", "updatedAt",
     "attempt", "answer", "question", "files", "waitingFor", "traceId"}
)  # fmt: skip


def may_see(agent: Agent, task: Task) -> bool:
    """Whether a task is there for an agent at all: its own, one it submitted, a queued one that it could claim. A
    planner sees all. To everybody else the task does not exist."""
    if agent.role == PLANNER or authorization.is_party(agent, agent.id, task):
        return True
    return task.status is Status.QUEUED and serves(agent, route_of(task.route))


def shown_to(agent: Agent, task: Task) -> Task:
    """A task as an agent may see it that may see it: what is said in a personal one is for its two sides only."""
    if not is_kept_from(agent, task):
        return task
    words = {name: PERSONAL for name in ("name", "description", "thread") if getattr(task, name) is not None}
    return msgspec.structs.replace(task, **words)


def is_kept_from(agent: Agent, task: Task) -> bool:
    return task.personal and not authorization.is_party(agent, agent.id, task)


def task_view(
    task: Task, *, account: Account | None = None, source: Event | None = None, submitted: bool = False
) -> dict[str, Any]:
    """A task. With its `account` also what went in and what came out; with its `source` what the agent is to do. As it
    was `submitted` it is queued, even if somebody who was free has it already: so the document answers."""
    if submitted and task.status is Status.ASSIGNED:
        task = msgspec.structs.replace(task, status=Status.QUEUED, owner=None, attempts=0)
    view: dict[str, Any] = {
        "id": task.id,
        "type": task.type,
        "name": task.name or task.type,
        "description": task.description,
        "status": status_of(task),
        "priority": (task.origin.protocol == PROTOCOL and task.origin.priority) or PRIORITY_OUT[task.priority],
        "requiredRole": task.required_role,
        "requiredCapabilities": list(task.required_capabilities),
        "dependencies": list(task.dependencies),
        "assignedTo": task.owner,
        "submittedBy": task.origin.principal,
        "progress": None if task.progress is None else task.progress / 100,
        "error": None if task.fault is None else msgspec.to_builtins(error_of(task.fault)),
        "createdAt": rfc3339(task.created_at),
        "updatedAt": rfc3339(task.updated_at),
        "attempt": task.attempts,
    }
    if task.waiting is not None:
        view["waitingFor"] = task.waiting.value
    if task.parent is not None:
        view["parentId"] = task.parent
    if task.thread is not None:
        view["thread"] = task.thread
    if task.files:
        view["files"] = [file_view(file) for file in task.files]
    if account is not None:
        view["payload"] = {} if account.input is None else _read(account.input)
        view["result"] = None if account.result is None else _read(account.result)
        view["output"] = account.output
        if account.truncated:
            view["outputTruncated"] = True
    if source is not None:
        view["requestId"] = task.request_id  # the same in every attempt of a round
        _add_order(view, source)
    return view


def order_view(task: Task, source: Event, account: Account | None = None) -> dict[str, Any]:
    """A task for the agent that is to do it: with what is known around it; where another agent began it, of that; and
    how it is to be done. `source` is the event that says what to do."""
    view = task_view(task, account=account, source=source)
    request = read_request(source.body)
    limits = {LIMITS[name]: value for name, value in resource_limits(task, request).items()}
    handover = None if request.handover is None else msgspec.to_builtins(request.handover)
    beside = {"context": task_context(task, request), "handover": handover, "limits": limits}
    return view | {name: value for name, value in beside.items() if value}


def _add_order(view: dict[str, Any], source: Event) -> None:
    """What the agent is to do, from the event that says so. A forge sender's fields that nobody knows go along."""
    request = read_request(source.body)
    given = request.given
    view["payload"] = given if type(given) is dict else {} if given is None else {"input": given}
    if request.is_answered:
        view["answer"] = request.answer
    if request.question is not None:
        view["question"] = request.question
    if source.raw is not None and source.protocol == PROTOCOL:
        said = _read(source.raw).get("payload", {})
        for name, value in said.items():
            if name not in _SUBMITTED and name not in _TASK_FIELDS:
                view.setdefault(name, value)


def file_view(file: FileRef) -> dict[str, Any]:
    return {
        "id": file.id,
        "name": shown_name(file.name),
        "mimeType": file.mime_type,
        "size": file.size,
        "sha256": file.sha256,
    }


def agent_view(
    agent: Agent, *, reachable: bool, load: int, current: TaskId | None, status: AgentStatus | None = None
) -> dict[str, Any]:
    """An agent. `current` is a task it holds, if whoever asks may know of it; `status` what its supervisor says."""
    view: dict[str, Any] = {
        "id": agent.id,
        "role": agent.role,
        "status": status or agent_status(agent, reachable=reachable, load=load),
        "capabilities": list(agent.capabilities),
        "currentTask": current,
    }
    more: Mapping[str, Any] = {
        "name": agent.name,
        "kind": agent.kind,
        "version": agent.version,
        "workTypes": None if agent.work_types is None else list(agent.work_types),
    }
    view.update({name: value for name, value in more.items() if value is not None})
    return view
