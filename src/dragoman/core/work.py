"""The unit of work: what decisions see, and what they leave behind.

A decision never waits. It asks `Work` for rows; what has not been loaded yet and cannot be had at once (`peek`)
raises `NotLoaded`, the engine loads it and runs the decision again from its start (everything it had written is
undone first). Since a decision is a pure function of what it sees, running it twice is the same as running it once.

Decisions of one unit run one after the other and see each other's changes, laid over what the store answered.
If one refuses, only its own changes are undone. When all have run, `changes()` is what the store must commit, and
only after it has is the rest of the world told: `settle()` brings the floor up to date, `parcels` leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from dragoman.core.agents.floor import Floor, Link
from dragoman.core.agents.model import Agent
from dragoman.core.audit.chain import AuditRecord, sealed
from dragoman.core.commands import Command
from dragoman.core.contracts.model import Contract
from dragoman.core.delivery.model import DeadLetter, Delivery, Heard, Parcel
from dragoman.core.errors import Kind, refuse
from dragoman.core.ids import HUB, AgentId, Instant, Moment, SessionId, TaskId
from dragoman.core.lookups import (
    PAGE,
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
    Row,
    TaskById,
    Underway,
)
from dragoman.core.policy.ratelimit import Key, Minute
from dragoman.core.ports import Changes
from dragoman.core.rules import Rules
from dragoman.core.state import policy
from dragoman.core.state.model import Change, Changed, Entity, Operation, Registry
from dragoman.core.state.standing import Standing, standing_of
from dragoman.core.state.tasks import beginning, step
from dragoman.core.tasks.model import Event, EventKind, Question, Task

R = TypeVar("R", Task, Event, Delivery, DeadLetter, Question, Entity, Heard, Contract)

TABLES: tuple[type[Any], ...] = (Agent, Task, Event, Delivery, DeadLetter, Question, Entity, Heard, Contract)
BY_ID = frozenset({TaskById, DeliveryById, DeadLetterById, QuestionById, EntityById, HeardById, ContractById})


class NotLoaded(Exception):
    """The decision needs these first."""

    def __init__(self, *lookups: Lookup[Any]) -> None:
        super().__init__(lookups)
        self.lookups = lookups


def key_of(row: Row) -> Any:
    """What a row is known by within its table."""
    return (row.task, row.seq) if type(row) is Event else row.id  # type: ignore[union-attr]


class _Entry:
    """A row touched by this unit. `base`: it was in the store before. `row` None: it is gone."""

    __slots__ = ("base", "row")

    def put(self, row: Row | None) -> None:
        self.row = row

    def __init__(self, base: Row | None, row: Row | None) -> None:
        self.base = base
        self.row = row


class Work:
    def __init__(
        self,
        moment: Moment,
        floor: Floor,
        rules: Rules,
        serving_since: Instant,
        peek: Callable[[Lookup[Any]], Sequence[Any]] | None = None,
    ) -> None:
        self.now = moment.now
        self.mint = moment.mint
        self.rules = rules
        self.serving_since = serving_since
        self.floor = floor
        self._peek = peek
        self.parcels: list[tuple[SessionId, Parcel]] = []
        self.touched_tasks: set[TaskId] = set()
        self.closed_links: list[tuple[SessionId, str]] = []
        self.afterwards: list[Command] = []
        self.births = 0
        self._loaded: dict[Lookup[Any], Sequence[Any]] = {}
        self._base: dict[type[Any], dict[Any, Any]] = {table: {} for table in TABLES}
        self._dirty: dict[type[Any], dict[Any, _Entry]] = {table: {} for table in TABLES}
        self._lanes: dict[TaskId, list[Any]] = {}
        self._requests: dict[tuple[str, str], TaskId] = {}
        self._ready: dict[str, tuple[Sequence[Task], int, int]] = {}
        self._queued: dict[TaskId, None] = {}
        self._links: dict[SessionId, Link | None] = {}
        self._load: dict[AgentId, int] = {}
        self._backlog: dict[str, int] = {}
        self._passed: dict[str, str] = {}
        self._minutes: dict[Key, Minute] = {}
        self.changed: Changed | None = None
        self._heard: set[AgentId] = set()
        self._log: list[Change] = []
        self._versioned: dict[TaskId, Task] = {}
        self._audit: list[AuditRecord] = []
        self._undo: list[tuple[Callable[..., object], Any, Any]] = []

    # -- the engine's side ------------------------------------------------------------------------------------

    def feed(self, loaded: Mapping[Lookup[Any], Sequence[Any]]) -> None:
        """What the store answered."""
        self._loaded.update(loaded)
        base = self._base
        for rows in loaded.values():
            for row in rows:
                base[type(row)][key_of(row)] = row

    def knows(self, lookup: Lookup[Any]) -> bool:
        return lookup in self._loaded

    def begin(self) -> None:
        """A new decision starts; what the ones before did now stands."""
        self._undo.clear()

    def rollback(self) -> None:
        """Undo everything since `begin`, the last first."""
        self._ready.clear()
        while self._undo:
            undo, what, before = self._undo.pop()
            if before is ...:
                undo(what)
            else:
                undo(what, before)

    def changes(self) -> Changes:
        """What the store must commit. The decisions are over: nothing will be undone any more.

        Neither the undo log nor anything else in a unit may refer back to it: it is freed when it is done, not when the
        cycle collector comes by, which would come often then, and find thousands of rows.
        """
        self._undo.clear()
        self._log_tasks()
        added: list[Row] = []
        changed: list[Row] = []
        removed: list[Row] = []
        for entries in self._dirty.values():
            for entry in entries.values():
                if entry.row is None:
                    if entry.base is not None:
                        removed.append(entry.base)
                elif entry.base is None:
                    added.append(entry.row)
                elif entry.row is not entry.base:
                    changed.append(entry.row)
        forget = 0
        if self._log:
            cursor = self.floor.state_cursor + len(self._log)
            self.changed = Changed(cursor=cursor, at=self.now, entries=tuple(self._log))
            added.append(self.changed)
            forget = max(0, cursor - self.rules.state_log)
        return Changes(added=added, changed=changed, removed=removed, audit=self._audit, forget=forget)

    def _log_tasks(self) -> None:
        """Every step of a task that others can see raises its version and stands in the log, once for the unit."""
        log, versioned = self._log, self._versioned
        for id, entry in self._dirty[Task].items():
            row: Any = entry.row
            base: Any = entry.base
            if row is base or row is None:
                continue
            told = versioned.get(id) if versioned else None
            if base is None:
                patch: dict[str, Any] | None = beginning(row)
                raised = told is not None and step(told, row) is not None
            else:
                patch = step(base, row)
                if patch is None and told is None:
                    continue
                raised = told is None or step(told, row) is not None
            if raised:
                entry.row = row = msgspec.structs.replace(row, version=row.version + 1)
            operation = Operation.CREATE if base is None else Operation.UPDATE
            by = row.origin.principal if base is None else row.owner or HUB
            log.append(Change(operation, Registry.TASK, id, row.version, patch or {}, by, 1))

    def settle(self) -> None:
        """The commit is done: bring the floor up to date."""
        floor = self.floor
        for entry in self._dirty[Agent].values():
            if isinstance(entry.row, Agent):
                floor.put_agent(entry.row)
            elif isinstance(entry.base, Agent):
                floor.drop_agent(entry.base)
        for entry in self._dirty[Task].values():
            self._settle_task(entry)
        for entry in self._dirty[Entity].values():
            if isinstance(entry.row, Entity):
                floor.put_entity(entry.row)
            elif isinstance(entry.base, Entity):
                floor.drop_entity(entry.base)
        if self.changed is not None:
            floor.state_cursor = self.changed.cursor
        for id in self._heard:
            agent = floor.agents.get(id)
            if agent is not None and agent.converses:
                floor.heard_at[id] = self.now
        for queue, n in self._backlog.items():
            total = floor.backlog.get(queue, 0) + n
            if total > 0:
                floor.backlog[queue] = total
            else:
                floor.backlog.pop(queue, None)
        for session, link in self._links.items():
            if link is None:
                floor.drop_link(session)
            else:
                floor.put_link(link)
                if not link.ordered and not link.awaits:
                    floor.polled_at[link.agent] = self.now
        for session, parcel in self.parcels:
            polled = floor.links.get(session)
            if polled is not None and not polled.ordered:  # it has its answer: a poll takes parcels once
                if not polled.awaits:
                    floor.polled_at[parcel.delivery.receiver] = self.now
                floor.drop_link(session)
        if self._passed:
            floor.note_passed(self._passed)
        if self._minutes:
            floor.note_minutes(self._minutes, self.now)
        if self._audit:
            floor.audit_seq, floor.audit_hash = self._audit[-1].seq, self._audit[-1].hash

    def _settle_task(self, entry: _Entry) -> None:
        active = self.floor.active
        old, new = _holder(entry.base), _holder(entry.row)
        if old == new:
            return
        row: Any = entry.row or entry.base
        if old is not None and old in active:
            active[old].discard(row.id)
            if not active[old]:
                del active[old]
        if new is not None:
            active.setdefault(new, set()).add(row.id)
            self.floor.gave_work_to(new)

    # -- reading ----------------------------------------------------------------------------------------------

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

    def _changed(self, lookup: Lookup[Any], dirty: dict[Any, _Entry]) -> list[Any] | None:
        """The rows of this unit that could match; None if it touched none that could ever have.

        A unit may hold hundreds of commands, so the lookups every one of them makes do not go through all of them.
        """
        kind = type(lookup)
        if kind in BY_ID:
            entry = dirty.get(lookup.id)  # type: ignore[attr-defined]
            return None if entry is None else [] if entry.row is None else [entry.row]
        keys: Iterable[Any]
        if kind is Lane or kind is LaneEnd or kind is Underway:
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
                base = self._base[lookup.row]
                for row in rows:
                    base[key_of(row)] = row
            return rows
        loaded = self._loaded.get(lookup)
        if loaded is None:
            raise NotLoaded(lookup)
        return loaded

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

    def agent(self, id: AgentId) -> Agent | None:
        entry = self._dirty[Agent].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.floor.agents.get(id)

    def entity(self, registry: Registry, name: str) -> Entity | None:
        """Something that agents share. The policy is `core.state.changes.policy_entity`: it is there from the start."""
        id = f"{registry.value}/{name}"
        entry = self._dirty[Entity].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.one(EntityById(id)) if registry is Registry.TASK else self.floor.entities.get(id)

    @property
    def policy(self) -> policy.Policy:
        """What is in force."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.POLICY.value}/{policy.NAME}")
            if entry is not None and isinstance(entry.row, Entity):
                return policy.read(entry.row.value)
        floor = self.floor
        if floor.policy is None:
            floor.policy = policy.default(self.rules)
        return floor.policy

    @property
    def reports(self) -> bool:
        """Whether any agent said how it is."""
        return bool(self.floor.standings or self._dirty[Entity])

    @property
    def limits(self) -> bool:
        """Whether anything limits what anybody may use."""
        return bool(self.floor.allotted or self._dirty[Entity]) or self.policy.limits

    def standing(self, agent: AgentId) -> Standing | None:
        """How an agent stands, if it ever said so."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.AGENT.value}/{agent}")
            if entry is not None:
                return standing_of(entry.row.value) if isinstance(entry.row, Entity) else None
        return self.floor.standings.get(agent)

    def allotted(self, agent: AgentId) -> bool:
        """Whether there may be allocations of an agent."""
        return agent in self.floor.allotted or bool(self._dirty[Entity])

    def task_version(self, task: Task) -> int:
        """The version of a task as if the unit ended here: steps of this unit that others will see count."""
        entry = self._dirty[Task].get(task.id)
        told: Any = self._versioned.get(task.id) or (entry and entry.base)
        return task.version + (told is not None and step(told, task) is not None)

    def agents_of_kind(self, kind: str) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id in self.floor.by_kind.get(kind, ()):
            if id not in dirty:
                yield self.floor.agents[id]
        for entry in dirty.values():
            if isinstance(entry.row, Agent) and entry.row.called == kind:
                yield entry.row

    def all_agents(self) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id, agent in self.floor.agents.items():
            if id not in dirty:
                yield agent
        for entry in dirty.values():
            if isinstance(entry.row, Agent):
                yield entry.row

    def links_to(self, agent: AgentId) -> list[Link]:
        """The ways to reach it. Requests that wait for an answer are none."""
        changed = self._links
        if not changed:
            return self.floor.links_to(agent)
        links = [link for link in self.floor.links_to(agent) if link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent and not link.awaits]
        return links

    def all_links_of(self, agent: AgentId) -> list[Link]:
        """Those, and its requests that wait."""
        changed = self._links
        links = [link for link in self.floor.links.values() if link.agent == agent and link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent]
        return links

    def link(self, session: SessionId) -> Link | None:
        return self._links[session] if session in self._links else self.floor.links.get(session)

    def load_of(self, agent: AgentId) -> int:
        """How many unfinished tasks it has."""
        return len(self.floor.active.get(agent, ())) + self._load.get(agent, 0)

    def tasks_of(self, agent: AgentId) -> list[TaskId]:
        dirty = self._dirty[Task]
        ids = [id for id in self.floor.active.get(agent, ()) if id not in dirty]
        ids += [id for id, entry in dirty.items() if _holder(entry.row) == agent]
        return ids

    def backlog(self, queue: str) -> int:
        return self.floor.backlog.get(queue, 0) + self._backlog.get(queue, 0)

    def first_in(self, queue: str) -> Task | None:
        """The best task that still stands in a queue.

        A unit may take hundreds of tasks out of a queue of a million, so it does not ask for the best ones again and
        again: it walks along what it fetched, and fetches more at the end of that.
        """
        rows, at, limit = self._ready.get(queue) or (self._fetch(Ready(queue, PAGE)), 0, PAGE)
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

    def minute(self, key: Key) -> Minute | None:
        """How much somebody said in the last minute."""
        return self._minutes.get(key) or self.floor.minutes.get(key)

    def passed(self, id: str) -> str | None:
        """The digest of a letter that left without a row, if it is remembered."""
        return self._passed.get(id) or self.floor.passed.get(id)

    @property
    def anybody_queues(self) -> bool:
        return bool(self.floor.backlog or self._backlog)

    def queues(self) -> list[str]:
        """The queues in which somebody waits."""
        names = {**self.floor.backlog, **self._backlog}
        return [name for name in names if self.backlog(name) > 0]

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, row: Row) -> None:
        """Add the row, or change it if it is there."""
        self._write(type(row), key_of(row), row)

    def remove(self, row: Row) -> None:
        self._write(type(row), key_of(row), None)

    def _write(self, table: type[Any], id: Any, row: Row | None) -> None:
        dirty = self._dirty[table]
        entry = dirty.get(id)
        if entry is None:
            base: Any = self.floor.agents.get(id) if table is Agent else self._base[table].get(id)
            if table is Entity and base is None:
                base = self.floor.entities.get(id)
            old: Any = base
            dirty[id] = _Entry(base, row)
            self._undo.append((dirty.pop, id, ...))
            # The shortcuts of `_changed`. They are not undone: what they name is looked up among the dirty rows.
            if table is Delivery:
                self._lanes.setdefault((row or base).task, []).append(id)  # type: ignore[union-attr,arg-type]
            elif table is Task and base is None:
                origin = row.origin  # type: ignore[union-attr]
                self._requests[origin.principal, origin.request_id] = id
        else:
            old = entry.row
            if table is Task and old is None and entry.base is not None:
                raise refuse(Kind.OVERLOADED, "a task of this id is just being forgotten; try again", retryable=True)
            self._undo.append((_Entry.put, entry, old))
            entry.row = row
        if table is Question:
            self.touched_tasks.add(id)
        if table is Task:
            if row is None:
                self._requests[old.origin.principal, old.origin.request_id] = id
            self._count(old, row)  # type: ignore[arg-type]
            self.touched_tasks.add(id)

    def _count(self, old: Task | None, new: Task | None) -> None:
        held, holds = _holder(old), _holder(new)
        if held != holds:
            if held is not None:
                self._add(self._load, held, -1)
            if holds is not None:
                self._add(self._load, holds, +1)
        stood, stands = (old and old.queue), (new and new.queue)
        if stood != stands:
            if stood:
                self._add(self._backlog, stood, -1)
            if stands:
                self._add(self._backlog, stands, +1)
                if new is not None:
                    self._queued[new.id] = None

    def _add(self, counts: dict[Any, int], name: str, n: int) -> None:
        before = counts.get(name, 0)
        self._undo.append((counts.__setitem__, name, before))
        counts[name] = before + n

    def note_minutes(self, minutes: Mapping[Key, Minute]) -> None:
        for key, minute in minutes.items():
            if key in self._minutes:
                self._undo.append((self._minutes.__setitem__, key, self._minutes[key]))
            else:
                self._undo.append((self._minutes.pop, key, ...))
            self._minutes[key] = minute

    def note_passed(self, id: str, digest: str) -> None:
        self._passed[id] = digest
        self._undo.append((self._passed.pop, id, ...))

    def share(self, change: Change, entity: Entity | None, was: Entity | None = None) -> None:
        """Write something that agents share, and the change of it into the log. None: it is gone."""
        if entity is not None:
            self.put(entity)
        elif was is not None:
            self.remove(was)
        self._log.append(change)
        self._undo.append((self._log.pop, -1, ...))

    def put_versioned(self, task: Task) -> None:
        """Put a task whose version was raised by the decision itself, which tells it to somebody."""
        self.put(task)
        before = self._versioned.get(task.id)
        if before is None:
            self._undo.append((self._versioned.pop, task.id, ...))
        else:
            self._undo.append((self._versioned.__setitem__, task.id, before))
        self._versioned[task.id] = task

    def heard_from(self, agent: AgentId) -> None:
        """A sign of life. It is no change of anything, and is not undone."""
        self._heard.add(agent)

    def put_link(self, link: Link) -> None:
        self._set_link(link.session, link)

    def drop_link(self, session: SessionId) -> None:
        self._set_link(session, None)

    def _set_link(self, session: SessionId, link: Link | None) -> None:
        links = self._links
        if session in links:
            self._undo.append((links.__setitem__, session, links[session]))
        else:
            self._undo.append((links.pop, session, None))
        links[session] = link

    def close_link(self, session: SessionId, reason: str) -> None:
        """Forget a link and, after the commit, hang up."""
        self.drop_link(session)
        self.closed_links.append((session, reason))
        self._undo.append((self.closed_links.pop, -1, ...))

    def ask_afterwards(self, command: Command) -> None:
        """Go on with this in a unit of its own, after the commit."""
        self.afterwards.append(command)
        self._undo.append((self.afterwards.pop, -1, ...))

    def send(self, link: Link, parcel: Parcel) -> None:
        """Hand a parcel to a link, after the commit."""
        self.parcels.append((link.session, parcel))
        self._undo.append((self.parcels.pop, -1, ...))

    def record(self, task: Task, kind: EventKind, **fields: Any) -> Task:
        """Append an event to a task's story; returns the task with its new number (not yet put)."""
        seq = task.seq + 1
        self.put(Event(task=task.id, seq=seq, at=self.now, kind=kind, personal=task.personal, **fields))
        return msgspec.structs.replace(task, seq=seq, updated_at=self.now)

    def audit(
        self,
        *,
        principal: str,
        action: str,
        outcome: str = "accepted",
        protocol: str | None = None,
        subject: str | None = None,
        reason: str | None = None,
        digest: str | None = None,
    ) -> None:
        last = self._audit[-1] if self._audit else None
        seq, prev = (last.seq, last.hash) if last else (self.floor.audit_seq, self.floor.audit_hash)
        said = (principal, action, outcome, protocol, subject, reason, digest)
        self._audit.append(sealed(seq + 1, self.now, prev, *said))
        self._undo.append((self._audit.pop, -1, ...))


def _standing(row: Task, queue: str, dirty: dict[Any, _Entry]) -> Task | None:
    """The task as it is now, if it still stands in the queue."""
    entry = dirty.get(row.id)
    now: Any = row if entry is None else entry.row
    return now if now is not None and now.queue == queue else None


def _holder(task: Any) -> AgentId | None:
    """The agent that a task keeps busy."""
    return task.holder if task is not None else None
