"""Bytes ⇄ agentmsg messages.

A message is checked in the order of all-D3: size, depth, strict JSON, shape, meaning. Each refusal names its field and,
where it can be read, the id of the message, which the answer needs. Ids are then in lower case and times in UTC; the
JSON object stays as it came, and `reissue` sends it on with its unknown fields (all-D6).

What a message says twice must agree (D13), and what it says about its sender must be true (all-D1): `SENDER`,
`RECIPIENT` and `TASK` list the copies. Two exceptions: in messages of the hub the copies of the sender are not
compared, since it reports for agents; and an agent that hands a task to the hub may leave the choice to it (`to_agent:
"*"`) or name the agent that it wants.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple, cast, get_args

import msgspec

from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import UUID_PATTERN, ErrorReport, ErrorType, Priority, Record, RetryOverrides
from dragoman.protocols.agentmsg.routing import PRIORITY
from dragoman.protocols.agentmsg.types import (
    ANSWERS_WITH,
    BODIES,
    HUB,
    MAX_RETRIES,
    TYPE_OF,
    Heartbeat,
    HelpRequest,
    HelpResponse,
    Message,
    MessageMetadata,
    MessageType,
    Register,
    Stamp,
    StatusUpdate,
    TaskAssignment,
    TaskFailed,
    TaskHandoffRequest,
    TaskHandoffResponse,
    TaskUpdate,
    Welcome,
)
from dragoman.wire import guard
from dragoman.wire.errors import LocalProtocolError, RemoteProtocolError, Stage, with_next
from dragoman.wire.guard import Limits
from dragoman.wire.misfit import explain

LIMITS = Limits(bytes=8 * 1024 * 1024, depth=64)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_METADATA = msgspec.Raw(b"{}")
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_UUID = re.compile(UUID_PATTERN)
PATTERN_FORM = "expected a UUID"
"""What every pattern in `records` asks for."""
_VERSION_4 = re.compile("^.{14}4.{21}$(?!\\n)")

SENDER: dict[type[Record], str] = {
    TaskHandoffRequest: "from_agent",
    TaskHandoffResponse: "agent_id",
    HelpRequest: "requester_id",
    HelpResponse: "responder_id",
    StatusUpdate: "agent_id",
    Heartbeat: "agent_id",
    ErrorReport: "agent_id",
    Register: "agent_id",
    TaskFailed: "error.agent_id",
}
RECIPIENT: dict[type[Record], str] = {TaskHandoffRequest: "to_agent", Welcome: "agent_id"}
TASK: dict[type[Record], tuple[str, str]] = {
    TaskHandoffRequest: ("task_id", "context.task_id"),
    TaskAssignment: ("task.task_id", "task.context.task_id"),
    TaskFailed: ("task_id", "error.task_id"),
}


class Contradiction(NamedTuple):
    """Two fields of a message that do not agree."""

    field: str
    what: str
    error_type: ErrorType = ErrorType.VALIDATION_ERROR
    next: str = ""


def parse(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """The JSON object in `data`, strict and within limits but of any shape."""
    try:
        tree = guard.check(data, limits)
    except RemoteProtocolError as error:
        raise AgentmsgError(error.what, stage=error.stage, field=error.field) from None
    if type(tree) is not dict:
        raise AgentmsgError("expected a JSON object", stage=Stage.SHAPE)
    return tree


def interpret(tree: Mapping[str, Any]) -> Message:
    """A JSON object as a message: its shape and its meaning."""
    try:
        message = msgspec.convert(tree, Message)
        body = _body(message)
    except msgspec.ValidationError as error:
        what, field = explain(error, forms=PATTERN_FORM)
        raise AgentmsgError(what, stage=Stage.SHAPE, field=field, about=identity(tree)) from None
    try:
        payload = msgspec.convert(message.payload, body)
    except msgspec.ValidationError as error:
        what, field = explain(error, "payload", PATTERN_FORM)
        raise AgentmsgError(what, stage=Stage.SHAPE, field=field, about=identity(tree)) from None
    try:
        message = _canonical_form(message, payload)
    except OverflowError:
        what = "a time outside of the calendar in UTC"
        raise AgentmsgError(what, stage=Stage.MEANING, field="timestamp", about=identity(tree)) from None
    for place, what, kind, next in _problems(message):
        raise AgentmsgError(what, stage=Stage.MEANING, field=place, about=identity(tree), error_type=kind, next=next)
    return message


def message(
    payload: Record,
    stamp: Stamp,
    *,
    sender: str,
    to: str,
    priority: Priority | None = None,
    correlation_id: str | None = None,
    ttl_ms: float | None = None,
    max_retries: int = MAX_RETRIES,
    retry_config: RetryOverrides | None = None,
    traceparent: str | None = None,
) -> Message:
    """A payload as a message. The type follows from it, and so does the priority if none is given."""
    kind = TYPE_OF[type(payload)]
    if not _UUID.match(stamp.id) or not _VERSION_4.match(stamp.id):
        raise LocalProtocolError("expected a UUID of version 4", field="id")
    made = Message(
        id=stamp.id.lower(),
        timestamp=stamp.timestamp.astimezone(UTC),
        sender=sender,
        to=to,
        type=kind,
        payload=_in_utc(payload),
        metadata=MessageMetadata(
            priority=priority or PRIORITY[kind],
            retry_count=0,
            max_retries=max_retries,
            retry_config=retry_config,
            correlation_id=correlation_id,
            ttl_ms=ttl_ms,
            traceparent=traceparent,
        ),
    )
    for place, what, _, next in _problems(made):
        raise LocalProtocolError(with_next(what, next), field=place)
    return made


def encode(message: Message, beside: Mapping[str, Any] | None = None) -> bytes:
    """The bytes of a message; `beside` are fields that its payload does not have."""
    if not beside:
        return _encode(message)
    payload = {**_FIELDS.decode(_encode(message.payload)), **beside}
    return _encode(msgspec.structs.replace(message, payload=payload))


def reissue(data: bytes, replaced: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> bytes:
    """`data`, which was checked before, with some fields replaced and some metadata set or, where None, removed."""
    fields: dict[str, object] = dict(_FIELDS.decode(data))
    fields.update(replaced)
    if metadata:
        present = msgspec.json.decode(cast(msgspec.Raw, fields.get("metadata", _NO_METADATA)))
        fields["metadata"] = {name: value for name, value in {**present, **metadata}.items() if value is not None}
    return _encode(fields)


def fingerprint(tree: Mapping[str, Any]) -> bytes:
    """A hash of a message's content: without the order of keys, and without the metadata, which change on the way."""
    content = [tree[name] for name in ("from", "to", "type", "payload")]
    return hashlib.sha256(_canonical(content)).digest()


