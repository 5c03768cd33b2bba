"""The auth service: it issues tokens to agents, verifies the token of every message, and issues the broker's own
(D3…D5).

    a token for an agent     the capabilities that it asks for and may have (`agent add --capability`)
    every message's token    signature, issuer, audience, subject, domain, times: `security.jwt`; that the hub still
                             knows its agent, with the secret that the token was fetched with; that it is not revoked
    the broker's token       in every message of the hub, for its receiver

A token carries a mark of the secret that it was fetched with, in its `jti`. So a new secret (`dragoman agent token`)
voids every token of the old one at once, and the hub has to remember none. The mark is a hash of a hash: it gives
nothing away.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dragoman.core.agreements.domain_policy import domain_of
from dragoman.core.ids import SECOND, AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Intake, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.a2acp.types import PROTOCOL, Message
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.security.refusals import Reason, Refusal

if TYPE_CHECKING:
    from dragoman.security.checkpoints import Checkpoint
    from dragoman.security.jwt import Authority
    from dragoman.security.keys import KeyRing

FIELD = "security.auth_token"
MOST_ISSUED = 10_000
MOST_VERIFIED = 10_000
BROKER_TOKEN_SECONDS = 3600
MARKED = re.compile(r"[0-9a-f]{24}\.([0-9a-f]{16})")
"""The `jti` of a token for an agent. A program that signs with a shared secret may use others, with dots in them."""
RULES = {
    Reason.EXPIRED: "expiration",
    Reason.NOT_YET: "expiration",
    Reason.LIFETIME: "expiration",
    Reason.AUDIENCE: "audience",
    Reason.ISSUER: "issuer",
    Reason.SUBJECT: "subject",
    Reason.DOMAIN: "subject",
    Reason.CAPABILITY: "capability",
    Reason.TOO_MANY: "capability",
    Reason.CLAIM: "claims",
    Reason.REVOKED: "revoked",
}
"""The document's rules, by our reasons; all others are about the signature."""


class Granted(NamedTuple):
    token: str
    expires_at: int


class Found(NamedTuple):
    """How a message's token was verified: with which keys, for whom, and what it grants."""

    ring: KeyRing
    agent: Agent
    granted: tuple[str, ...]


class Rotate(Protocol):
    """Replaces the keys where they are kept. Raises `KeyProblem`, `PrivateFileError` or `StoreFailed`, each with what
    to do."""

    async def __call__(self, now: int, *, distrust: bool) -> KeyRing: ...


class KeysKept(Exception):
    """The keys could not be replaced, and stay as they were."""


