"""A store in dictionaries, for tests.

It answers a lookup as `core.lookups` defines it, by trying `matches` on every row, so tests compare the SQLite store
with it. It is atomic, reads its own writes, and fails where a test wants it to. It is never used in production: nothing
here survives the process.

Rows are frozen, so a store is copied by copying its dictionaries: a simulation forks one per branch.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import (
    ContractById,
    DeadLetterById,
    DeliveryById,
    EntityById,
    EventOf,
    Lookup,
    QuestionById,
    Row,
    SeenMessageById,
    TaskById,
)
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import GENESIS, AuditRecord
from dragoman.core.model.contracts import Contract, Standing
from dragoman.core.model.deliveries import DeadLetter, Delivery, DeliveryState, SeenMessage
from dragoman.core.model.holdings import NOTHING, Holding, holding_of
from dragoman.core.model.people import Person
from dragoman.core.model.series import KEPT, SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import FINAL, Event, Question, QuestionStatus, Status, Task
from dragoman.core.ports import PASSED, USED, Changes, Due, FoundTasks, Recovered, StoreFailed, TaskFilter, TaskSearch
from dragoman.stores.shared import StoreUnit, cursor_at, cursor_of, has_words, place_cursor, search_words, task_cursor

AnyRow = TypeVar(
    "AnyRow",
    Agent,
    Task,
    Event,
    Delivery,
    DeadLetter,
    Question,
    Entity,
    Changed,
    SeenMessage,
    Contract,
    Person,
    SeriesRow,
)

TABLES: tuple[type[Row], ...] = AnyRow.__constraints__

MOST_COUNTED = 10_000
FORGOTTEN = 64
"""The most rows of the shared state's log that one commit removes."""

BY_KEY = (TaskById, DeliveryById, DeadLetterById, QuestionById, EntityById, SeenMessageById, ContractById)
"""Lookups by one key: answered from the dictionary instead of every row, then checked with `matches`."""


def key(row: Row) -> Hashable:
    """The key of a row in its dictionary."""
    return (row.task, row.seq) if isinstance(row, Event) else row.id


