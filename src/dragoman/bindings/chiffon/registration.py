"""An agent introduces itself (D9): what it says about itself must agree with what is known of it (all-D1)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dragoman.bindings.chiffon.exchange import PROTOCOL, wire_name
from dragoman.core.commands import RegisterAgent
from dragoman.core.model.agents import GPU_MEMORY, MEMORY, Agent, Resource
from dragoman.messages.faults import Kind, owned_by, refuse
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import PROTOCOL_VERSION, Registered, Registration

CONCURRENCY = ("max_concurrent", "max_concurrent_tasks")
"""Names under which an agent's `limits` may say how many tasks it takes at once."""
MOST_CONCURRENT = 10_000
MOST_MEMORY = 1 << 40
"""Megabytes of any memory that all its tasks together may have: `max_memory_mb` or `memory_mb`, and so on."""

_encode = msgspec.json.Encoder().encode


def registration_of(
    agent: Agent, said: Registration, *, negotiation: Literal["lowest", "highest"] = "lowest"
) -> RegisterAgent:
    """The command, or `Refused` for a false identity, or `UnsupportedVersion`."""
    if said.agent_id != agent.id:
        what = owned_by(agent.id, said.agent_id)
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=said.agent_id)
    kind = None if said.agent_type == agent.id else said.agent_type  # its own name claims no kind
    if agent.kind is not None and kind not in (None, agent.kind):
        message = (
            f"{agent.id} was added as {agent.kind!r} and cannot register as {kind!r}; a kind is given with"
            " `dragoman agent add --kind`"
        )
        raise refuse(Kind.FORBIDDEN, message, field="agent_type", agent_id=agent.id)
    version = codec.negotiate(said.supported_versions, negotiation=negotiation)
    details: dict[str, Any] = {"supported_versions": list(said.supported_versions)}
    if said.limits:
        details["limits"] = said.limits
    return RegisterAgent(
        principal=agent.id,
        protocol=PROTOCOL,
        kind=kind,
        work_types=said.work_types or None,
        max_concurrent=_limit(said.limits, CONCURRENCY, 1, MOST_CONCURRENT),
        memory_mb=_resource(said.limits, MEMORY),
        gpu_vram_mb=_resource(said.limits, GPU_MEMORY),
        protocol_version=version,
        callback_url=said.callback_url,
        details=details,
    )


def registered(agent: Agent) -> bytes:
    """The answer to a registration."""
    return _encode(
        Registered(
            agent_id=agent.id, agent_type=wire_name(agent), protocol_version=agent.protocol_version or PROTOCOL_VERSION
        )
    )


def _resource(limits: dict[str, Any], resource: Resource) -> int | None:
    return _limit(limits, resource.names, resource.least, MOST_MEMORY)


def _limit(limits: dict[str, Any], names: tuple[str, ...], least: int, most: int) -> int | None:
    for name in names:
        value = limits.get(name)
        if value is None:
            continue
        if type(value) is not int or not least <= value <= most:
            what = f"expected a whole number from {least} to {most}"
            raise refuse(Kind.INVALID, what, field=f"limits.{name}")
        return value
    return None
