"""Lines and frames to forge values and back.

A program's output is not all protocol, so the first question is whether something is a message at all (D3):

    what came                                                  is
    ---------------------------------------------------------  ----------------------------------------------
    not JSON, or JSON without a `type` of a known family       a log line
    `event:…`, `notify:…`, `response:…` that is unknown,
    or that only the other side may send                       a log line, with its type
    `request:…` that is unknown                                INVALID_MESSAGE_TYPE
    a message that breaks a rule (strict JSON, shape)          INVALID_REQUEST, naming the field
    a JSON array with messages in it                           each of them, in order (D12), also if some are broken;
                                                               an array of messages in there is a broken one

Once it is a message, the checks run in the order of all-D3. Text that a lenient parser would read (NaN, a key twice)
but the guard refuses is a broken message rather than a log line, if it has a type: its sender waits for an answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from functools import cache
from typing import Any, TypeAlias

import msgspec

from dragoman.protocols.forge import packed
from dragoman.protocols.forge.errors import Code
from dragoman.protocols.forge.types import (
    BODIES,
    ERROR,
    REQUESTS,
    SUCCESS,
    TYPE_OF,
    AnyMessage,
    Encoding,
    ErrorBody,
    Failure,
    Family,
    Message,
    Payload,
    Response,
    Stamp,
    Success,
)
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError, Stage, with_next
from dragoman.wire.guard import Limits
from dragoman.wire.misfit import explain
from dragoman.wire.role import Role

LIMITS = Limits(bytes=1024 * 1024, depth=64)
"""Of a line of an agent (D1). What an agent receives may be longer: a task's input came from elsewhere."""
AGENT_RECEIVES = 16 * 1024 * 1024

MOST_BATCHED = 1000

SENDER_OF: dict[Family, Role] = {
    Family.REQUEST: Role.AGENT,
    Family.EVENT: Role.AGENT,
    Family.RESPONSE: Role.HUB,
    Family.NOTIFY: Role.HUB,
}
KNOWN = frozenset((*BODIES, SUCCESS, ERROR))

_FAMILIES = {family.value: family for family in Family}
_encode = msgspec.json.Encoder().encode
# Only for text too deeply nested to be parsed at all: what it seems to be, from its beginning.
_SEEMS = re.compile(rb'"type"\s*:\s*"((?:request|event):[^"\\]{1,100})"').search
_SEEMS_ID = re.compile(rb'"id"\s*:\s*"([^"\\]{1,200})"').search
_GLANCE = 4096
_HALF = re.compile("[\ud800-\udfff]").search
_BLANK = re.compile(r"[ \t\r\n]*")
_FIRST = re.compile(rb"[ \t\r\n]*(.?)", re.DOTALL).match
_lenient = json.JSONDecoder(parse_int=str)


# -- what a line or a frame turned out to be; `tree` is the JSON object as it came, with unknown fields


class MessageReceived(msgspec.Struct, frozen=True):
    message: Message
    tree: dict[str, Any]


class RequestReceived(MessageReceived, frozen=True):
    """An agent waits for the response with its id."""


class EventReceived(MessageReceived, frozen=True):
    """An agent waits for nothing."""


class NoticeReceived(MessageReceived, frozen=True):
    """The orchestrator waits for nothing."""


class ResponseReceived(msgspec.Struct, frozen=True):
    message: Response
    tree: dict[str, Any]


class LogReceived(msgspec.Struct, frozen=True):
    """A line that is no message (D3): what a program prints. `type` is that of an unknown message."""

    text: str
    type: str | None = None


class Dropped(msgspec.Struct, frozen=True):
    """A message above the limit was dropped (D1)."""

    length: int


class Invalid(msgspec.Struct, frozen=True, kw_only=True):
    """The peer broke the protocol; `what` ends with `next`, what to do about it. If `asks`, its sender waits for the
    response `answer` to the request `about`; events get none."""

    what: str
    stage: Stage
    next: str = ""
    field: str | None = None
    about: str | None = None
    asks: bool = False
    code: Code = Code.INVALID_REQUEST
    details: dict[str, Any] = {}

    @property
    def answer(self) -> ErrorBody:
        if self.field is None:
            return ErrorBody(code=self.code, message=self.what, details=self.details)
        details = {**self.details, "field": self.field}
        return ErrorBody(code=self.code, message=f"{self.field}: {self.what}", details=details)


Event: TypeAlias = RequestReceived | EventReceived | ResponseReceived | NoticeReceived | LogReceived | Dropped | Invalid


# -- reading and writing


class Part(bytes):
    """One message of a batch, which is none itself, whatever it looks like."""


def read(
    data: bytes,
    reader: Role,
    *,
    encoding: Encoding = Encoding.JSON,
    limits: Limits = LIMITS,
    agent_id: str | None = None,
) -> list[Event]:
    """The messages and log lines of one line or frame for `reader`. Never raises for what came.

    `agent_id` is the agent at the other end: it replaces whatever the message says of that (D4).
    """
    parts: Sequence[bytes] = split(data, encoding=encoding, limits=limits) or [data]
    return [event for part in parts for event in _read(part, reader, encoding, limits, agent_id)]


