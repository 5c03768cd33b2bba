"""Chiffon's payloads ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                     message     read by        written by
    ---------------------------------------  ----------  -------------  -------------
    work_status, and custom fields           Progress    hub, caller    agent, hub
    work_status `paused` with a question     Ask         hub            agent
    work_result, and custom fields           Result      hub, caller    agent
    error                                    Fault       hub            agent

What the document has no field for travels in `x_custom_fields`: `message`, `thinking`, `tool_use`, `tool_result`,
`file` and `question` beside a status; `result` and `usage` beside a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET

from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask, Place, Progress, Result, Step, ToolResult, ToolUse, fitting
from dragoman.protocols.chiffon import chunks, errors
from dragoman.protocols.chiffon import types as chiffon
from dragoman.protocols.chiffon.types import ErrorPayload, WorkResult, WorkStatus

RESULT_STREAM = "result"
"""The stream of a result's own pieces; that of a step is `step-` and its number."""

Custom = dict[str, Any]
"""Custom fields of an envelope: anything that JSON can say."""

ASIDES: Mapping[str, Callable[[Any], str]] = {
    "message": str,
    "thinking": lambda _: "thinking",
    "tool_use": lambda used: f"tool {used.name or ''}".strip(),
    "tool_result": lambda gave: "tool failed" if gave.is_error else "tool result",
    "file": lambda file: f"file {file.name}".strip(),
}
"""Parts of a report that chiffon has no field for: they go into custom fields of the same names and, in short, into
the step, where a reader of the document's fields sees them too."""


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    question: Annotated[str, msgspec.Meta(min_length=1)]
    options: tuple[Any, ...] = ()
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    default: Any = UNSET


# --- progress ---


def progress_in(status: WorkStatus, custom: Custom, file: FileRef | None = None) -> Progress:
    """What a status reports."""
    step, place, stream = status.step, None, None
    if step is not None and step.output_chunk is not None:
        place, stream = place_in(step.output_chunk), f"step-{step.number}"
    return Progress(
        status=status.status,
        percent=status.progress_percent,
        step=None if step is None else Step(number=step.number, name=step.name, total=step.total),
        output=None if step is None else step.output or None,
        chunk=place,
        stream=stream,
        message=_text(custom.get("message")),
        thinking=_text(custom.get("thinking")),
        tool_use=fitting(ToolUse, custom.get("tool_use")),
        tool_result=fitting(ToolResult, custom.get("tool_result")),
        file=file,
    )


def asides_out(report: Progress) -> Custom:
    """The custom fields of a status."""
    return {name: value for name in ASIDES if (value := getattr(report, name)) is not None}


def aside_in_short(report: Progress) -> str | None:
    """What a report says in custom fields, as the name of a step."""
    for name, short in ASIDES.items():
        if (value := getattr(report, name)) is not None:
            return short(value)[:200]
    return None


def status_out(
    task_id: str,
    status: Literal["running", "step_completed", "paused"],
    percent: int,
    step: Step | None,
    *,
    output: str = "",
    label: str | None = None,
    unnamed: str = "output",
) -> WorkStatus:
    """A status; `label` places a block of a longer output, and `unnamed` is the step of an output that has none."""
    wire = None
    if step is not None or output:
        step = step or Step()
        wire = chiffon.Step(
            number=max(0, step.number or 0),
            name=step.name or unnamed,
            output=output,
            output_chunk=label,
            total=step.total if step.total is not None and step.total >= 0 else None,
        )
    return WorkStatus(task_id=task_id, status=status, progress_percent=max(0, min(100, percent)), step=wire)


def blocks_of(output: str, place: Place | None = None) -> list[tuple[str, str | None]]:
    """An output as the blocks that carry it (D4), each with its label; one without a label where it need not be split.
    `place` says which part of a longer output it is."""
    if place is not None:
        return [(output, str(chunks.Label(*place)))]
    if chunks.must_split(output):
        return [(block.text, str(block.label)) for block in chunks.split(output)]
    return [(output, None)]


def place_in(label: str) -> Place:
    place = chunks.parse(label)
    return (place.start, place.end, place.total)


# --- questions ---


def ask_in(custom: Custom) -> Ask | None:
    """The question beside a status, if there is one; raises `msgspec.ValidationError`."""
    said = custom.get("question")
    if said is None:
        return None
    asked = msgspec.convert({"question": said} if type(said) is str else said, _Question)
    return Ask(
        question=asked.question,
        options=asked.options,
        timeout_seconds=asked.timeout_seconds,
        default=None if asked.default is UNSET else asked.default,
        has_default=asked.default is not UNSET,
    )


def ask_out(ask: Ask) -> Custom:
    asked: Custom = {"question": ask.question}
    if ask.options:
        asked["options"] = ask.options
    if ask.timeout_seconds is not None:
        asked["timeout_seconds"] = ask.timeout_seconds
    if ask.has_default:
        asked["default"] = ask.default
    return asked


# --- the end ---


def result_in(result: WorkResult, custom: Custom, used: Mapping[str, Any] | None = None) -> Result:
    """What came of the work. `used` is `resources_used` with all its fields, where the reader has the JSON."""
    usage = used
    if usage is None and result.resources_used is not None:
        usage = msgspec.to_builtins(result.resources_used)
    if type(custom.get("usage")) is dict:  # tokens, money: what no field has
        usage = {**(usage or {}), **custom["usage"]}
    place = None if result.output_chunk is None else place_in(result.output_chunk)
    return Result(
        output=result.output,
        exit_code=result.exit_code,
        result=custom.get("result", UNSET),
        usage=None if usage is None else dict(usage),
        chunk=place,
        stream=None if place is None else RESULT_STREAM,
    )


def piece_in(result: WorkResult) -> Progress:
    """A piece of a split result that is not its last (D4): the work is done, its output is still on the way."""
    assert result.output_chunk is not None
    place = place_in(result.output_chunk)
    return Progress(status="running", percent=100, output=result.output, chunk=place, stream=RESULT_STREAM)


def fault_in(payload: ErrorPayload) -> Fault:
    """What an `error` means: whether the hub tries again follows from the code alone (D7)."""
    return Fault(
        kind=errors.KINDS.get(payload.error_code, Kind.WORK_FAILED),
        message=payload.error_message or errors.rule(payload.error_code).name,
        retryable=errors.is_retryable(payload.error_code),
        facts={**payload.error_context, "code": payload.error_code},
    )


def _text(value: object) -> str | None:
    return value if type(value) is str else None
