"""Which domains may ask which (a2acp-D19): entries of the policy that all agents share."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.api.bodies import DomainPolicyIn, DomainsQuery, read_body, read_query
from dragoman.api.context import Context
from dragoman.api.problems import Problem
from dragoman.api.route import respond
from dragoman.api.tasks import PROTOCOL
from dragoman.core.commands import SetDomainPolicy
from dragoman.core.ids import ADMIN
from dragoman.core.model.policy import NAME, borders_in
from dragoman.core.model.state import Entity, Registry
from dragoman.messages.faults import Kind


class DomainPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One that forbids beats all that allow. `*` is any domain; no intents means all of them."""

    source: str
    target: str
    allow: bool
    intents: tuple[str, ...]
    encrypt: bool


class DomainPolicies(msgspec.Struct, frozen=True, kw_only=True):
    """Within one domain nothing has to allow it."""

    domains: tuple[DomainPolicy, ...]


def told(value: Any) -> DomainPolicies:
    return DomainPolicies(
        domains=tuple(
            DomainPolicy(
                source=one.source, target=one.target, allow=one.allow, intents=one.intents, encrypt=one.encrypt
            )
            for one in sorted(borders_in(value), key=lambda one: (one.source, one.target))
        )
    )


async def listing(context: Context, request: Request) -> Response:
    entity = context.intake.entity(f"{Registry.POLICY.value}/{NAME}")
    return respond(200, told({} if entity is None else entity.value))


async def change(context: Context, request: Request) -> Response:
    wanted = await read_body(context, request, DomainPolicyIn)
    policy: Entity = await context.intake.execute(
        SetDomainPolicy(
            principal=ADMIN,
            protocol=PROTOCOL,
            source=wanted.source,
            target=wanted.target,
            allow=wanted.allow,
            intents=wanted.intents,
            encrypt=wanted.encrypt,
        )
    )
    return respond(200, told(policy.value))


async def remove(context: Context, request: Request) -> Response:
    pair = read_query(request, DomainsQuery)
    entity = context.intake.entity(f"{Registry.POLICY.value}/{NAME}")
    known = told({} if entity is None else entity.value).domains
    if (pair.source, pair.target) not in {(one.source, one.target) for one in known}:
        message = f"there is no policy about {pair.source[:80]!r} asking {pair.target[:80]!r}"
        raise Problem(Kind.NOT_FOUND, message, next="List them with GET /api/v1/policies/domains.")
    policy: Entity = await context.intake.execute(
        SetDomainPolicy(principal=ADMIN, protocol=PROTOCOL, source=pair.source, target=pair.target, allow=None)
    )
    return respond(200, told(policy.value))