def _read(data: bytes, reader: Role, encoding: Encoding, limits: Limits, agent_id: str | None) -> list[Event]:
    if encoding is Encoding.JSON and _first(data) not in (b"{", b"["):
        text = _spelt(data)
        return [LogReceived(text)] if text.strip() else []
    try:
        tree = guard.check(data, limits) if encoding is Encoding.JSON else packed.unpack(data, limits)[0]
    except RemoteProtocolError as error:
        return [_broken(data, error, reader, encoding)]
    if type(tree) is list and not isinstance(data, Part) and len(tree) > MOST_BATCHED and _families(tree):
        next = f"send at most {MOST_BATCHED} at a time"
        what = with_next(f"a batch of {len(tree)} messages", next)
        return [Invalid(what=what, next=next, stage=Stage.SIZE, asks=True)]
    return [_one(tree, data, reader, encoding, agent_id)]


def split(data: bytes, *, encoding: Encoding = Encoding.JSON, limits: Limits = LIMITS) -> list[Part]:
    """The messages of a batch, each in the same encoding; none if it is no batch, or too large a one."""
    packs = encoding is Encoding.MSGPACK
    if (data[:1] < b"\x90" or b"\xa0" <= data[:1] < b"\xdc") if packs else _first(data) != b"[":
        return []
    if isinstance(data, Part):
        return []
    try:
        tree = packed.unpack(data, limits)[0] if packs else guard.check(data, limits)
    except RemoteProtocolError as error:
        return [] if packs or error.stage is Stage.SIZE else _cut(data)
    if type(tree) is not list or len(tree) > MOST_BATCHED or not _families(tree):
        return []
    return [Part(packed.pack(item) if packs else _encode(item)) for item in tree]


def _first(data: bytes) -> bytes:
    """The first byte of a line that is no blank, or nothing."""
    return _FIRST(data)[1]  # type: ignore[index]


def _cut(data: bytes) -> list[Part]:
    """The messages of a batch that is not strict JSON, each as it stands there: those that are not strict are refused
    one by one, and the others are read."""
    text = data.decode("utf-8", "surrogateescape").strip()
    items: list[tuple[Any, str]] = []
    at = 0
    try:
        while text[at] != "]" and len(items) <= MOST_BATCHED:  # at the opening bracket, or at a comma
            start = _BLANK.match(text, at + 1).end()  # type: ignore[union-attr]
            item, end = _lenient.raw_decode(text, start)
            items.append((item, text[start:end]))
            at = _BLANK.match(text, end).end()  # type: ignore[union-attr]
            if text[at] not in ",]":
                return []
    except (ValueError, IndexError, RecursionError):
        return []
    if at != len(text) - 1 or not _families([item for item, _ in items]):
        return []
    return [Part(raw.encode("utf-8", "surrogateescape")) for _, raw in items]


def message(
    payload: Payload, stamp: Stamp, *, agent_id: str | None = None, meta: dict[str, Any] | None = None
) -> Message:
    """A payload as a message of ours: the type follows from it, and the time is written in UTC (all-D2)."""
    return Message(
        type=TYPE_OF[type(payload)],
        id=stamp.id,
        timestamp=stamp.timestamp.astimezone(UTC),
        payload=payload,
        agent_id=agent_id,
        meta=meta or {},
    )


def success(request_id: str, payload: dict[str, Any], stamp: Stamp) -> Success:
    return Success(id=stamp.id, correlation_id=request_id, timestamp=stamp.timestamp.astimezone(UTC), payload=payload)


def failure(request_id: str | None, error: ErrorBody, stamp: Stamp) -> Failure:
    return Failure(id=stamp.id, correlation_id=request_id, timestamp=stamp.timestamp.astimezone(UTC), error=error)


def write(message: AnyMessage, encoding: Encoding = Encoding.JSON) -> bytes:
    """A message of ours as one frame. JSON of ours has no line break in it, so it is also one line, less its end."""
    return _encode(message) if encoding is Encoding.JSON else packed.pack(message)


def _payload(given: Any, form: type[Payload]) -> Payload:
    """A payload as its value. An optional field that is null was left out; many serializers write it so."""
    try:
        return msgspec.convert(given, form)
    except msgspec.ValidationError:
        if type(given) is not dict:
            raise
        absent = {name for name in _never_null(form) if given.get(name, ...) is None}
        if not absent:
            raise
        return msgspec.convert({name: value for name, value in given.items() if name not in absent}, form)


@cache
def _never_null(form: type[Payload]) -> frozenset[str]:
    """The optional fields whose values cannot be null: what null means there is that they are not there."""
    found = set()
    for field in msgspec.structs.fields(form):
        if not field.required:
            try:
                msgspec.convert(None, field.type)
            except msgspec.ValidationError:
                found.add(field.encode_name)
    return frozenset(found)


