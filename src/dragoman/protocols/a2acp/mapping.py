"""A2acp's messages ⇄ the hub's messages. The hub and the SDK use the same functions, in opposite roles.

    wire                                     message     written by     read by
    ---------------------------------------  ----------  -------------  -------------
    request; `task` beside its payload       Request     hub            agent
    event `progress`                         Progress    agent, hub     hub, caller
    event `question`                         Ask         agent          hub
    event `answer`                           Answer      hub            agent
    response; `value_in`, `usage` beside it  Result      agent, hub     hub, caller
    error                                    Fault       `errors` has both directions

The events are Dragoman's: the document has none for progress, for questions to a person and for pauses (B3). Their
payloads may have more fields: those are for agents of this protocol (`extra`), and never taken for a field of the hub's
own, such as the place of a piece of output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.messages.files import attachments_in
from dragoman.messages.tasks import (
    Answer,
    Ask,
    Context,
    Json,
    Progress,
    Request,
    Result,
    Step,
    ToolResult,
    ToolUse,
    fitting,
    handoff_in,
)
from dragoman.protocols.a2acp.types import RESERVED, Message

PROGRESS: Final = "progress"
QUESTION: Final = "question"
ANSWER: Final = "answer"
PAUSE: Final = "pause"
RESUME: Final = "resume"
VALUE = "result"
"""The field of a payload that holds a returned value which is no object."""
BARE = "the value itself"
"""The `$comment` of the schema of such a payload."""
PROGRESS_FORMS: dict[str, tuple[type, ...]] = {
    "message": (str,), "output": (str,), "thinking": (str,), "step": (str, dict), "tool_use": (dict,),
    "tool_result": (dict,),
}  # fmt: skip
"""The fields of a progress event that every protocol has, by their JSON types."""


# -- requests


class TaskFields(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The field `task` beside a payload: the hub's id of the task, and what the protocol has no field for. It travels
    in clear. The correlation id is the caller's."""

    id: str | None = None
    name: str | None = None
    description: str | None = None
    thread: str | None = None
    attempt: int | None = None
    context: Json | None = None
    limits: Json | None = None


class _Beside(Struct, frozen=True):
    task: TaskFields | None = None


_beside = msgspec.json.Decoder(_Beside).decode


def task_fields_in(frame: bytes) -> TaskFields:
    """What the hub says of a task beside a payload; nothing, if another program wrote that field."""
    try:
        return _beside(frame).task or TaskFields()
    except msgspec.MsgspecError:
        return TaskFields()


def request_out(request: Request, attachments: Sequence[Json] = ()) -> Json:
    """The payload of a request, without the fields of the protocol itself."""
    given = request.given
    payload: Json = dict(given) if type(given) is dict else {} if given is None else {"input": given}
    if request.is_answered:
        payload["answer"] = request.answer
    if request.handover is not None:
        payload["handover"] = request.handover
    if attachments:
        payload["attachments"] = list(attachments)
    return payload


def request_in(payload: Json, schema: object, fields: TaskFields) -> Request:
    """The request of a payload in clear. `attachments` and `handover` that a hub did not write are part of the
    input."""
    handover = handoff_in(payload.get("handover"))
    files = attachments_in(payload.get("attachments") or ())
    given = content_in(payload, schema)
    if files:
        given.pop("attachments", None)
    if handover is not None:
        given.pop("handover", None)
    context = fitting(Context, fields.context)
    return Request(input=given, context=context, handover=handover, attachments=files or None)


def content_in(payload: Json, schema: object) -> Json:
    """A payload without the fields of the protocol itself, unless the schema names them."""
    named = schema.get("properties") if isinstance(schema, dict) else None
    apart = RESERVED - set(named or ())
    return {name: value for name, value in payload.items() if name not in apart}


# -- progress and questions


def progress_in(payload: Json, envelope: Json | None = None) -> Progress:
    """What an event reports. `envelope` is what a ciphertext in it is bound to."""
    reported = {name: value for name, value in payload.items() if name not in RESERVED and value is not None}
    known = {name: value for name, value in reported.items() if type(value) in PROGRESS_FORMS.get(name, ())}
    percent = reported.get("percent")
    if type(percent) in (int, float):
        known["percent"] = int(percent)  # type: ignore[arg-type]
    step = known.get("step")
    return Progress(
        percent=known.get("percent"),
        message=known.get("message"),
        output=known.get("output"),
        thinking=known.get("thinking"),
        step=step if type(step) is str else fitting(Step, step),
        tool_use=fitting(ToolUse, known.get("tool_use")),
        tool_result=fitting(ToolResult, known.get("tool_result")),
        extra={name: value for name, value in reported.items() if name not in known or known[name] != value} or None,
        envelope=envelope,
    )


