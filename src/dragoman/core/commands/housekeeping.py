"""The hub's own commands, and what a person does about dead letters."""

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
    """A `wake_at` has come: look at the row and act."""

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
    """The direct message with a question for an agent did not arrive."""

    principal: AgentId = HUB
    question: QuestionId
    agent: AgentId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)


class ClearOut(Command, frozen=True, gc=False, kw_only=True):
    """Give up the deliveries to a removed agent. Outcome: how many there were."""

    principal: AgentId = HUB
    agent: AgentId


class EndContractsOf(Command, frozen=True, gc=False, kw_only=True):
    """An agent was removed, by `by`: the contracts that it had at `until` end with it, and the other parties are
    notified. Outcome: how many ended."""

    principal: AgentId = HUB
    agent: AgentId
    until: Instant
    by: AgentId = HUB


class AwaitReturn(Command, frozen=True, gc=False, kw_only=True):
    """The hub started, and this agent was connected when it stopped: look after its work when it must be back. Outcome:
    how many tasks wake earlier for this."""

    principal: AgentId = HUB
    agent: AgentId


class WaitAgain(Command, frozen=True, gc=False, kw_only=True):
    """The policy's waits changed at `since`: unacknowledged deliveries wait by them. `rank` and `after` are the place
    of the last delivery. Outcome: how many waits changed."""

    principal: AgentId = HUB
    agent: AgentId
    since: Instant
    rank: int = FIRST
    after: DeliveryId = DeliveryId("")


class Sweep(Command, frozen=True, gc=False, kw_only=True):
    """Forget messages that need not be recognised any more. Outcome: how many there were."""

    principal: AgentId = HUB


class Past(enum.StrEnum):
    """What is forgotten when it is over, in this order: a task needs its contract."""

    TASKS = "tasks"
    QUESTIONS = "questions"  # that belong to no task
    CONTRACTS = "contracts"


class Forget(Command, frozen=True, gc=False, kw_only=True):
    """Forget what ended long ago and is not needed any more: tasks, then what has no task (`what`). `since` and `after`
    are the place of the last row: when it came, and its id. Outcome: how many were forgotten."""

    principal: AgentId = HUB
    what: Past = Past.TASKS
    since: Instant = Instant(0)
    after: str = ""


class KeepSeries(Command, frozen=True, gc=False, kw_only=True):
    """Keep figures of the plots (`core.model.series`). Outcome: how many."""

    principal: AgentId = HUB
    rows: tuple[SeriesRow, ...]


class NoteRead(Command, frozen=True, gc=False, kw_only=True):
    """An agent read something, where its protocol wants every request in the audit record.

    The request may have to count once, although it leaves no row of its own: then `message_id` and `digest` are those
    of the message, and `count` is its outcome. Outcome: the count of the first time, if it came before; else None.
    """

    what: str
    about: str | None = None
    message_id: str | None = None
    digest: str = ""
    count: int = 0


class NoteRefusal(Command, frozen=True, gc=False, kw_only=True):
    """A request was refused before it became a command (no credential, malformed): record it. Outcome: 1 if it is a
    record now, 0 if it was only counted (`core.model.refusals`)."""

    principal: AgentId = ADMIN
    what: str
    fault: Fault
    about: str | None = None
    address: str | None = None
    """The address of a sender without a credential."""


class CountRefusals(Command, frozen=True, gc=False, kw_only=True):
    """Record how many refusals were only counted. Outcome: how many records that took."""

    principal: AgentId = HUB


class Redrive(Command, frozen=True, gc=False, kw_only=True):
    """Send a dead letter again, with an edited input if one is given. Outcome: the task, or, for a direct message, the
    dead letter."""

    action: ClassVar = "deadletter.redrive"
    dead_letter: DeliveryId
    input: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter


class Discard(Command, frozen=True, gc=False, kw_only=True):
    """Delete a dead letter; its task stays as it is. Outcome: the dead letter."""

    action: ClassVar = "deadletter.discard"
    dead_letter: DeliveryId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.dead_letter),)

    @property
    def subject(self) -> str:
        return self.dead_letter
