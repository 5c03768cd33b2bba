"""Reading what the store holds, with the changes of the unit laid over it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from dragoman.core.ids import TaskId
from dragoman.core.lookups import (
    Claims,
    ContractById,
    DeadLetterById,
    DeliveryById,
    EntityById,
    EventOf,
    HeardById,
    Lane,
    LaneEnd,
    Lookup,
    QuestionById,
    Ready,
    TaskById,
    Underway,
)
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, Heard
from dragoman.core.model.shared_tasks import step
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.work.notes import Entry, Notes, NotLoaded, key_of
from dragoman.messages.faults import Kind, refuse

R = TypeVar("R", Task, Event, Delivery, DeadLetter, Question, Entity, Heard, Contract)

OF_A_TASK = frozenset({Lane, LaneEnd, Underway})
BY_ID = frozenset({TaskById, DeliveryById, DeadLetterById, QuestionById, EntityById, HeardById, ContractById})

FEW = 4
"""Of a queue, at first; then four times as many, and so on."""


class Rows(Notes):
    def find(self, lookup: Lookup[R]) -> Sequence[R]:
        """The rows a lookup means, with this unit's changes laid over them."""
        rows = self._fetch(lookup)
        dirty = self._dirty[lookup.row]
        changed = self._changed(lookup, dirty) if dirty else None
        if changed is None:
            return rows
        kept = [row for row in rows if key_of(row) not in dirty]
        if len(kept) < len(rows) and len(rows) >= lookup.most and not lookup.single:
            return self.find(lookup.widened())[: lookup.most]  # some of them changed: look further back
        kept += [row for row in changed if lookup.matches(row)]
        if len(kept) > 1:
            kept.sort(key=lookup.order)
            del kept[lookup.most :]
        return kept

    def _changed(self, lookup: Lookup[Any], dirty: dict[Any, Entry]) -> list[Any] | None:
        """The rows of this unit that could match; None if it touched none that could ever have.

        A unit may hold hundreds of commands, so the lookups every one of them makes do not go through all of them.
        """
        kind = type(lookup)
        if kind in BY_ID:
            entry = dirty.get(lookup.id)  # type: ignore[attr-defined]
            return None if entry is None else [] if entry.row is None else [entry.row]
        keys: Iterable[Any]
        if kind in OF_A_TASK:
            keys = self._lanes.get(lookup.task, ())  # type: ignore[attr-defined]
        elif kind is Claims:
            asked = self._requests.get((lookup.principal, lookup.request_id))  # type: ignore[attr-defined]
            keys = {asked, lookup.task}  # type: ignore[attr-defined]
        else:
            keys = dirty
        entries = [dirty[key] for key in keys if key in dirty]
        return [entry.row for entry in entries if entry.row is not None] if entries else None

    def _fetch(self, lookup: Lookup[R]) -> Sequence[R]:
        if self._peek is not None:  # the store remembers for itself
            rows = self._peek(lookup)
            if rows:
                table: Any = lookup.row
                base = self._base[table]
                for row in rows:
                    base[row.id if table is not Event else key_of(row)] = row
            return rows
        loaded = self._loaded.get(lookup)
        if loaded is not None:
            return loaded
        if type(lookup) in OF_A_TASK and self._is_new(lookup.task):  # type: ignore[attr-defined]
            return ()  # nor could it be asked for: run again, the decision makes the task under another id
        raise NotLoaded(lookup)

    def _is_new(self, task: TaskId) -> bool:
        """Whether this unit made the task: then nothing of it is in the store."""
        entry = self._dirty[Task].get(task)
        return entry is not None and entry.base is None

    def together(self, lookups: Sequence[Lookup[Any]]) -> None:
        """These will be asked for, one by one: where an answer takes a way, all are asked for at once."""
        if self._peek is None:
            missing = [lookup for lookup in lookups if lookup not in self._loaded]
            if missing:
                raise NotLoaded(*missing)

    def one(self, lookup: Lookup[R]) -> R | None:
        rows = self.find(lookup)
        return rows[0] if rows else None

    def task(self, id: TaskId) -> Task | None:
        entry = self._dirty[Task].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        row = self._base[Task].get(id)
        return row if row is not None else self.one(TaskById(id))

    def contract(self, id: str) -> Contract | None:
        entry = self._dirty[Contract].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        row = self._base[Contract].get(id)
        return row if row is not None else self.one(ContractById(id))

    def tasks(self, ids: Iterable[TaskId]) -> list[Task]:
        """Those of the tasks that exist, asking the store for all missing ones at once."""
        found: list[Task] = []
        missing: list[Lookup[Any]] = []
        for id in ids:
            try:
                task = self.task(id)
            except NotLoaded as unknown:
                missing += unknown.lookups
            else:
                if task is not None:
                    found.append(task)
        if missing:
            raise NotLoaded(*missing)
        return found

    def known_task(self, id: TaskId) -> Task:
        task = self.task(id)
        if task is None:
            raise refuse(Kind.NOT_FOUND, "no such task", field="task_id", task_id=id)
        return task

    def event(self, task: TaskId, seq: int) -> Event:
        key = (task, seq)
        entry = self._dirty[Event].get(key)
        row = entry.row if entry is not None else self._base[Event].get(key)
        if row is None:
            row = self.one(EventOf(task, seq))
        assert isinstance(row, Event), f"event {seq} of task {task} is not in the store"
        return row

    def task_version(self, task: Task) -> int:
        """The version of a task as if the unit ended here: steps of this unit that others will see count."""
        entry = self._dirty[Task].get(task.id)
        told: Any = self._versioned.get(task.id) or (entry and entry.base)
        return task.version + (told is not None and step(told, task) is not None)

    def first_in(self, queue: str) -> Task | None:
        """The best task that still stands in a queue.

        A unit may take hundreds of tasks out of a queue of a million, so it does not ask for the best ones again and
        again: it walks along what it fetched, and fetches more at the end of that. Nearly all take one.
        """
        rows, at, limit = self._ready.get(queue) or (self._fetch(Ready(queue, FEW)), 0, FEW)
        dirty = self._dirty[Task]
        best: Task | None = None
        while True:
            while at < len(rows) and (best := _standing(rows[at], queue, dirty)) is None:  # taken
                at += 1
            if at < len(rows) or len(rows) < limit:
                break
            limit *= 4
            rows = self._fetch(Ready(queue, limit))
        self._ready[queue] = rows, at, limit
        for id in self._queued:  # came into a queue in this very unit
            entry = dirty.get(id)
            task: Any = entry.row if entry is not None else None
            if task is not None and task.queue == queue and (best is None or (task.rank, id) < (best.rank, best.id)):
                best = task
        return best


def _standing(row: Task, queue: str, dirty: dict[Any, Entry]) -> Task | None:
    """The task as it is now, if it still stands in the queue."""
    entry = dirty.get(row.id)
    now: Any = row if entry is None else entry.row
    return now if now is not None and now.queue == queue else None
