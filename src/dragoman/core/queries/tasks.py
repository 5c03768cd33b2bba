"""A task as people see it: the head of the row, and, where they were read, its events."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from dragoman.core.ids import ADMIN, Instant, rfc3339
from dragoman.core.model.tasks import Event, EventKind, Priority, Status, Task, Waiting
from dragoman.core.queries.transcript import Account
from dragoman.messages.faults import Fault
from dragoman.messages.files import FileRef

MOST_LINE = 4096


class ErrorOut(msgspec.Struct, frozen=True, kw_only=True):
    """Why a task failed, was cancelled, or is being retried."""

    kind: str
    message: str
    facts: dict[str, Any]
    field: str | None = None
    retryable: bool = False


class EventOut(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a task. `raw` is the wire message, word for word, where the reader asked for it."""

    task_id: str
    seq: int
    at: str
    kind: EventKind
    agent: str | None
    protocol: str | None
    body: Raw
    raw: str | UnsetType | None = UNSET


class TaskOut(msgspec.Struct, frozen=True, kw_only=True):
    """A task. Lists leave out `input`, `output`, `result` and what belongs to them, unless the reader asked for them.

    `sandbox` is the level of its newest attempt. `called` is its caller's own name for it, if not `id`.
    """

    id: str
    type: str
    name: str | None
    description: str | None
    status: Status
    waiting: Waiting | None
    priority: Priority
    agent: str | None
    requested_agent: str | None
    kind: str | None
    required_capabilities: tuple[str, ...]
    protocol_in: str
    protocol_out: str | None
    sandbox: str | None
    contract: str | None
    requested_by: str
    called: str | None
    progress: int
    step: str | None
    error: ErrorOut | None
    question: str | None
    attempts: int
    rounds: int
    created_at: str
    updated_at: str
    finished_at: str | None
    deadline: str
    trace_id: str
    parent: str | None
    thread: str | None
    dependencies: tuple[str, ...]
    blocked_by: tuple[str, ...]
    constraints: dict[str, Any]
    files: tuple[FileRef, ...]
    events: int
    input: Raw | UnsetType | None = UNSET
    output: str | UnsetType = UNSET
    output_truncated: bool | UnsetType = UNSET
    result: Raw | UnsetType | None = UNSET
    exit_code: int | UnsetType | None = UNSET
    usage: Raw | UnsetType | None = UNSET
    history: tuple[EventOut, ...] | UnsetType = UNSET
    history_next: int | UnsetType | None = UNSET


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event in a line of text."""

    task_id: str
    seq: int
    at: str
    kind: EventKind
    text: str


def moment(at: Instant | None) -> str | None:
    return None if at is None else rfc3339(at)


def error_out(fault: Fault) -> ErrorOut:
    return ErrorOut(
        kind=fault.kind.value, message=fault.message, facts=fault.facts, field=fault.field, retryable=fault.retryable
    )


PERSONAL = "[personal]"
"""Shown in place of personal data."""


def is_hidden(task: Task) -> bool:
    """Whether people may not see the content of a task: it is personal, and they are not its caller."""
    return task.agreement.personal and task.origin.principal != ADMIN


def event_out(event: Event, *, raw: bool = False, hidden: bool = False) -> EventOut:
    raw_text: str | UnsetType | None = UNSET
    if hidden:
        event = replace(event, body=Raw(b'{"personal":true}'), raw=None)
    if raw:
        raw_text = None if event.raw is None else event.raw.decode("utf-8", "replace")
    return EventOut(
        task_id=event.task,
        seq=event.seq,
        at=rfc3339(event.at),
        kind=event.kind,
        agent=event.agent,
        protocol=event.protocol,
        body=event.body,
        raw=raw_text,
    )


def task_out(
    task: Task,
    *,
    protocol_out: str | None,
    account: Account | None = None,
    history: tuple[EventOut, ...] | UnsetType = UNSET,
    history_next: int | UnsetType | None = UNSET,
) -> TaskOut:
    """The read model of a task. `protocol_out` is the protocol of its owner, which is not in the row."""
    done = 100 if task.status is Status.COMPLETED else 0
    hidden = is_hidden(task)
    if account is not None and hidden:
        shut = Raw(msgspec.json.encode(PERSONAL))
        account = replace(
            account,
            input=account.input and shut,
            output=account.output and PERSONAL,
            result=account.result and shut,
        )
    return TaskOut(
        id=task.id,
        type=task.type,
        name=task.name and (PERSONAL if hidden else task.name),
        description=task.description and (PERSONAL if hidden else task.description),
        status=task.status,
        waiting=task.waiting,
        priority=task.priority,
        agent=task.owner or task.routing.pinned,
        requested_agent=task.routing.pinned,
        kind=task.routing.kind,
        required_capabilities=task.routing.required_capabilities,
        protocol_in=task.origin.protocol,
        protocol_out=protocol_out,
        sandbox=task.attempt.sandbox,
        contract=task.agreement.contract,
        requested_by=task.origin.principal,
        called=task.origin.called,
        progress=done if task.output.progress is None else task.output.progress,
        step=task.output.step,
        error=None if task.outcome.fault is None else error_out(task.outcome.fault),
        question=task.question,
        attempts=task.attempt.count,
        rounds=task.attempt.round,
        created_at=rfc3339(task.created_at),
        updated_at=rfc3339(task.updated_at),
        finished_at=moment(task.finished_at),
        deadline=rfc3339(task.timing.deadline),
        trace_id=task.lineage.trace_id,
        parent=task.lineage.parent,
        thread=task.lineage.thread and (PERSONAL if hidden else task.lineage.thread),
        dependencies=tuple(task.lineage.dependencies),
        blocked_by=tuple(task.lineage.blocked_by),
        constraints=task.agreement.constraints,
        files=task.output.files,
        events=task.seq,
        input=UNSET if account is None else account.input,
        output=UNSET if account is None else account.output,
        output_truncated=UNSET if account is None else account.truncated,
        result=UNSET if account is None else account.result,
        exit_code=UNSET if account is None else account.exit_code,
        usage=UNSET if account is None else account.usage,
        history=history,
        history_next=history_next,
    )


class _Step(msgspec.Struct):
    name: Any = None  # agents of some protocols may write anything here, and below


class _Fault(msgspec.Struct):
    message: str = ""


class _Tool(msgspec.Struct):
    """A tool, its result, or a file: the fields that a line shows."""

    name: Any = None
    output: Any = None
    is_error: Any = False


class _Line(msgspec.Struct):
    level: str = "info"
    message: str = ""


class _Hands(msgspec.Struct):
    """From which agent a task goes to which."""

    giver: str = msgspec.field(default="", name="from")
    taker: str | None = msgspec.field(default=None, name="to")
    reason: str = ""


class _Handed(_Hands):
    handover: _Hands | None = None


class _Body(msgspec.Struct):
    """Every field of an event's body that a log line may use."""

    agent: str | None = None
    attempt: int | None = None
    sandbox: str | None = None
    percent: int | None = None
    step: _Step | None = None
    output: str | None = None
    exit_code: int | None = None
    asked_of: str | None = None
    question: str | None = None
    retry_at: Instant | str | None = None  # a number where an earlier version wrote it
    fault: _Fault | None = None
    message: str | None = None
    thinking: str | None = None
    tool_use: _Tool | None = None
    tool_result: _Tool | None = None
    file: _Tool | None = None
    lines: tuple[_Line, ...] = ()


