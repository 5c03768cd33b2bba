"""What a token must say, once its signature has been checked (D3, D4, D5).

The rules, in the order in which they are applied; each refusal is AUTH_FAILED and names its rule:

    signature     before this module, against a fixed map of keys, the algorithm bound to the key
    expiration    exp and iat around now, with 60 seconds of leeway; at most 24 hours between them
    audience      aud is the message's target agent: one name, never a list
    capability    the capabilities that the intent requires are all there
    issuer        iss is a_domain-auth-service
    subject       sub and domain are the source agent's (all-D1)

A claim that is missing or of another type is refused before any rule. `nbf` is honoured where it is present.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.types import Agent, Date, Id, Name, Record

ISSUER = "a_domain-auth-service"
LEEWAY_SECONDS = 60
DEFAULT_TTL = 3600
LONGEST_TTL = 24 * 3600
SECRET_BYTES = 32
"""The shortest secret for HS256 (D4)."""


class Claims(Record, frozen=True, kw_only=True):
    sub: Id
    iss: str
    aud: Id
    exp: int
    iat: int
    capabilities: tuple[Name, ...]
    domain: Name
    nbf: int | None = None
    jti: str | None = None


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


def read(payload: Any) -> Claims | Refusal:
    """The claims in the payload of a token whose signature is good."""
    try:
        return msgspec.convert(payload, Claims)
    except msgspec.ValidationError as error:
        return _failed("claims", f"the token's claims do not fit: {error}")


def check(
    claims: Claims,
    source: Agent,
    audience: str,
    now: datetime,
    *,
    required: Collection[str] = (),
    issuer: str = ISSUER,
    leeway: int = LEEWAY_SECONDS,
) -> Refusal | None:
    """Why a token does not cover a message of `source` to `audience`, or None."""
    at = now.timestamp()
    missing = sorted(set(required) - set(claims.capabilities))
    if claims.exp <= at - leeway:
        return _failed("expiration", "the token has expired")
    if claims.iat > at + leeway or (claims.nbf is not None and claims.nbf > at + leeway):
        return _failed("expiration", "the token is not valid yet")
    if not 0 < claims.exp - claims.iat <= LONGEST_TTL:
        return _failed("expiration", f"the token is made for longer than {LONGEST_TTL} seconds, or for no time")
    if claims.aud != audience:
        return _failed("audience", "the token is for another agent")
    if missing:
        return _failed("capability", f"the token lacks {', '.join(missing)}", missing=missing)
    if claims.iss != issuer:
        return _failed("issuer", "the token is from another issuer")
    if (claims.sub, claims.domain) != (source.agent_id, source.domain):
        return _failed("subject", "the token is another agent's")
    return None


def granted(requested: Collection[str], allowed: Collection[str]) -> tuple[str, ...] | Refusal:
    """What a new token may say: what was asked and is allowed (D5). Whoever asks for nothing gets a token that can do
    nothing but talk to who asks for no capability."""
    both = tuple(dict.fromkeys(name for name in requested if name in set(allowed)))
    if requested and not both:
        return _failed("capability", "none of the requested capabilities is granted to this agent")
    return both


def _failed(rule: str, what: str, **details: Any) -> Refusal:
    return Refusal(code=Code.AUTH_FAILED, message=what, details={"rule": rule, **details})
