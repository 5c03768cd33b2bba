"""What a client learns of tasks: typed values, whichever way they came.

    async for event in handle.events():
        match event:
            case Output(output=text):
                print(text, end="")
            case Progress(percent=percent, step=step):
                show(percent, step)
            case Completed(result=result):
                print("done:", result)

    Event
      Submitted  Assigned  Paused  Resumed  LogWritten  QuestionAsked  QuestionAnswered  HandedOver
      Progress   with content: Output, Thinking, ToolUsed, ToolReturned, FileSent; name these before Progress
      AttemptFailed   the hub tries again
      Completed  Failed  Cancelled   the last one of a task
      OtherEvent      whatever else happened to it

`kind` and `data` are the kind and the body of the event as the hub sent it. `Any` is JSON of an agent, a caller or a
person, whose form only they know.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from dragoman.messages.tasks import LogEntry
from dragoman.sdk.failures import failed

FINAL = frozenset({"completed", "failed", "cancelled"})


class TaskEvent(Struct, frozen=True, kw_only=True):
    """What all events have. Over the management API `seq` counts a task's events without gaps; over an agent protocol
    it counts what this client received."""

    task_id: str
    seq: int
    kind: str
    at: str | None = None
    agent: str | None = None
    data: dict[str, Any] = {}

    @property
    def is_final(self) -> bool:
        return self.kind in FINAL


class Submitted(TaskEvent, frozen=True, kw_only=True):
    """The hub has the task."""

    input: Any = None


class Assigned(TaskEvent, frozen=True, kw_only=True):
    """The hub gave the task to `agent`."""

    attempt: int = 1


class Step(Struct, frozen=True):
    """Where the work is: at the step with this number, if the agent counts them."""

    name: str = ""
    number: int | None = None
    total: int | None = None


class Progress(TaskEvent, frozen=True, kw_only=True):
    """The agent reports how far it is. `output` is what is new since the last report."""

    percent: int | None = None
    step: Step | None = None
    message: str = ""
    output: str = ""


class Output(Progress, frozen=True, kw_only=True):
    """A piece of the task's output."""


class Thinking(Progress, frozen=True, kw_only=True):
    """What the agent thinks: shown, not part of the answer."""

    text: str = ""


class ToolUsed(Progress, frozen=True, kw_only=True):
    """The agent uses a tool; a `ToolReturned` with the same id follows."""

    tool_id: str = ""
    name: str = ""
    input: Any = None


class ToolReturned(Progress, frozen=True, kw_only=True):
    """What a tool returned."""

    tool_id: str = ""
    result: str = ""
    is_error: bool = False


class FileSent(Progress, frozen=True, kw_only=True):
    """The agent gives the caller a file. Over coven `content` has its bytes; elsewhere the hub keeps it under `id`."""

    id: str | None = None
    name: str = ""
    mime_type: str = ""
    size: int = 0
    content: bytes | None = None


class Paused(TaskEvent, frozen=True, kw_only=True):
    """The task stands still: a person or the agent paused it."""

    message: str = ""


class Resumed(TaskEvent, frozen=True, kw_only=True):
    """The task goes on."""


class LogWritten(TaskEvent, frozen=True, kw_only=True):
    """The agent wrote something beside its work."""

    lines: tuple[LogEntry, ...] = ()


class QuestionAsked(TaskEvent, frozen=True, kw_only=True):
    """The task waits until a person answers: `client.answer(event.question_id, …)`."""

    question_id: str = ""
    question: str = ""
    options: tuple[Any, ...] = ()


class QuestionAnswered(TaskEvent, frozen=True, kw_only=True):
    """A person answered; the task goes on."""

    question: str = ""
    answer: Any = None


class HandedOver(TaskEvent, frozen=True, kw_only=True):
    """The task belongs to `agent` now."""


class AttemptFailed(TaskEvent, frozen=True, kw_only=True):
    """An attempt failed, and the hub tries again."""

    message: str = ""


class Completed(TaskEvent, frozen=True, kw_only=True):
    """The task is done. `result` is the structured result, or the text; what was streamed before is in the outputs."""

    result: Any = None
    output: str = ""
    usage: dict[str, Any] = {}


class Failed(TaskEvent, frozen=True, kw_only=True):
    """The task failed; `handle.result()` raises the same as a `TaskFailed`."""

    message: str = ""
    exit_code: int | None = None
    output: str = ""


class Cancelled(TaskEvent, frozen=True, kw_only=True):
    """The caller or a person cancelled the task; `message` is the reason."""

    message: str = ""


class OtherEvent(TaskEvent, frozen=True, kw_only=True):
    """Anything else, by its `kind`: an error report, a task that became a dead letter, …"""