class MemoryStore:
    """`core.ports.Store` in dictionaries."""

    def __init__(self, *, immediate: bool = True) -> None:
        """`immediate=False` behaves like a remote store: every lookup has to wait."""
        self.immediate = immediate
        self._tables: dict[type[Any], dict[Hashable, Any]] = {table: {} for table in TABLES}
        self._requests: dict[tuple[AgentId, str], TaskId] = {}
        self._audit: dict[int, AuditRecord] = {}
        self._passed: dict[str, str] = {}
        self._used: dict[int, int] = {}
        self._in_unit = False
        self._failure: StoreFailed | None = None
        self._fails_after = False

    # -- for tests

    def fail_next_commit(self, error: StoreFailed | None = None, *, after: bool = False) -> None:
        """Make the next commit raise. With `after` its changes are written nevertheless: an unknown outcome."""
        self._failure = error or StoreFailed("the disk is full (injected)")
        self._fails_after = after

    def fork(self) -> MemoryStore:
        """An independent store with the same rows."""
        twin = MemoryStore(immediate=self.immediate)
        twin._tables = {table: dict(rows) for table, rows in self._tables.items()}
        twin._requests = dict(self._requests)
        twin._audit = dict(self._audit)
        twin._passed = dict(self._passed)
        twin._used = dict(self._used)
        return twin

    def rows(self, table: type[AnyRow]) -> list[AnyRow]:
        """Every row of a kind."""
        return list(self._tables[table].values())

    # -- the port

    async def open(self) -> Recovered:
        active: dict[AgentId, list[TaskId]] = defaultdict(list)
        backlog: Counter[str] = Counter()
        for task in self.rows(Task):
            if task.holder is not None:
                insort(active[task.holder], task.id)
            if task.queue is not None:
                backlog[task.queue] += 1
        last = max(self._audit, default=0)
        return Recovered(
            agents=sorted(self.rows(Agent), key=lambda agent: agent.id),
            people=sorted(self.rows(Person), key=lambda person: person.id),
            active=dict(active),
            backlog=dict(backlog),
            audit_seq=last,
            audit_hash=self._audit[last].hash if last else GENESIS,
            entities=sorted(
                (row for row in self.rows(Entity) if row.registry is not Registry.TASK), key=lambda row: row.id
            ),
            state_cursor=max((row.cursor for row in self.rows(Changed)), default=0),
            parted=sorted(
                {
                    *(id for row in self.rows(Contract) if row.standing is Standing.ACTIVE for id in row.parties),
                    *(row.receiver for row in self.rows(Delivery)),
                }.difference(self._tables[Agent])
            ),
            passed=dict(self._passed),
            used=dict(self._used),
            holdings=self._holdings(),
        )

    def _holdings(self) -> dict[AgentId, Holding]:
        held: dict[AgentId, Holding] = {}
        for row in (*self.rows(Task), *self.rows(Delivery), *self.rows(Entity)):
            if (found := holding_of(row)) is not None:
                held[found[0]] = held.get(found[0], NOTHING).plus(found[1])
        return {id: holding for id, holding in held.items() if holding != NOTHING}

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[StoreUnit]:
        if self._in_unit:
            raise RuntimeError("a unit of work is open already: a node has at most one")
        self._in_unit = True
        try:
            yield StoreUnit(self._answer, self._apply, immediate=self.immediate)
        finally:
            self._in_unit = False

    async def note(self, direct_messages: Mapping[str, str]) -> None:
        for id, content in direct_messages.items():
            self._passed.pop(id, None)
            self._passed[id] = content
        for id in list(islice(self._passed, max(0, len(self._passed) - PASSED))):
            del self._passed[id]

    def _answer(self, lookup: Lookup[Any]) -> list[Any]:
        table = self._tables[lookup.row]
        found: Iterable[Any]
        if isinstance(lookup, BY_KEY):
            row = table.get(lookup.id)
            found = () if row is None else (row,)
        elif isinstance(lookup, EventOf):
            row = table.get((lookup.task, lookup.seq))
            found = () if row is None else (row,)
        else:
            found = table.values()
        return sorted(filter(lookup.matches, found), key=lookup.order)[: lookup.most]

    async def _apply(self, changes: Changes) -> None:
        """Apply all changes, or raise and apply none."""
        failure, self._failure = self._failure, None
        if failure is not None and not self._fails_after:
            raise failure
        self._check(changes)
        forgotten = set()
        for row in changes.removed:
            gone = self._tables[type(row)].pop(key(row))
            if isinstance(gone, Task):
                del self._requests[gone.origin.principal, gone.origin.request_id]
                forgotten.add(gone.id)
        if forgotten:
            events = self._tables[Event]
            for name in [name for name, event in events.items() if event.task in forgotten]:
                del events[name]
        for row in (*changes.added, *changes.changed):
            self._tables[type(row)][key(row)] = row
            if isinstance(row, Task):
                self._requests[row.origin.principal, row.origin.request_id] = row.id
            elif isinstance(row, SeriesRow):
                self._bound_series(row)
        self._audit.update((record.seq, record) for record in changes.audit)
        self._used.update(changes.used)
        for id in list(islice(self._used, max(0, len(self._used) - USED))):
            del self._used[id]
        if changes.forget:
            log = self._tables[Changed]
            for cursor in sorted(row.cursor for row in log.values() if row.cursor <= changes.forget)[:FORGOTTEN]:
                del log[cursor]
        if failure is not None:
            raise failure

    def _bound_series(self, newest: SeriesRow) -> None:
        rows = self._tables[SeriesRow]
        oldest = newest.at - KEPT[newest.step]
        for name in [name for name, row in rows.items() if row.step == newest.step and row.at < oldest]:
            del rows[name]

    def _check(self, changes: Changes) -> None:
        seen: set[tuple[type[Any], Hashable]] = set()
        requests: set[tuple[AgentId, str]] = set()
        free = {(row.origin.principal, row.origin.request_id) for row in changes.removed if isinstance(row, Task)}
        for rows, must_exist in ((changes.added, False), (changes.changed, True), (changes.removed, True)):
            for row in rows:
                name = (type(row), key(row))
                if name in seen:
                    raise StoreFailed(f"{type(row).__name__} {key(row)} stands twice in one unit")
                seen.add(name)
                if isinstance(row, SeriesRow):  # written again, it replaces the one before
                    continue
                if (name[1] in self._tables[name[0]]) is not must_exist:
                    exists = "does not exist" if must_exist else "exists already"
                    raise StoreFailed(f"{type(row).__name__} {key(row)} {exists}")
                if isinstance(row, Delivery) and row.alone:
                    continue
                if isinstance(row, Event | Delivery) and not must_exist and not self._known(row.task, changes):
                    raise StoreFailed(f"{type(row).__name__} {key(row)} is of a task that does not exist")
                if isinstance(row, Task) and not must_exist:
                    request = (row.origin.principal, row.origin.request_id)
                    if (request in self._requests and request not in free) or request in requests:
                        raise StoreFailed(f"request {request[1]} of {request[0]} has a task already")
                    requests.add(request)
        numbers = [record.seq for record in changes.audit]
        if len(set(numbers)) < len(numbers) or any(number in self._audit for number in numbers):
            raise StoreFailed("an audit record exists already")

    def _known(self, task: TaskId, changes: Changes) -> bool:
        return task in self._tables[Task] or any(isinstance(row, Task) and row.id == task for row in changes.added)

    @property
    def log_bytes(self) -> int:
        return 0

    async def due(self, now: Instant, limit: int) -> Due:
        later: list[Instant] = []
        found: dict[type[Any], list[Any]] = {}
        for table in (Task, Delivery, Agent, Question):
            scheduled = [(row.wake_at, row.id) for row in self._tables[table].values() if row.wake_at is not None]
            scheduled.sort()
            ripe = [id for at, id in scheduled if at <= now]
            found[table] = ripe[:limit]
            later += [at for at, _ in scheduled[len(found[table]) :][:1]]
        return Due(
            tasks=found[Task],
            deliveries=found[Delivery],
            agents=found[Agent],
            questions=found[Question],
            next_at=min(later, default=None),
        )

    async def task(self, id: TaskId) -> Task | None:
        return self._tables[Task].get(id)

    async def tasks(self, where: TaskFilter, *, after: str | None, limit: int) -> tuple[Sequence[Task], str | None]:
        wanted = {
            name: value
            for name, value in (
                ("status", where.status),
                ("type", where.type),
                ("owner", where.agent),
            )
            if value is not None
        }
        newest = sorted(self.rows(Task), key=lambda task: (task.created_at, task.id), reverse=True)
        if after is not None:
            place = task_cursor(after)
            newest = [task for task in newest if (task.created_at, task.id) < place]
        page = [
            task
            for task in newest
            if all(getattr(task, name) == value for name, value in wanted.items())
            and where.parent in (None, task.lineage.parent)
            and where.principal in (None, task.origin.principal)
            and (where.since is None or task.created_at >= where.since)
            and (where.before is None or task.created_at < where.before)
        ]
        return page[:limit], cursor_of(page[limit - 1]) if len(page) > limit else None

    async def search(self, where: TaskSearch, *, after: str | None, limit: int) -> FoundTasks:
        words = search_words(where.text)
        speakers = {agent.id for agent in self.rows(Agent) if agent.protocol == where.protocol}
        statuses = where.statuses or ((where.status,) if where.status else tuple(Status))
        found = [
            (task.created_at, number, task)
            for number, task in enumerate(self.rows(Task))
            if task.status in statuses
            and where.type in (None, task.type)
            and where.agent in (None, task.owner)
            and where.principal in (None, task.origin.principal)
            and where.parent in (None, task.lineage.parent)
            and (where.protocol in (None, task.origin.protocol) or task.owner in speakers)
            and (where.since is None or task.created_at >= where.since)
            and (where.before is None or task.created_at < where.before)
            and has_words(task, words)
        ]
        total = len(found) if after is None and len(found) <= MOST_COUNTED else None
        if after is not None:
            place = place_cursor(after)
            found = [one for one in found if (one[1] < place[1] if words else one[:2] < place)]
        found.sort(key=lambda one: one[1] if words else one[:2], reverse=True)
        on = cursor_at(found[limit - 1][:2]) if len(found) > limit else None
        return FoundTasks(tasks=[task for _, _, task in found[:limit]], next=on, total=total)

    async def find_tasks(self, prefix: str, limit: int) -> Sequence[Task]:
        found = [task for task in self.rows(Task) if task.id.startswith(prefix)]
        return sorted(found, key=lambda task: task.id)[:limit]

    async def events(self, task: TaskId, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        found = [event for event in self.rows(Event) if event.task == task and event.seq > after]
        return sorted(found, key=lambda event: event.seq)[:limit]

    async def events_since(self, at: Instant, limit: int) -> Sequence[Event]:
        place = {id: number for number, id in enumerate(self._tables[Task])}
        found = [row for row in self.rows(Event) if row.at > at]
        return sorted(found, key=lambda row: (row.at, place[row.task], row.seq))[:limit]

    async def series(self, step: int, *, since: int, until: int | None = None) -> Sequence[SeriesRow]:
        return sorted(
            (
                row
                for row in self.rows(SeriesRow)
                if row.step == step and row.at >= since and (until is None or row.at < until)
            ),
            key=lambda row: row.at,
        )

    async def deliveries(
        self, *, task: TaskId | None = None, receiver: AgentId | None = None, limit: int = 1000
    ) -> Sequence[Delivery]:
        found = [row for row in self.rows(Delivery) if task in (None, row.task) and receiver in (None, row.receiver)]
        return sorted(found, key=lambda row: row.id)[:limit]

    async def dead_letters(
        self, *, task: TaskId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        found = [row for row in self.rows(DeadLetter) if task in (None, row.task) and (after is None or row.id < after)]
        return sorted(found, key=lambda row: row.id, reverse=True)[:limit]

    async def questions(
        self,
        *,
        status: QuestionStatus | None = None,
        task: TaskId | None = None,
        asked_of: AgentId | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[Question]:
        found = [
            row
            for row in self.rows(Question)
            if status in (None, row.status) and task in (None, row.task) and asked_of in (None, row.asked_of)
        ]
        return sorted((row for row in found if row.id > after), key=lambda row: row.id)[:limit]

    async def question(self, id: QuestionId) -> Question | None:
        return self._tables[Question].get(id)

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        principal: str | None = None,
        subject: str | None = None,
        outcome: str | None = None,
    ) -> Sequence[AuditRecord]:
        found = [
            record
            for seq, record in sorted(self._audit.items())
            if seq > after
            and principal in (None, record.principal)
            and subject in (None, record.subject)
            and outcome in (None, record.outcome)
        ]
        return found[:limit]

    async def contract(self, id: str) -> Contract | None:
        return self._tables[Contract].get(id)

    async def contracts(
        self, *, agent: AgentId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Contract]:
        found = [row for row in self.rows(Contract) if agent is None or agent in row.parties]
        found = [row for row in found if after is None or row.id < after]
        return sorted(found, key=lambda row: row.id, reverse=True)[:limit]

    async def contract_of(self, collaboration: str) -> Contract | None:
        found = [row for row in self.rows(Contract) if row.collaboration == collaboration]
        return max(found, key=lambda row: (row.created_at, row.id), default=None)

    async def entity(self, id: str) -> Entity | None:
        return self._tables[Entity].get(id)

    async def entities(self, registry: Registry, *, after: str = "", limit: int = 1000) -> Sequence[Entity]:
        found = [row for row in self.rows(Entity) if row.registry is registry and row.name > after]
        return sorted(found, key=lambda row: row.name)[:limit]

    async def changes(self, *, after: int = 0, limit: int = 100) -> Sequence[Changed]:
        found = [row for row in self.rows(Changed) if row.cursor > after]
        return sorted(found, key=lambda row: row.cursor)[:limit]

    async def attached(self, files: Sequence[str]) -> Collection[str]:
        return {file.id for task in self.rows(Task) for file in task.output.files}.intersection(files)

    async def counts(self) -> Mapping[str, int]:
        statuses = Counter(task.status for task in self.rows(Task))
        states = Counter(delivery.state for delivery in self.rows(Delivery))
        return {
            **{f"tasks_{status}": statuses[status] for status in Status if status not in FINAL},
            **{f"deliveries_{state}": states[state] for state in DeliveryState},
            "dead_letters": len(self._tables[DeadLetter]),
            "questions_open": sum(row.status is QuestionStatus.OPEN for row in self.rows(Question)),
        }

    async def backup(self, target: str) -> None:
        """Write the rows as one JSON text, enough for tests; refuses an existing target."""
        rows = {table.__name__: list(kept.values()) for table, kept in self._tables.items()}
        with Path(target).open("xb") as out:  # noqa: ASYNC230
            out.write(msgspec.json.encode({**rows, "AuditRecord": list(self._audit.values())}))
