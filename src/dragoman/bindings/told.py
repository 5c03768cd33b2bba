"""What every mapping reads of the hub's messages before it says them in its own protocol's terms: within what a message
of any protocol holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.core.model.agents import RESOURCES
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.messages.brevity import in_short
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import (
    AttemptFailed,
    Failure,
    Progress,
    Question,
    Request,
    Result,
    Step,
    ToolResult,
    ToolUse,
)

ASIDES = ("name", "thread", "parent_task_id")
"""What a task's metadata may say and the hub knows by itself: there is another place for it."""

LONGEST = 4 * 1024 * 1024
"""Bytes of each text: half of a message of most protocols, for JSON may need more bytes than the text has."""

_write = msgspec.json.Encoder().encode


def progress_told(event: Event) -> Progress:
    """What an event reports, within what a message holds: agents may report more at once than others can read. Nothing
    where the event is no report."""
    content = event.content
    if not isinstance(content, Progress):
        return Progress()
    if len(bytes(event.body)) <= LONGEST:
        return content
    step, use, gave = content.step, content.tool_use, content.tool_result
    return replace(
        content,
        message=_short(content.message),
        thinking=_short(content.thinking),
        step=replace(step, name=_short(step.name)) if isinstance(step, Step) else _short(step),
        tool_use=None if use is None else _short_use(use),
        tool_result=None if gave is None else _short_result(gave),
    )


def question_told(event: Event) -> Question | None:
    """The question that an event tells of, if it does, within what a message holds."""
    content = event.content
    return replace(content, question=in_short(content.question, LONGEST)) if isinstance(content, Question) else None


def output_told(content: Result | Progress) -> str:
    """An output where it has to be in one message: all of it, or its beginning."""
    return in_short(content.output or "", LONGEST)


def _short(text: str | None) -> str | None:
    return None if text is None else in_short(text, LONGEST)


def _short_use(use: ToolUse) -> ToolUse:
    return replace(use, id=_short(use.id), name=_short(use.name), input=_cut(use.input))


def _short_result(gave: ToolResult) -> ToolResult:
    return replace(gave, id=_short(gave.id), output=_cut(gave.output))


def _cut(value: Any) -> Any:
    """A part as it is, or the beginning of its text."""
    if value is UNSET:
        return value
    text = value if type(value) is str else _write(value).decode()
    short = in_short(text, LONGEST)
    return value if short == text else short


def context_told(task: Task, request: Request) -> dict[str, Any]:
    """What is known around a task, as its caller told it: `metadata` and `history`, where there are any."""
    return surroundings(request, task.metadata)


def surroundings(request: Request, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """The same of a request, where there is no task yet. `metadata` is what agents made of it since."""
    said = request.context
    given = metadata if metadata is not None else {} if said is None else said.metadata
    known = {name: value for name, value in given.items() if name not in ASIDES}
    history = None if said is None else said.history
    return {name: value for name, value in (("metadata", known), ("history", history)) if value}


def limits_told(task: Task, request: Request) -> dict[str, Any]:
    """With how much memory and how well it is to be done, where its caller said so."""
    quality = task.constraints.get("quality_threshold")
    return needs_told(request.hints or {}) | ({} if quality is None else {"quality_threshold": quality})


def needs_told(hints: Mapping[str, Any]) -> dict[str, Any]:
    """What hints say of each resource that the work may need, by the constraint's name."""
    said = {
        resource.constraint: next((value for name in resource.names if (value := hints.get(name)) is not None), None)
        for resource in RESOURCES
    }
    return {name: value for name, value in said.items() if value is not None}


def fault_told(task: Task, event: Event) -> Fault:
    """The fault that an event tells of, within what a message of any protocol holds."""
    content = event.content
    if isinstance(content, Failure | AttemptFailed) and content.fault is not None:
        return content.fault.in_short()
    reason = content.reason if isinstance(content, Failure) else None
    if event.kind is EventKind.CANCELLED:
        return Fault(kind=Kind.CANCELLED, message=reason or "cancelled on request")
    return task.fault or Fault(kind=Kind.WORK_FAILED, message=reason or "the work failed")


def fault_beside(fault: Fault) -> dict[str, Any]:
    """A fault for programs, in a field of ours beside a protocol's own words, which may add a name or advice."""
    told: dict[str, Any] = {"kind": fault.kind.value, "message": fault.message}
    code = fault.facts.get("exit_code")
    return told | ({"exit_code": code} if type(code) is int else {})


def file_told(file: FileRef, task: Task) -> dict[str, Any]:
    """A file by reference: its address says of which task it is, by the id that the hub knows it by."""
    return {
        "url": f"/api/agent/files/{file.id}?task_id={task.id}",
        "id": file.id,
        "name": shown_name(file.name),
        "mime_type": file.mime_type,
        "size": file.size,
        "sha256": file.sha256,
    }


def fitting(value: object, form: type[Any]) -> Any:
    """A part in a protocol's form, if it fits: what was said in another one may not."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        return None
