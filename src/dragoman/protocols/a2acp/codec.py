"""Bytes to A2ACP values and back.

Decoding checks in the order of all-D3: size, depth, strict JSON, the size of the payload, version, shape, meaning. Each
refusal names its field and, where they can be read, the ids that an answer needs.

Values are canonical: ids in lower case, times in UTC, so that equal messages compare equal. `read` also gives the JSON
object as it came, with the fields that the protocol does not know (all-D6).

Versions (D11):

    protocol           same major      understood as it is, whatever the minor
                       next to ours    translated where a translation is registered, else SCHEMA_MISMATCH
                       further away    SCHEMA_MISMATCH
    agent, capability  same major      compatible
                       another         SCHEMA_MISMATCH when the contract is validated

A translation takes a message's JSON object of one major and gives that of the other. Messages come in as the sender's
major and leave as the receiver's, so an agent one major behind needs both directions. There is no major but 1 yet, so
the table is empty: the engineer who makes 2 writes the two rows.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

import msgspec

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.errors import A2acpError, Code, ErrorBody
from dragoman.protocols.a2acp.sealing import FORMS, misshapen
from dragoman.protocols.a2acp.types import (
    MESSAGE_BYTES,
    PAYLOAD_BYTES,
    PROTOCOL_VERSION,
    UUID_PATTERN,
    Agent,
    Encryption,
    Id,
    Message,
    MessageType,
    Record,
    Security,
    Stamp,
)
from dragoman.wire import guard
from dragoman.wire.errors import LocalProtocolError, RemoteProtocolError, Stage, with_next
from dragoman.wire.guard import Limits
from dragoman.wire.misfit import explain

T = TypeVar("T")
Translation: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
Translations: TypeAlias = Mapping[tuple[int, int], Translation]

TRANSLATIONS: Translations = {}

LIMITS = Limits(bytes=MESSAGE_BYTES, depth=64)

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="sorted").encode
_MAJOR = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9}){0,2}")
_UUID = re.compile(UUID_PATTERN)
_VERSION_4 = re.compile("^.{14}4.{21}$(?!\\n)")
_TOKEN = ("security", "security.auth_token")
#: The meaning of a pattern in `types` or `sealing`, by the last name of the field's path.
_FORMS: dict[str, str] = {
    "": "is not of the form it has to have",
    "message_id": "expected a UUID",
    "protocol_version": "expected a version MAJOR.MINOR",
    "version": "expected a version MAJOR.MINOR.PATCH",
    "target_version": "expected a version MAJOR.MINOR.PATCH",
    "capability_version": "expected a version like 1, 1.0 or 1.0.0",
    **FORMS,
    "wrapped": "expected at least 16 bytes as base64url without padding",
    "public_key": "expected 32 bytes as base64url without padding",
}


def decode(data: bytes, limits: Limits = LIMITS, translations: Translations = TRANSLATIONS) -> Message:
    """The message in `data`, checked whole; raises `A2acpError`."""
    return interpret(parse(data, limits), translations)


def read(data: bytes, *, trust_label: bool = False) -> tuple[Message, dict[str, Any]]:
    """The message in `data`, and the JSON object that it came as, in our major; raises `A2acpError`."""
    tree = parse(data)
    if tree.get("protocol_version") != PROTOCOL_VERSION:
        tree = understood(tree)
    return interpret(tree, trust_label=trust_label), tree


def parse(data: bytes, limits: Limits = LIMITS) -> dict[str, Any]:
    """The JSON object in `data`, strict and bounded but of any shape."""
    try:
        tree = guard.check(data, limits)
    except RemoteProtocolError as error:
        details = {"limit": limits.bytes, "size": len(data)} if error.stage is Stage.SIZE else None
        raise A2acpError(error.what, stage=error.stage, field=error.field, details=details) from None
    if type(tree) is not dict:
        raise A2acpError("expected a JSON object", stage=Stage.SHAPE)
    if len(data) > PAYLOAD_BYTES and "payload" in tree:
        size = len(_FIELDS.decode(data)["payload"])
        if size > PAYLOAD_BYTES:
            what = f"payload of {size} bytes exceeds the limit of {PAYLOAD_BYTES}"
            raise refused(tree, what, stage=Stage.SIZE, field="payload", details={"limit": PAYLOAD_BYTES, "size": size})
    return tree


def interpret(tree: dict[str, Any], translations: Translations = TRANSLATIONS, *, trust_label: bool = False) -> Message:
    """A JSON object as a message: its version, its shape and its meaning. `trust_label`: whether a payload labelled
    aes256 is sealed is not looked at, since that is judged with its contract (`contracts.judge`, D13)."""
    if tree.get("protocol_version") != PROTOCOL_VERSION:
        tree = understood(tree, translations)
    try:
        message = _shaped(tree, Message, "")
        _check_payload(message)
        flaw = misshapen(message.payload or {}) if not trust_label and _claims_seal(message) else None
        if flaw is not None:
            raise _Misfit(flaw[1], flaw[0], Stage.SHAPE)
        return msgspec.structs.replace(
            message, message_id=message.message_id.lower(), timestamp=message.timestamp.astimezone(UTC)
        )
    except _Misfit as misfit:
        if misfit.field in _TOKEN and _lacks_token(tree):
            raise refused(
                tree, "no token", stage=misfit.stage, field="security.auth_token", code=Code.AUTH_FAILED,
                details={"rule": "token", "reason": "missing"}, next="get one at /auth/token",
            ) from None  # fmt: skip
        raise refused(tree, misfit.what, stage=misfit.stage, field=misfit.field, next=misfit.next) from None
    except OverflowError:
        what = "a time outside of the calendar in UTC"
        raise refused(tree, what, stage=Stage.MEANING, field="timestamp") from None


def message(
    kind: MessageType,
    stamp: Stamp,
    *,
    source: Agent,
    target: Agent,
    intent: str | None = None,
    payload: Mapping[str, Any] | None = None,
    encryption: Encryption = "none",
    correlation_id: str | None = None,
) -> Message:
    """A message of this side; a `correlation_id` goes where it belongs (D9)."""
    body = None if payload is None else dict(payload)
    if correlation_id is not None:
        body = {**(body or {}), "correlation_id": correlation_id}
        if kind is MessageType.ERROR and isinstance(body.get("error"), dict):
            body["error"] = {**body["error"], "correlation_id": correlation_id}
    if not _UUID.match(stamp.id) or not _VERSION_4.match(stamp.id):
        raise LocalProtocolError("expected a UUID of version 4", field="message_id")
    made = Message(
        protocol_version=PROTOCOL_VERSION,
        message_id=stamp.id.lower(),
        timestamp=stamp.timestamp.astimezone(UTC),
        source_agent=source,
        target_agent=target,
        message_type=kind,
        intent=intent,
        payload=body,
        security=Security(auth_token=stamp.token, encryption=encryption),
    )
    try:
        _check_payload(_shaped(msgspec.to_builtins(made), Message, ""))
        flaw = misshapen(body or {}) if _claims_seal(made) else None
        if flaw is not None:
            raise _Misfit(flaw[1], flaw[0], Stage.SHAPE)
    except _Misfit as misfit:
        raise LocalProtocolError(with_next(misfit.what, misfit.next), field=misfit.field) from None
    return made


def answer(
    asked: Message, stamp: Stamp, payload: Mapping[str, Any], *, source: Agent, encryption: Encryption = "none"
) -> Message:
    """The response to a request: same intent, same thread, same contract."""
    body = dict(payload)
    if asked.contract_id is not None:
        body.setdefault("contract_id", asked.contract_id)
    return message(
        MessageType.RESPONSE,
        stamp,
        source=source,
        target=asked.source_agent,
        intent=asked.intent,
        payload=body,
        encryption=encryption,
        correlation_id=asked.thread,
    )


def encode(message: Message) -> bytes:
    """The bytes of a message of this side; raises `LocalProtocolError` where it is too large."""
    data = _encode(message)
    if len(data) > PAYLOAD_BYTES:
        size = len(_encode(message.payload))
        if size > PAYLOAD_BYTES:
            what = f"payload of {size} bytes exceeds the limit of {PAYLOAD_BYTES}"
            raise LocalProtocolError(what, field="payload")
    if len(data) > MESSAGE_BYTES:
        raise LocalProtocolError(f"a message of {len(data)} bytes exceeds the limit of {MESSAGE_BYTES}")
    return data


def fingerprint(tree: Mapping[str, Any]) -> bytes:
    """A digest of a message's content, whatever the order of its keys, its time and its credential."""
    names = ("source_agent", "target_agent", "message_type", "intent", "payload")
    return hashlib.sha256(_canonical([tree.get(name) for name in names])).digest()


