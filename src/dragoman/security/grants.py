"""What a token allows, and which tokens count no more.

A capability is a name, by habit with a colon: `read:datasets`. It is held or not: there are no wildcards, because
whoever reads a list of grants must see what it grants.

    asked for                          granted (a2acp-D5)
    ---------------------------------  ---------------------------------------------
    nothing                            nothing: good for discovery and handshakes
    some, a part of them allowed       that part, in the order asked
    some, none of them allowed         refused

Revocations are a value: which tokens by their id, and from which agents everything issued until a moment. Entries
that no living token can match are dropped, so the value stays small.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from dragoman.security.keys import LEEWAY, LONGEST_TTL
from dragoman.security.refusals import Reason, Refusal

MOST = 64
"""Capabilities in one token: it travels with every message."""


def grant(asked: Sequence[str], allowed: Collection[str]) -> tuple[str, ...] | Refusal:
    """The capabilities that are both asked for and allowed."""
    granted = tuple(word for word in dict.fromkeys(asked) if word in allowed)
    if asked and not granted:
        return Refusal(Reason.CAPABILITY, "requested_capabilities", tuple(dict.fromkeys(asked))[:MOST])
    if len(granted) > MOST:
        return Refusal(Reason.TOO_MANY, "requested_capabilities")
    return granted


def missing(required: Collection[str], held: Collection[str]) -> tuple[str, ...]:
    """What an intent requires and a token does not hold, in a fixed order."""
    return tuple(sorted(set(required) - set(held)))


class Revocations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens that count no more, by id (with their expiry) or by agent (everything issued until then)."""

    tokens: Mapping[str, int] = {}
    agents: Mapping[str, int] = {}

    def revoke_token(self, jti: str, expires_at: int) -> Revocations:
        return msgspec.structs.replace(self, tokens={**self.tokens, jti: expires_at})

    def revoke_agent(self, agent: str, now: int) -> Revocations:
        """Everything the agent holds. A second is the grain of `iat`: what is issued within this one counts as
        held, so an agent that fetches a token in the very second of its revocation fetches another in the next."""
        return msgspec.structs.replace(self, agents={**self.agents, agent: max(now, self.agents.get(agent, 0))})

    def cover(self, *, subject: str, jti: str | None, issued_at: int) -> bool:
        return (jti is not None and jti in self.tokens) or issued_at <= self.agents.get(subject, -1)

    def pruned(self, now: int) -> Revocations:
        """Without what can match no token that would be accepted otherwise."""
        over = now - LEEWAY
        return Revocations(
            tokens={jti: expires for jti, expires in self.tokens.items() if expires > over},
            agents={agent: until for agent, until in self.agents.items() if until + LONGEST_TTL > over - LEEWAY},
        )


NONE_REVOKED = Revocations()
