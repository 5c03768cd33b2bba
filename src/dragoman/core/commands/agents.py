"""Who is let in, and what agents say of themselves."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import (
    Lookup,
    TaskById,
)
from dragoman.core.model.agents import Agent, Offer
from dragoman.messages.faults import Fault


class AddAgent(Command, frozen=True, gc=False, kw_only=True):
    """A person lets an agent in. Outcome: the agent. Refused with CONFLICT if the id is taken."""

    action: ClassVar = "agent.add"
    agent: Agent

    @property
    def subject(self) -> str:
        return self.agent.id


class RemoveAgent(Command, frozen=True, gc=False, kw_only=True):
    """Its unfinished work goes back to the queue; its links are closed, its contracts end."""

    action: ClassVar = "agent.remove"
    agent: AgentId

    @property
    def subject(self) -> str:
        return self.agent


class RotateToken(Command, frozen=True, gc=False, kw_only=True):
    """A new credential; links made with the old one are closed."""

    action: ClassVar = "agent.token"
    agent: AgentId
    token_hash: str

    @property
    def subject(self) -> str:
        return self.agent


class RevokeToken(Command, frozen=True, gc=False, kw_only=True):
    """One signed token of an agent's does not count any more; its credential and its other tokens do. Outcome: the
    agent. `until` is when the token is over in any case: it need not be remembered for longer."""

    action: ClassVar = "agent.revoke"
    agent: AgentId
    jti: str
    until: Instant

    @property
    def subject(self) -> str:
        return self.agent

    @property
    def digest(self) -> str:
        return self.jti


class RegisterAgent(Command, frozen=True, gc=False, kw_only=True):
    """An agent says what it is and can do, with `capabilities` instead of those it said before; None leaves them as
    they are. Without `max_concurrent` it takes as many tasks at once as it was added with. Outcome: the agent."""

    action: ClassVar = "agent.register"
    kind: str | None = None
    name: str | None = None
    work_types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] | None = None
    max_concurrent: int | None = None
    memory_mb: int | None = None
    gpu_vram_mb: int | None = None
    role: str | None = None
    version: str | None = None
    protocol_version: str | None = None
    callback_url: str | None = None
    details: dict[str, Any] = {}
    offers: tuple[Offer, ...] | None = None
    domain: str | None = None

    @property
    def subject(self) -> str:
        return self.principal


class AdmitGuest(Command, frozen=True, gc=False, kw_only=True):
    """An agent comes without a token, where that is allowed. Outcome: the agent, new or known.

    Refused with UNAUTHENTICATED if that agent has a token, with FORBIDDEN if it speaks another protocol.
    """

    action: ClassVar = "agent.admit"
    protocol: str
    name: str | None = None

    @property
    def subject(self) -> str:
        return self.principal


class Beat(Command, frozen=True, gc=False, kw_only=True):
    """An agent is alive. Nothing is committed for it."""

    state: str | None = None


class ReportStatus(Command, frozen=True, gc=False, kw_only=True):
    """How an agent is: its state, its health, what it has used. Outcome: the version of its entry in the registry.

    `status` has the fields of its registry entry; `usage`, `health` and `next_available` are kept beside it.
    """

    status: dict[str, Any]
    current_tasks: tuple[str, ...] = ()
    usage: dict[str, Any] = {}
    health: dict[str, Any] = {}
    next_available: Instant | None = None


class Severity(enum.StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class ReportError(Command, frozen=True, gc=False, kw_only=True):
    """Something went wrong at an agent, in the course of a task or not. Outcome: the task, or None.

    It is kept with the task and with the agent. A high or critical one counts against the agent; a critical one about
    a task that it owns ends the attempt. `report` is what it said, in the hub's form.
    """

    action: ClassVar = "agent.error"
    fault: Fault
    severity: Severity
    report: dict[str, Any]
    message_id: str | None = None
    task_id: TaskId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id
