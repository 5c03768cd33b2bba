"""A contract: who may ask whom for what, on which terms, for how long.

`collaboration` names the relation of two agents for one intent, `id` the terms in force. A renewal keeps the relation
and replaces the terms; what was on its way under the old ones is honoured for `OVERLAP`, and so is a key after its
rotation. What is over is never brought back.

    active ──renewed──▶ superseded        active ──ended by a party──▶ terminated        active ──time──▶ expired
"""

from __future__ import annotations

import enum

import msgspec

from dragoman.core.ids import MINUTE, AgentId, Instant, QuestionId
from dragoman.core.model.agents import Offer

OVERLAP = MINUTE


class Standing(enum.StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    TERMINATED = "terminated"
    EXPIRED = "expired"


class Party(msgspec.Struct, frozen=True, gc=False):
    agent: AgentId
    domain: str
    version: str


class Secret(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A key of a collaboration. `locked` is the key itself under the hub's master key; without it, only the two agents
    have it. The public keys are what each agent was given it by."""

    kid: str
    locked: str | None = None
    source_key: str | None = None
    target_key: str | None = None


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`offer` is the target's, as it was when they agreed; `handshake` is how they did."""

    id: str
    collaboration: str
    source: Party
    target: Party
    offer: Offer
    created_at: Instant
    expires_at: Instant
    since: Instant
    standing: Standing = Standing.ACTIVE
    by: AgentId | None = None
    reason: str = ""
    encrypted: bool = False
    end_to_end: bool = False
    secret: Secret | None = None
    former: Secret | None = None
    rotated_at: Instant | None = None
    sandbox: str | None = None
    handshake: QuestionId | None = None

    @property
    def intent(self) -> str:
        return self.offer.intent

    @property
    def parties(self) -> tuple[AgentId, AgentId]:
        return self.source.agent, self.target.agent

    def other(self, agent: AgentId) -> AgentId:
        return self.target.agent if agent == self.source.agent else self.source.agent

    def at(self, now: Instant) -> Standing:
        """How it stands now: time ends a contract without anybody's doing."""
        if self.standing is Standing.ACTIVE and now >= self.expires_at:
            return Standing.EXPIRED
        return self.standing

    @property
    def over_at(self) -> Instant:
        """When it is over, or was."""
        return self.expires_at if self.standing is Standing.ACTIVE else self.since

    def honoured(self, now: Instant) -> bool:
        """Whether messages may still refer to it."""
        if self.at(now) is Standing.ACTIVE:
            return True
        return self.standing is Standing.SUPERSEDED and now < min(self.since + OVERLAP, self.expires_at)

    def secrets(self, now: Instant) -> tuple[Secret, ...]:
        """The keys that may be used now, the current one first."""
        found = [] if self.secret is None else [self.secret]
        if self.former is not None and self.rotated_at is not None and now < self.rotated_at + OVERLAP:
            found.append(self.former)
        return tuple(found)
