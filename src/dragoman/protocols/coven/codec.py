"""Message bytes ⇄ values. The only place that knows the generated protobuf classes.

gRPC frames messages itself, so what comes here is one whole message. The structs of `types` have the names of the proto
file for their fields, so most are converted by name. Unknown fields and events are skipped (D1); where a response or a
caller's message has unknown fields, its bytes stay with it and travel on (all-D6). Bytes that are no message, or one
beyond its bounds, are `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError
from msgspec.structs import asdict

from dragoman.protocols.coven import coven_pb2 as pb
from dragoman.protocols.coven.errors import Malformed
from dragoman.protocols.coven.types import (
    AgentMessage,
    Cancel,
    CancelReply,
    CancelRequest,
    Done,
    Error,
    Fault,
    FileData,
    FollowRequest,
    Heartbeat,
    MessageResponse,
    Progress,
    Question,
    RegisterAgent,
    ResponseEvent,
    SendMessage,
    ServerMessage,
    Shutdown,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Welcome,
)
from dragoman.wire.errors import Stage

MIB = 1024 * 1024
PB = TypeVar("PB")
T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """`text_bytes` is how much of an answer's text a connection keeps for its end (D8)."""

    message_bytes: int = 16 * MIB
    name_length: int = 200
    names: int = 256
    attachments: int = 100
    text_bytes: int = 16 * MIB


LIMITS = Limits()


# --- from the wire ---


def decode_agent(data: bytes, limits: Limits = LIMITS) -> AgentMessage | None:
    """A message of an agent; None for an unknown payload."""
    message = _parse(pb.AgentMessage, data, limits)
    match message.WhichOneof("payload"):
        case "response":
            return _response(message.response, limits)
        case "heartbeat":
            return _struct(message.heartbeat, Heartbeat)
        case "register":
            return _register(message.register, limits)
    return None


def decode_server(data: bytes, limits: Limits = LIMITS) -> ServerMessage | None:
    """A message of a gateway; None for an unknown payload."""
    message = _parse(pb.ServerMessage, data, limits)
    match message.WhichOneof("payload"):
        case "send_message":
            return _send_message(message.send_message)  # its names and numbers are the gateway's to choose
        case "cancel":
            return _struct(message.cancel, Cancel)
        case "welcome":
            return _struct(message.welcome, Welcome)
        case "shutdown":
            return _struct(message.shutdown, Shutdown)
    return None


def decode_response(data: bytes, limits: Limits = LIMITS) -> MessageResponse:
    """An event, as callers get it: without the agent's wrapper."""
    return _response(_parse(pb.MessageResponse, data, limits), limits)


def decode_send(data: bytes, limits: Limits = LIMITS) -> SendMessage:
    """A message as callers send it: without the gateway's wrapper."""
    message = _parse(pb.SendMessage, data, limits)
    if len(message.attachments) > limits.attachments:
        raise Malformed(f"more than {limits.attachments} attachments", stage=Stage.SIZE, field="attachments")
    for field in _NAMES:
        _name(getattr(message, field), field, limits)
    return _send_message(message)


def decode_follow(data: bytes, limits: Limits = LIMITS) -> FollowRequest:
    message = _parse(pb.FollowRequest, data, limits)
    if message.after < 0:
        raise Malformed("expected a cursor that was received before, or 0", field="after")
    return FollowRequest(task_id=_name(message.task_id, "task_id", limits), after=message.after)


def decode_cancel(data: bytes, limits: Limits = LIMITS) -> CancelRequest:
    message = _parse(pb.CancelRequest, data, limits)
    return CancelRequest(task_id=_name(message.task_id, "task_id", limits), reason=message.reason)


def _parse(form: Callable[[], PB], data: bytes, limits: Limits) -> PB:
    if len(data) > limits.message_bytes:
        what = f"message of {len(data)} bytes exceeds the limit of {limits.message_bytes}"
        raise Malformed(what, stage=Stage.SIZE)
    message = form()
    try:
        message.ParseFromString(data)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise Malformed(f"not a message of coven: {error}") from None
    return message


def _struct(message: Any, form: type[T]) -> T:
    """A struct whose fields are all text, numbers or bytes of the same names."""
    return msgspec.convert(message, form, from_attributes=True)


def _register(message: pb.RegisterAgent, limits: Limits) -> RegisterAgent:
    return RegisterAgent(
        agent_id=_name(message.agent_id, "agent_id", limits),
        name=_short(message.name, "name", limits),
        capabilities=_names(message.capabilities, "capabilities", limits),
        work_types=_names(message.work_types, "work_types", limits),
        version=_name(message.version, "version", limits),
        extensions=_names(message.extensions, "extensions", limits),
    )


def _response(message: pb.MessageResponse, limits: Limits) -> MessageResponse:
    which = message.WhichOneof("event")
    return MessageResponse(
        request_id=_name(message.request_id, "request_id", limits),
        event=None if which is None else _event(which, getattr(message, which)),
        progress=_progress(message.progress) if message.HasField("progress") else None,
        fault=_struct(message.fault, Fault) if message.HasField("fault") else None,
        cursor=message.cursor,
        task_id=message.task_id,
        unknown=_unknown(pb.MessageResponse, message),
    )


def _event(which: str, value: Any) -> ResponseEvent:
    if which == "done":
        question = _struct(value.question, Question) if value.HasField("question") else None
        return Done(
            full_response=value.full_response, result_json=value.result_json, question=question, is_json=value.is_json
        )
    return _TEXTS[which](value) if which in _TEXTS else _struct(value, _EVENTS[which])


