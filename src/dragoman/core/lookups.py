"""What a decision may ask the store for: a closed list of questions, each defined once, in Python.

A lookup says which rows it means (`matches`), in which order (`order`) and how many at most. The memory store
answers by trying every row; SQL stores translate each lookup into a statement with an index behind it, and the
shared suite holds their answers against `matches`. `core.work` uses the same definition to lay the changes of
the running unit of work over what the store answered. Lookups are values: they are the keys of what was loaded.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from dragoman.core.agents.model import Agent
from dragoman.core.contracts.model import Contract, Standing
from dragoman.core.delivery.model import DeadLetter, Delivery, DeliveryState, Heard
from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, TaskId
from dragoman.core.state.model import Changed, Entity
from dragoman.core.tasks.model import Event, Question, QuestionStatus, Task

Row = Agent | Task | Event | Delivery | DeadLetter | Question | Entity | Changed | Heard | Contract
R = TypeVar("R", Task, Event, Delivery, DeadLetter, Question, Entity, Heard, Contract)

EVERYTHING = 1 << 30
PAGE = 64
"""How many rows a decision takes at a time where there may be many."""


class Lookup(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """The common shape. `row` is the type of row asked for."""

    row: ClassVar[type[Any]]
    single: ClassVar[bool] = False

    @property
    def most(self) -> int:
        return getattr(self, "limit", 1 if self.single else EVERYTHING)

    def matches(self, row: R) -> bool:
        raise NotImplementedError

    def order(self, row: R) -> Any:
        return 0

    def widened(self) -> Lookup[R]:
        """The same question with room for more rows."""
        return msgspec.structs.replace(self, limit=self.most * 4)


class TaskById(Lookup[Task], frozen=True, gc=False):
    row: ClassVar = Task
    single: ClassVar = True
    id: TaskId

    def matches(self, row: Task) -> bool:
        return row.id == self.id


class Claims(Lookup[Task], frozen=True, gc=False):
    """What stands in the way of a new task: the one its principal asked for under the same request id (the
    idempotency key, all-D5), which comes first, and the one that has its id. One question, for every request asks it.
    """

    row: ClassVar = Task
    principal: AgentId
    request_id: str
    task: TaskId | None = None

    def asked(self, row: Task) -> bool:
        return row.origin.request_id == self.request_id and row.origin.principal == self.principal

    def matches(self, row: Task) -> bool:
        return row.id == self.task or self.asked(row)

    def order(self, row: Task) -> bool:
        return not self.asked(row)


class Ready(Lookup[Task], frozen=True, gc=False):
    """The tasks standing in a queue, best first."""

    row: ClassVar = Task
    queue: str
    limit: int

    def matches(self, row: Task) -> bool:
        return row.queue == self.queue

    def order(self, row: Task) -> tuple[int, str]:
        return (row.rank, row.id)


class Children(Lookup[Task], frozen=True, gc=False):
    """The unfinished children of a task."""

    row: ClassVar = Task
    parent: TaskId

    def matches(self, row: Task) -> bool:
        return row.parent == self.parent and not row.final

    def order(self, row: Task) -> str:
        return row.id


class Dependents(Lookup[Task], frozen=True, gc=False):
    """The unfinished tasks that still wait for a task."""

    row: ClassVar = Task
    dependency: TaskId

    def matches(self, row: Task) -> bool:
        return self.dependency in row.blocked_by and not row.final

    def order(self, row: Task) -> str:
        return row.id


class Relying(Lookup[Task], frozen=True, gc=False):
    """The unfinished tasks that depend on a task, also those that need not wait for it any more."""

    row: ClassVar = Task
    dependency: TaskId
    limit: int

    def matches(self, row: Task) -> bool:
        return self.dependency in row.dependencies and not row.final

    def order(self, row: Task) -> str:
        return row.id


class Finished(Lookup[Task], frozen=True, gc=False):
    """Finished tasks that came before a time, the oldest first, from behind a place on: when the last one came, and its
    id. When a task ended has no index, which every end of a task would have to pay for."""

    row: ClassVar = Task
    since: Instant
    after: TaskId
    before: Instant
    limit: int

    def matches(self, row: Task) -> bool:
        return row.final and (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Task) -> tuple[int, str]:
        return (row.created_at, row.id)


class Under(Lookup[Task], frozen=True, gc=False):
    """The tasks that were asked on a contract, finished or not."""

    row: ClassVar = Task
    contract: str
    limit: int

    def matches(self, row: Task) -> bool:
        return row.contract == self.contract

    def order(self, row: Task) -> str:
        return row.id


class EventOf(Lookup[Event], frozen=True, gc=False):
    row: ClassVar = Event
    single: ClassVar = True
    task: TaskId
    seq: int

    def matches(self, row: Event) -> bool:
        return row.task == self.task and row.seq == self.seq


class Story(Lookup[Event], frozen=True, gc=False):
    """The last events of a task, the newest first."""

    row: ClassVar = Event
    task: TaskId
    limit: int

    def matches(self, row: Event) -> bool:
        return row.task == self.task

    def order(self, row: Event) -> int:
        return -row.seq


class DeliveryById(Lookup[Delivery], frozen=True, gc=False):
    row: ClassVar = Delivery
    single: ClassVar = True
    id: DeliveryId

    def matches(self, row: Delivery) -> bool:
        return row.id == self.id


class Lane(Lookup[Delivery], frozen=True, gc=False):
    """What is on its way to one receiver about one task, in order. What has a lane of its own is not asked for so."""

    row: ClassVar = Delivery
    task: TaskId
    receiver: AgentId
    limit: int = EVERYTHING

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.receiver == self.receiver and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> int:
        return row.seq


class LaneEnd(Lookup[Delivery], frozen=True, gc=False):
    """The same from behind: what went into a lane last comes first."""

    row: ClassVar = Delivery
    task: TaskId
    receiver: AgentId
    limit: int = 1

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.receiver == self.receiver and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> int:
        return -row.seq


class Underway(Lookup[Delivery], frozen=True, gc=False):
    """What is on its way about one task, to whomever."""

    row: ClassVar = Delivery
    task: TaskId
    limit: int

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> tuple[str, int]:
        return (row.receiver, row.seq)


class HeardById(Lookup[Heard], frozen=True, gc=False):
    row: ClassVar = Heard
    single: ClassVar = True
    id: str

    def matches(self, row: Heard) -> bool:
        return row.id == self.id


class Spent(Lookup[Heard], frozen=True, gc=False):
    """Letters of before a time: they need not be recognised any more."""

    row: ClassVar = Heard
    before: Instant
    limit: int

    def matches(self, row: Heard) -> bool:
        return row.at < self.before

    def order(self, row: Heard) -> tuple[int, str]:
        return (row.at, row.id)


class Inbox(Lookup[Delivery], frozen=True, gc=False):
    """What may leave for a receiver now: the waiting heads of its lanes, best first."""

    row: ClassVar = Delivery
    receiver: AgentId
    limit: int

    def matches(self, row: Delivery) -> bool:
        return row.receiver == self.receiver and row.head and row.state is DeliveryState.WAITING

    def order(self, row: Delivery) -> tuple[int, str]:
        return (row.rank, row.id)


class LeasedTo(Lookup[Delivery], frozen=True, gc=False):
    """What one receiver holds under leases that end with a session or with a task's clocks, oldest first."""

    row: ClassVar = Delivery
    receiver: AgentId
    limit: int

    def matches(self, row: Delivery) -> bool:
        return (
            row.receiver == self.receiver and row.state is DeliveryState.LEASED and (row.ordered or row.wake_at is None)
        )

    def order(self, row: Delivery) -> tuple[int, str]:
        return (row.rank, row.id)


