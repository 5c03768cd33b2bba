"""Agents: how they are admitted, connect and leave, what they report of themselves and what they have received."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import AgentId, DeliveryId, Instant, SessionId, TaskId
from dragoman.core.lookups import (
    PAGE,
    Claims,
    DeliveryById,
    Inbox,
    LeasedTo,
    Lookup,
    TaskById,
)
from dragoman.core.model.agents import Agent, Offer
from dragoman.messages.faults import Fault
from dragoman.messages.tasks import Json


class AddAgent(Command, frozen=True, gc=False, kw_only=True):
    """A person adds an agent. Outcome: the agent. Refused with CONFLICT if the id is taken."""

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


class PauseAgent(Command, frozen=True, gc=False, kw_only=True):
    """A person lets an agent get no new work; it finishes what it has. Outcome: the agent."""

    action: ClassVar = "agent.pause"
    agent: AgentId

    @property
    def subject(self) -> str:
        return self.agent


class ResumeAgent(Command, frozen=True, gc=False, kw_only=True):
    """A paused agent gets work again. Outcome: the agent."""

    action: ClassVar = "agent.resume"
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
    """One signed token of an agent does not count any more; its credential and its other tokens do. Outcome: the agent.
    `until` is when the token expires in any case: the hub remembers it until then."""

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
    """An agent declares what it is and can do. `capabilities` replace those that it declared before; None leaves them.
    Without `max_concurrent` it takes as many tasks at once as it was added with. Outcome: the agent."""

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
    details: Json = {}  # of the protocol or the supervisor that wrote them; the core only keeps them
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
    """A heartbeat. Nothing is committed for it."""

    state: str | None = None


class ReportStatus(Command, frozen=True, gc=False, kw_only=True):
    """An agent reports its state, its health and what it has used. Outcome: the version of its entry in the registry.

    `status` has the fields of its registry entry; `usage`, `health` and `next_available` are kept beside it.
    """

    # These three are JSON of the agent: its registry entry has them as they came, fields included that the hub does not
    # know. The hub reads its own few from the entry (`model.state.standing_of`, `budgets.budget.reported`).
    status: Json
    current_tasks: tuple[str, ...] = ()
    usage: Json = {}
    health: Json = {}
    next_available: Instant | None = None


class Severity(enum.StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class ReportError(Command, frozen=True, gc=False, kw_only=True):
    """An agent reports an error, about a task or not. Outcome: the task, or None.

    It is kept with the task and with the agent. A high or critical one counts against the agent; a critical one about a
    task that it owns ends the attempt. `report` is the agent's account, in the hub's form.
    """

    action: ClassVar = "agent.error"
    fault: Fault
    severity: Severity
    report: Json  # of the agent: kept with the task, as it came; the hub reads `fault` and `severity`
    message_id: str | None = None
    task_id: TaskId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


class OpenLink(Command, frozen=True, gc=False, kw_only=True):
    """An agent can be reached: over a link that keeps order, or by one poll that takes up to `credit` outgoing
    messages.

    What waits for it leaves after the commit, through the link. A second ordered link of the same agent replaces the
    first. Outcome: the number of outgoing messages that leave at once (a poll with none waits).

    `fresh`: the agent starts with empty memory, so what it held over an earlier link is lost. `instance`: which process
    of the agent this is, where it names itself; another one than the last is `fresh`, too. `vouches`: while this link
    is open, the agent is alive, however silent. `paced`: the link reports how far its peer has read (`PaceLink`), and
    gets no more than that allows.
    """

    session: SessionId
    ordered: bool
    credit: int = 0
    acknowledges: bool = False
    fresh: bool = False
    instance: str | None = None
    vouches: bool = False
    paced: bool = False

    def wants(self) -> tuple[Lookup[Any], ...]:
        inbox = Inbox(self.principal, PAGE if self.ordered else max(1, min(self.credit, PAGE)))
        return (inbox, LeasedTo(self.principal, PAGE)) if self.ordered else (inbox,)


class CloseLink(Command, frozen=True, gc=False, kw_only=True):
    """The link is gone, or a poll was answered or given up."""

    session: SessionId
    lost: bool = True
    """False for a poll that simply ended: nothing was lost with it."""
    fault: Fault | None = None
    """The agent itself is gone, for this reason: what it held over the link fails at once, without a grace time."""
    stopping: bool = False
    """The node that held the link stops in order: that is no failure of the agent, and costs its tasks no attempt."""


class PartLink(Command, frozen=True, gc=False, kw_only=True):
    """The agent at the other end of a link was asked to end: it may finish what it has, and gets no new work."""

    session: SessionId


class RefillLink(Command, frozen=True, gc=False, kw_only=True):
    """An ordered link has room again: more of what waits may leave."""

    session: SessionId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Inbox(self.principal, PAGE),)


class PaceLink(Command, frozen=True, gc=False, kw_only=True):
    """How much of what an ordered link was given has been written to its peer, in all (`Outgoing.weight`). If the link
    was full, more of what waits may leave."""

    session: SessionId
    written: int

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Inbox(self.principal, PAGE),)


class TellAgain(Command, frozen=True, gc=False, kw_only=True):
    """The caller of this request has not seen the answer: deliver it again, or offer it at once if it waits for an
    acknowledgment that will not come. Refused with NOT_FOUND if there was no such request."""

    request_id: str

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Claims(self.principal, self.request_id),)


class Acknowledge(Command, frozen=True, gc=False, kw_only=True):
    """The receiver has these deliveries. Unknown ids are ignored: they were acknowledged before. Outcome: how many were
    known.

    On an ordered link (`session` given) an acknowledgment covers what went before it in the same lane.
    """

    deliveries: tuple[DeliveryId, ...]
    session: SessionId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return tuple(DeliveryById(id) for id in self.deliveries)