_TEXTS: dict[str, type[Thinking | Text | Error]] = {"thinking": Thinking, "text": Text, "error": Error}
_EVENTS: dict[str, type[ToolUse | ToolResult | FileData]] = {
    "tool_use": ToolUse,
    "tool_result": ToolResult,
    "file": FileData,
}


def _progress(message: pb.Progress) -> Progress:
    progress = _struct(message, Progress)
    percent = min(message.percent, 100) if message.HasField("percent") else None
    return msgspec.structs.replace(progress, percent=percent)


_NAMES = ("request_id", "thread_id", "sender", "task_id", "work_type", "traceparent", "to_agent", "priority")
_SEND_FIELDS = (*_NAMES, "content", "input_json", "answer_json", "context_json", "attempt")


def _send_message(message: pb.SendMessage) -> SendMessage:
    return SendMessage(
        **{name: getattr(message, name) for name in _SEND_FIELDS},
        attachments=tuple(_struct(one, FileData) for one in message.attachments),
        unknown=_unknown(pb.SendMessage, message),
    )


def _short(text: str, field: str, limits: Limits) -> str:
    """For people: it is escaped where it is shown."""
    if len(text) > limits.name_length:
        raise Malformed(f"longer than {limits.name_length} characters", stage=Stage.SIZE, field=field)
    return text


def _name(text: str, field: str, limits: Limits) -> str:
    """For programs: short, and without characters that a log or a terminal would obey."""
    if _short(text, field, limits) and not text.isprintable():
        raise Malformed("expected printable characters", field=field)
    return text


def _names(texts: Sequence[str], field: str, limits: Limits) -> tuple[str, ...]:
    if len(texts) > limits.names:
        raise Malformed(f"more than {limits.names} entries", stage=Stage.SIZE, field=field)
    return tuple(_name(text, field, limits) for text in texts if text)


def _unknown(form: Callable[[], Any], message: Any) -> bytes:
    """The message as it came, if it has unknown fields; data that is kept elsewhere is left out."""
    known = form()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() == message.ByteSize():
        return b""
    kept = form()
    kept.CopyFrom(message)
    if isinstance(kept, pb.MessageResponse) and kept.HasField("file"):
        kept.file.data = b""
    elif isinstance(kept, pb.SendMessage):
        del kept.attachments[:]
    return _bytes(kept)


def _bytes(message: Any) -> bytes:
    serialized: bytes = message.SerializeToString()
    return serialized


# --- to the wire ---


def encode_agent(message: AgentMessage) -> bytes:
    """The bytes of an agent's message."""
    if isinstance(message, MessageResponse):
        return _bytes(pb.AgentMessage(response=_response_of(message)))
    if isinstance(message, Heartbeat):
        return _bytes(pb.AgentMessage(heartbeat=pb.Heartbeat(**asdict(message))))
    return _bytes(pb.AgentMessage(register=pb.RegisterAgent(**asdict(message))))


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of a gateway's message."""
    match message:
        case SendMessage():
            return _bytes(pb.ServerMessage(send_message=_send_of(message)))
        case Cancel():
            return _bytes(pb.ServerMessage(cancel=pb.Cancel(**asdict(message))))
        case Welcome():
            return _bytes(pb.ServerMessage(welcome=pb.Welcome(**asdict(message))))
        case Shutdown():
            return _bytes(pb.ServerMessage(shutdown=pb.Shutdown(**asdict(message))))


def encode_response(message: MessageResponse) -> bytes:
    """The bytes of an event, as callers get it."""
    return _bytes(_response_of(message))


def encode_send(message: SendMessage) -> bytes:
    """The bytes of a message, as callers send it."""
    return _bytes(_send_of(message))


def encode_follow(message: FollowRequest) -> bytes:
    return _bytes(pb.FollowRequest(**asdict(message)))


def encode_cancel(message: CancelRequest) -> bytes:
    return _bytes(pb.CancelRequest(**asdict(message)))


def encode_cancel_reply(message: CancelReply) -> bytes:
    return _bytes(pb.CancelReply(**asdict(message)))


def _response_of(message: MessageResponse) -> pb.MessageResponse:
    """It begins with `unknown`, so that unknown fields travel on."""
    form = pb.MessageResponse()
    if message.unknown:
        form.ParseFromString(message.unknown)
    form.request_id = message.request_id
    event = message.event
    match event:
        case Text():
            form.text = event.text
        case Thinking():
            form.thinking = event.text
        case ToolUse():
            form.tool_use.CopyFrom(pb.ToolUse(**asdict(event)))
        case ToolResult():
            form.tool_result.CopyFrom(pb.ToolResult(**asdict(event)))
        case FileData():
            form.file.CopyFrom(pb.FileData(**asdict(event)))
        case Done():
            question = None if event.question is None else pb.Question(**asdict(event.question))
            form.done.CopyFrom(pb.Done(**asdict(event) | {"question": question}))
        case Error():
            form.error = event.message
        case None:
            form.ClearField("event")
    if message.progress is not None:
        form.progress.CopyFrom(pb.Progress(**asdict(message.progress)))
    if message.fault is not None:
        form.fault.CopyFrom(pb.Fault(**asdict(message.fault)))
    form.cursor = message.cursor
    form.task_id = message.task_id
    return form


def _send_of(message: SendMessage) -> pb.SendMessage:
    form = pb.SendMessage()
    if message.unknown:
        form.ParseFromString(message.unknown)
    form.attachments.extend(pb.FileAttachment(**asdict(one)) for one in message.attachments)
    for name in _SEND_FIELDS:
        setattr(form, name, getattr(message, name))
    return form