Event: TypeAlias = (
    Submitted
    | Assigned
    | Output
    | Thinking
    | ToolUsed
    | ToolReturned
    | FileSent
    | Progress
    | Paused
    | Resumed
    | LogWritten
    | QuestionAsked
    | QuestionAnswered
    | HandedOver
    | AttemptFailed
    | Completed
    | Failed
    | Cancelled
    | OtherEvent
)

PLAIN: dict[str, type[Event]] = {
    "submitted": Submitted,
    "assigned": Assigned,
    "paused": Paused,
    "resumed": Resumed,
    "log": LogWritten,
    "asked": QuestionAsked,
    "answered": QuestionAnswered,
    "handed_over": HandedOver,
    "attempt_failed": AttemptFailed,
    "completed": Completed,
    "failed": Failed,
    "cancelled": Cancelled,
}
"""The hub's kind of event → its type; of its fields, those that the body has under the same name."""

CONTENT: dict[str, tuple[type[Progress], dict[str, str]]] = {
    "file": (FileSent, {"data": "content", "mimeType": "mime_type", "filename": "name"}),
    "tool_use": (ToolUsed, {"id": "tool_id"}),
    "tool_result": (ToolReturned, {"id": "tool_id", "output": "result"}),
}
"""A part of a progress report → its type, and how the part's fields are called there."""


def event_of(
    task_id: str, seq: int, kind: str, data: dict[str, Any], *, at: str | None = None, agent: str | None = None
) -> Event:
    """An event as its type. A body that does not fit it (agents write what they like) leaves the typed fields at
    their defaults, and is in `data` all the same."""
    known: dict[str, Any] = {"task_id": task_id, "seq": seq, "kind": kind, "at": at, "agent": agent, "data": data}
    form, fields = _typed(kind, data)
    try:
        return msgspec.convert({**fields, **known}, form)
    except msgspec.ValidationError:
        return form(**known)


def _typed(kind: str, data: dict[str, Any]) -> tuple[type[Event], dict[str, Any]]:
    body = {name: value for name, value in data.items() if value is not None}
    if kind == "progress":
        return _progress(body)
    form = PLAIN.get(kind, OtherEvent)
    fault = body.get("fault")
    if isinstance(fault, dict) and isinstance(fault.get("message"), str):
        body.setdefault("message", fault["message"])
    if form is Failed and "message" not in body:
        body["message"] = str(body.get("output") or "").rstrip().rpartition("\n")[2]
    if form is Completed:
        body["result"] = value_of(body.get("result"), str(body.get("output") or ""))
    return form, body


def _progress(body: dict[str, Any]) -> tuple[type[Progress], dict[str, Any]]:
    if isinstance(percent := body.get("percent"), float):
        body["percent"] = round(percent)
    for part, (form, names) in CONTENT.items():
        if isinstance(content := body.get(part), dict):
            common = {name: body[name] for name in Progress.__struct_fields__ if name in body}
            return form, {**{names.get(str(name), str(name)): value for name, value in content.items()}, **common}
    if "thinking" in body:
        return Thinking, {**body, "text": body["thinking"]}
    return (Output if body.get("output") else Progress), body


class TaskInfo(Struct, frozen=True, kw_only=True):
    """A task as the hub sees it now."""

    id: str
    type: str
    status: str
    progress: int = 0
    step: str | None = None
    agent: str | None = None
    attempts: int = 0
    waiting: str | None = None
    question: str | None = None
    input: Any = None
    output: str = ""
    result: Any = None
    exit_code: int | None = None
    error: dict[str, Any] | None = None
    trace_id: str = ""
    created_at: str = ""
    updated_at: str = ""

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    def outcome(self) -> Any:
        """The result of a completed task; raises `TaskFailed` for one that is not."""
        if self.status == "completed":
            return value_of(self.result, self.output)
        error = self.error or {}
        message = str(error.get("message") or (f"it is {self.status}" if not self.is_final else "no reason given"))
        facts = error.get("facts") or {}
        raise failed(
            message,
            task_id=self.id,
            status=self.status,
            kind=error.get("kind"),
            exit_code=facts.get("exit_code") if self.exit_code is None else self.exit_code,
            output=self.output,
            facts={"attempts": self.attempts, "agent": self.agent, **facts},
        )


class Question(Struct, frozen=True, kw_only=True):
    """A question to a person."""

    id: str
    task_id: str
    agent: str
    question: str
    options: tuple[Any, ...] = ()
    status: str = "open"
    deadline: str | None = None
    answer: Any = None


def value_of(result: Any, output: str) -> Any:
    """What a caller gets: the structured result, or else the text, or None."""
    return result if result is not None else (output or None)