def _one(tree: Any, data: bytes, reader: Role, encoding: Encoding, agent_id: str | None) -> Event:
    family = _family(tree)
    if family is None:
        if within := _families(tree):
            next = "put all messages into one array"
            return Invalid(
                what=with_next("an array inside a batch", next),
                next=next,
                stage=Stage.SHAPE,
                asks=Family.REQUEST in within,
            )
        return LogReceived(_text(tree, data, encoding))
    kind: str = tree["type"]
    asks = family is Family.REQUEST
    if SENDER_OF[family] is reader or (kind not in KNOWN and not asks):
        return LogReceived(_text(tree, data, encoding), kind)
    about = _id(tree)
    if kind not in KNOWN:
        return Invalid(
            what=f"unknown message type {kind[:200]!r}",
            stage=Stage.SHAPE,
            code=Code.INVALID_MESSAGE_TYPE,
            field="type",
            about=about,
            asks=True,
            details={"type": kind[:200], "known": sorted(REQUESTS)},
        )
    if agent_id is not None:
        tree["agentId"] = agent_id
    base = ""
    try:
        if family is Family.RESPONSE:
            response = msgspec.convert(tree, Success) if kind == SUCCESS else msgspec.convert(tree, Failure)
            return ResponseReceived(response, tree)
        message = msgspec.convert(tree, Message)
        base = "payload"
        payload = _payload(message.payload, BODIES[kind])
    except msgspec.ValidationError as error:
        what, field = explain(error, base)
        return Invalid(what=what, stage=Stage.SHAPE, field=field, about=about, asks=asks)
    message = msgspec.structs.replace(message, payload=payload, agent_id=agent_id or message.agent_id)
    if asks:
        return RequestReceived(message, tree)
    return EventReceived(message, tree) if family is Family.EVENT else NoticeReceived(message, tree)


def _family(tree: Any) -> Family | None:
    """What kind of message it is, if it is one at all."""
    kind = tree.get("type") if type(tree) is dict else None
    if type(kind) is not str:
        return None
    head, colon, _ = kind.partition(":")
    return _FAMILIES.get(head) if colon else None


def _families(tree: Any) -> set[Family]:
    """What kinds of messages an array has, in arrays of its own as well."""
    found: set[Family] = set()
    waiting = [tree] if type(tree) is list else []
    while waiting:
        for item in waiting.pop():
            if type(item) is list:
                waiting.append(item)
            elif (family := _family(item)) is not None:
                found.add(family)
    return found


def _broken(data: bytes, error: RemoteProtocolError, reader: Role, encoding: Encoding) -> Event:
    """What the guard refused: a message whose sender waits for an answer, or only a log line."""
    if encoding is Encoding.MSGPACK:  # a binary frame is never a line of a log
        tree: Any = None if error.stage is Stage.SIZE else packed.glimpse(data)
        family = _family(tree)
        about, asks = (_id(tree), family is Family.REQUEST) if family else (None, True)
    else:
        kind, about = _glimpse(data, error.stage)
        if kind is None or SENDER_OF[_FAMILIES[kind.partition(":")[0]]] is reader:
            return Dropped(len(data)) if error.stage is Stage.SIZE else LogReceived(_spelt(data))
        asks = kind.startswith("request:")
    return Invalid(what=error.what, stage=error.stage, field=error.field, about=about, asks=asks)


def _glimpse(data: bytes, stage: Stage) -> tuple[str | None, str | None]:
    """The type and the id of a message which is not strict JSON, as far as a lenient reader can tell."""
    if stage is not Stage.JSON:
        kind, about = _SEEMS(data, 0, _GLANCE), _SEEMS_ID(data, 0, _GLANCE)
        if kind is None:
            return None, None
        return kind[1].decode("utf-8", "replace"), None if about is None else about[1].decode("utf-8", "replace")
    try:
        # Python itself refuses to read very long integers; what is no UTF-8 may still be a message.
        tree = json.loads(data.decode("utf-8", "replace"), parse_int=str)
    except (ValueError, RecursionError):
        return None, None
    return (tree["type"], _id(tree)) if _family(tree) else (None, None)


def _id(tree: Mapping[str, Any]) -> str | None:
    """The id an answer names, if it is a good one (D2) and can be written again: half a surrogate cannot."""
    value = tree.get("id")
    good = type(value) is str and 0 < len(value) <= 200 and not _HALF(value)
    return value if good else None


def _text(tree: Any, data: bytes, encoding: Encoding) -> str:
    return _spelt(data if encoding is Encoding.JSON else _encode(tree))


def _spelt(data: bytes) -> str:
    """A line as it came; bytes that are no text are spelt out, so that nothing of it is lost (D13)."""
    return data.decode("utf-8", "backslashreplace")
