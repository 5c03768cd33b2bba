"""An agent introduces itself: what it says of itself becomes a command, never more than its credential allows."""

from __future__ import annotations

from typing import Any

from dragoman.bindings.coven.exchange import PROTOCOL
from dragoman.core import commands
from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Kind, owned_by, refuse
from dragoman.protocols.coven.types import RegisterAgent


def speaks_for_itself(agent: Agent, said: RegisterAgent) -> None:
    """Raises `Refused` unless the credential is this agent's, and for this protocol (all-D1, D4)."""
    if agent.protocol != PROTOCOL:
        what = f"{agent.id} was added to speak {agent.protocol}; use that protocol's endpoints"
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=agent.id)
    if said.agent_id != agent.id:
        what = owned_by(agent.id, said.agent_id)
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=agent.id)


def registration_of(agent: AgentId, said: RegisterAgent) -> commands.RegisterAgent:
    """One seat: an agent does one thing at a time per stream (D5), and the hub keeps the rest."""
    details: dict[str, Any] = {"extensions": list(said.extensions)} if said.extensions else {}
    return commands.RegisterAgent(
        principal=agent,
        protocol=PROTOCOL,
        name=said.name or None,
        version=said.version or None,
        work_types=said.work_types or None,
        capabilities=said.capabilities,
        max_concurrent=1,
        details=details,
    )
