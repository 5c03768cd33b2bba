"""Message bytes ⇄ values. The only place that knows the generated protobuf classes.

gRPC frames messages itself, so what comes here is one whole message. Fields and events that we do not know are
skipped (D1); where a response or a caller's message has such fields, its bytes stay with it, so that they can
travel on (all-D6). Bytes that are no message, or one beyond its bounds, are `Malformed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from google.protobuf.message import DecodeError

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


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How large things may be. `text_bytes` is how much of an answer's text a connection keeps for its end (D8)."""

    message_bytes: int = 16 * MIB
    name_length: int = 200
    names: int = 256
    attachments: int = 100
    text_bytes: int = 16 * MIB


LIMITS = Limits()


# --- from the wire ---


def decode_agent(data: bytes, limits: Limits = LIMITS) -> AgentMessage | None:
    """What an agent said; None for a payload that we do not know."""
    message = _parse(pb.AgentMessage, data, limits)
    match message.WhichOneof("payload"):
        case "response":
            return _response(message.response, limits)
        case "heartbeat":
            return Heartbeat(message.heartbeat.timestamp_ms)
        case "register":
            return _register(message.register, limits)
    return None


def decode_server(data: bytes, limits: Limits = LIMITS) -> ServerMessage | None:
    """What a gateway said; None for a payload that we do not know."""
    message = _parse(pb.ServerMessage, data, limits)
    match message.WhichOneof("payload"):
        case "send_message":
            return _send_message(message.send_message)  # its names and numbers are the gateway's to choose
        case "cancel":
            return Cancel(request_id=message.cancel.request_id, reason=message.cancel.reason)
        case "welcome":
            return Welcome(server_id=message.welcome.server_id, agent_id=message.welcome.agent_id)
        case "shutdown":
            return Shutdown(message.shutdown.reason)
    return None


def decode_response(data: bytes, limits: Limits = LIMITS) -> MessageResponse:
    """An event, as callers get it: without the agent's wrapper."""
    return _response(_parse(pb.MessageResponse, data, limits), limits)


def decode_send(data: bytes, limits: Limits = LIMITS) -> SendMessage:
    """A message as callers send it: without the gateway's wrapper."""
    said = _parse(pb.SendMessage, data, limits)
    if len(said.attachments) > limits.attachments:
        raise Malformed(f"more than {limits.attachments} attachments", stage=Stage.SIZE, field="attachments")
    for field in _NAMES:
        _name(getattr(said, field), field, limits)
    return _send_message(said)


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


def _register(said: pb.RegisterAgent, limits: Limits) -> RegisterAgent:
    return RegisterAgent(
        agent_id=_name(said.agent_id, "agent_id", limits),
        name=_short(said.name, "name", limits),
        capabilities=_names(said.capabilities, "capabilities", limits),
        work_types=_names(said.work_types, "work_types", limits),
        version=_name(said.version, "version", limits),
        extensions=_names(said.extensions, "extensions", limits),
    )


def _response(said: pb.MessageResponse, limits: Limits) -> MessageResponse:
    which = said.WhichOneof("event")
    progress = None
    if said.HasField("progress"):
        part = said.progress
        progress = Progress(
            percent=min(part.percent, 100) if part.HasField("percent") else None,
            step=part.step,
            message=part.message,
            number=part.number,
            total=part.total,
        )
    fault = None
    if said.HasField("fault"):
        told = said.fault
        fault = Fault(kind=told.kind, message=told.message, retryable=told.retryable, facts_json=told.facts_json)
    return MessageResponse(
        request_id=_name(said.request_id, "request_id", limits),
        event=None if which is None else _EVENTS[which](said),
        progress=progress,
        fault=fault,
        cursor=said.cursor,
        task_id=said.task_id,
        unknown=_unknown(pb.MessageResponse, said),
    )


_EVENTS: dict[str, Callable[[pb.MessageResponse], ResponseEvent]] = {
    "thinking": lambda said: Thinking(said.thinking),
    "text": lambda said: Text(said.text),
    "tool_use": lambda said: ToolUse(said.tool_use.id, said.tool_use.name, said.tool_use.input_json),
    "tool_result": lambda said: ToolResult(said.tool_result.id, said.tool_result.output, said.tool_result.is_error),
    "file": lambda said: FileData(said.file.filename, said.file.mime_type, said.file.data),
    "done": lambda said: _done(said.done),
    "error": lambda said: Error(said.error),
}


def _done(said: pb.Done) -> Done:
    question = None
    if said.HasField("question"):
        asked = said.question
        question = Question(
            question=asked.question,
            options_json=asked.options_json,
            timeout_seconds=asked.timeout_seconds,
            default_json=asked.default_json,
        )
    return Done(full_response=said.full_response, result_json=said.result_json, question=question, is_json=said.is_json)


_NAMES = ("request_id", "thread_id", "sender", "task_id", "work_type", "traceparent", "to_agent", "priority")


def _send_message(said: pb.SendMessage) -> SendMessage:
    return SendMessage(
        request_id=said.request_id,
        thread_id=said.thread_id,
        sender=said.sender,
        content=said.content,
        attachments=tuple(FileData(one.filename, one.mime_type, one.data) for one in said.attachments),
        task_id=said.task_id,
        work_type=said.work_type,
        input_json=said.input_json,
        answer_json=said.answer_json,
        attempt=said.attempt,
        traceparent=said.traceparent,
        to_agent=said.to_agent,
        priority=said.priority,
        context_json=said.context_json,
        unknown=_unknown(pb.SendMessage, said),
    )


