"""Agents, offers and contracts: the hub's rows and the document's values, both ways.

a2acp                                the hub
-----------------------------------  ----------------------------------------------------------------------------
agent_id, domain, version            an agent; without a domain it is of `default`, without a version 1.0.0
capability                           an offer
contract                             a contract. Both agents get the same terms; each gets the key in a grant of its own
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from dragoman.core.agreements.domain_policy import are_open, domain_of
from dragoman.core.ids import EPOCH, SECOND, Instant
from dragoman.core.model import contracts as model
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import listed
from dragoman.core.model.policy import ANY, DomainPolicy
from dragoman.messages.tasks import Json
from dragoman.protocols.a2acp.codec import compatible
from dragoman.protocols.a2acp.contracts import Capability, Contract, Held, SecurityPolicy, Standing
from dragoman.protocols.a2acp.intents import (
    Discover,
    Discovered,
    Established,
    Offering,
    Rotated,
    Terminated,
    payload,
)
from dragoman.protocols.a2acp.sealing import KeyGrant
from dragoman.protocols.a2acp.types import PAYLOAD_BYTES, SANDBOX_SECONDS, SCHEMA_PATTERN, SEMVER_PATTERN
from dragoman.protocols.a2acp.types import Agent as Party

AROUND = 1000
"""Bytes of an answer beside the capabilities."""
VERSION = "1.0.0"

_encode = msgspec.json.Encoder().encode
_is_version = re.compile(SEMVER_PATTERN).match
_is_schema_version = re.compile(SCHEMA_PATTERN).match


def version_of(version: str | None) -> str:
    """A version as the document wants it: agents of other protocols may have another form, or none."""
    return version if version and _is_version(version) else VERSION


def schema_version_of(version: str | None) -> str:
    """The same for a capability."""
    return version if version and _is_schema_version(version) else VERSION


def party_of(agent: Agent) -> Party:
    """An agent of any protocol, as a2acp's agents see it."""
    return Party(agent_id=agent.id, domain=domain_of(agent), version=version_of(agent.version))


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
    """A contract as both agents get it."""
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
    """A contract with its standing, for the document's rules."""
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
    """Seconds that the target has for an answer; in a sandbox at least what the sandbox allows (D17)."""
    seconds = row.offer.timeout / SECOND
    return seconds if row.sandbox is None else max(seconds, SANDBOX_SECONDS)


def _party(party: model.Party) -> Party:
    return Party(agent_id=party.agent, domain=party.domain, version=version_of(party.version))


# -- the payloads of the broker's messages about a contract


def established(row: model.Contract, key: KeyGrant | None, thread: str | None = None) -> Json:
    """The contract is in force: its terms, and the key for the receiver."""
    body = Established(collaboration_id=row.collaboration, contract=terms_of(row), key=key, correlation_id=thread)
    return {**payload(body), "contract_id": row.id}


def terminated(row: model.Contract, thread: str | None = None) -> Json:
    body = Terminated(collaboration_id=row.collaboration, by=row.by or "", reason=row.reason, correlation_id=thread)
    return {**payload(body), "contract_id": row.id}


def rotated(row: model.Contract, key: KeyGrant | None, thread: str | None = None) -> Json:
    assert key is not None
    return payload(Rotated(collaboration_id=row.collaboration, contract_id=row.id, key=key, correlation_id=thread))


# -- discovery


def discovered(
    asked: Discover, asker: Agent, agents: Iterable[tuple[Agent, bool]], drawn: Sequence[DomainPolicy] = ()
) -> Discovered:
    """The offers of other agents, of any protocol, for which the asker could make a contract. Each agent comes with
    whether it can be reached; `drawn` are the domain policies. An offer without a schema takes anything."""
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
    shown = tuple(_within(PAYLOAD_BYTES - AROUND, found[: asked.limit]))
    return Discovered(capabilities=shown, more=len(found) > len(shown), correlation_id=asked.correlation_id)


def _best_first(one: Offering) -> tuple[bool, bool, bool, str, str]:
    """Allowed ones first, then agents that name the intent before agents that take any."""
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
