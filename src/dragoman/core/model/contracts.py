"""A contract: who may ask whom for what, on which terms, for how long.

`collaboration` names the relation of two agents for one intent, `id` the terms in force. A renewal keeps the relation
and replaces the terms; the old ones, and a key after its rotation, are honoured for `OVERLAP`. A contract that is over
never comes back.

    active ──a person renews it──▶ active, with a later end
    active ──renewed──▶ superseded        active ──ended by a party──▶ terminated        active ──time──▶ expired

What an agent may be asked for under a contract: one definition for discovery and for the handshake.

    an agent                                          serves
    ------------------------------------------------  ---------------------------------------------------------------
    of a protocol with handshakes                     what it offers, and nothing else
    of any other protocol, with offers or work types  its offers, and its work types: without terms, they take anything
    of any other protocol, with neither               any intent

The domain policies decide whether the two may work together (`domain_policy`).
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from dragoman.core.ids import MINUTE, AgentId, Instant, QuestionId, TaskId
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.policy import ANY
from dragoman.core.protocol_capabilities import SHAKES_HANDS

OVERLAP = MINUTE
VIOLATIONS_KEPT = 20


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
    have the key. The public keys are those by which each agent got it."""

    kid: str
    locked: str | None = None
    source_key: str | None = None
    target_key: str | None = None


class Violation(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a party did against the terms: the hub refused it, and the audit record has it, too. `action` is what was
    tried; `task` is what it was about, where the hub had accepted that before."""

    at: Instant
    by: AgentId
    action: str
    reason: str
    task: TaskId | None = None


class Contract(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`offer` is the target's, as it was when they agreed; `handshake` is how they did. Of all that violated it, which
    are `violated`, the newest are kept."""

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
    violated: int = 0
    violations: tuple[Violation, ...] = ()

    @property
    def intent(self) -> str:
        return self.offer.intent

    @property
    def parties(self) -> tuple[AgentId, AgentId]:
        return self.source.agent, self.target.agent

    def other(self, agent: AgentId) -> AgentId:
        return self.target.agent if agent == self.source.agent else self.source.agent

    def at(self, now: Instant) -> Standing:
        """The standing at `now`: time alone ends a contract."""
        if self.standing is Standing.ACTIVE and now >= self.expires_at:
            return Standing.EXPIRED
        return self.standing

    @property
    def over_at(self) -> Instant:
        """When the contract ends or ended."""
        return self.expires_at if self.standing is Standing.ACTIVE else self.since

    def honoured(self, now: Instant) -> bool:
        """Whether messages may still refer to it."""
        if self.at(now) is Standing.ACTIVE:
            return True
        return self.standing is Standing.SUPERSEDED and now < min(self.since + OVERLAP, self.expires_at)

    def with_violation(self, violation: Violation) -> Contract:
        kept = (*self.violations, violation)[-VIOLATIONS_KEPT:]
        return msgspec.structs.replace(self, violated=self.violated + 1, violations=kept)

    def secrets(self, now: Instant) -> tuple[Secret, ...]:
        """The keys that may be used now, the current one first."""
        found = [] if self.secret is None else [self.secret]
        if self.former is not None and self.rotated_at is not None and now < self.rotated_at + OVERLAP:
            found.append(self.former)
        return tuple(found)


def terms_for(agent: Agent, intent: str) -> Offer | None:
    """The terms on which an agent serves an intent; None if it does not."""
    declared = agent.offer(intent)
    if declared is not None or agent.protocol in SHAKES_HANDS:
        return declared
    return Offer(intent=intent) if takes_any(agent) or intent in (agent.work_types or ()) else None


def takes_any(agent: Agent) -> bool:
    """Whether it serves every intent, since it declared no work."""
    return agent.protocol not in SHAKES_HANDS and agent.work_types is None and not agent.offers


def intents_of(agent: Agent) -> tuple[str, ...]:
    """The intents that it serves; `*` if it serves every one."""
    if takes_any(agent):
        return (ANY,)
    named = dict.fromkeys(offer.intent for offer in agent.offers)
    if agent.protocol not in SHAKES_HANDS:
        named.update(dict.fromkeys(agent.work_types or ()))
    return tuple(named)


def listed(agent: Agent, intent: str | None) -> Iterator[Offer]:
    """The offers of an agent, or only those of one intent. An agent that serves every intent is listed with `*`."""
    if takes_any(agent):
        yield Offer(intent=ANY)
        return
    for name in intents_of(agent) if intent is None else (intent,):
        terms = terms_for(agent, name)
        if terms is not None:
            yield terms
