"""Who has a part in a task.

Names come back. An agent that was removed and one that was added under its name later are two: what the first asked
for, did and was told is none of the second one's business. What is under way and still meant for that name is.

A task that changes hands takes along what was asked for in its course (`subtask_owner`): whoever has it now is to that
as whoever asked.
"""

from __future__ import annotations

from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Task


def asked_for(agent: Agent, task: Task) -> bool:
    return agent.id == task.origin.principal and not is_namesake(agent, task)


def inherits(agent: Agent, task: Task) -> bool:
    """Whether it has what the task is a part of, from whoever asked for the part."""
    return (
        task.lineage.subtask_owner is not None
        and agent.id == task.lineage.subtask_owner.agent
        and agent.created_at <= task.lineage.subtask_owner.since
    )


def governs(agent: Agent | None, principal: AgentId | None, task: Task) -> bool:
    """Whether somebody may steer a task, and hears how it ended. `agent` is None for people, whose names mean them."""
    if agent is None:
        return principal == task.origin.principal
    return asked_for(agent, task) or inherits(agent, task)


def is_namesake(agent: Agent | None, task: Task) -> bool:
    """Whether this agent came only after the task: if its caller has that name, it was another."""
    return agent is not None and agent.created_at > task.created_at


def has(agent: Agent, task: Task) -> bool:
    """Whether the task is in its hands, or was in the end."""
    return agent.id == task.owner and _was_there(agent, task)


def is_party(agent: Agent | None, principal: AgentId | None, task: Task) -> bool:
    """Whether somebody governs the task or has it."""
    return governs(agent, principal, task) or (principal == task.owner if agent is None else has(agent, task))


def had(agent: Agent, task: Task) -> bool:
    """Whether the task went through its hands."""
    return any(agent.id in pair for pair in task.lineage.handed) and _was_there(agent, task)


def _was_there(agent: Agent, task: Task) -> bool:
    return task.finished_at is None or agent.created_at <= task.finished_at
