"""Bytes to agentmsg values and back.

What comes in is checked in the order of all-D3: size, depth, strict JSON, shape, meaning (`agreement`). Each refusal
names its field and, where it can be read, the id of the message, which an answer needs.

Values are canonical: ids in lower case, every time in UTC, so that equal things compare equal. The JSON object they
came from is kept as it was, and `reissue` carries it on with the fields nobody here knows (all-D6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, cast, get_args

import msgspec

from dragoman.protocols.agentmsg import agreement
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import UUID_PATTERN, Priority, Record
from dragoman.protocols.agentmsg.retry import RetryWish
from dragoman.protocols.agentmsg.routing import PRIORITY
from dragoman.protocols.agentmsg.types import (
    ANSWERS_WITH,
    BODIES,
    MAX_RETRIES,
    TYPE_OF,
    Message,
    MessageMetadata,
    MessageType,
    Stamp,
)
from dragoman.wire import guard
from dragoman.wire.errors import LocalProtocolError, RemoteProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.misfit import explain

LIMITS = Limits(bytes=8 * 1024 * 1024, depth=64)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NO_METADATA = msgspec.Raw(b"{}")
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_UUID = re.compile(UUID_PATTERN)
_VERSION_4 = re.compile("^.{14}4.{21}$(?!\\n)")


def parse(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """Pass the guard: the JSON object in `data`, strict and bounded but of any shape."""
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
        what, field = _explain(error, "")
        raise AgentmsgError(what, stage=Stage.SHAPE, field=field, about=identity(tree)) from None
    try:
        payload = msgspec.convert(message.payload, body)
    except msgspec.ValidationError as error:
        what, field = _explain(error, "payload")
        raise AgentmsgError(what, stage=Stage.SHAPE, field=field, about=identity(tree)) from None
    try:
        message = _put_right(message, payload)
    except OverflowError:
        what = "a time outside of the calendar in UTC"
        raise AgentmsgError(what, stage=Stage.MEANING, field="timestamp", about=identity(tree)) from None
    for place, what, kind in _faults(message):
        raise AgentmsgError(what, stage=Stage.MEANING, field=place, about=identity(tree), error_type=kind)
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
    retry_config: RetryWish | None = None,
    traceparent: str | None = None,
) -> Message:
    """A payload as a message of ours. The type follows from it, and so does the priority if none is given."""
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
    for place, what, _ in _faults(made):
        raise LocalProtocolError(what, field=place)
    return made


def encode(message: Message) -> bytes:
    """The bytes of a message of ours."""
    return _encode(message)


def reissue(data: bytes, replaced: Mapping[str, object], metadata: Mapping[str, object] | None = None) -> bytes:
    """`data` again, with some fields replaced and some of the metadata set; all else stays as it came.

    `data` has passed `decode` before. Metadata whose value is None is removed.
    """
    fields: dict[str, object] = dict(_FIELDS.decode(data))
    fields.update(replaced)
    if metadata:
        present = msgspec.json.decode(cast(msgspec.Raw, fields.get("metadata", _NO_METADATA)))
        fields["metadata"] = {name: value for name, value in {**present, **metadata}.items() if value is not None}
    return _encode(fields)


def fingerprint(tree: Mapping[str, Any]) -> bytes:
    """What a message says, independent of the order of its keys, and of the metadata, which change on the way."""
    said = [tree[name] for name in ("from", "to", "type", "payload")]
    return hashlib.sha256(_canonical(said)).digest()


def identity(tree: Mapping[str, Any]) -> str | None:
    """The id that an answer names, if it is a good one."""
    value = tree.get("id")
    return value.lower() if isinstance(value, str) and _UUID.match(value) else None


def lowered(identity: str) -> str:
    """An id as we compare it: UUIDs are the same in capitals."""
    return identity.lower() if _UUID.match(identity) else identity


def _body(message: Message) -> type[Record]:
    bodies, mark = BODIES[message.type], ANSWERS_WITH.get(message.type)
    answers = mark is not None and isinstance(message.payload, dict) and mark in message.payload
    return bodies[answers]


def _faults(message: Message) -> list[agreement.Contradiction]:
    faults = [*agreement.contradictions(message)]
    if message.metadata.correlation_id is None:
        bodies = BODIES[message.type]
        if len(bodies) > 1 and type(message.payload) is bodies[1]:
            what = "missing; an answer names the message it answers"
            faults.append(agreement.Contradiction("metadata.correlation_id", what))
        if message.type is MessageType.ACK and not message.payload.message_ids:
            what = "missing; name the message that it acknowledges"
            faults.append(agreement.Contradiction("metadata.correlation_id", what))
    return faults


def _put_right(message: Message, payload: Record) -> Message:
    """The canonical form; raises OverflowError for a time that UTC has no name for."""
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


def _explain(error: msgspec.ValidationError, base: str) -> tuple[str, str | None]:
    what, field = explain(error, base)
    if "matching regex" in what:
        what = "expected a UUID"  # the only pattern in `records`
    return what, field
