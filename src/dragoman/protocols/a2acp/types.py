"""The one form of every A2ACP message, and the numbers of the document.

Shape is declared once and msgspec enforces it, formats included (D1). A field is required where the document's schema
says so, and where D2 adds to it:

    message_type   intent      payload    payload.error
    -------------  ----------  ---------  -------------
    request        required    required   -
    response       optional    optional   -
    event          optional    optional   -
    error          optional    required   required

Unknown fields are accepted and kept (all-D6), not in these values but in the JSON object that they came from.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Struct

PROTOCOL = "a2acp"
SUBPROTOCOL = "a2acp.v1"
PROTOCOL_VERSION = "1.0"
BROKER_ID = "protocol-broker-agent"
"""The broker's own name, as the document's error example has it."""

# Sizes are decimal (D10).
MESSAGE_BYTES = 1_000_000
PAYLOAD_BYTES = 900_000

HANDSHAKE_SECONDS = 5.0
ROUTING_SECONDS = 30.0
SANDBOX_SECONDS = 60.0

# `$` alone would let a final newline through, and `\d` digits of other scripts.
UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$(?!\\n)"
PROTOCOL_PATTERN = "^[0-9]{1,9}\\.[0-9]{1,9}$(?!\\n)"
SCHEMA_PATTERN = "^[0-9]{1,9}(?:\\.[0-9]{1,9}){0,2}$(?!\\n)"
SEMVER_PATTERN = "^[0-9]{1,9}\\.[0-9]{1,9}\\.[0-9]{1,9}$(?!\\n)"

Uuid: TypeAlias = Annotated[str, Meta(pattern=UUID_PATTERN)]
ProtocolVersion: TypeAlias = Annotated[str, Meta(pattern=PROTOCOL_PATTERN)]
SemVer: TypeAlias = Annotated[str, Meta(pattern=SEMVER_PATTERN)]
SchemaVersion: TypeAlias = Annotated[str, Meta(pattern=SCHEMA_PATTERN)]
"""Of a capability, which is versioned apart from its agent; the document's own example is "1.0"."""
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Date: TypeAlias = Annotated[datetime, Meta(tz=True)]
Seconds: TypeAlias = Annotated[int, Meta(ge=0, le=10**9)] | Annotated[float, Meta(ge=0, le=10**9)]
Encryption: TypeAlias = Literal["none", "aes256"]


class MessageType(enum.StrEnum):
    REQUEST = "request"
    RESPONSE = "response"
    EVENT = "event"
    ERROR = "error"


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any part of a message. An optional field that is absent is left out."""


class Agent(Record, frozen=True, kw_only=True):
    """The source or the target of a message."""

    agent_id: Id
    domain: Name
    version: SemVer


UNKNOWN_AGENT = Agent(agent_id="unknown", domain="unknown", version="0.0.0")
"""The target of a refusal whose sender cannot be read."""


class Security(Record, frozen=True, kw_only=True, omit_defaults=False):
    """The credential never shows in a log, however this value gets there (all-D4)."""

    auth_token: Annotated[str, Meta(min_length=1, max_length=16_384)]
    encryption: Encryption = "none"

    def __repr__(self) -> str:
        return f"Security(auth_token=…, encryption={self.encryption!r})"

    def __rich_repr__(self) -> Any:
        yield "encryption", self.encryption


class Message(Record, frozen=True, kw_only=True):
    """`payload` stays the JSON object that it came as; `intents` and `errors` read it where its form is known.

    Two fields of a response are Dragoman's: `value_in` names the field of the payload that holds the returned value
    (empty: none was returned; null: the payload itself is the value), `usage` is what the work used up. Other programs
    may write anything there.
    """

    protocol_version: ProtocolVersion
    message_id: Uuid
    timestamp: Date
    source_agent: Agent
    target_agent: Agent
    message_type: MessageType
    security: Security
    intent: Name | None = None
    payload: dict[str, Any] | None = None
    value_in: Any = UNSET
    usage: Any = UNSET

    @property
    def correlation_id(self) -> str | None:
        """Links an answer with its request: in the payload, or in its error (D9)."""
        payload = self.payload or {}
        inner = payload.get("error")
        own = payload.get("correlation_id")
        return own if own is not None else inner.get("correlation_id") if isinstance(inner, dict) else None

    @property
    def contract_id(self) -> str | None:
        """The contract that a message refers to (D8)."""
        return None if self.payload is None else self.payload.get("contract_id")

    @property
    def thread(self) -> str:
        """The correlation id of an answer to this message."""
        return self.correlation_id or self.message_id


ENVELOPE = frozenset(Message.__struct_fields__)
"""The names of a message's fields; a message may have more (all-D6)."""


class Stamp(NamedTuple):
    """What a pure layer cannot make: a fresh id (a UUID of version 4), the time, and a token."""

    id: str
    timestamp: datetime
    token: str


#: The protocol's own fields of a payload, beside those that the agents agreed on.
RESERVED: frozenset[str] = frozenset({"contract_id", "collaboration_id", "correlation_id", "traceparent"})


# -- the claims of a token, and how an agent asks for one (D3, D4, D5). `security.jwt` verifies it.

DEFAULT_TTL = 3600
LONGEST_TTL = 24 * 3600
MOST_GRANTED = 64
"""Capabilities in one token: it travels with every message."""
Claim: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class Claims(Record, frozen=True, kw_only=True):
    """Unknown claims are no errors (all-D6), and are not kept."""

    sub: Claim
    iss: Claim
    aud: Claim
    exp: int
    iat: int
    domain: Claim
    capabilities: Annotated[tuple[Claim, ...], Meta(max_length=MOST_GRANTED)]
    nbf: int | None = None
    jti: Claim | None = None


class TokenRequest(Record, frozen=True, kw_only=True):
    """The body of POST /auth/token."""

    agent_id: Id
    target_agent_id: Id
    requested_capabilities: tuple[Name, ...] = ()
    ttl: Annotated[int, Meta(ge=1, le=LONGEST_TTL)] = DEFAULT_TTL


class TokenGrant(Record, frozen=True, kw_only=True):
    """Its answer."""

    token: str
    expires_at: Date
