"""What the hub asks of itself, and what a person does about dead letters."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, Instant, QuestionId, TaskId
from dragoman.core.lookups import (
    FIRST,
    DeadLetterById,
    DeliveryById,
    Lookup,
    QuestionById,
    TaskById,
)
from dragoman.core.model.series import SeriesRow
from dragoman.messages.faults import Fault


class Wake(Command, frozen=True, gc=False, kw_only=True):
    """A `wake_at` has come: look at the row and do what its time is for."""

    principal: AgentId = HUB
    task: TaskId | None = None
    delivery: DeliveryId | None = None
    agent: AgentId | None = None
    question: QuestionId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        if self.task:
            return (TaskById(self.task),)
        if self.delivery:
            return (DeliveryById(self.delivery),)
        return (QuestionById(self.question),) if self.question else ()


class Unanswered(Command, frozen=True, gc=False, kw_only=True):
    """The direct message that asked an agent something did not arrive."""

    principal: AgentId = HUB
    question: QuestionId
    agent: AgentId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)


class ClearOut(Command, frozen=True, gc=False, kw_only=True):
    """Give up what was on its way to an agent that was removed. Outcome: how much that was."""

    principal: AgentId = HUB
    agent: AgentId


class EndContractsOf(Command, frozen=True, gc=False, kw_only=True):
    """An agent was removed, by `by`: the contracts that it had at `until` and that stand end with it, and the other
    side is told. Outcome: how many ended."""

    principal: AgentId = HUB
    agent: AgentId
    until: Instant
    by: AgentId = HUB


class AwaitReturn(Command, frozen=True, gc=False, kw_only=True):
    """The hub started, and this agent was connected when it died: look after its work when it must be back. Outcome:
    how much of it is looked at earlier than it would be."""

    principal: AgentId = HUB
    agent: AgentId


class WaitAgain(Command, frozen=True, gc=False, kw_only=True):
    """The policy's waits changed at `since`: what an agent has not acknowledged waits as they say. `rank` and `after`
    are the place of the last delivery looked at. Outcome: how many wait otherwise now."""

    principal: AgentId = HUB
    agent: AgentId
    since: Instant
    rank: int = FIRST
    after: DeliveryId = DeliveryId("")


class Sweep(Command, frozen=True, gc=False, kw_only=True):
    """Forget what need not be remembered any more. Outcome: how much that was."""

    principal: AgentId = HUB


class Past(enum.StrEnum):
    """What is forgotten when it is over, in this order: a task needs its contract."""

    TASKS = "tasks"
    QUESTIONS = "questions"  # that belong to no task
    CONTRACTS = "contracts"


class Forget(Command, frozen=True, gc=False, kw_only=True):
    """Forget what ended long ago and nothing needs any more: tasks, then what has no task (`what`). `since` and `after`
    are the place of the last one looked at: when it came, and its id. Outcome: how many were forgotten."""

    principal: AgentId = HUB
    what: Past = Past.TASKS
    since: Instant = Instant(0)
    after: str = ""


class KeepSeries(Command, frozen=True, gc=False, kw_only=True):
    """Keep figures of the plots (`core.model.series`). Outcome: how many."""

    principal: AgentId = HUB
    rows: tuple[SeriesRow, ...]


class NoteRead(Command, frozen=True, gc=False, kw_only=True):
    """An agent looked at something, where its protocol wants every request in the audit record.

    What it asks may have to happen once, although it leaves no row of its own: then `message_id` and `digest` are those
    of the message, and `count` what it comes to. Outcome: the count of the first time, if it came before; else None.
    """

    what: str
    about: str | None = None
    message_id: str | None = None
    digest: str = ""
    count: int = 0


class NoteRefusal(Command, frozen=True, gc=False, kw_only=True):
    """Something was refused before it became a command (no credential, malformed): keep it in the audit record.
    Outcome: 1 if it is a record now, 0 if it was only counted (`core.model.refusals`)."""

    principal: AgentId = ADMIN
    what: str
    fault: Fault
    about: str | None = None
    address: str | None = None
    """Where it came from, where nobody knows from whom."""


class CountRefusals(Command, frozen=True, gc=False, kw_only=True):
    """Record how many refusals were only counted. Outcome: how many records that took."""

    principal: AgentId = HUB


class Redrive(Command, frozen=True, gc=False, kw_only=True):
    """Send a dead letter on its way again, with an edited input if one is given. Outcome: the task, or, where it was a
    dead letter between agents, the dead letter."""

    action: ClassVar = "deadletter.redrive"
    dead_letter: DeliveryId
    input: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter


class Discard(Command, frozen=True, gc=False, kw_only=True):
    """Forget a dead letter; its task stays as it is. Outcome: the dead letter."""

    action: ClassVar = "deadletter.discard"
    dead_letter: DeliveryId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter
