"""Contracts between agents: look at them, renew or end one; and which domains may ask which (a2acp-D19). Never keys."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.api.bodies import CancelIn, ContractsQuery, DomainPolicyIn, DomainsQuery, RenewIn
from dragoman.api.context import PROTOCOL, Call, Context, Plain, page_of
from dragoman.api.problems import Problem, list_of
from dragoman.core.commands import EndContract, RenewContract, SetDomainPolicy
from dragoman.core.ids import ADMIN, HOUR, AgentId, Instant, rfc3339
from dragoman.core.model.contracts import Contract, Party, Standing, Violation
from dragoman.core.model.policy import NAME, domain_policies_in
from dragoman.core.model.state import Entity, Registry
from dragoman.messages.faults import Kind
from dragoman.server.a2acp.contracts import patience


class PartyOut(msgspec.Struct, frozen=True, kw_only=True):
    agent: str
    domain: str
    version: str


class ViolationOut(msgspec.Struct, frozen=True, kw_only=True):
    """What a party did against the terms, and the hub refused. `task` is set where it was about one."""

    at: str
    by: str
    action: str
    reason: str
    task: str | None


class ContractOut(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`validated` is false where only the two agents can read the messages. `violated` is how often a party violated
    it. Schemas and `violations` (the newest first, at most 20) are set where one contract is shown."""

    id: str
    collaboration_id: str
    intent: str
    standing: Standing
    source: PartyOut
    target: PartyOut
    created_at: str
    expires_at: str
    since: str
    timeout_seconds: float
    encryption: str
    mode: str
    validated: bool
    pii: bool
    required_capabilities: tuple[str, ...]
    sandbox: str | None
    kid: str | None
    rotated_at: str | None
    by: str | None
    reason: str
    input_schema: Any = None
    output_schema: Any = None
    violated: int = 0
    violations: tuple[ViolationOut, ...] = ()


class ContractList(msgspec.Struct, frozen=True, kw_only=True):
    contracts: tuple[ContractOut, ...]
    next: str | None


def contract_out(row: Contract, now: Instant, *, whole: bool = False) -> ContractOut:
    offer = row.offer
    return ContractOut(
        id=row.id,
        collaboration_id=row.collaboration,
        intent=offer.intent,
        standing=row.at(now),
        source=_party(row.source),
        target=_party(row.target),
        created_at=rfc3339(row.created_at),
        expires_at=rfc3339(row.expires_at),
        since=rfc3339(row.since),
        timeout_seconds=patience(row),
        encryption="aes256" if row.encrypted else "none",
        mode="end-to-end" if row.end_to_end else "broker",
        validated=not row.end_to_end,
        pii=offer.pii,
        required_capabilities=offer.required_capabilities,
        sandbox=row.sandbox,
        kid=None if row.secret is None else row.secret.kid,
        rotated_at=None if row.rotated_at is None else rfc3339(row.rotated_at),
        by=row.by,
        reason=row.reason,
        input_schema=offer.input_schema if whole else None,
        output_schema=offer.output_schema if whole else None,
        violated=row.violated,
        violations=tuple(map(_violation, reversed(row.violations))) if whole else (),
    )


def _violation(one: Violation) -> ViolationOut:
    return ViolationOut(at=rfc3339(one.at), by=one.by, action=one.action, reason=one.reason, task=one.task)


def _party(party: Party) -> PartyOut:
    return PartyOut(agent=party.agent, domain=party.domain, version=party.version)


async def find_contract(context: Context, id: str) -> Contract:
    """By its id, or by that of the collaboration."""
    row = await context.store.contract(id) or await context.store.contract_of(id)
    if row is None:
        raise Problem(Kind.NOT_FOUND, f"no contract {id[:80]!r}", next=list_of("contracts"))
    return row


async def list_contracts(context: Context, call: Call[ContractsQuery, None]) -> ContractList:
    query = call.query
    agent = None if query.agent is None else AgentId(query.agent)
    rows = await context.store.contracts(agent=agent, after=query.cursor or None, limit=query.limit + 1)
    page, on = page_of(rows, query.limit, lambda row: row.id)
    now = context.intake.now()
    return ContractList(contracts=tuple(contract_out(row, now) for row in page), next=on)


async def show_contract(context: Context, call: Plain) -> ContractOut:
    row = await find_contract(context, call.id)
    return contract_out(row, context.intake.now(), whole=True)


async def end_contract(context: Context, call: Call[None, CancelIn]) -> ContractOut:
    wanted = call.body
    row = await find_contract(context, call.id)
    ended: Contract = await context.execute(
        call,
        EndContract(
            principal=ADMIN,
            protocol=PROTOCOL,
            collaboration=row.collaboration,
            reason=wanted.reason or "ended by a person",
        ),
    )
    return contract_out(ended, context.intake.now())


async def renew_contract(context: Context, call: Call[None, RenewIn]) -> ContractOut:
    hours = call.body.hours
    row = await find_contract(context, call.id)
    renewed: Contract = await context.execute(
        call,
        RenewContract(
            principal=ADMIN,
            protocol=PROTOCOL,
            collaboration=row.collaboration,
            lasts=None if hours is None else int(hours * HOUR),
        ),
    )
    return contract_out(renewed, context.intake.now())


class DomainPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that forbids overrides all that allow. `*` is any domain; no intents means all of them."""

    source: str
    target: str
    allow: bool
    intents: tuple[str, ...]
    encrypt: bool


class DomainPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """Within one domain no policy is needed."""

    domains: tuple[DomainPolicy, ...]


def policies_out(value: Any) -> DomainPolicies:
    found = sorted(domain_policies_in(value), key=lambda one: (one.source, one.target))
    return DomainPolicies(domains=msgspec.convert(found, tuple[DomainPolicy, ...], from_attributes=True))


async def list_policies(context: Context, call: Plain) -> DomainPolicies:
    entity = context.intake.entity(f"{Registry.POLICY.value}/{NAME}")
    return policies_out({} if entity is None else entity.value)


async def set_policy(context: Context, call: Call[None, DomainPolicyIn]) -> DomainPolicies:
    wanted = call.body
    policy: Entity = await context.execute(
        call,
        SetDomainPolicy(
            principal=ADMIN,
            protocol=PROTOCOL,
            source=wanted.source,
            target=wanted.target,
            allow=wanted.allow,
            intents=wanted.intents,
            encrypt=wanted.encrypt,
        ),
    )
    return policies_out(policy.value)


async def remove_policy(context: Context, call: Call[DomainsQuery, None]) -> DomainPolicies:
    pair = call.query
    entity = context.intake.entity(f"{Registry.POLICY.value}/{NAME}")
    known = policies_out({} if entity is None else entity.value).domains
    if (pair.source, pair.target) not in {(one.source, one.target) for one in known}:
        message = f"there is no policy about {pair.source[:80]!r} asking {pair.target[:80]!r}"
        raise Problem(Kind.NOT_FOUND, message, next=list_of("policies/domains"))
    policy: Entity = await context.execute(
        call, SetDomainPolicy(principal=ADMIN, protocol=PROTOCOL, source=pair.source, target=pair.target, allow=None)
    )
    return policies_out(policy.value)
