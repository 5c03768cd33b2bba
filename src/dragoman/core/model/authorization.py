"""What a principal may see and do of a task.

Names are used again. An agent that was removed and one that was added later under its name are two agents: the second
may not see what the first asked for, did and received. It gets what is under way and still meant for that name.

When a task changes its owner, its subtasks go along (`subtask_owner`): the new owner may do with them what their caller
may.
"""

from __future__ import annotations

from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Task


def asked_for(agent: Agent, task: Task) -> bool:
    return agent.id == task.origin.principal and not is_namesake(agent, task)


def inherits(agent: Agent, task: Task) -> bool:
    """Whether the agent is the subtask owner: it took the parent task over from the caller."""
    return (
        task.lineage.subtask_owner is not None
        and agent.id == task.lineage.subtask_owner.agent
        and agent.created_at <= task.lineage.subtask_owner.since
    )


def governs(agent: Agent | None, principal: AgentId | None, task: Task) -> bool:
    """Whether a principal may control a task and gets its outcome. `agent` is None for people, whose names are never
    used again."""
    if agent is None:
        return principal == task.origin.principal
    return asked_for(agent, task) or inherits(agent, task)


def is_namesake(agent: Agent | None, task: Task) -> bool:
    """Whether this agent is newer than the task: a caller of that name was another agent."""
    return agent is not None and agent.created_at > task.created_at


def has(agent: Agent, task: Task) -> bool:
    """Whether the agent owns the task, or owned it at its end."""
    return agent.id == task.owner and _was_there(agent, task)


def is_party(agent: Agent | None, principal: AgentId | None, task: Task) -> bool:
    """Whether a principal controls or owns the task."""
    return governs(agent, principal, task) or (principal == task.owner if agent is None else has(agent, task))


def had(agent: Agent, task: Task) -> bool:
    """Whether the agent owned the task at any time."""
    return any(agent.id in pair for pair in task.lineage.handed) and _was_there(agent, task)


def _was_there(agent: Agent, task: Task) -> bool:
    return task.finished_at is None or agent.created_at <= task.finished_at
