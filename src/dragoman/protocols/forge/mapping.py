"""Forge's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                     message     read by    written by
    ---------------------------------------  ----------  ---------  ----------
    event:progress, update-task `running`    Progress    hub        agent
    notify:task-updated                      Progress    caller     hub
    update-task `completed` or `failed`      Result      hub        agent
    ask-user, event:question                 Ask         hub        agent
    the task of task-assigned or get-task    Request     agent      hub (`server/forge/outbound.py`)

Progress is a fraction on this wire and per cent in the hub: less than everything never rounds to 100. Times are
milliseconds here and seconds in the hub. Errors are in `errors`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import (
    Ask,
    Context,
    Progress,
    Request,
    Result,
    Step,
    ToolResult,
    ToolUse,
    fitting,
    handoff_in,
)
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.types import (
    AskUser,
    Attachment,
    FileView,
    QuestionEvent,
    TaskStatus,
    TaskUpdated,
    TaskView,
)

PROTOCOL = "forge"

PRIORITIES: Mapping[str, int] = {"critical": 1, "high": 2, "normal": 3, "low": 4}
"""The hub's priorities → forge's (D7)."""
PRIORITIES_IN: Mapping[int, str] = {number: name for name, number in PRIORITIES.items()} | {5: "low"}

STATUSES_IN: Mapping[str, tuple[str, ...]] = {
    "pending": ("waiting",),
    "queued": ("queued",),
    "retrying": ("queued",),
    "assigned": ("assigned",),
    "running": ("running", "waiting"),
    "completed": ("completed",),
    "failed": ("failed",),
    "cancelled": ("cancelled",),
}
"""A forge status → the hub's that may be shown so, the usual one first (all-D8)."""

UNTIL_ANSWERED_MS = 365 * 24 * 3600 * 1000.0
"""Of a question without a time, which the hub would give up as any request (D8)."""

_T = TypeVar("_T")


# --- progress ---


def progress_in(reported: forge.Progress | TaskUpdated, output: str | None, file: FileRef | None = None) -> Progress:
    """What an agent reports to the hub, or the hub to a caller. `output` is that of all its pieces, `file` stands for
    the bytes of a file in the message."""
    return Progress(
        status=reported.status if isinstance(reported, TaskUpdated) else "running",
        percent=percent_in(reported.progress),
        output=output,
        message=reported.message,
        thinking=reported.thinking,
        step=_converted(reported.step, Step),
        tool_use=_converted(reported.tool_use, ToolUse),
        tool_result=_converted(reported.tool_result, ToolResult),
        file=file,
    )


def progress_out(task_id: str, report: Progress) -> forge.Progress:
    """What an agent reports, without its output and its file, which go in requests."""
    return forge.Progress(task_id=task_id, progress=fraction_out(report.percent), **_content_out(report))


def update_out(task_id: str, status: TaskStatus, report: Progress, message: str | None = None) -> TaskUpdated:
    """A report for a caller, without its output, which may need several messages."""
    return TaskUpdated(
        task_id=task_id,
        status=status,
        final=False,
        progress=fraction_out(report.percent),
        message=report.message or message,
        file=None if report.file is None else msgspec.to_builtins(file_out(report.file)),
        **_content_out(report),
    )


def _content_out(report: Progress) -> dict[str, Any]:  # Any: fields of forge's two messages with progress
    result = report.tool_result
    if result is None or result.id is None:
        tool_result = None
    else:
        output = str(result.output or "")
        tool_result = forge.ToolResult(id=result.id, output=output, is_error=result.is_error is True)
    return {
        "thinking": report.thinking,
        "tool_use": _fitting(report.tool_use, forge.ToolUse),
        "tool_result": tool_result,
        "step": _fitting(report.named_step, forge.Step),
    }


def percent_in(fraction: float | None) -> int | None:
    return None if fraction is None else min(round(fraction * 100), 100 if fraction >= 1 else 99)


def fraction_out(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _converted(value: msgspec.Struct | None, form: type[_T]) -> _T | None:
    """A part in the hub's form, field by field."""
    return None if value is None else msgspec.convert(value, form, from_attributes=True)


def _fitting(value: msgspec.Struct | None, form: type[_T]) -> _T | None:
    """A part in forge's form, or None where an agent of another protocol reported less, or something else."""
    if value is None:
        return None
    try:
        return msgspec.convert(msgspec.to_builtins(value), form)
    except msgspec.ValidationError:
        return None


# --- tasks, results, questions, files ---


def task_in(value: object) -> TaskView:
    """A task as the hub shows it; what another orchestrator writes differently is left out."""
    return fitting(TaskView, value) or TaskView()


def request_in(task: TaskView) -> Request:
    """What an agent is to do."""
    return Request(
        input=None if task.payload is UNSET else task.payload,
        answer=task.answer,
        question=task.question or None,
        context=fitting(Context, task.context),
        handover=handoff_in(task.handover),
    )


def status_in(status: str) -> str:
    """The hub's status of a task that forge shows so."""
    return STATUSES_IN[status][0] if status in STATUSES_IN else status


def result_in(reported: forge.UpdateTask | forge.Progress) -> Result:
    return Result(result=reported.result, output=reported.output)


def ask_in(asked: AskUser | QuestionEvent, request_seconds: float) -> Ask:
    """A question to a person. A request without a time of its own waits as long as any request (D8)."""
    seconds = None if asked.timeout is None else asked.timeout / 1000
    has_default = asked.default is not UNSET
    return Ask(
        question=asked.question,
        options=asked.options,
        timeout_seconds=(seconds or request_seconds) if isinstance(asked, AskUser) else seconds,
        default=asked.default if has_default else None,
        has_default=has_default,
    )


def ask_out(ask: Ask, task_id: str) -> AskUser:
    seconds = ask.timeout_seconds
    return AskUser(
        question=ask.question,
        options=ask.options,
        timeout=UNTIL_ANSWERED_MS if seconds is None else max(1.0, seconds * 1000),
        default=ask.default if ask.has_default else UNSET,
        task_id=task_id,
    )


def file_out(file: FileRef) -> FileView:
    return FileView(
        id=file.id, name=shown_name(file.name), mime_type=file.mime_type, size=file.size, sha256=file.sha256
    )


def attachment_out(name: str, mime_type: str, data: bytes) -> Attachment:
    return Attachment(filename=name, mime_type=mime_type, data=base64.b64encode(data).decode())


def data_in(data: str) -> bytes:
    """The bytes of an attachment, or of a piece of a file; raises ValueError."""
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected base64") from None
