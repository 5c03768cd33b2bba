"""What a token says, and how one is asked for (D3, D4, D5). Whether it is good is judged where the keys are,
and what it grants (`security.jwt`).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dragoman.protocols.a2acp.types import Date, Id, Name, Record

DEFAULT_TTL = 3600
LONGEST_TTL = 24 * 3600


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