class Unacknowledged(Lookup[Delivery], frozen=True, gc=False):
    """Everything that left for a receiver and may come back, oldest first, from behind a place on: the rank of the last
    one, and its id."""

    row: ClassVar = Delivery
    receiver: AgentId
    rank: int
    after: DeliveryId
    limit: int

    def matches(self, row: Delivery) -> bool:
        return (
            row.receiver == self.receiver
            and row.state is DeliveryState.LEASED
            and (self.rank, self.after) < (row.rank, row.id)
        )

    def order(self, row: Delivery) -> tuple[int, str]:
        return (row.rank, row.id)


class DeadLetterById(Lookup[DeadLetter], frozen=True, gc=False):
    row: ClassVar = DeadLetter
    single: ClassVar = True
    id: DeliveryId

    def matches(self, row: DeadLetter) -> bool:
        return row.id == self.id


class DeadLettersOf(Lookup[DeadLetter], frozen=True, gc=False):
    row: ClassVar = DeadLetter
    task: TaskId

    def matches(self, row: DeadLetter) -> bool:
        return row.task == self.task

    def order(self, row: DeadLetter) -> str:
        return row.id


class QuestionById(Lookup[Question], frozen=True, gc=False):
    row: ClassVar = Question
    single: ClassVar = True
    id: QuestionId

    def matches(self, row: Question) -> bool:
        return row.id == self.id