class AuthService:
    """`authority` is made when first needed: most hubs never see a token."""

    def __init__(
        self, hub: Intake, broker: Party, authority: Callable[[], Authority], rotate: Rotate | None = None
    ) -> None:
        self._hub = hub
        self._make = authority
        self._renew = rotate
        self._rotating = asyncio.Lock()
        self.broker = broker
        self._issued: dict[str, Granted] = {}
        self._second, self._verified = 0, dict[tuple[str, str, str, str], Found]()
        """Tokens verified within this second. Their times count in whole seconds, so until it is over only other keys
        or a change of the agent can make one invalid."""

    @cached_property
    def authority(self) -> Authority:
        return self._make()

    @property
    def now(self) -> int:
        return int(self._hub.now() // SECOND)

    # -- for agents

    def issue(self, agent: Agent, target: str, asked: Sequence[str], ttl: int) -> Granted:
        """A token for messages of an agent to `target`; raises `Refused`."""
        from dragoman.security.jwt import grant

        allowed = grant(asked, agent.capabilities)
        if isinstance(allowed, Refusal):
            raise failed(allowed, field=allowed.field)
        jti = f"{os.urandom(12).hex()}.{mark(agent)}"
        issued = self.authority.issue(
            subject=agent.id,
            audience=target,
            domain=domain_of(agent),
            capabilities=allowed,
            ttl=ttl,
            now=self.now,
            jti=jti,
        )
        if isinstance(issued, Refusal):
            raise failed(issued, field=issued.field)
        return Granted(issued.token, issued.claims.exp)

    # -- of messages

    def verify(self, message: Message, link: Agent | None) -> tuple[Agent, tuple[str, ...]]:
        """The agent that sent a message, and what its token grants; raises `Refused`. `link`: the agent that is
        connected, if any."""
        source, now = message.source_agent, self.now
        case = (message.security.auth_token, message.target_agent.agent_id, source.agent_id, source.domain)
        found = self._verified.get(case) if now == self._second else None
        if (
            found is not None
            and found.ring is self.authority.ring
            and found.agent is self._hub.agent(found.agent.id)
            and (link is None or link.id == found.agent.id)
        ):
            return found.agent, found.granted
        agent, granted = self._verify(*case, now, link)
        if now != self._second or len(self._verified) >= MOST_VERIFIED:
            self._second, self._verified = now, {}
        self._verified[case] = Found(self.authority.ring, agent, granted)
        return agent, granted

    def _verify(
        self, token: str, audience: str, subject: str, domain: str, now: int, link: Agent | None
    ) -> tuple[Agent, tuple[str, ...]]:
        claims = self.authority.verify(token, audience=audience, now=now, subject=subject, domain=domain)
        if isinstance(claims, Refusal):
            raise failed(claims)
        agent = self._hub.agent(AgentId(claims.sub))
        if agent is None or agent.protocol != PROTOCOL or (link is not None and link.id != agent.id):
            raise failed(Refusal(Reason.SUBJECT, "sub"))
        if claims.domain != domain_of(agent):
            raise failed(Refusal(Reason.DOMAIN, "domain"))
        made_with = MARKED.fullmatch(claims.jti or "")
        if made_with is not None and made_with[1] != mark(agent):
            raise failed(Refusal(Reason.REVOKED, "jti"))
        if agent.revoked and any(one.jti == claims.jti for one in agent.revoked):
            raise failed(Refusal(Reason.REVOKED, "jti"))
        return agent, claims.capabilities

    # -- the broker's own

    def token_for(self, receiver: str) -> str:
        """The broker's token for a receiver: the same one for half of its life."""
        now = self.now
        known = self._issued.get(receiver)
        if known is not None and known.expires_at - now > BROKER_TOKEN_SECONDS // 2:
            return known.token
        issued = self.authority.issue(
            subject=self.broker.agent_id,
            audience=receiver,
            domain=self.broker.domain,
            capabilities=(),
            ttl=BROKER_TOKEN_SECONDS,
            now=now,
        )
        if isinstance(issued, Refusal):
            raise failed(issued)
        if len(self._issued) >= MOST_ISSUED:
            self._issued.clear()
        self._issued[receiver] = Granted(issued.token, issued.claims.exp)
        return issued.token

    # -- keys

    async def rotate(self, *, distrust: bool) -> None:
        """A new key signs from now on. The old ones verify until their tokens are over; with `distrust` they verify
        nothing any more, and every token is void. Raises `KeysKept`."""
        from dragoman.security.keys import KeyProblem
        from dragoman.security.private import PrivateFileError

        if self._renew is None:
            raise KeysKept("they are kept nowhere")
        async with self._rotating:
            try:
                ring = await self._renew(self.now, distrust=distrust)
            except (KeyProblem, PrivateFileError, StoreFailed) as problem:
                raise KeysKept(str(problem)) from problem
            self.use(ring)

    def use(self, ring: KeyRing) -> None:
        """Sign and verify with these keys from now on."""
        if "authority" in self.__dict__:  # one that is made later begins with them
            self.authority.use(ring)
        self._issued.clear()

    def checkpoint(self, seq: int, hash: str, at: str) -> Checkpoint:
        """The head of the audit chain, signed with the key that signs tokens."""
        from dragoman.security import checkpoints

        return checkpoints.sign(self.authority.ring, seq, hash, at)

    def published(self) -> dict[str, Any]:
        return dict(self.authority.ring.jwks(self.now))


def mark(agent: Agent) -> str:
    """A mark of the secret that an agent has now, without a trace of it."""
    return hashlib.sha256(f"a2acp\n{agent.token_hash}".encode()).hexdigest()[:16]


def failed(refusal: Refusal, *, field: str | None = FIELD) -> Refused:
    facts: dict[str, Any] = {"rule": RULES.get(refusal.reason, "signature"), "reason": refusal.reason.value}
    if refusal.missing:
        facts["missing"] = list(refusal.missing)
    fault = Fault(kind=Kind.UNAUTHENTICATED, message=refusal.message, next=refusal.next, field=field, facts=facts)
    return Refused(fault)


def lacking(missing: Sequence[str]) -> Refused:
    """The token is valid, and not for this intent."""
    return refuse(
        Kind.UNAUTHENTICATED,
        f"the token lacks {', '.join(missing)}, which the intent requires",
        next="ask /auth/token for it",
        field=FIELD,
        rule="capability",
        reason="capability",
        missing=list(missing),
    )
