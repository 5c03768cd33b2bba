"""Deliveries, dead letters and messages seen before; contracts; what agents keep in the shared state."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.lookups.base import EVERYTHING, Lookup
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.deliveries import DeadLetter, Delivery, DeliveryState, SeenMessage
from dragoman.core.model.state import Entity

FIRST = -(1 << 62)
"""Before every rank."""


class DeliveryById(Lookup[Delivery], frozen=True, gc=False):
    row: ClassVar = Delivery
    single: ClassVar = True
    id: DeliveryId

    def matches(self, row: Delivery) -> bool:
        return row.id == self.id


class Lane(Lookup[Delivery], frozen=True, gc=False):
    """The deliveries to one receiver about one task, in order. Not for deliveries with a lane of their own."""

    row: ClassVar = Delivery
    task: TaskId
    receiver: AgentId
    limit: int = EVERYTHING

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.receiver == self.receiver and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> int:
        return row.seq


class LaneEnd(Lookup[Delivery], frozen=True, gc=False):
    """The same, the last one first."""

    row: ClassVar = Delivery
    task: TaskId
    receiver: AgentId
    limit: int = 1

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.receiver == self.receiver and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> int:
        return -row.seq


class Underway(Lookup[Delivery], frozen=True, gc=False):
    """The deliveries about one task, to any receiver."""

    row: ClassVar = Delivery
    task: TaskId
    limit: int

    def matches(self, row: Delivery) -> bool:
        return row.task == self.task and row.task != row.id  # type: ignore[comparison-overlap]

    def order(self, row: Delivery) -> tuple[str, int]:
        return (row.receiver, row.seq)


class SeenMessageById(Lookup[SeenMessage], frozen=True, gc=False):
    row: ClassVar = SeenMessage
    single: ClassVar = True
    id: str

    def matches(self, row: SeenMessage) -> bool:
        return row.id == self.id


class Spent(Lookup[SeenMessage], frozen=True, gc=False):
    """Direct messages of before a time: they need not be recognised any more."""

    row: ClassVar = SeenMessage
    before: Instant
    limit: int

    def matches(self, row: SeenMessage) -> bool:
        return row.at < self.before

    def order(self, row: SeenMessage) -> tuple[int, str]:
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
    """What one receiver holds under leases that end with a session or with a task's timers, oldest first."""

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
    """Everything that was sent to a receiver and may be redelivered, oldest first, from behind a place on: the rank of
    the last one, and its id."""

    row: ClassVar = Delivery
    receiver: AgentId
    rank: int = FIRST
    after: DeliveryId = DeliveryId("")
    limit: int = EVERYTHING

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


class EntityById(Lookup[Entity], frozen=True, gc=False):
    """A task that agents keep among themselves. Other entities are in the directory."""

    row: ClassVar = Entity
    single: ClassVar = True
    id: str

    def matches(self, row: Entity) -> bool:
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
    """The contracts of one agent, on either side, that were made until a time and are not over at another, in the order
    of their ends."""

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
    """Contracts of before a time, in force or not, the oldest first, from behind a place on."""

    row: ClassVar = Contract
    since: Instant
    after: str
    before: Instant
    limit: int

    def matches(self, row: Contract) -> bool:
        return (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Contract) -> tuple[int, str]:
        return (row.created_at, row.id)