class ContractById(Lookup[Contract], frozen=True, gc=False):
    row: ClassVar = Contract
    single: ClassVar = True
    id: str

    def matches(self, row: Contract) -> bool:
        return row.id == self.id


class Terms(Lookup[Contract], frozen=True, gc=False):
    """The contracts of a collaboration, the newest first."""

    row: ClassVar = Contract
    collaboration: str
    limit: int = 8

    def matches(self, row: Contract) -> bool:
        return row.collaboration == self.collaboration

    def order(self, row: Contract) -> tuple[int, str]:
        return (-row.created_at, row.id)


class Bound(Lookup[Contract], frozen=True, gc=False):
    """The contracts of one agent, on either side, that came about until a time and are not over at another, in the
    order in which they will be."""

    row: ClassVar = Contract
    agent: AgentId
    at: Instant
    until: Instant
    limit: int

    def matches(self, row: Contract) -> bool:
        return self.agent in row.parties and row.at(self.at) is Standing.ACTIVE and row.created_at <= self.until

    def order(self, row: Contract) -> tuple[int, str]:
        return (row.expires_at, row.id)


class Agreed(Lookup[Contract], frozen=True, gc=False):
    """Contracts of before a time, however they stand, the oldest first, from behind a place on."""

    row: ClassVar = Contract
    since: Instant
    after: str
    before: Instant
    limit: int

    def matches(self, row: Contract) -> bool:
        return (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Contract) -> tuple[int, str]:
        return (row.created_at, row.id)


class Loose(Lookup[Question], frozen=True, gc=False):
    """Questions of before a time that belong to no task and are not asked any more, the oldest first, from behind a
    place on."""

    row: ClassVar = Question
    since: Instant
    after: str
    before: Instant
    limit: int

    def matches(self, row: Question) -> bool:
        if row.task is not None or row.status in (QuestionStatus.OPEN, QuestionStatus.WITH_AGENT):
            return False
        return (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Question) -> tuple[int, str]:
        return (row.created_at, row.id)


class OpenQuestions(Lookup[Question], frozen=True, gc=False):
    """What is asked in the course of a task and not answered, of people and of agents."""

    row: ClassVar = Question
    task: TaskId

    def matches(self, row: Question) -> bool:
        return row.task == self.task and row.status in (QuestionStatus.OPEN, QuestionStatus.WITH_AGENT)

    def order(self, row: Question) -> str:
        return row.id


class AskedBy(Lookup[Question], frozen=True, gc=False):
    """What an agent asks people and has no answer to, the oldest first."""

    row: ClassVar = Question
    agent: AgentId
    limit: int

    def matches(self, row: Question) -> bool:
        return row.agent == self.agent and row.status is QuestionStatus.OPEN

    def order(self, row: Question) -> str:
        return row.id


class QuestionsOf(Lookup[Question], frozen=True, gc=False):
    """What was asked in the course of a task, whatever became of it."""

    row: ClassVar = Question
    task: TaskId
    limit: int

    def matches(self, row: Question) -> bool:
        return row.task == self.task

    def order(self, row: Question) -> tuple[str, str]:
        return (row.status, row.id)


class EntityById(Lookup[Entity], frozen=True, gc=False):
    """A task that agents keep among themselves. What else they share is on the floor."""

    row: ClassVar = Entity
    single: ClassVar = True
    id: str

    def matches(self, row: Entity) -> bool:
        return row.id == self.id


__all__ = [
    "Agreed", "AskedBy", "Bound", "Children", "ContractById", "DeadLetterById", "DeadLettersOf", "DeliveryById",
    "Dependents", "EVERYTHING", "EntityById", "EventOf", "Finished", "HeardById", "Inbox", "Lane", "LaneEnd",
    "LeasedTo", "Lookup", "Loose", "OpenQuestions", "PAGE", "QuestionById", "QuestionsOf", "Ready", "Relying", "Row",
    "Spent", "Story", "TaskById", "Terms", "Unacknowledged", "Under", "Underway",
]  # fmt: skip
