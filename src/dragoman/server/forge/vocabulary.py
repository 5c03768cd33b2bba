"""The hub's words and forge's, side by side: statuses, priorities, roles (D7, all-D8)."""

from __future__ import annotations

from collections.abc import Mapping

from dragoman.core.model.agents import Agent, BreakerState
from dragoman.core.model.tasks import Priority, Status, Task, Waiting
from dragoman.protocols.forge.types import ROLES, AgentStatus, TaskStatus

PROTOCOL = "forge"
ASSIGNED_MESSAGE = "Task assigned. Use TaskGet to view details."
"""The document's own words."""

PRIORITY_IN: Mapping[int, Priority] = {
    1: Priority.CRITICAL,
    2: Priority.HIGH,
    3: Priority.NORMAL,
    4: Priority.LOW,
    5: Priority.LOW,
}
PRIORITY_OUT: Mapping[Priority, int] = {
    Priority.CRITICAL: 1,
    Priority.HIGH: 2,
    Priority.NORMAL: 3,
    Priority.LOW: 4,
}

STATUS_OUT: Mapping[Status, TaskStatus] = {
    Status.QUEUED: "queued",  # or `retrying`, once an attempt has failed
    Status.ASSIGNED: "assigned",
    Status.RUNNING: "running",
    Status.WAITING: "running",  # or `pending`, while nobody has begun it
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
STATUS_IN: Mapping[TaskStatus, tuple[Status, ...]] = {
    "pending": (Status.WAITING,),
    "queued": (Status.QUEUED,),
    "retrying": (Status.QUEUED,),
    "assigned": (Status.ASSIGNED,),
    "running": (Status.RUNNING, Status.WAITING),
    "completed": (Status.COMPLETED,),
    "failed": (Status.FAILED,),
    "cancelled": (Status.CANCELLED,),
}
"""Where tasks of a forge status are to be looked for; `status_of` then decides."""


def status_of(task: Task) -> TaskStatus:
    """A task's status in forge's words."""
    if task.status is Status.QUEUED and task.attempts:
        return "retrying"
    if task.status is Status.WAITING and (task.waiting is Waiting.DEPENDENCY or not task.attempts):
        return "pending"
    return STATUS_OUT[task.status]


def agent_status(agent: Agent, *, reachable: bool, load: int) -> AgentStatus:
    """An agent's status in forge's words, as far as the hub can tell; whoever runs its process may know more."""
    if not reachable and not agent.connected:
        return "initializing" if agent.last_seen_at is None else "stopped"
    if agent.breaker.state is BreakerState.OPEN:
        return "unhealthy"
    return "busy" if load else "idle"


def role_is_known(role: str, agents: Mapping[str, Agent] | list[Agent]) -> bool:
    """Whether a role is the document's, or one that somebody here has."""
    known = agents.values() if isinstance(agents, Mapping) else agents
    return role in ROLES or any(agent.role == role for agent in known)