def identity(tree: Mapping[str, Any]) -> str | None:
    """The id that an answer names, if it is a good one."""
    value = tree.get("id")
    return value.lower() if isinstance(value, str) and _UUID.match(value) else None


def lowered(identity: str) -> str:
    """An id as ids are compared: UUIDs without their case."""
    return identity.lower() if _UUID.match(identity) else identity


def _body(message: Message) -> type[Record]:
    bodies, mark = BODIES[message.type], ANSWERS_WITH.get(message.type)
    answers = mark is not None and isinstance(message.payload, dict) and mark in message.payload
    return bodies[answers]


def _problems(message: Message) -> list[Contradiction]:
    problems = [*_contradictions(message)]
    if message.metadata.correlation_id is None:
        bodies = BODIES[message.type]
        if len(bodies) > 1 and type(message.payload) is bodies[1]:
            next = "an answer names the message it answers"
            problems.append(Contradiction("metadata.correlation_id", "missing", next=next))
        if message.type is MessageType.ACK and not message.payload.message_ids:
            next = "name the message that it acknowledges"
            problems.append(Contradiction("metadata.correlation_id", "missing", next=next))
    return problems


def _contradictions(message: Message) -> Iterator[Contradiction]:
    payload, kind = message.payload, type(message.payload)
    if message.sender != HUB and kind in SENDER:
        yield from _compare(payload, SENDER[kind], message.sender, "from", ErrorType.AUTHENTICATION_ERROR)
    if message.to != HUB and kind in RECIPIENT:
        yield from _compare(payload, RECIPIENT[kind], message.to, "to", ErrorType.VALIDATION_ERROR)
    if kind in TASK:
        own, copy = TASK[kind]
        expected = attrgetter(own)(payload)
        yield from _compare(payload, copy, expected, f"payload.{own}", ErrorType.VALIDATION_ERROR)
    if kind is TaskHandoffResponse:
        yield from _acceptance(payload)
    if kind is TaskUpdate and not payload.message and (payload.progress, payload.output, payload.status) == (None,) * 3:
        yield Contradiction("payload", "says nothing", next="give progress, message, output or status")
    if message.metadata.retry_config is not None:
        yield from _attempts(message.metadata)


