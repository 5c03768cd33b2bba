"""Coven's wire types ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                  message              read by              written by
    ------------------------------------  -------------------  -------------------  -------------------
    SendMessage                           Request              hub, agent           caller, hub
    Text, Thinking, ToolUse, ToolResult,  Progress             hub, caller          agent, hub
      FileData, and Progress beside them
    Done                                  Result               hub, caller          agent, hub
    Done with a question                  Ask                  hub                  agent
    Error with a fault                    Fault                hub, caller          agent, hub

What coven has no field for travels in fields numbered from 1001 on; `coven.proto` lists them. A piece of content
travels once in a message (D9): clients of gRPC read 4 MiB by default. Up to `BESIDE` bytes the same content may stand
twice, in the document's field for readers of text and in a field of ours for programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask, Progress, Request, Result, Step, ToolResult, ToolUse
from dragoman.protocols.coven import types
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    MessageResponse,
    ResponseEvent,
    SendMessage,
    Text,
    Thinking,
)
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError

PROTOCOL = "coven"
CHAT = "chat"
"""The work type of a message that names none."""
BESIDE = 64 * 1024

_JSON = guard.Limits(bytes=16 * 1024 * 1024)
_KINDS = {kind.value: kind for kind in Kind}
_NO_REASON = "the agent reported an error without words"
_write = msgspec.json.Encoder().encode


# --- JSON in fields of text ---


def as_json(value: object) -> str:
    return _write(value).decode()


def as_text(value: object) -> str:
    """A value for a reader: text as it is, everything else as JSON."""
    return value if isinstance(value, str) else _write(value).decode()


def from_json(text: str) -> Any:
    """The value in a field of JSON text; anything that is no JSON is text."""
    try:
        return guard.check(text.encode(), _JSON)
    except (RemoteProtocolError, UnicodeEncodeError):
        return text


def fits_beside(text: str) -> bool:
    """Whether a text may stand beside a field that says the same."""
    return len(text) <= BESIDE and len(text.encode()) <= BESIDE


# --- requests ---


def request_in(message: SendMessage, *, strict: bool = False) -> Request:
    """What is to be done: `input_json`, and `content` as the field of that name. A `strict` reader refuses an
    `input_json` that is no object: raises `RemoteProtocolError`, or `TypeError`."""
    given: Any = None
    if message.input_json:
        given = guard.check(message.input_json.encode(), _JSON) if strict else from_json(message.input_json)
        if strict and not isinstance(given, dict):
            raise TypeError("expected a JSON object")
    if not isinstance(given, dict):
        given = {"content": message.content}
    elif message.content:
        given["content"] = message.content
    return Request(input=given, answer=from_json(message.answer_json) if message.answer_json else UNSET)


def input_out(given: Mapping[str, Any]) -> tuple[str, str]:
    """`content` and `input_json` of a request: its text in a field of its own, the rest as JSON."""
    fields = dict(given)
    text = fields.get("content")
    content = fields.pop("content") if isinstance(text, str) and text else ""
    return content, as_json(fields) if fields or not content else ""


def context_in(message: SendMessage) -> dict[str, Any]:
    """What the hub knows around the work: `name`, `description`, `thread`, `metadata`, `history`, `handover`,
    `question`, each where there is one."""
    context = from_json(message.context_json) if message.context_json else {}
    return context if isinstance(context, dict) else {}


def context_out(known: Mapping[str, object]) -> str:
    context = {name: value for name, value in known.items() if value}
    return as_json(context) if context else ""


# --- progress ---


def progress_in(message: MessageResponse, file: FileRef | None = None) -> Progress:
    """What an event reports that does not end its request. `file` stands for the bytes of a file event."""
    fields: dict[str, Any] = {}
    beside, event = message.progress, message.event
    text = "" if beside is None else beside.message
    match event:
        case Text():
            fields["output"] = event.text
        case Thinking() if beside is None:
            fields["thinking"] = event.text
        case Thinking():
            text = text or event.text
        case types.ToolUse():
            fields["tool_use"] = ToolUse(id=event.id, name=event.name, input=from_json(event.input_json or "null"))
        case types.ToolResult():
            fields["tool_result"] = ToolResult(id=event.id, output=event.output, is_error=event.is_error)
    if beside is not None:
        fields["percent"] = beside.percent
        fields["message"] = text or None
        if beside.step or beside.number:
            fields["step"] = Step(number=beside.number, name=beside.step, total=beside.total or None)
    return Progress(status="running", file=file, **fields)


def events_out(content: Progress, data: bytes | None = None) -> list[ResponseEvent]:
    """The events of a report, without its figures. `data` are the bytes of its file."""
    events: list[ResponseEvent] = []
    if content.thinking is not None:
        events.append(Thinking(content.thinking))
    if (used := content.tool_use) is not None:
        given = "" if used.input in (None, UNSET) else as_json(used.input)
        events.append(types.ToolUse(used.id or "", used.name or "", given))
    if (gave := content.tool_result) is not None:
        output = "" if gave.output is UNSET else as_text(gave.output)
        events.append(types.ToolResult(gave.id or "", output, bool(gave.is_error)))
    if content.file is not None:
        events.append(FileData(content.file.name, content.file.mime_type, data or b""))
    if content.output is not None:
        events.append(Text(content.output))
    return events


def figures_out(content: Progress) -> types.Progress | None:
    """The figures of a report, which ride beside an event; None where it has none."""
    percent, step = content.percent, content.named_step
    if percent is None and step is None and not content.message:
        return None
    step = step or Step()
    return types.Progress(
        percent=None if percent is None else max(0, min(100, percent)),
        step=step.name or "",
        message=content.message or "",
        number=_count(step.number),
        total=_count(step.total),
    )


def _count(value: int | None) -> int:
    return max(0, min(value or 0, 2**32 - 1))


# --- the end ---


def result_in(done: Done, text: str | None) -> Result:
    """What came of a request; `text` is the whole answer (D8), None if it is too long to be kept."""
    result = (text or "") if done.is_json else done.result_json
    return Result(output=text, result=from_json(result) if result else UNSET)


def result_out(output: str, result_json: str) -> Done:
    """The end of a request with a text and a result, which may be the same."""
    if result_json and result_json == output and not fits_beside(output):
        return Done(full_response=output, is_json=True)
    return Done(full_response=output, result_json=result_json)


def ask_in(asked: types.Question) -> Ask:
    options = from_json(asked.options_json) if asked.options_json else []
    return Ask(
        question=asked.question,
        options=tuple(options) if isinstance(options, list) else (options,),
        timeout_seconds=asked.timeout_seconds if 0 < asked.timeout_seconds < 1e9 else None,
        default=from_json(asked.default_json) if asked.default_json else None,
        has_default=bool(asked.default_json),
    )


def ask_out(ask: Ask) -> types.Question:
    return types.Question(
        question=ask.question,
        options_json=as_json(ask.options) if ask.options else "",
        timeout_seconds=ask.timeout_seconds or 0.0,
        default_json=as_json(ask.default) if ask.has_default else "",
    )


def fault_in(message: MessageResponse) -> Fault:
    """What an `error` means: a failure of the work, unless the fault beside it says more."""
    text = message.event.message if isinstance(message.event, Error) else ""
    fault = message.fault
    if fault is None:
        return Fault(kind=Kind.WORK_FAILED, message=text or _NO_REASON)
    facts = from_json(fault.facts_json) if fault.facts_json else {}
    return Fault(
        kind=_KINDS.get(fault.kind, Kind.WORK_FAILED),
        message=fault.message or text or _NO_REASON,
        retryable=fault.retryable,
        facts=facts if isinstance(facts, dict) else {"facts": facts},
    )


def fault_out(fault: Fault, *, retryable: bool = False) -> types.Fault:
    return types.Fault(
        kind=fault.kind.value,
        message=fault.message,
        retryable=retryable,
        facts_json=as_json(fault.facts) if fault.facts else "",
    )
