"""Bytes to chiffon values and back.

Decoding runs the checks in the order of all-D3: the guard (size, depth, strict JSON), then the version, then
shape, then meaning. Every refusal is a `ChiffonError` that knows the 5003 or 5006 to answer with, the dotted name
of the field, and, when the broken message still had them, the ids which the answer must copy (D11).

There are two ways to encode. `encode` writes a message of ours. `reissue` sends on what another agent wrote: the bytes
as they came, unknown fields included, with only the named envelope fields replaced (all-D6).

Two parties speak the lowest version they share, as the document has it, or the highest if configured (D9).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC
from typing import Any, Literal, TypeVar, cast

import msgspec

from dragoman.protocols.chiffon import chunks
from dragoman.protocols.chiffon.errors import InvalidMessage, UnsupportedVersion
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    SUPPORTED,
    TRACE_PATTERN,
    TYPE_OF,
    UUID_PATTERN,
    Correlation,
    Envelope,
    ErrorPayload,
    MessageType,
    Payload,
    Registration,
    Stamp,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.wire import guard
from dragoman.wire.errors import RemoteProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.misfit import explain

Body = TypeVar("Body", bound=Payload)

# An output of 1 MiB need not be split (D4), and JSON may write each of its bytes as six.
LIMITS = Limits(bytes=8 * 1024 * 1024, depth=64)

DECODERS: dict[MessageType, msgspec.json.Decoder[Envelope[Payload]]] = {
    "work_request": msgspec.json.Decoder(cast(Any, Envelope[WorkRequest])),
    "work_status": msgspec.json.Decoder(cast(Any, Envelope[WorkStatus])),
    "work_result": msgspec.json.Decoder(cast(Any, Envelope[WorkResult])),
    "error": msgspec.json.Decoder(cast(Any, Envelope[ErrorPayload])),
}
_OPTIONAL = (
    ("x_custom_fields",),
    ("payload", "hints"),
    ("payload", "error_context"),
    ("payload", "step", "output"),
)
_OPTIONAL_IN_REGISTRATION = (("work_types",), ("limits",))
_REGISTRATION = msgspec.json.Decoder(Registration)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode

_UUID = re.compile(UUID_PATTERN)
_TRACE = re.compile(TRACE_PATTERN)
PATTERN_FORM = "expected a UUID"
"""What every pattern in `types` asks for."""
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def decode(data: bytes, limits: Limits = LIMITS, *, versions: Collection[str] = SUPPORTED) -> Envelope[Payload]:
    """The message in `data`, checked whole; raises `InvalidMessage` or `UnsupportedVersion`."""
    return interpret(parse(data, limits), data, versions)


def parse(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """Pass the guard: the JSON object in `data`, strict and bounded but of any shape."""
    try:
        tree = guard.check(data, limits)
    except RemoteProtocolError as error:
        raise InvalidMessage(error.what, error.field, stage=error.stage) from None
    if type(tree) is not dict:
        raise InvalidMessage("expected a JSON object", stage=Stage.SHAPE)
    return tree


def interpret(tree: dict[str, Any], data: bytes, versions: Collection[str] = SUPPORTED) -> Envelope[Payload]:
    """The message in `data`, which `parse` turned into `tree`: its version, shape and meaning."""
    version = tree.get("protocol_version")
    if version not in versions and type(version) is str:
        if _VERSION.fullmatch(version):
            raise UnsupportedVersion((version,), versions, subject=_subject(tree), about=correlation(tree))
        what = "expected a version such as 1.0"
        raise InvalidMessage(what, "protocol_version", stage=Stage.SHAPE, about=correlation(tree))
    kind = tree.get("type")
    decoder = DECODERS.get(kind) if type(kind) is str else None  # type: ignore[call-overload]
    if decoder is None:
        what = f"expected one of {', '.join(DECODERS)}" if "type" in tree else "missing required field"
        raise InvalidMessage(what, "type", stage=Stage.SHAPE, about=correlation(tree))
    try:
        envelope = decoder.decode(_without_nulls(tree, data, _OPTIONAL))
    except msgspec.ValidationError as error:
        what, field = explain(error, forms=PATTERN_FORM)
        raise InvalidMessage(what, field, stage=Stage.SHAPE, about=correlation(tree)) from None
    fault = contradiction(envelope.payload)
    if fault is not None:
        raise InvalidMessage(fault[1], f"payload.{fault[0]}", about=correlation(tree))
    try:
        return _canonical(envelope)
    except OverflowError:  # the first or the last day of the calendar, in a zone where it is the day outside
        what = "a time that no calendar has in UTC"
        raise InvalidMessage(what, "timestamp", stage=Stage.MEANING, about=correlation(tree)) from None


def envelope(
    payload: Body,
    stamp: Stamp,
    about: Correlation,
    *,
    from_agent: str,
    to_agent: str,
    protocol_version: str = PROTOCOL_VERSION,
    x_custom_fields: dict[str, Any] | None = None,
) -> Envelope[Body]:
    """Wrap a payload. The type follows from the payload and the time is written in UTC (all-D2)."""
    return Envelope(
        protocol_version=protocol_version,
        message_id=stamp.message_id,
        from_agent=from_agent,
        to_agent=to_agent,
        timestamp=stamp.timestamp.astimezone(UTC),
        trace_id=about.trace_id,
        request_id=about.request_id,
        type=TYPE_OF[type(payload)],
        payload=payload,
        x_custom_fields=x_custom_fields or {},
    )


def encode(message: Envelope[Payload]) -> bytes:
    """The bytes of a message of ours."""
    return _encode(message)


def reissue(data: bytes, replaced: Mapping[str, object], custom: Mapping[str, object] | None = None) -> bytes:
    """`data` again, with some envelope fields replaced and some custom fields set; all else stays as it came.

    `data` has passed `decode` before. A custom field whose value is None is removed.
    """
    fields: dict[str, object] = dict(_FIELDS.decode(data))
    fields.update(replaced)
    if custom:
        present = msgspec.json.decode(cast(msgspec.Raw, fields.get("x_custom_fields", msgspec.Raw(b"{}")))) or {}
        merged = {**present, **custom}
        fields["x_custom_fields"] = {name: value for name, value in merged.items() if value is not None}
    return _encode(fields)


def decode_registration(data: bytes, limits: Limits = LIMITS) -> Registration:
    """The body of `POST /api/agent/register` (D9)."""
    tree = parse(data, limits)
    try:
        return _REGISTRATION.decode(_without_nulls(tree, data, _OPTIONAL_IN_REGISTRATION))
    except msgspec.ValidationError as error:
        what, field = explain(error, forms=PATTERN_FORM)
        raise InvalidMessage(what, field, stage=Stage.SHAPE) from None


def correlation(tree: Mapping[str, Any]) -> Correlation | None:
    """The ids that an answer copies (D11). One that is no good is stood in for by the other, if that can be one. A
    refusal also names the message, where that has an id."""
    request, trace, message = (
        value.lower() if isinstance(value := tree.get(name), str) and form.match(value) else None
        for name, form in (("request_id", _UUID), ("trace_id", _TRACE), ("message_id", _UUID))
    )
    if request is None and trace is not None and _UUID.match(trace):
        request = trace
    return None if request is None else Correlation(request, trace or request, message)


def contradiction(payload: Payload) -> tuple[str, str] | None:
    """The field whose meaning is wrong, and why."""
    if type(payload) is WorkStatus:
        step = payload.step
        if step is None:
            return None
        fault = chunks.fault(step.output, step.output_chunk)
        return (f"step.{fault[0]}", fault[1]) if fault else None
    if type(payload) is WorkResult:
        if (payload.status == "success") != (payload.exit_code == 0):
            return "exit_code", f"status {payload.status} contradicts exit code {payload.exit_code}"
        return chunks.fault(payload.output, payload.output_chunk, total_required=True)
    return None


def _without_nulls(tree: dict[str, Any], data: bytes, optional: Collection[tuple[str, ...]]) -> bytes:
    """`data` without the optional fields that are null: many clients write every field. They leave `tree`, too."""
    if b"null" not in data:
        return data
    for path in optional:
        place: Any = tree
        for name in path[:-1]:
            place = place.get(name) if type(place) is dict else None
        if type(place) is dict and place.get(path[-1], place) is None:
            del place[path[-1]]
            data = _encode(tree)
    return data


def _canonical(message: Envelope[Payload]) -> Envelope[Payload]:
    """Ids in lower case and the time in UTC, so that equal things compare equal. Most messages already are."""
    ids = message.message_id + message.trace_id + message.request_id
    payload = message.payload
    task_id = "" if type(payload) is ErrorPayload else payload.task_id  # type: ignore[union-attr]
    if message.timestamp.tzinfo is UTC and ids == ids.lower() and task_id == task_id.lower():
        return message
    if task_id:
        payload = msgspec.structs.replace(payload, task_id=task_id.lower())
    return msgspec.structs.replace(
        message,
        message_id=message.message_id.lower(),
        trace_id=message.trace_id.lower(),
        request_id=message.request_id.lower(),
        timestamp=message.timestamp.astimezone(UTC),
        payload=payload,
    )


def _subject(tree: Mapping[str, Any]) -> str:
    """The version that a message of another version asked for, as far as it can be read."""
    payload = tree.get("payload")
    work_type = payload.get("work_type") if isinstance(payload, dict) else None
    return work_type if isinstance(work_type, str) else str(tree.get("type", ""))


def negotiate(
    theirs: Iterable[str],
    ours: Iterable[str] = SUPPORTED,
    *,
    negotiation: Literal["lowest", "highest"] = "lowest",
) -> str:
    """The version to speak from now on; raises `UnsupportedVersion` where there is none in common.

    Versions compare as numbers, so that 1.10 is above 1.9. A text that is not a version has no common version.
    """
    offered, supported = set(theirs), tuple(ours)
    common = sorted((version for version in supported if version in offered), key=_rank)
    if not common:
        raise UnsupportedVersion(sorted(offered), sorted(supported, key=_rank), subject="register")
    return common[0] if negotiation == "lowest" else common[-1]


def _rank(version: str) -> tuple[int, int]:
    parts = _VERSION.fullmatch(version)
    if parts is None:
        raise ValueError(f"not a protocol version of ours: {version!r}")
    return int(parts[1]), int(parts[2])
