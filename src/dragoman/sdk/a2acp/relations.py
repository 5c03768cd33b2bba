"""With whom we work, for what, and on which terms: contracts by target, intent and mode, agreed on when first needed.

there is                                   then
-----------------------------------------  --------------------------------------------------------
no contract                                find who serves the intent, shake hands
one that runs out soon                     renew it: the same collaboration, new terms
one whose key has sealed enough            rotate the key first
a renewal that fails while the old holds   the old one is used; the next call tries again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.contracts import Contract, Mode
from dragoman.protocols.a2acp.intents import Established, Initiate, Offering, Rotated
from dragoman.protocols.a2acp.types import Message
from dragoman.sdk.a2acp.identity import Identity
from dragoman.sdk.a2acp.keyring import Pair
from dragoman.sdk.failures import CallFailed, CapabilityNotFound

log = logging.getLogger("dragoman.sdk")

SOON = timedelta(minutes=10)
SHARE = 0.1
"""A contract is renewed in the last tenth of its life, or the last minutes of a long one."""

Ask = Callable[[str, intents.Body, tuple[str, ...]], Awaitable[Message]]


class Terms(NamedTuple):
    """What a contract is wanted for. Without a target: any agent that serves the intent."""

    target: str | None
    intent: str
    mode: Mode = "broker"
    encrypt: bool = False


class Relations:
    """`ask` puts a question to the broker and returns its response."""

    def __init__(self, identity: Identity, ask: Ask) -> None:
        self._identity = identity
        self._ask = ask
        self._contracts: dict[Terms, Contract] = {}
        self._turns: dict[Terms, asyncio.Lock] = {}

    async def discover(self, **wanted: Any) -> list[Offering]:
        """The offers of other agents; agents that can be reached come first."""
        asked = intents.Discover(**{name: value for name, value in wanted.items() if value is not None})
        answer = await self._ask(intents.DISCOVER, asked, ())
        found = msgspec.convert(answer.payload, intents.Discovered)
        return sorted(found.capabilities, key=lambda one: not one.available)

    async def contract(self, terms: Terms, **more: Any) -> Contract:
        """A contract that is in force, and will be for a while. `more`: the schemas of what this agent sends and can
        read."""
        async with self._turns.setdefault(terms, asyncio.Lock()):
            known = self._contracts.get(terms)
            if known is not None and self._identity.runtime.now() >= known.expires_at:
                known = None  # an expired contract cannot be renewed
            if known is not None and not more and not self._runs_out(known):
                if self._identity.ring.is_worn(known.contract_id):
                    await self.rotate(known.collaboration_id)
                return known
            try:
                agreed = await self._shake_hands(terms, known, more)
            except CallFailed as failed:
                if known is None or not failed.retryable or self._identity.runtime.now() >= known.expires_at:
                    self._contracts.pop(terms, None)
                    raise
                log.info("contract %s could not be renewed yet: %s", known.contract_id, failed)
                return known
            self._contracts[terms] = agreed
            return agreed

    def _runs_out(self, contract: Contract) -> bool:
        left = contract.expires_at - self._identity.runtime.now()
        return left <= min(SOON, (contract.expires_at - contract.created_at) * SHARE)

    async def _shake_hands(self, terms: Terms, former: Contract | None, more: dict[str, Any]) -> Contract:
        found = await self.discover(agent_id=terms.target, intent=terms.intent)
        if terms.target is None:  # an agent that takes any intent must be named, or a misspelt intent would reach it
            found = [one for one in found if one.capability.intent == terms.intent]
        if not found:
            whom = terms.target or "nobody"
            raise CapabilityNotFound(
                f"{whom} {'does not serve' if terms.target else 'serves'} {terms.intent}",
                details={"intent": terms.intent, "target_agent_id": terms.target},
            )
        partner = found[0]
        if former is not None and former.target_agent.agent_id != partner.agent.agent_id:
            former = None  # another agent serves it now
        pair = Pair()
        body = Initiate(
            target_agent_id=partner.agent.agent_id,
            requested_intent=terms.intent,
            mode=terms.mode,
            encrypt=terms.encrypt,
            public_key=pair.public_key,
            collaboration_id=None if former is None else former.collaboration_id,
            **more,
        )
        answer = await self._ask(intents.INITIATE, body, partner.capability.required_capabilities)
        agreed = msgspec.convert(answer.payload, Established)
        if agreed.key is not None:
            self._identity.ring.adopt(agreed.contract, pair)
            self._identity.ring.agreed(agreed.contract, agreed.key)
        return agreed.contract

    async def rotate(self, collaboration_id: str) -> None:
        """A new key for the collaboration, on both sides."""
        pair = Pair()
        self._identity.ring.replace(collaboration_id, pair)
        body = intents.Rotate(collaboration_id=collaboration_id, public_key=pair.public_key)
        answer = await self._ask(intents.ROTATE, body, ())
        rotated = msgspec.convert(answer.payload, Rotated)
        self._identity.ring.take(collaboration_id, rotated.key)

    async def terminate(self, collaboration_id: str, reason: str) -> None:
        await self._ask(intents.TERMINATE, intents.Terminate(collaboration_id=collaboration_id, reason=reason), ())
        self.forget(collaboration_id)
        self._identity.ring.forget(collaboration_id)

    def forget(self, name: str) -> None:
        """Drop a contract or collaboration that does not hold any more."""
        for terms, held in list(self._contracts.items()):
            if name in (held.contract_id, held.collaboration_id):
                del self._contracts[terms]
