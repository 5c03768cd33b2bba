"""A cache of the rows that the hub works on now, so that in the steady state a lookup does not touch SQLite.

There is one writer, this hub, so the cache is coherent by construction: it learns of every commit that
succeeded and is dropped after every one that did not. It holds rows, and *shelves*: the complete set of rows under a
key (a task's deliveries, a receiver's inbox, a queue). One rule keeps it correct: **a row on a shelf is also in the
cache as a row; when the cache drops the row, it drops its shelves.** A missing shelf means "ask SQLite", never "empty".

The cache knows without SQLite that a new task has no deliveries, because a delivery never comes before its task, and
that a name was never written (`bloom_filter`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar

from dragoman.core.ids import AgentId, DeliveryId, TaskId
from dragoman.core.lookups import (
    PAGE,
    Claims,
    ContractById,
    DeliveryById,
    EventOf,
    Inbox,
    Lane,
    LaneEnd,
    LeasedTo,
    Lookup,
    Ready,
    SeenMessageById,
    TaskById,
)
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Delivery, DeliveryState, SeenMessage
from dragoman.core.model.tasks import Event, Task
from dragoman.core.ports import Changes
from dragoman.stores.bloom_filter import NameFilter

SHELF = 256
"""A longer shelf is not kept: SQLite's index finds its first rows faster than the cache can sort them all."""

SHORT = 16
"""Of a longer lane only the requested rows are read: most tasks have one or two deliveries."""

CONTRACTS = 3
"""So many times more contracts than other rows are kept: agents use a contract again and again."""

EVENT_BYTES = 16 << 20
LARGE_EVENT = 64 << 10
DIRECT_MESSAGE_BYTES = 16 << 20
"""Bytes of direct messages that are kept: very many may wait for a slow receiver, and each may be long."""

K = TypeVar("K")
V = TypeVar("V")


