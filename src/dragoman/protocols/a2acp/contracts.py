"""Contracts as values: who may ask whom for what, on which terms, for how long (D7, D8, D13, D19).

`collaboration_id` names the relation of two agents for one intent, `contract_id` the terms in force. A renewal keeps
the relation and replaces the terms. Where a contract stands:

    ACTIVE --renew--> SUPERSEDED, and the new one is ACTIVE
    ACTIVE --terminate--> TERMINATED        ACTIVE --expire--> EXPIRED

A superseded contract is honoured for `OVERLAP_SECONDS` for what was on its way, and so is a key after its rotation.
The hub's core decides about these changes (`core/agreements`). This module has the terms as both agents get them, and
checks messages against them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.sealing import is_in_clear, misshapen
from dragoman.protocols.a2acp.types import (
    MOST_GRANTED,
    ROUTING_SECONDS,
    Agent,
    Date,
    Encryption,
    Id,
    Message,
    MessageType,
    Name,
    Record,
    SchemaVersion,
    Seconds,
)
from dragoman.wire.errors import Stage, with_next
from dragoman.wire.schema.library import Schema

OVERLAP_SECONDS = 60.0
LONGEST_DESCRIPTION = 100_000

Patience: TypeAlias = Annotated[int, Meta(gt=0, le=10**9)] | Annotated[float, Meta(gt=0, le=10**9)]
"""Seconds for an answer: none at all would be no offer."""
Mode: TypeAlias = Literal["broker", "end-to-end"]


class Standing(enum.StrEnum):
    ACTIVE = "active"
    SUPERSEDED = "superseded"
    TERMINATED = "terminated"
    EXPIRED = "expired"


class Capability(Record, frozen=True, kw_only=True):
    """One intent that an agent serves (D6). Schemas are draft-07 or 2020-12, and versioned apart from the agent."""

    intent: Name
    input_schema: Schema
    output_schema: Schema = True
    version: SchemaVersion = "1.0.0"
    required_capabilities: Annotated[tuple[Name, ...], Meta(max_length=MOST_GRANTED)] = ()
    pii: bool = False
    timeout_seconds: Patience = ROUTING_SECONDS
    description: Annotated[str, Meta(max_length=LONGEST_DESCRIPTION)] = ""


class SecurityPolicy(Record, frozen=True, kw_only=True, omit_defaults=False):
    """`validated` is false where the broker cannot read payloads, and so cannot check them (D12)."""

    encryption: Encryption = "none"
    mode: Mode = "broker"
    pii: bool = False
    validated: bool = True
    required_capabilities: tuple[Name, ...] = ()
    sandbox: Name | None = None


class Contract(Record, frozen=True, kw_only=True, omit_defaults=False):
    """The terms, as both agents get them."""

    contract_id: Id
    collaboration_id: Id
    intent: Name
    source_agent: Agent
    target_agent: Agent
    input_schema: Schema
    output_schema: Schema
    capability_version: SchemaVersion
    security: SecurityPolicy
    timeout_seconds: Seconds
    created_at: Date
    expires_at: Date
    kid: Id | None = None

    @property
    def parties(self) -> tuple[str, str]:
        return self.source_agent.agent_id, self.target_agent.agent_id


class Held(Record, frozen=True, kw_only=True):
    """A contract and its standing."""

    contract: Contract
    standing: Standing = Standing.ACTIVE
    since: Date
    by: Id | None = None
    reason: str = ""
    former_kid: Id | None = None
    rotated_at: Date | None = None

    def at(self, now: datetime) -> Standing:
        """Its standing now: an active contract expires with time."""
        return (
            Standing.EXPIRED if self.standing is Standing.ACTIVE and now >= self.contract.expires_at else self.standing
        )

    def honoured(self, now: datetime) -> bool:
        """Whether messages may still refer to it."""
        if self.at(now) is Standing.ACTIVE:
            return True
        recent = now < min(self.since + timedelta(seconds=OVERLAP_SECONDS), self.contract.expires_at)
        return self.standing is Standing.SUPERSEDED and recent

    def keys(self, now: datetime) -> frozenset[str]:
        """The keys that payloads may be sealed with."""
        current = {self.contract.kid} if self.contract.kid else set()
        if self.former_kid and self.rotated_at and now < self.rotated_at + timedelta(seconds=OVERLAP_SECONDS):
            current.add(self.former_kid)
        return frozenset(current)


# -- is a message within the terms? ------------------------------------------------------------------------------

NAMED = "payload.contract_id"
"""Where a message names its contract."""


def judge(held: Held | None, message: Message, now: datetime) -> Refusal | None:
    """Why a message breaks its contract, or None (D8, D13). The hub checks its payload against the schema."""
    if held is None or message.source_agent.agent_id not in held.contract.parties:
        named = message.contract_id
        if named is None:
            return _violation(f"{message.message_type} names no contract", "shake hands first", field=NAMED)
        what = f"{message.message_type} names a contract that you have no part in"
        return _violation(what, contract_id=named, field=NAMED)
    terms = held.contract
    if not held.honoured(now):
        return _violation(
            f"contract {terms.contract_id} is {held.at(now)}",
            contract_id=terms.contract_id,
            standing=held.at(now).value,
            field=NAMED,
        )
    source, target = message.source_agent, message.target_agent
    asks = message.message_type is MessageType.REQUEST
    sender, receiver = terms.source_agent, terms.target_agent
    if not asks and source.agent_id != sender.agent_id:
        sender, receiver = receiver, sender
    names_intent = asks or (message.intent is not None and message.message_type is MessageType.RESPONSE)
    for field, actual, agreed in (
        ("source_agent.agent_id", source.agent_id, sender.agent_id),
        ("source_agent.domain", source.domain, sender.domain),
        ("target_agent.agent_id", target.agent_id, receiver.agent_id),
        ("target_agent.domain", target.domain, receiver.domain),
        ("intent", message.intent if names_intent else terms.intent, terms.intent),
    ):
        if actual != agreed:
            what = f"{field} is {actual!r}, the contract says {agreed!r}"
            return _violation(what, contract_id=terms.contract_id, field=field)
    return _sealed(held, message, now)


def _sealed(held: Held, message: Message, now: datetime) -> Refusal | None:
    terms = held.contract
    if message.message_type is MessageType.ERROR:
        return None
    if terms.security.encryption == "aes256" and message.security.encryption != "aes256":
        why = "carries personal data" if terms.security.pii else "was agreed to be encrypted"
        details = {"contract_id": terms.contract_id, "field": "security.encryption", "pii": terms.security.pii}
        return Refusal(
            code=Code.SECURITY_POLICY_VIOLATION, message=f"{terms.intent} {why}: send it as aes256", details=details
        )
    if message.security.encryption == "aes256":
        payload = message.payload or {}
        lies = _unsealed(terms, payload)
        if lies is not None:
            return lies
        if payload.get("kid") not in held.keys(now):
            what = "the payload is sealed with a key that this contract does not have"
            next = "use its newest, or ask for one in the handshake (encrypt: true)"
            return _violation(what, next, contract_id=terms.contract_id, field="payload.kid")
    return None


def _unsealed(terms: Contract, payload: Mapping[str, Any]) -> Refusal | None:
    """Why a payload labelled `aes256` is not sealed. Content in clear breaks the policy of a contract that wants
    encryption; in personal work, everything that is not sealed does (D13), since it may be personal."""
    flaw = misshapen(payload)
    if flaw is None and not is_in_clear(payload):
        return None
    encrypted, pii = terms.security.encryption == "aes256", terms.security.pii
    if encrypted and (pii or is_in_clear(payload)):
        details = {"contract_id": terms.contract_id, "field": "payload", "pii": pii}
        what = "the payload is labelled aes256 and not, or not all of it, sealed: seal the whole payload"
        return Refusal(code=Code.SECURITY_POLICY_VIOLATION, message=what, details=details)
    field, why = flaw or ("payload", "something stands in clear beside what is sealed")
    details = {"stage": Stage.SHAPE.value, "contract_id": terms.contract_id, "field": field}
    return Refusal(code=Code.SCHEMA_MISMATCH, message=f"{field}: {why}", details=details)


def _violation(what: str, next: str = "", **details: Any) -> Refusal:
    kept = {name: value for name, value in details.items() if value is not None}
    return Refusal(code=Code.CONTRACT_VIOLATION, message=with_next(what, next), next=next, details=kept)


# -- may these two work together at all? -------------------------------------------------------------------------


class DomainPolicy(Record, frozen=True, kw_only=True):
    """Whether agents of one domain may ask those of another (D19). `*` is any domain, no intents means all of them."""

    source_domain: Name
    target_domain: Name
    allow: bool = True
    intents: tuple[Name, ...] = ()
    encrypt: bool = False
