"""Chiffon's payloads and custom fields ⇄ messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                     message     read by        written by
    ---------------------------------------  ----------  -------------  -------------
    work_request, and custom fields          Request     hub, agent     caller, hub
    work_status, and custom fields           Progress    hub, caller    agent, hub
    work_status `paused` with a question     Ask         hub            agent
    work_result, and custom fields           Result      hub, caller    agent, hub
    error                                    Fault       hub, caller    agent, hub

What the document has no field for travels in `x_custom_fields`, which the document leaves to extensions ("in" is to the
hub, "out" from it):

    field             on                     means
    ----------------  ---------------------  ---------------------------------------------------------------------
    agent_id          requests in            the one agent that shall do it (D8)
    agent_id          everything out         the agent that does the work
    delivery_id       everything out         what to acknowledge; of a split output, the last one counts
    attempt           requests out           which attempt this is, from the second on
    priority          requests in            low | normal | high | critical
    parent_task_id    requests in            the task that this one is part of
    dependencies      requests in            tasks that must be done first
    name description  requests out           as the caller named and described the task
    thread context    requests out           the conversation, and {metadata, history}
    quality_threshold requests out           how well it is to be done
    message thinking  statuses, both ways    texts beside the document's fields; the step's name has them in short
    tool_use          statuses, both ways    {id, name, input}
    tool_result       statuses, both ways    {id, output, is_error}
    files             requests in            ids of files to attach, kept at /api/agent/files before
    file              statuses in            the id of one, kept likewise
    file              statuses out           {id, name, mime_type, size, sha256}: fetch it at /api/agent/files/{id}
    attachments       requests out           a list of the same
    question          a `paused` status in   {question, options?, timeout_seconds?, default?}: ask a person
    question          a `paused` status out  {question, options}: a person is being asked
    result usage      results, both ways     the result as JSON; tokens, money: what `resources_used` has no field for
    error             results in             what went wrong, for programs
    fault             results, errors out    {kind, message, exit_code}: the same, from the hub
    task_id           errors, both ways      the task that the error is about
    refused_message_id  errors out           the message that the hub refused
    traceparent       everything, both ways  the W3C trace context (all-D7)
    token             never kept             a credential; the hub removes it (all-D4)

Our codes 5900-5902 say to an agent "stop this task", and to a caller "was cancelled", "what it waited for failed" and
"failed". A work_status *to* an agent asks it to pause (`paused`) or to go on (`running`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct

from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import (
    Ask,
    Place,
    Progress,
    Question,
    Result,
    Step,
    ToolResult,
    ToolUse,
    fitting,
)
from dragoman.protocols.chiffon import chunks, errors
from dragoman.protocols.chiffon import types as chiffon
from dragoman.protocols.chiffon.types import (
    SUPPORTED,
    ErrorPayload,
    ResourcesUsed,
    WorkResult,
    WorkStatus,
)

PROTOCOL = "chiffon"
HUB_NAME = "orchestrator"
"""What the hub calls itself: towards agents it plays the document's orchestrator."""

Custom = dict[str, Any]
"""Custom fields of an envelope. Any: they hold any JSON."""

Status = Literal["running", "step_completed", "paused"]

CONCURRENCY = ("max_concurrent", "max_concurrent_tasks")
"""Names under which an agent's `limits` may say how many tasks it takes at once."""
PRIORITIES = ("low", "normal", "high", "critical")

_encode = msgspec.json.Encoder().encode


def trace_uuid(trace_id: str) -> str:
    """A W3C trace id in chiffon's form, as it came, whatever its bits (all-D7)."""
    return f"{trace_id[:8]}-{trace_id[8:12]}-{trace_id[12:16]}-{trace_id[16:20]}-{trace_id[20:]}"


# --- progress ---

BESIDE_STEP: Mapping[str, Callable[[Any], str]] = {
    "message": str,
    "thinking": lambda _: "thinking",
    "tool_use": lambda used: f"tool {used.name or ''}".strip(),
    "tool_result": lambda gave: "tool failed" if gave.is_error else "tool result",
    "file": lambda file: f"file {file.name}".strip(),
}
"""Parts of a report that chiffon has no field for: they go into custom fields of the same names and, in short, into
the step, where a reader of the document's fields sees them too."""

RESULT_STREAM = "result"
"""The stream of a result's own pieces; that of a step is `step-` and its number."""


def progress_in(status: WorkStatus, custom: Custom, file: FileRef | None = None) -> Progress:
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
        message=text_in(custom, "message"),
        thinking=text_in(custom, "thinking"),
        tool_use=fitting(ToolUse, custom.get("tool_use")),
        tool_result=fitting(ToolResult, custom.get("tool_result")),
        file=file,
    )


def progress_fields_out(report: Progress) -> Custom:
    """The custom fields of a status."""
    return {name: value for name in BESIDE_STEP if (value := getattr(report, name)) is not None}


def step_name(report: Progress) -> str | None:
    """What a report has in custom fields, as the name of a step."""
    for name, short in BESIDE_STEP.items():
        if (value := getattr(report, name)) is not None:
            return short(value)[:200]
    return None