def error(message: Message) -> ErrorBody:
    """The error of an error message; `interpret` has checked it."""
    return msgspec.convert((message.payload or {})["error"], ErrorBody)


def identity(tree: Mapping[str, Any]) -> str | None:
    """The id of a message, if it is a good one."""
    value = tree.get("message_id")
    return value.lower() if isinstance(value, str) and _UUID.match(value) else None


def thread(tree: Mapping[str, Any]) -> str | None:
    """The correlation id for an answer to a broken message, as far as it can be read."""
    payload = tree.get("payload")
    places = [payload, payload.get("error")] if isinstance(payload, dict) else []
    for place in places:
        value = place.get("correlation_id") if isinstance(place, dict) else None
        if isinstance(value, str) and 0 < len(value) <= 200:
            return value
    return identity(tree)


def sender(tree: Mapping[str, Any]) -> Agent | None:
    """The source of a broken message, if it can be read."""
    try:
        return msgspec.convert(tree.get("source_agent"), Agent)
    except msgspec.ValidationError:
        return None


def refused(
    tree: Mapping[str, Any], what: str, *, stage: Stage, field: str | None = None, code: Code = Code.SCHEMA_MISMATCH,
    details: dict[str, Any] | None = None, after: float | None = None, next: str = "",
) -> A2acpError:  # fmt: skip
    """The refusal of a message, with the ids that its answer needs."""
    return A2acpError(
        what, stage=stage, field=field, code=code, about=identity(tree), thread=thread(tree), sender=sender(tree),
        is_about_error=tree.get("message_type") == MessageType.ERROR.value, details=details, after=after,
        next=next,
    )  # fmt: skip


