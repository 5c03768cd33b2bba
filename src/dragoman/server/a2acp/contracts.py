"""Offers and contracts: the hub's rows and the document's values, both ways.

The hub's row has more (the locked key, how it stands), the document's value names things as the two agents know them. A
contract is told whole, to both sides alike; its key is granted to each apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from dragoman.core.agreements.domain_policy import are_open, domain_of
from dragoman.core.ids import EPOCH, SECOND, Instant
from dragoman.core.model import contracts as model
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import listed
from dragoman.core.model.policy import ANY, Border
from dragoman.protocols.a2acp.contracts import Capability, Contract, Held, SecurityPolicy, Standing
from dragoman.protocols.a2acp.intents import Discover, Discovered, Offering
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, RESERVED, SANDBOX_SECONDS
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.protocols.a2acp.versions import compatible
from dragoman.server.a2acp.names import party_of, schema_version_of, version_of

AROUND = 1000
"""Bytes of an answer beside what was discovered."""
_encode = msgspec.json.Encoder().encode


def moment(at: Instant) -> datetime:
    return EPOCH + timedelta(microseconds=at)


def offer_of(capability: Capability) -> Offer:
    return Offer(
        intent=capability.intent,
        input_schema=capability.input_schema,
        output_schema=capability.output_schema,
        version=capability.version,
        required_capabilities=capability.required_capabilities,
        pii=capability.pii,
        timeout=int(capability.timeout_seconds * SECOND),
        description=capability.description,
    )


def capability_of(offer: Offer) -> Capability:
    return Capability(
        intent=offer.intent,
        input_schema=offer.input_schema,
        output_schema=offer.output_schema,
        version=schema_version_of(offer.version),
        required_capabilities=offer.required_capabilities,
        pii=offer.pii,
        timeout_seconds=offer.timeout / SECOND,
        description=offer.description,
    )


def terms_of(row: model.Contract) -> Contract:
    """A contract as both agents are told it."""
    offer = row.offer
    return Contract(
        contract_id=row.id,
        collaboration_id=row.collaboration,
        intent=offer.intent,
        source_agent=_party(row.source),
        target_agent=_party(row.target),
        input_schema=offer.input_schema,
        output_schema=offer.output_schema,
        capability_version=schema_version_of(offer.version),
        security=SecurityPolicy(
            encryption="aes256" if row.encrypted else "none",
            mode="end-to-end" if row.end_to_end else "broker",
            pii=offer.pii,
            validated=not row.end_to_end,
            required_capabilities=offer.required_capabilities,
            sandbox=row.sandbox,
        ),
        timeout_seconds=patience(row),
        created_at=moment(row.created_at),
        expires_at=moment(row.expires_at),
        kid=None if row.secret is None else row.secret.kid,
    )


def held_of(row: model.Contract) -> Held:
    """A contract and how it stands, for the document's own rules."""
    return Held(
        contract=terms_of(row),
        standing=Standing(row.standing.value),
        since=moment(row.since),
        by=row.by,
        reason=row.reason,
        former_kid=None if row.former is None else row.former.kid,
        rotated_at=None if row.rotated_at is None else moment(row.rotated_at),
    )


def patience(row: model.Contract) -> float:
    """Seconds that the target has for an answer; in a sandbox at least what a sandbox allows (D17)."""
    seconds = row.offer.timeout / SECOND
    return seconds if row.sandbox is None else max(seconds, SANDBOX_SECONDS)


def drafted(details: dict[str, object]) -> model.Contract:
    """The contract that a handshake is about."""
    return msgspec.convert(details["contract"], model.Contract)


def _party(party: model.Party) -> Party:
    return Party(agent_id=party.agent, domain=party.domain, version=version_of(party.version))


# -- who can do it? ----------------------------------------------------------------------------------------------


def discovered(
    asked: Discover, asker: Agent, agents: Iterable[tuple[Agent, bool]], drawn: Sequence[Border] = ()
) -> Discovered:
    """What the asker could shake hands on with others: agents come with whether they can be reached, `drawn` are the
    domain policies. Those of other protocols count too: what they declared no schema for takes anything."""
    source = domain_of(asker)
    found = [
        Offering(
            agent=party_of(agent),
            capability=capability_of(offer),
            available=available,
            allowed=are_open(drawn, source, domain_of(agent), asked.intent or offer.intent),
        )
        for agent, available in agents
        if agent.id != asker.id and asked.agent_id in (None, agent.id) and asked.domain in (None, domain_of(agent))
        for offer in listed(agent, asked.intent)
        if _fits(asked, offer)
    ]
    found.sort(key=_best_first)
    told = tuple(_within(PAYLOAD_BYTES - AROUND, found[: asked.limit]))
    return Discovered(capabilities=told, more=len(found) > len(told), correlation_id=asked.correlation_id)


def _best_first(one: Offering) -> tuple[bool, bool, bool, str, str]:
    """What the asker may ask for before the rest, and who named the intent before who takes any."""
    intent = one.capability.intent
    return not one.allowed, intent == ANY, not one.available, intent, one.agent.agent_id


def _within(room: int, found: Iterable[Offering]) -> Iterator[Offering]:
    """As many as a payload has room for (D10): schemas may be long."""
    for one in found:
        room -= len(_encode(one)) + 1
        if room < 0:
            return
        yield one


def _fits(asked: Discover, offer: Offer) -> bool:
    return (asked.capability is None or asked.capability in offer.required_capabilities) and (
        asked.version is None or compatible(asked.version, schema_version_of(offer.version))
    )


__all__ = [
    "RESERVED",
    "capability_of",
    "discovered",
    "drafted",
    "held_of",
    "moment",
    "offer_of",
    "patience",
    "terms_of",
]
