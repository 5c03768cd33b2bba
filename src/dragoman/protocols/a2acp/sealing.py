"""What an encrypted payload looks like, and what its encryption is bound to (D12).

    payload = {"alg": "A256GCM", "kid": …, "nonce": …, "ciphertext": …}    base64url without padding

and beside these, in clear, the protocol's own fields: contract_id, correlation_id, traceparent. The plaintext is the
JSON of the payload. The associated data binds the ciphertext to its envelope: source, target, message, intent, contract
and key. Moved to another envelope it does not open.

    shared secret    X25519, an ephemeral pair of each side, public keys exchanged in the handshake
    key              HKDF-SHA256(secret, salt, info), 32 bytes, one for each collaboration and `kid`
    nonce            12 bytes, never twice under one key: after `KEY_MESSAGES` messages the key is rotated

This module has the inputs of these functions; `security.collaboration` has the functions and the keys.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from dragoman.protocols.a2acp.types import RESERVED, Id, Message, Record
from dragoman.wire.misfit import explain

ALGORITHM = "A256GCM"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
KEY_MESSAGES = 100_000

Nonce: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{16}$(?!\\n)")]
Ciphertext: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{22,}$(?!\\n)")]
PublicKey: TypeAlias = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{43}$(?!\\n)")]
"""32 bytes of X25519."""

_encode = msgspec.json.Encoder().encode


class KeyGrant(Record, frozen=True, kw_only=True):
    """How one agent gets the key of a collaboration. In mode `end-to-end`, `public_key` is the other agent's, and the
    key is derived from it; otherwise it is the broker's, and the derived key opens `wrapped`."""

    kid: Id
    public_key: PublicKey
    nonce: Nonce | None = None
    wrapped: Ciphertext | None = None


class Sealed(Record, frozen=True, kw_only=True):
    alg: Literal["A256GCM"]
    kid: Id
    nonce: Nonce
    ciphertext: Ciphertext
    contract_id: Id | None = None
    correlation_id: Id | None = None
    traceparent: str | None = None


BESIDE = RESERVED | frozenset(Sealed.__struct_fields__)
"""The fields that an encrypted payload may have."""
#: What a pattern above means, by the field's name.
FORMS: dict[str, str] = {
    "nonce": "expected 12 bytes as base64url without padding",
    "ciphertext": "expected at least 16 bytes as base64url without padding",
}


def is_in_clear(payload: Mapping[str, Any]) -> bool:
    """Whether a payload shows content: it has no ciphertext, or other fields beside it."""
    return "ciphertext" not in payload or not BESIDE.issuperset(payload)


def misshapen(payload: Mapping[str, Any]) -> tuple[str, str] | None:
    """The field of an encrypted payload that is not of the form above, and why; None if all are. Never any content."""
    try:
        msgspec.convert(payload, Sealed)
    except msgspec.ValidationError as error:
        what, field = explain(error, "payload", FORMS)
        return field or "payload", what
    return None


def associated_data(message: Message, kid: str) -> bytes:
    """The associated data of a message under a key. Protocol version and credential are not in it: the broker changes
    both on the way."""
    return bound(
        kid,
        message_id=message.message_id.lower(),
        source=message.source_agent.agent_id,
        target=message.target_agent.agent_id,
        kind=message.message_type.value,
        intent=message.intent,
        contract_id=message.contract_id,
        correlation_id=message.correlation_id,
    )


def bound(
    kid: str,
    *,
    message_id: str,
    source: str,
    target: str,
    kind: str,
    intent: str | None,
    contract_id: str | None,
    correlation_id: str | None,
) -> bytes:
    """The same, of a message that is still being made."""
    return _encode(["a2acp", ALGORITHM, kid, message_id, source, target, kind, intent, contract_id, correlation_id])


def key_salt(one: PublicKey, other: PublicKey) -> bytes:
    """HKDF's salt: both public keys, as they stood in the handshake, in the order of their letters."""
    return hashlib.sha256(_encode(["a2acp", *sorted((one, other))])).digest()


def wrap_data(collaboration_id: str, kid: str, receiver_id: str) -> bytes:
    """What a wrapped key is bound to."""
    return _encode(["a2acp", "wrap", collaboration_id, kid, receiver_id])


def key_info(collaboration_id: str, kid: str, source_id: str, target_id: str) -> bytes:
    """HKDF's info: whose key this is, and for what."""
    return _encode(["a2acp", ALGORITHM, collaboration_id, kid, source_id, target_id])
