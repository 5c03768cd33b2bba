"""Why a credential is refused: one table, and the value that is returned.

A refusal is no exception: an expired token is an ordinary result, which the caller must check. Its sentence is fixed,
says what to do next, and never holds the token, a claim or a key. In a2acp each of them is AUTH_FAILED.
"""

from __future__ import annotations

import enum

import msgspec

from dragoman.wire.errors import with_next


class Reason(enum.StrEnum):
    SIZE = "size"
    FORM = "form"
    JSON = "json"
    TYPE = "type"
    EMBEDDED_KEY = "embedded_key"
    CRITICAL = "critical"
    KEY = "key"
    ALGORITHM = "algorithm"
    SIGNATURE = "signature"
    CLAIM = "claim"
    ISSUER = "issuer"
    AUDIENCE = "audience"
    SUBJECT = "subject"
    DOMAIN = "domain"
    EXPIRED = "expired"
    NOT_YET = "not_yet"
    LIFETIME = "lifetime"
    REVOKED = "revoked"
    CAPABILITY = "capability"
    TOO_MANY = "too_many"


_AGAIN = "ask /auth/token for a new one"

SENTENCES = {
    Reason.SIZE: ("the token is too long", "send it as /auth/token gave it"),
    Reason.FORM: ("this is not a signed token of three parts", "send it as /auth/token gave it"),
    Reason.JSON: ("the token holds no strict JSON object with each name once", "send it as /auth/token gave it"),
    Reason.TYPE: ("the token's typ is not JWT", "send an access token of /auth/token"),
    Reason.EMBEDDED_KEY: ("the token brings a key or the address of one", "keys are never taken from a token"),
    Reason.CRITICAL: ("the token demands an extension that is not known here", "leave crit and b64 out"),
    Reason.KEY: ("no key of that kid is in use here (any more)", _AGAIN),
    Reason.ALGORITHM: ("the token's algorithm is not the one its key is for", "send it as /auth/token gave it"),
    Reason.SIGNATURE: ("the signature does not fit", _AGAIN),
    Reason.CLAIM: ("a required claim is missing or is not what it must be", _AGAIN),
    Reason.ISSUER: ("the token is from another issuer", _AGAIN),
    Reason.AUDIENCE: (
        "the token is not for this receiver alone",
        "ask /auth/token with target_agent_id = the receiver",
    ),
    Reason.SUBJECT: ("the token is another agent's", "send your own"),
    Reason.DOMAIN: ("the token is for another domain than the sender's", "send source_agent.domain as registered"),
    Reason.EXPIRED: ("the token is expired", _AGAIN),
    Reason.NOT_YET: ("the token is not valid yet", "check both clocks, or wait"),
    Reason.LIFETIME: ("a token lives from 1 second to 24 hours", "ask for a ttl in between"),
    Reason.REVOKED: ("the token was revoked", f"{_AGAIN}, if you still may"),
    Reason.CAPABILITY: (
        "none of the capabilities asked for is allowed",
        "let the operator allow them (agent add --capability)",
    ),
    Reason.TOO_MANY: (
        "these are more capabilities than fit in one token (at most 64)",
        "ask for those that this receiver requires",
    ),
}


class Refusal(msgspec.Struct, frozen=True):
    """`field` names the claim, header or argument; `missing` the capabilities that were needed, where known."""

    reason: Reason
    field: str | None = None
    missing: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return with_next(*SENTENCES[self.reason])

    @property
    def next(self) -> str:
        """What to do next: `message` ends with it."""
        return SENTENCES[self.reason][1]

    def __str__(self) -> str:
        return f"{self.message} ({self.field})" if self.field else self.message