def _acceptance(payload: TaskHandoffResponse) -> Iterator[Contradiction]:
    """An agent that accepts a task says when it will be done, and on which terms (D8)."""
    for name in ("estimated_completion", "requirements", "constraints") if payload.accepted else ():
        if getattr(payload, name) is None:
            yield Contradiction(f"payload.{name}", "missing required field of an accepted handoff")


def _attempts(metadata: MessageMetadata) -> Iterator[Contradiction]:
    """Attempts are retries and the first one (D7)."""
    attempts = None if metadata.retry_config is None else metadata.retry_config.max_attempts
    if attempts is not None and attempts != metadata.max_retries + 1:
        what = (
            f"{attempts} contradicts metadata.max_retries, which is {metadata.max_retries}: attempts are retries and "
            "the first one"
        )
        next = "let them agree, or leave max_attempts out"
        yield Contradiction("metadata.retry_config.max_attempts", what, next=next)


def _compare(payload: Any, path: str, expected: str, place: str, error_type: ErrorType) -> Iterator[Contradiction]:
    value = payload
    for name in path.split("."):
        value = getattr(value, name)
        if value is None:
            return
    if value != expected:
        yield Contradiction(f"payload.{path}", f"{value!r} contradicts {place}, which is {expected!r}", error_type)


def _canonical_form(message: Message, payload: Record) -> Message:
    """Ids in lower case and times in UTC; raises OverflowError for a time outside of UTC's calendar."""
    metadata = message.metadata
    correlation = metadata.correlation_id
    if correlation is not None and correlation != lowered(correlation):
        metadata = msgspec.structs.replace(metadata, correlation_id=correlation.lower())
    at = message.timestamp
    return Message(
        id=message.id.lower(),
        timestamp=at if at.tzinfo is UTC else at.astimezone(UTC),
        sender=message.sender,
        to=message.to,
        type=message.type,
        payload=_in_utc(payload) if _timed(type(payload)) else payload,
        metadata=metadata,
    )


@cache
def _timed(record: type[Record]) -> tuple[str, ...]:
    """The fields of a record in which a time may stand."""
    return tuple(field.name for field in msgspec.structs.fields(record) if _may_be_timed(field.type))


def _may_be_timed(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, Record):
        return bool(_timed(kind))
    return kind is datetime or any(map(_may_be_timed, get_args(kind)))


def _in_utc(value: Any) -> Any:
    """The same value with every time in UTC (all-D2); itself where nothing had to change."""
    if isinstance(value, datetime):
        return value if value.tzinfo is UTC else value.astimezone(UTC)
    if isinstance(value, Record):
        changed = {}
        for name in _timed(type(value)):
            old = getattr(value, name)
            if (new := _in_utc(old)) is not old:
                changed[name] = new
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, tuple) and value and not isinstance(value[0], str):
        items = tuple(map(_in_utc, value))
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
