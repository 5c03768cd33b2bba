"""An agent says what it is and can do. It may fill in what is open, never change who it is (all-D1)."""

from __future__ import annotations

from dragoman.core.commands import RegisterAgent
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Kind, owned_by, refuse
from dragoman.protocols.forge.types import PLANNER, Register
from dragoman.server.forge.vocabulary import PROTOCOL


def registration_of(agent: Agent, said: Register) -> RegisterAgent:
    """The command; raises `Refused`.

    A role decides what an agent sees (D5), so it is given where the agent is added: one that names its role must name
    that one, and nobody makes itself a planner.
    """
    if said.agent_id not in (None, agent.id):
        message = owned_by(agent.id, said.agent_id)
        raise refuse(Kind.FORBIDDEN, message, field="payload.agentId", agent_id=agent.id)
    if said.role is not None and said.role != agent.role and (agent.role is not None or said.role == PLANNER):
        given = f"was added as {agent.role!r}" if agent.role else "was added without a role"
        message = f"{agent.id} {given} and cannot register as {said.role!r}; a role is given with `dragoman agent add`"
        raise refuse(Kind.FORBIDDEN, message, field="payload.role", agent_id=agent.id)
    return RegisterAgent(
        principal=agent.id,
        protocol=PROTOCOL,
        name=said.name,
        role=said.role,
        version=said.version,
        work_types=said.work_types if said.work_types is not None else agent.work_types,
        capabilities=said.capabilities,
        max_concurrent=said.max_concurrent or agent.max_concurrent,
        callback_url=agent.callback_url,
        details=agent.details,
    )