class HotCache:
    def __init__(self, rows: int, names: NameFilter | None = None) -> None:
        self._rows = rows
        self.names = names or NameFilter()
        self.clear()

    def clear(self) -> None:
        """Drop all rows; the filter of names stays valid."""
        self._tasks: dict[TaskId, Task] = {}
        self._requests: dict[tuple[AgentId, str], TaskId] = {}
        self._numbers: dict[TaskId, int] = {}
        self._deliveries: dict[DeliveryId, Delivery] = {}
        self._direct_message_bytes = 0
        self._events: dict[tuple[TaskId, int], Event] = {}
        self._event_bytes = 0
        self._contracts: dict[str, Contract] = {}
        self._ready: dict[str, dict[TaskId, Task]] = {}
        self._long: set[str] = set()
        """Queues that were too long for a shelf at the last lookup in SQLite."""
        self._of_task: dict[TaskId, dict[DeliveryId, Delivery]] = {}
        self._inbox: dict[AgentId, dict[DeliveryId, Delivery]] = {}
        self._leased: dict[AgentId, dict[DeliveryId, Delivery]] = {}

        self.absent: set[TaskId] = set()
        """Tasks that this unit found not to exist. They have no deliveries either."""

    # -- lookups

    def number(self, task: TaskId) -> int | None:
        return self._numbers.get(task)

    def task(self, id: TaskId) -> Task | None:
        return self._tasks.get(id)

    def answer(self, lookup: Lookup[Any]) -> list[Any] | None:
        """The rows that a lookup finds; None if SQLite must be asked."""
        ask = ASK.get(type(lookup))
        return None if ask is None else ask(self, lookup)

    def _task_by_id(self, lookup: TaskById) -> list[Any] | None:
        task = self._tasks.get(lookup.id)
        if task is not None:
            return [task]
        if self.names.lack(lookup.id):
            self.absent.add(lookup.id)
            return []
        return None

    def _seen_by_id(self, lookup: SeenMessageById) -> list[Any] | None:
        return [] if self.names.lack(lookup.id) else None

    def _claims(self, lookup: Claims) -> list[Any] | None:
        claim = (lookup.principal, lookup.request_id)
        id = self._requests.get(claim)
        if id is None:
            names = self.names
            return [] if names.lack(claim) and (lookup.task is None or names.lack(lookup.task)) else None
        if lookup.task not in (None, id):  # another task may have the id: ask SQLite
            return None
        return [self._tasks[id]]

    def _event_of(self, lookup: EventOf) -> list[Any] | None:
        event = self._events.get((lookup.task, lookup.seq))
        return None if event is None else [event]

    def _contract_by_id(self, lookup: ContractById) -> list[Any] | None:
        contract = self._contracts.get(lookup.id)
        return None if contract is None else [contract]

    def _delivery_by_id(self, lookup: DeliveryById) -> list[Any] | None:
        delivery = self._deliveries.get(lookup.id)
        return None if delivery is None else [delivery]

    def _lane(self, lookup: Lane | LaneEnd) -> list[Any] | None:
        shelf = self._of_task.get(lookup.task)
        if shelf is None:
            return [] if lookup.task in self.absent else None
        lane = [row for row in shelf.values() if row.receiver == lookup.receiver]
        if len(lane) > 1:
            lane.sort(key=lookup.order)
            del lane[lookup.most :]
        return lane

    def _queue(self, lookup: Ready) -> list[Any] | None:
        return _best(self._ready.get(lookup.queue), lookup)

    def _inbox_of(self, lookup: Inbox) -> list[Any] | None:
        return _best(self._inbox.get(lookup.receiver), lookup)

    def _leased_to(self, lookup: LeasedTo) -> list[Any] | None:
        return _best(self._leased.get(lookup.receiver), lookup)

    # -- results of SQLite

    def wider(self, lookup: Lookup[Any]) -> Lookup[Any]:
        """The lookup to make in SQLite instead: the whole of a queue that may be short, so that it gets a shelf."""
        if isinstance(lookup, Ready) and lookup.limit < PAGE and lookup.queue not in self._long:
            return Ready(lookup.queue, PAGE)
        return lookup

    def learn(self, lookup: Lookup[Any], rows: list[Any]) -> None:
        kind = type(lookup)
        if kind not in ASK:
            return
        if lookup.single and not rows:
            if kind is TaskById:
                self.absent.add(lookup.id)  # type: ignore[attr-defined]
            return
        for row in rows:
            if isinstance(row, Task):
                self._keep_task(row)
            elif isinstance(row, Delivery):
                self._keep_delivery(row)
            elif isinstance(row, Contract):
                self._contracts[row.id] = row
            elif isinstance(row, Event):
                self._keep_event(row)
        if len(rows) < min(lookup.most, SHELF):  # all there are
            shelf = {row.id: row for row in rows} if not isinstance(lookup, EventOf) else {}
            if isinstance(lookup, Ready):
                self._ready[lookup.queue] = shelf
                self._long.discard(lookup.queue)
            elif isinstance(lookup, Inbox):
                self._inbox[lookup.receiver] = shelf
            elif isinstance(lookup, LeasedTo):
                self._leased[lookup.receiver] = shelf
        elif isinstance(lookup, Ready):
            self._long.add(lookup.queue)
        self._trim()

    def learn_deliveries(self, task: TaskId, rows: list[Delivery]) -> None:
        """Keep these rows as all deliveries of a task."""
        for row in rows:
            self._keep_delivery(row)
        self._of_task[task] = {row.id: row for row in rows}
        self._trim()

    def learn_number(self, task: TaskId, no: int) -> None:
        self._numbers[task] = no

    # -- commits

    def expect(self, added: Iterable[Any]) -> None:
        """These rows are about to be written: add their names to the filter."""
        note = self.names.note
        for row in added:
            kind = type(row)
            if kind is SeenMessage:
                note(row.id)
            elif kind is Task:
                note(row.id)
                note((row.origin.principal, row.origin.request_id))

    def follow(self, changes: Changes, new: dict[TaskId, int]) -> None:
        self.absent.clear()
        for row in changes.removed:
            if type(row) is Delivery:
                self._drop_delivery(row.id)
            elif type(row) is Task:
                self._drop_task(row.id)
                self._numbers.pop(row.id, None)
                self._of_task.pop(row.id, None)
                self._drop_events_of(row)
            elif type(row) is Event:
                self._drop_event(row)
            elif type(row) is Contract:
                self._contracts.pop(row.id, None)
        self._numbers.update(new)
        for id in new:
            self._of_task[id] = {}
        for row in changes.added:
            if type(row) is Event:
                self._keep_event(row)
            elif type(row) is Delivery:
                self._put_delivery(row)
            elif type(row) is Task:
                self._put_task(row)
            elif type(row) is Contract:
                self._contracts[row.id] = row
        for row in changes.changed:
            if type(row) is Task:
                if not self._drop_task(row.id):
                    self._ready.clear()  # the task may have been in any queue
                self._put_task(row)
            elif type(row) is Delivery:
                if not self._drop_delivery(row.id):
                    self._forget_shelves()
                self._put_delivery(row)
            elif type(row) is Event:
                self._drop_event(row)
            elif type(row) is Contract:
                self._contracts[row.id] = row
        self._trim()

    def _keep_task(self, task: Task) -> None:
        self._tasks[task.id] = task
        self._requests[task.origin.principal, task.origin.request_id] = task.id

    def _put_task(self, task: Task) -> None:
        self._keep_task(task)
        if task.queue is not None:
            _shelve(self._ready, task.queue, task.id, task)

    def _drop_task(self, id: TaskId) -> bool:
        old = self._tasks.pop(id, None)
        if old is None:
            return False
        self._requests.pop((old.origin.principal, old.origin.request_id), None)
        if old.queue is not None and (shelf := self._ready.get(old.queue)) is not None:
            shelf.pop(id, None)
        return True

    def _keep_delivery(self, row: Delivery) -> None:
        if row.direct_message is not None:
            old = self._deliveries.get(row.id)
            self._direct_message_bytes += _direct_message_size(row) - (0 if old is None else _direct_message_size(old))
        self._deliveries[row.id] = row

    def _put_delivery(self, row: Delivery) -> None:
        self._keep_delivery(row)
        _shelve(self._of_task, row.task, row.id, row)
        if row.state is DeliveryState.LEASED:
            if row.ordered or row.wake_at is None:
                _shelve(self._leased, row.receiver, row.id, row)
        elif row.head:
            _shelve(self._inbox, row.receiver, row.id, row)

    def _drop_delivery(self, id: DeliveryId) -> bool:
        old = self._deliveries.pop(id, None)
        if old is None:
            self._forget_shelves()
            return False
        self._direct_message_bytes -= _direct_message_size(old)
        for shelf in (
            self._of_task.get(old.task),
            (self._leased if old.state is DeliveryState.LEASED else self._inbox).get(old.receiver),
        ):
            if shelf is not None:
                shelf.pop(id, None)
        return True

    def _forget_shelves(self) -> None:
        self._of_task.clear()
        self._inbox.clear()
        self._leased.clear()

    def _keep_event(self, event: Event) -> None:
        name = (event.task, event.seq)
        if name in self._events:
            self._drop_event(event)
        size = _size(event)
        if size <= LARGE_EVENT:
            self._events[name] = event
            self._event_bytes += size

    def _drop_event(self, event: Event) -> None:
        old = self._events.pop((event.task, event.seq), None)
        if old is not None:
            self._event_bytes -= _size(old)

    def _drop_events_of(self, task: Task) -> None:
        """Drop the events of a removed task, in the cheaper of two ways: it may have more than the cache holds."""
        known = self._events
        numbers = range(task.seq + 1)
        names = (
            [(task.id, n) for n in numbers] if task.seq < len(known) else [name for name in known if name[0] == task.id]
        )
        for name in names:
            if (event := known.get(name)) is not None:
                self._drop_event(event)

    # -- staying small: the oldest go first

    def _trim(self) -> None:
        most = self._rows
        if len(self._contracts) > CONTRACTS * most:
            for name in oldest(self._contracts, CONTRACTS * most):
                del self._contracts[name]
        if len(self._tasks) > most:
            for id in oldest(self._tasks, most):
                task = self._tasks.pop(id)
                self._requests.pop((task.origin.principal, task.origin.request_id), None)
                if task.queue is not None:
                    self._ready.pop(task.queue, None)
        if len(self._deliveries) > most:
            for name in oldest(self._deliveries, most):
                self._trim_delivery(name)
        while self._direct_message_bytes > DIRECT_MESSAGE_BYTES:
            for name in list(islice(self._deliveries, len(self._deliveries) // 4 + 1)):
                self._trim_delivery(name)
        if self._event_bytes > EVENT_BYTES:
            for event in list(islice(self._events.values(), len(self._events) // 4 + 1)):
                self._drop_event(event)
        if len(self._of_task) > most:
            for id in oldest(self._of_task, most):
                del self._of_task[id]
        if len(self._numbers) > most:
            for id in oldest(self._numbers, most):
                del self._numbers[id]
        if len(self._ready) + len(self._inbox) + len(self._leased) > most:
            self._ready.clear()
            self._inbox.clear()
            self._leased.clear()
        if len(self._long) > most:
            self._long.clear()

    def _trim_delivery(self, id: DeliveryId) -> None:
        row = self._deliveries.pop(id)
        self._direct_message_bytes -= _direct_message_size(row)
        self._of_task.pop(row.task, None)
        self._inbox.pop(row.receiver, None)
        self._leased.pop(row.receiver, None)


def oldest(known: dict[K, Any], most: int) -> list[K]:
    """The oldest keys, to be removed. Many at once: finding a dictionary's first key means stepping over removed
    ones."""
    return list(islice(known, len(known) - most + most // 8))


def _shelve(shelves: dict[K, dict[Any, V]], key: K, id: Any, row: V) -> None:
    shelf = shelves.get(key)
    if shelf is None:
        return
    shelf[id] = row
    if len(shelf) > SHELF:
        del shelves[key]


def _best(shelf: dict[Any, Any] | None, lookup: Lookup[Any]) -> list[Any] | None:
    if shelf is None:
        return None
    rows = list(shelf.values())
    if len(rows) > 1:
        rows.sort(key=lookup.order)
    return rows[: lookup.most]


def _direct_message_size(row: Delivery) -> int:
    return 0 if row.direct_message is None else memoryview(row.direct_message.raw).nbytes


def _size(event: Event) -> int:
    return memoryview(event.body).nbytes + (256 if event.raw is None else 256 + len(event.raw))


ASK: dict[type[Lookup[Any]], Callable[[HotCache, Any], list[Any] | None]] = {
    TaskById: HotCache._task_by_id,
    Claims: HotCache._claims,
    EventOf: HotCache._event_of,
    ContractById: HotCache._contract_by_id,
    DeliveryById: HotCache._delivery_by_id,
    SeenMessageById: HotCache._seen_by_id,
    Lane: HotCache._lane,
    LaneEnd: HotCache._lane,
    Ready: HotCache._queue,
    Inbox: HotCache._inbox_of,
    LeasedTo: HotCache._leased_to,
}
"""The lookups that the cache can answer."""