_decode_body = msgspec.json.Decoder(_Body).decode
_handed = msgspec.json.Decoder(_Handed).decode
HANDS = frozenset({EventKind.HANDOVER_ASKED, EventKind.HANDED_OVER})


def _time(at: Instant | str) -> str:
    return at if isinstance(at, str) else rfc3339(at)


def log_line(event: Event) -> LogLine:
    """The event as a text, with its output, cut after a page."""
    body = _decode_body(event.body)
    parts = [
        f"to {body.agent}" if body.agent else "",
        f"attempt {body.attempt}" if body.attempt else "",
        f"in a sandbox: {body.sandbox}" if body.sandbox else "",
        "" if body.percent is None else f"{body.percent} %",
        _text(body.step.name) if body.step else "",
        f"exit code {body.exit_code}" if body.exit_code is not None else "",
        body.message or "",
        f"thinking: {body.thinking}" if body.thinking else "",
        f"uses {_text(body.tool_use.name)}" if body.tool_use else "",
        _gave(body.tool_result) if body.tool_result else "",
        f"file {_text(body.file.name)}" if body.file else "",
        _hands(event) if event.kind in HANDS else "",
        f"of {body.asked_of}" if body.asked_of else "",
        body.question or "",
        body.fault.message if body.fault else "",
        f"again at {_time(body.retry_at)}" if body.retry_at else "",
    ]
    text = " · ".join(part for part in parts if part)
    output = (body.output or "").rstrip("\n") or "\n".join(f"{entry.level}: {entry.message}" for entry in body.lines)
    if output:
        text = f"{text}\n{output}" if text else output
    if len(text) > MOST_LINE:
        text = text[:MOST_LINE] + "…"
    return LogLine(task_id=event.task, seq=event.seq, at=rfc3339(event.at), kind=event.kind, text=text)


def _hands(event: Event) -> str:
    body = _handed(event.body)
    hands = body.handover or body
    why = f" ({hands.reason.replace('_', ' ')})" if hands.reason else ""
    return f"from {hands.giver} to {hands.taker or 'any agent that can'}{why}"


def _gave(result: _Tool) -> str:
    return f"{'tool failed' if result.is_error else 'tool gave'}: {_text(result.output)}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if type(value) is str else msgspec.json.encode(value).decode()