# -- shape and meaning -------------------------------------------------------------------------------------------


class _Misfit(Exception):
    """A field does not fit: the peer's fault in decoding, ours in encoding."""

    def __init__(self, what: str, field: str | None, stage: Stage, next: str = "") -> None:
        super().__init__(what)
        self.what, self.field, self.stage, self.next = what, field, stage, next


def _shaped(value: Any, kind: type[T], base: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _Misfit(*explain(error, base, _FORMS), Stage.SHAPE) from None


def body(tree: Mapping[str, Any], kind: type[T]) -> T:
    """The body of a request beside the messages; raises `A2acpError`. A null counts as absent."""
    try:
        return _shaped({name: value for name, value in tree.items() if value is not None}, kind, "")
    except _Misfit as misfit:
        raise A2acpError(misfit.what, stage=misfit.stage, field=misfit.field) from None


def _lacks_token(tree: Mapping[str, Any]) -> bool:
    """The document's schema makes `security` optional, its text does not: then authentication fails."""
    security = tree.get("security")
    return security is None or (isinstance(security, dict) and security.get("auth_token") in (None, ""))


def _check_payload(message: Message) -> None:
    kind, payload = message.message_type, message.payload
    if kind is MessageType.REQUEST and message.intent is None:
        raise _Misfit("missing", "intent", Stage.SHAPE, "a request says what is wanted")
    if payload is None:
        if kind in (MessageType.REQUEST, MessageType.ERROR):
            raise _Misfit("missing", "payload", Stage.SHAPE, f"every {kind} has one")
        payload = {}
    _shaped(payload, _Routing, "payload")
    if kind is MessageType.ERROR:
        if "error" not in payload:
            raise _Misfit("missing required field", "payload.error", Stage.SHAPE)
        inner = _shaped(payload["error"], ErrorBody, "payload.error")
        own = payload.get("correlation_id")
        if None not in (own, inner.correlation_id) and own != inner.correlation_id:
            raise _Misfit("contradicts payload.correlation_id", "payload.error.correlation_id", Stage.MEANING)
        return
    if message.intent in intents.INTENTS:
        found = intents.form_of(message)
        if found is None:
            raise _Misfit(f"{message.intent} is never a {kind}", "intent", Stage.MEANING)
        if message.security.encryption != "none":
            raise _Misfit("the broker's own intents travel in clear", "security.encryption", Stage.MEANING)
        asked = _shaped(payload, found[1], "payload")
        if isinstance(asked, intents.Terminate) and asked.collaboration_id is None and asked.contract_id is None:
            raise _Misfit("missing required field", "payload.collaboration_id", Stage.SHAPE)


def _claims_seal(message: Message) -> bool:
    """Whether a message is labelled as encrypted. Errors and the broker's intents travel in clear."""
    in_clear = message.message_type is MessageType.ERROR or message.intent in intents.INTENTS
    return message.security.encryption == "aes256" and not in_clear


class _Routing(Record, frozen=True, kw_only=True):
    """The protocol's own fields of every payload."""

    contract_id: Id | None = None
    correlation_id: Id | None = None


# -- versions


@lru_cache(1024)
def major(version: str) -> int:
    """The first number of a version; raises ValueError where there is none."""
    parts = _MAJOR.fullmatch(version)
    if parts is None:
        raise ValueError(f"not a version: {version!r}")
    return int(parts[1])


def understands(theirs: str, ours: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS) -> bool:
    """Whether a message of their version can become one of ours."""
    there, here = major(theirs), major(ours)
    return there == here or (abs(there - here) == 1 and (there, here) in translations)


def supported(ours: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS) -> list[str]:
    """The majors that can be read, newest first, as `1.x`."""
    here = major(ours)
    return [f"{n}.x" for n in (here + 1, here, here - 1) if n == here or (n, here) in translations]


def translate(
    tree: dict[str, Any], wanted: str = PROTOCOL_VERSION, translations: Translations = TRANSLATIONS
) -> dict[str, Any] | None:
    """A message in the form of another major, itself where it is of that major, or None without a translation."""
    theirs = tree["protocol_version"]
    if not understands(theirs, wanted, translations):
        return None
    if major(theirs) == major(wanted):
        return tree
    return {**translations[major(theirs), major(wanted)](tree), "protocol_version": wanted}


def compatible(wanted: str, actual: str) -> bool:
    """Whether an agent or capability of version `actual` does what was promised as `wanted`."""
    return major(wanted) == major(actual)


def understood(tree: dict[str, Any], translations: Translations = TRANSLATIONS) -> dict[str, Any]:
    """The message in our major. Its version is checked first, since everything else depends on it."""
    version = tree.get("protocol_version")
    if version == PROTOCOL_VERSION:
        return tree
    if not isinstance(version, str) or re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", version) is None:
        return tree  # its shape will be refused
    known = translate(tree, PROTOCOL_VERSION, translations)
    if known is None:
        details = {"supported_versions": supported(translations=translations), "received_version": version}
        what = f"version {version} is not spoken here"
        raise refused(tree, what, stage=Stage.MEANING, field="protocol_version", details=details)
    return known