def statuses_out(
    task_id: str,
    status: Status,
    percent: int,
    step: Step | None = None,
    *,
    output: str = "",
    place: Place | None = None,
    unnamed: str = "output",
) -> list[WorkStatus]:
    """The statuses that carry a report: one for each block of its output. `unnamed` is the step of an output that has
    none."""
    return [
        WorkStatus(
            task_id=task_id,
            status=status,
            progress_percent=max(0, min(100, percent)),
            step=_step_out(step, text, label, unnamed),
        )
        for text, label in blocks_of(output, place)
    ]


def _step_out(step: Step | None, output: str, label: str | None, unnamed: str) -> chiffon.Step | None:
    if step is None and not output:
        return None
    step = step or Step()
    return chiffon.Step(
        number=max(0, step.number or 0),
        name=step.name or unnamed,
        output=output,
        output_chunk=label,
        total=step.total if step.total is not None and step.total >= 0 else None,
    )


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


class _Question(Struct, frozen=True, kw_only=True):
    question: Annotated[str, msgspec.Meta(min_length=1)]
    options: tuple[Any, ...] = ()
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None
    default: Any = UNSET


def ask_in(custom: Custom) -> Ask | None:
    """The question beside a status, if there is one."""
    question = custom.get("question")
    if question is None:
        return None
    try:
        asked = msgspec.convert({"question": question} if type(question) is str else question, _Question)
    except msgspec.ValidationError as error:
        raise refuse(Kind.INVALID, str(error), field="x_custom_fields.question") from None
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
    return {"question": asked}


def question_out(question: Question) -> Custom:
    """To a caller: a person is being asked."""
    return {"question": {"question": question.question, "options": question.options or []}}


# --- results ---


def result_in(result: WorkResult, custom: Custom, used: Mapping[str, Any] | None = None) -> Result:
    """What came of the work. `used` is `resources_used` with all its fields, where the reader has the JSON."""
    usage = used
    if usage is None and result.resources_used is not None:
        usage = msgspec.to_builtins(result.resources_used)
    if type(custom.get("usage")) is dict:
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


def results_out(task_id: str, exit_code: int, output: str, usage: ResourcesUsed | None = None) -> list[WorkResult]:
    """The results that carry an output, split above 1 MiB (D4); custom fields go beside the last one."""
    return [
        WorkResult(
            task_id=task_id,
            status="failed" if exit_code else "success",
            exit_code=exit_code,
            output=text,
            output_chunk=label,
            resources_used=usage,
        )
        for text, label in blocks_of(output)
    ]


def result_fields_out(*, result: Any = UNSET, usage: Any = None, error: Any = None, fault: Any = None) -> Custom:
    """The custom fields of a result. Any: the agent's own JSON, which may be `msgspec.Raw`."""
    fields = {} if result is UNSET else {"result": result}
    beside = {"error": error, "fault": fault, "usage": usage}
    return fields | {name: value for name, value in beside.items() if value is not None}


def usage_out(usage: Mapping[str, Any] | None, seconds: int) -> tuple[ResourcesUsed, Mapping[str, Any] | None]:
    """What the work used, in the document's fields; and again as it was reported, where they cannot hold all of it.
    `seconds` is the duration where the agent did not report one: every result of chiffon has it."""
    used = converted(usage, ResourcesUsed) or ResourcesUsed()
    if used.duration_seconds is None:
        used = msgspec.structs.replace(used, duration_seconds=seconds)
    written = msgspec.to_builtins(used)
    is_whole = usage is None or all(written.get(name) == value for name, value in usage.items())
    return used, None if is_whole else usage


# --- registration ---


def registration_out(
    *,
    agent_id: str,
    kind: str | None,
    work_types: Sequence[str],
    limits: Mapping[str, int | None],
    capabilities: Sequence[dict[str, Any]],
    version: str | None,
) -> bytes:
    """An agent introduces itself (D9); beside the document's fields stand its version and the schema of each work."""
    fields: dict[str, Any] = {
        "agent_id": agent_id,
        "agent_type": kind or agent_id,
        "supported_versions": SUPPORTED,
        "work_types": work_types,
        "limits": {name: limit for name, limit in limits.items() if limit is not None},
        "capabilities": capabilities,
    }
    return _encode(fields if version is None else {**fields, "version": version})


# --- errors ---


def cancel_out(task_id: str, reason: str) -> ErrorPayload:
    """To an agent: stop this task."""
    code = errors.TASK_CANCELLED
    context = {"task_id": task_id, "reason": reason}
    return ErrorPayload(error_code=code, error_message=errors.OWN_NAMES[code], error_context=context)


def cancel_in(payload: ErrorPayload, custom: Custom) -> tuple[str, str] | None:
    """The task that an agent shall stop, and why; None if the error says something else."""
    task_id = text_in(payload.error_context, "task_id") or text_in(custom, "task_id")
    if payload.error_code != errors.TASK_CANCELLED or task_id is None:
        return None
    return task_id, text_in(payload.error_context, "reason") or payload.error_message


def fault_fields_in(custom: Custom) -> Custom:
    """A fault for programs, as the hub writes it (`error_table.fault_fields`); empty where there is none."""
    fault = custom.get("fault")
    return fault if isinstance(fault, dict) else {}


# --- values ---


def text_in(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return value if type(value) is str else None


def converted(value: object, form: type[Any]) -> Any:
    """The value in chiffon's form, or None if it does not fit."""
    try:
        return None if value is None else msgspec.convert(value, form)
    except msgspec.ValidationError:
        return None