def progress_out(report: Progress) -> Json:
    """The payload of a progress event, without its file."""
    fields = ("percent", "message", "output", "step", "thinking", "tool_use", "tool_result")
    return {name: value for name in fields if (value := getattr(report, name)) is not None}


def ask_in(payload: Json) -> Ask:
    """The question of an event that was found to have one."""
    return Ask(
        question=str(payload.get("question")),
        options=tuple(payload.get("options") or ()),
        timeout_seconds=payload.get("timeout_seconds"),
        default=payload.get("default"),
        has_default="default" in payload,
    )


def ask_out(ask: Ask) -> Json:
    asked: Json = {"question": ask.question}
    if ask.options:
        asked["options"] = list(ask.options)
    if ask.timeout_seconds is not None:
        asked["timeout_seconds"] = ask.timeout_seconds
    if ask.has_default:
        asked["default"] = ask.default
    return asked


def answer_in(payload: Json) -> Answer:
    return Answer(question_id=str(payload.get("question_id")), answer=payload.get("answer"))


def answer_out(question_id: str | None, question: str, answer: Any) -> Json:
    """A person's answer, any JSON; `UNSET`: the question's time is over."""
    given = {"timed_out": True} if answer is UNSET else {"answer": answer}
    return {"question_id": question_id, "question": question, **given}


# -- results
#
# A payload is a JSON object. An agent that returns another value puts it into one field of its payload, and names that
# field beside the payload (`value_in`) and in its schema (`$comment`), so that the caller gets the bare value:
#
#     returned                          payload
#     --------------------------------  ----------------------------
#     dict, dataclass, Struct           the object
#     None                              {}
#     str, int, list, a union           {"result": value}
#     without a hint, or Any            the value if it is an object, else {"result": value}


def result_in(message: Message, content: Any, *, is_free: bool, envelope: Json | None, extra: Json | None) -> Result:
    """The result that a response to the hub brings. `content` is its payload without the protocol's own fields, or its
    ciphertext. `is_free`: no schema says what form a result has, so the text `output` alone is an output."""
    value_in: str | UnsetType | None = message.value_in if type(message.value_in) in (str, type(None)) else UNSET
    result, output = content, None
    if envelope is None and value_in is UNSET and type(content) is dict and type(content.get("output")) is str:
        output = content["output"]  # other protocols have a field for the text of a result
        if len(content) == 1 and is_free:
            result = UNSET
    usage = message.usage if type(message.usage) is dict else None
    return Result(result=result, output=output, value_in=value_in, usage=usage, envelope=envelope, extra=extra)


def result_out(done: Result, whole: str | None) -> tuple[Json, str | None]:
    """The payload of the hub's response to a caller, and the field of it that holds the value. `whole` is an output
    that came in pieces."""
    result, value_in = done.value, done.value_in
    if isinstance(value_in, str):  # as its agent put it
        return ({value_in: result} if value_in else {}), value_in
    if type(result) is dict:
        return result, None
    if result is not None and type(result) is not str:
        return {VALUE: result}, VALUE
    output = result or whole or done.output
    if result is None and not output:
        return ({} if output is None else {"output": ""}), ""
    return {"output": str(output or "")}, "output"


def output_schema(schema: Json) -> Json | bool:
    """The schema of the payload for the schema of the value that a handler returns."""
    if not schema:
        return True
    if schema.get("type") == "null":
        return {"type": "object"}
    if schema.get("type") == "object":
        return schema
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    wrapped: Json = {"$comment": BARE, "type": "object", "properties": {VALUE: inner}, "required": [VALUE]}
    return {**wrapped, "$defs": schema["$defs"]} if "$defs" in schema else wrapped


def value_out(value: Any, schema: object) -> tuple[Json, str | None]:
    """The payload of a value that a handler returned, and the field of it that holds the value: None where the payload
    is the value, empty where there is none."""
    is_bare = isinstance(schema, dict) and schema.get("$comment") == BARE
    if isinstance(value, dict) and not is_bare:
        return value, None
    return ({}, "") if value is None and not is_bare else ({VALUE: value}, VALUE)


def value_in(payload: Json, schema: object, named: object = None) -> Any:
    """The value that a caller gets of a response's payload. `named`: the message's `value_in`, which is any JSON."""
    content = content_in(payload, schema)
    if isinstance(named, str):
        return content.get(named)
    if isinstance(schema, dict) and schema.get("$comment") == BARE:
        return content.get(VALUE)
    return content
