"""The content of tasks and events as every protocol sends it on: shortened to what a message of any protocol holds.

The outbound side of each protocol calls these functions. No input or output here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from dragoman.core.model.agents import RESOURCES
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.messages.brevity import LONGEST_TEXT, in_short
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

_traceparent = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch

HUB_METADATA = ("name", "thread", "parent_task_id")
"""Names in a task's metadata that the hub sends in fields of their own."""

_write = msgspec.json.Encoder().encode


def reported_progress(event: Event) -> Progress:
    """The progress that an event reports, each text shortened; empty if the event is no progress report."""
    content = event.content
    if not isinstance(content, Progress):
        return Progress()
    if len(bytes(event.body)) <= LONGEST_TEXT:
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


def reported_question(event: Event) -> Question | None:
    """The question that an event asks, shortened; None if it asks none."""
    content = event.content
    return (
        replace(content, question=in_short(content.question, LONGEST_TEXT)) if isinstance(content, Question) else None
    )


def output_in_one_message(content: Result | Progress) -> str:
    """The output, or its beginning, for a protocol that sends it in one message."""
    return in_short(content.output or "", LONGEST_TEXT)


def _short(text: str | None) -> str | None:
    return None if text is None else in_short(text, LONGEST_TEXT)


def _short_use(use: ToolUse) -> ToolUse:
    return replace(use, id=_short(use.id), name=_short(use.name), input=_cut(use.input))


def _short_result(gave: ToolResult) -> ToolResult:
    return replace(gave, id=_short(gave.id), output=_cut(gave.output))


def _cut(value: Any) -> Any:
    """The value, or the beginning of its text where it is too long."""
    if value is UNSET:
        return value
    text = value if type(value) is str else _write(value).decode()
    short = in_short(text, LONGEST_TEXT)
    return value if short == text else short


def task_context(task: Task, request: Request) -> dict[str, Any]:
    """The context of a task: `metadata` and `history`, where there are any."""
    return request_context(request, task.metadata)


def request_context(request: Request, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """The context of a request. `metadata` replaces the request's own: agents change it during the task."""
    context = request.context
    given = metadata if metadata is not None else {} if context is None else context.metadata
    known = {name: value for name, value in given.items() if name not in HUB_METADATA}
    history = None if context is None else context.history
    return {name: value for name, value in (("metadata", known), ("history", history)) if value}


def resource_limits(task: Task, request: Request) -> dict[str, Any]:
    """The limits of memory and of quality that the caller set."""
    quality = task.agreement.constraints.get("quality_threshold")
    return resource_needs(request.hints or {}) | ({} if quality is None else {"quality_threshold": quality})


def resource_needs(hints: Mapping[str, Any]) -> dict[str, Any]:
    """What hints name of each resource, under the name of its constraint."""
    needs: dict[str, Any] = {}
    for resource in RESOURCES:
        for name in resource.names:
            if (value := hints.get(name)) is not None:
                needs[resource.constraint] = value
                break
    return needs


def reported_fault(task: Task, event: Event) -> Fault:
    """The fault that an event reports, shortened."""
    content = event.content
    if isinstance(content, Failure | AttemptFailed) and content.fault is not None:
        return content.fault.in_short()
    reason = content.reason if isinstance(content, Failure) else None
    if event.kind is EventKind.CANCELLED:
        return Fault(kind=Kind.CANCELLED, message=reason or "cancelled on request")
    return task.outcome.fault or Fault(kind=Kind.WORK_FAILED, message=reason or "the work failed")


def file_reference(file: FileRef, task: Task) -> dict[str, Any]:
    """A reference to a file. Its URL names the task, so that the hub can check who may read it."""
    return {
        "url": f"/api/agent/files/{file.id}?task_id={task.id}",
        "id": file.id,
        "name": shown_name(file.name),
        "mime_type": file.mime_type,
        "size": file.size,
        "sha256": file.sha256,
    }


# --- the trace of a task (all-D7) ---


def traceparent(task: Task, delivery_id: str) -> str:
    """The W3C trace context of a delivery: the task's trace, and a span of its own."""
    return f"00-{task.lineage.trace_id}-{delivery_id.replace('-', '')[16:]}-01"


def trace_id_in(*candidates: object) -> str | None:
    """The trace id of the first valid traceparent: that of the message, else that of its transport."""
    for text in candidates:
        found = _traceparent(text) if type(text) is str else None
        if found is not None and int(found[1], 16):
            return found[1]
    return None