def _short(text: str, field: str, limits: Limits) -> str:
    """What people read: whatever is in it is escaped where it is shown."""
    if len(text) > limits.name_length:
        raise Malformed(f"longer than {limits.name_length} characters", stage=Stage.SIZE, field=field)
    return text


def _name(text: str, field: str, limits: Limits) -> str:
    """What programs compare: short, and nothing in it that would upset a log or a terminal."""
    if _short(text, field, limits) and not text.isprintable():
        raise Malformed("expected printable characters", field=field)
    return text


def _names(texts: Sequence[str], field: str, limits: Limits) -> tuple[str, ...]:
    if len(texts) > limits.names:
        raise Malformed(f"more than {limits.names} entries", stage=Stage.SIZE, field=field)
    return tuple(_name(text, field, limits) for text in texts if text)


def _unknown(form: Callable[[], Any], said: Any) -> bytes:
    """The message as it came, if it has fields that we do not know; data that is kept elsewhere is left out."""
    known = form()
    known.CopyFrom(said)
    known.DiscardUnknownFields()
    if known.ByteSize() == said.ByteSize():
        return b""
    kept = form()
    kept.CopyFrom(said)
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
    """The bytes of what an agent says."""
    if isinstance(message, MessageResponse):
        return _bytes(pb.AgentMessage(response=_response_of(message)))
    if isinstance(message, Heartbeat):
        return _bytes(pb.AgentMessage(heartbeat=pb.Heartbeat(timestamp_ms=message.timestamp_ms)))
    said = pb.RegisterAgent(
        agent_id=message.agent_id,
        name=message.name,
        capabilities=message.capabilities,
        work_types=message.work_types,
        version=message.version,
        extensions=message.extensions,
    )
    return _bytes(pb.AgentMessage(register=said))


def encode_server(message: ServerMessage) -> bytes:
    """The bytes of what a gateway says."""
    match message:
        case SendMessage():
            return _bytes(pb.ServerMessage(send_message=_send_of(message)))
        case Cancel():
            said = pb.Cancel(request_id=message.request_id, reason=message.reason)
            return _bytes(pb.ServerMessage(cancel=said))
        case Welcome():
            welcome = pb.Welcome(server_id=message.server_id, agent_id=message.agent_id)
            return _bytes(pb.ServerMessage(welcome=welcome))
        case Shutdown():
            return _bytes(pb.ServerMessage(shutdown=pb.Shutdown(reason=message.reason)))


def encode_response(message: MessageResponse) -> bytes:
    """The bytes of an event, as callers get it."""
    return _bytes(_response_of(message))


def encode_send(message: SendMessage) -> bytes:
    """The bytes of a message, as callers send it."""
    return _bytes(_send_of(message))


def encode_follow(message: FollowRequest) -> bytes:
    return _bytes(pb.FollowRequest(task_id=message.task_id, after=message.after))


def encode_cancel(message: CancelRequest) -> bytes:
    return _bytes(pb.CancelRequest(task_id=message.task_id, reason=message.reason))


def encode_cancel_reply(message: CancelReply) -> bytes:
    return _bytes(pb.CancelReply(task_id=message.task_id, status=message.status))


def _response_of(message: MessageResponse) -> pb.MessageResponse:
    """`unknown` is where it begins, so that fields nobody here knows travel on."""
    said = pb.MessageResponse()
    if message.unknown:
        said.ParseFromString(message.unknown)
    said.request_id = message.request_id
    event = message.event
    match event:
        case Text():
            said.text = event.text
        case Thinking():
            said.thinking = event.text
        case ToolUse():
            said.tool_use.CopyFrom(pb.ToolUse(id=event.id, name=event.name, input_json=event.input_json))
        case ToolResult():
            said.tool_result.CopyFrom(pb.ToolResult(id=event.id, output=event.output, is_error=event.is_error))
        case FileData():
            said.file.CopyFrom(pb.FileData(filename=event.filename, mime_type=event.mime_type, data=event.data))
        case Done():
            said.done.CopyFrom(_done_of(event))
        case Error():
            said.error = event.message
        case None:
            said.ClearField("event")
    if message.progress is not None:
        part = message.progress
        said.progress.CopyFrom(
            pb.Progress(
                percent=part.percent, step=part.step, message=part.message, number=part.number, total=part.total
            )
        )
    if message.fault is not None:
        told = message.fault
        said.fault.CopyFrom(
            pb.Fault(kind=told.kind, message=told.message, retryable=told.retryable, facts_json=told.facts_json)
        )
    said.cursor = message.cursor
    said.task_id = message.task_id
    return said


def _done_of(event: Done) -> pb.Done:
    said = pb.Done(full_response=event.full_response, result_json=event.result_json, is_json=event.is_json)
    if event.question is not None:
        asked = event.question
        said.question.CopyFrom(
            pb.Question(
                question=asked.question,
                options_json=asked.options_json,
                timeout_seconds=asked.timeout_seconds,
                default_json=asked.default_json,
            )
        )
    return said


def _send_of(message: SendMessage) -> pb.SendMessage:
    said = pb.SendMessage()
    if message.unknown:
        said.ParseFromString(message.unknown)
    said.attachments.extend(
        pb.FileAttachment(filename=one.filename, mime_type=one.mime_type, data=one.data) for one in message.attachments
    )
    said.request_id = message.request_id
    said.thread_id = message.thread_id
    said.sender = message.sender
    said.content = message.content
    said.task_id = message.task_id
    said.work_type = message.work_type
    said.input_json = message.input_json
    said.answer_json = message.answer_json
    said.attempt = message.attempt
    said.traceparent = message.traceparent
    said.to_agent = message.to_agent
    said.priority = message.priority
    said.context_json = message.context_json
    return said
