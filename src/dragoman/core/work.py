"""The unit of work: decisions read rows from it and write their changes into it.

Above: every decision of the core, and the intake, which runs them. Below: the model, the lookups and the directory. No
input or output happens here, and no decision is made here.

A decision never waits. It asks `Work` for rows. If a row is not loaded and the store cannot answer at once (`peek`),
`Work` raises `NotLoaded`; the intake undoes what the decision wrote, loads the rows and runs the decision again. A
decision is a pure function of what it sees, so running it twice is the same as running it once.

The decisions of one unit run one after the other and see each other's changes, laid over the rows of the store. If one
refuses, `Work` undoes only its changes. When all have run, the store commits `changes()`. Only after the commit,
`settle()` brings the directory up to date and the `outgoing_messages` leave.

This is one class without parts, because it is the hottest code of the hub: a call to a part would double the calls of
every decision. Its methods stand in this order: rows of the store, what the hub has in memory, writing, the audit
record, and the intake's side (begin, undo, commit, settle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.core.commands import Command
from dragoman.core.directory import Directory
from dragoman.core.ids import HUB, AgentId, Instant, Moment, SessionId, TaskId
from dragoman.core.lookups import (
    Claims,
    ContractById,
    DeadLetterById,
    DeliveryById,
    EntityById,
    EventOf,
    Lane,
    LaneEnd,
    Lookup,
    QuestionById,
    Ready,
    Row,
    SeenMessageById,
    TaskById,
    Underway,
)
from dragoman.core.model import policy
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.audit import AuditRecord, sealed
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, SeenMessage
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.people import Person
from dragoman.core.model.ratelimit import Key, Minute
from dragoman.core.model.refusals import Allowance, RefusalCount, RefusalKey
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.shared_tasks import beginning, step
from dragoman.core.model.state import Change, Changed, Entity, Operation, Registry, Standing, standing_of
from dragoman.core.model.tasks import Event, EventKind, Question, Task
from dragoman.core.ports import Changes
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import NOTHING, Content, written
from dragoman.wire.closing import CloseReason

R = TypeVar("R", Task, Event, Delivery, DeadLetter, Question, Entity, SeenMessage, Contract)

TABLES: tuple[type[Any], ...] = (
    Agent, Task, Event, Delivery, DeadLetter, Question, Entity, SeenMessage, Contract, Person, SeriesRow,
)  # fmt: skip

OF_A_TASK = frozenset({Lane, LaneEnd, Underway})
BY_ID = frozenset({TaskById, DeliveryById, DeadLetterById, QuestionById, EntityById, SeenMessageById, ContractById})

FEW = 4
"""How many rows of a queue are fetched first; then four times as many, and so on."""


class NotLoaded(Exception):
    """The decision needs these rows first."""

    def __init__(self, *lookups: Lookup[Any]) -> None:
        super().__init__(lookups)
        self.lookups = lookups


def key_of(row: Row) -> Any:
    """The key of a row within its table."""
    return (row.task, row.seq) if type(row) is Event else row.id  # type: ignore[union-attr]


class Entry(msgspec.Struct, gc=False):
    """A row that this unit touched. `base`: the row in the store, if there is one. `row`: None if it is removed."""

    base: Row | None
    row: Row | None

    def put(self, row: Row | None) -> None:
        self.row = row


class Reactions(NamedTuple):
    """Functions of a higher layer that decisions of a lower layer call, in the same commit.

    An ending has effects above: a task that ends may have been help with another one, and an answer that never came may
    end a handover. The lower layer does not import these functions; `hub.REACTIONS` fills in this table.
    """

    not_admitted: Callable[[Any, Task, Fault], Task]
    """The policy does not allow a task to begin any more: the task fails."""
    task_ended: Callable[[Any, Task], None]
    """A task that was help with another one ended."""
    question_closed: Callable[[Any, Question], None]
    """A person answered a handshake or a request to take a task over, or its deadline passed."""


class Work:
    """One unit of work. Decisions read and write through it; the intake begins, undoes, commits and settles it."""

    def __init__(
        self,
        moment: Moment,
        directory: Directory,
        rules: Rules,
        serving_since: Instant,
        reactions: Reactions,
        peek: Callable[[Lookup[Any]], Sequence[Any] | None] | None = None,
        *,
        complete: bool = True,
    ) -> None:
        self.now = moment.now
        self.mint = moment.mint
        self.rules = rules
        self.serving_since = serving_since
        self.directory = directory
        self.reactions = reactions
        self._peek = peek
        self._complete = complete and peek is not None
        self.outgoing_messages: list[tuple[SessionId, Outgoing]] = []
        self.touched_tasks: set[TaskId] = set()
        self.closed_links: list[tuple[SessionId, CloseReason]] = []
        self.afterwards: list[Command] = []
        self.births = 0
        self._loaded: dict[Lookup[Any], Sequence[Any]] = {}
        self._base: dict[type[Any], dict[Any, Any]] = {table: {} for table in TABLES}
        self._dirty: dict[type[Any], dict[Any, Entry]] = {table: {} for table in TABLES}
        self._lanes: dict[TaskId, dict[Any, None]] = {}
        self._requests: dict[tuple[str, str], TaskId] = {}
        self._ready: dict[str, tuple[Sequence[Task], int, int]] = {}
        self._queued: dict[TaskId, None] = {}
        self._links: dict[SessionId, Link | None] = {}
        self._load: dict[AgentId, int] = {}
        self._backlog: dict[str, int] = {}
        self._passed: dict[str, str] = {}
        self._used: dict[int, int] = {}
        self._minutes: dict[Key, Minute] = {}
        self.changed: Changed | None = None
        self._seen: set[AgentId] = set()
        self._log: list[Change] = []
        self._versioned: dict[TaskId, Task] = {}
        self._audit: list[AuditRecord] = []
        self.allowances: dict[str, Allowance] = {}
        self.refusal_counts: dict[RefusalKey, RefusalCount | None] = {}
        self._undo: list[tuple[Callable[..., object], Any, Any]] = []

    # -- rows of the store ---------------------------------------------------------------------------------------------

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
        """The rows of this unit that could match the lookup; None if it touched none of them.

        A unit may hold hundreds of commands, so frequent lookups do not search all rows of the unit.
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
        if self._peek is not None:  # the store has its own cache
            rows = self._peek(lookup)
            if rows:
                table: Any = lookup.row
                base = self._base[table]
                for row in rows:
                    base[row.id if table is not Event else key_of(row)] = row
            if rows is not None:
                return rows
        loaded = self._loaded.get(lookup)
        if loaded is not None:
            return loaded
        if type(lookup) in OF_A_TASK and self._is_new(lookup.task):  # type: ignore[attr-defined]
            return ()  # loading it is useless, too: when the decision runs again, it gives the task another id
        raise NotLoaded(lookup)

    def _is_new(self, task: TaskId) -> bool:
        """Whether this unit created the task: then the store has nothing of it."""
        entry = self._dirty[Task].get(task)
        return entry is not None and entry.base is None

    def together(self, lookups: Sequence[Lookup[Any]]) -> None:
        """Load these lookups at once, where each would cost a round trip to the store."""
        if not self._complete and (missing := self.missing(lookups)):
            raise NotLoaded(*missing)

    def missing(self, lookups: Iterable[Lookup[Any]]) -> list[Lookup[Any]]:
        """Those of the lookups that must be loaded first."""
        peek = self._peek
        return [lookup for lookup in lookups if lookup not in self._loaded and (peek is None or peek(lookup) is None)]

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
        """Those of the tasks that exist; the store loads all missing ones at once."""
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
        """The version of a task as if the unit ended here: its steps in this unit that others will see count."""
        entry = self._dirty[Task].get(task.id)
        published: Any = self._versioned.get(task.id) or (entry and entry.base)
        return task.version + (published is not None and step(published, task) is not None)

    def first_in(self, queue: str) -> Task | None:
        """The first task in a queue.

        A unit may take hundreds of tasks from a queue of a million. So it keeps the rows that it fetched and fetches
        more when it reaches their end. Nearly all units take one task.
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
        for id in self._queued:  # entered a queue in this unit
            entry = dirty.get(id)
            task: Any = entry.row if entry is not None else None
            if task is not None and task.queue == queue and (best is None or (task.rank, id) < (best.rank, best.id)):
                best = task
        return best

    # -- what the hub has in memory ------------------------------------------------------------------------------------

    def agent(self, id: AgentId) -> Agent | None:
        entry = self._dirty[Agent].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.directory.agents.get(id)

    def person(self, name: str) -> Person | None:
        entry = self._dirty[Person].get(name)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.directory.people.get(name)

    def people(self) -> list[Person]:
        names = {**self.directory.people, **self._dirty[Person]}
        return [person for name in names if (person := self.person(name)) is not None]

    def entity(self, registry: Registry, name: str) -> Entity | None:
        """An entity of the shared state. For the policy, use `core.state.changes.policy_entity`: it always exists."""
        id = f"{registry.value}/{name}"
        entry = self._dirty[Entity].get(id)
        if entry is not None:
            return entry.row  # type: ignore[return-value]
        return self.one(EntityById(id)) if registry is Registry.TASK else self.directory.entities.get(id)

    @property
    def policy(self) -> policy.Policy:
        """The policy in force."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.POLICY.value}/{policy.NAME}")
            if entry is not None and isinstance(entry.row, Entity):
                return policy.read(entry.row.value)
        directory = self.directory
        if directory.policy is None:
            directory.policy = policy.default(self.rules)
        return directory.policy

    @property
    def reports(self) -> bool:
        """Whether any agent has reported its status."""
        return bool(self.directory.standings or self._dirty[Entity])

    @property
    def limits(self) -> bool:
        """Whether there is any limit on what may be used."""
        return bool(self.directory.allotted or self._dirty[Entity]) or self.policy.limits

    def standing(self, agent: AgentId) -> Standing | None:
        """The status of an agent, if it ever reported one."""
        dirty = self._dirty[Entity]
        if dirty:
            entry = dirty.get(f"{Registry.AGENT.value}/{agent}")
            if entry is not None:
                return standing_of(entry.row.value) if isinstance(entry.row, Entity) else None
        return self.directory.standings.get(agent)

    def allotted(self, agent: AgentId) -> bool:
        """Whether an agent may have allocations."""
        return agent in self.directory.allotted or bool(self._dirty[Entity])

    def agents_of_kind(self, kind: str) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id in self.directory.by_kind.get(kind, ()):
            if id not in dirty:
                yield self.directory.agents[id]
        for entry in dirty.values():
            if isinstance(entry.row, Agent) and entry.row.called == kind:
                yield entry.row

    def all_agents(self) -> Iterable[Agent]:
        dirty = self._dirty[Agent]
        for id, agent in self.directory.agents.items():
            if id not in dirty:
                yield agent
        for entry in dirty.values():
            if isinstance(entry.row, Agent):
                yield entry.row

    def is_offered(self, type: str) -> bool:
        """Whether any agent may have declared terms for such work."""
        return type in self.directory.offered or any(
            isinstance(entry.row, Agent) and entry.row.offer(type) for entry in self._dirty[Agent].values()
        )

    def links_to(self, agent: AgentId) -> list[Link]:
        """The links to an agent, without its requests that wait for an answer."""
        changed = self._links
        if not changed:
            return self.directory.links_to(agent)
        links = [link for link in self.directory.links_to(agent) if link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent and not link.awaits]
        return links

    def all_links_of(self, agent: AgentId) -> list[Link]:
        """The links to an agent, and its requests that wait for an answer."""
        changed = self._links
        links = [link for link in self.directory.links.values() if link.agent == agent and link.session not in changed]
        links += [link for link in changed.values() if link is not None and link.agent == agent]
        return links

    def link(self, session: SessionId) -> Link | None:
        return self._links[session] if session in self._links else self.directory.links.get(session)

    def load_of(self, agent: AgentId) -> int:
        """How many unfinished tasks an agent has."""
        return len(self.directory.active.get(agent, ())) + self._load.get(agent, 0)

    def tasks_of(self, agent: AgentId) -> list[TaskId]:
        dirty = self._dirty[Task]
        ids = [id for id in self.directory.active.get(agent, ()) if id not in dirty]
        ids += [id for id, entry in dirty.items() if isinstance(entry.row, Task) and entry.row.holder == agent]
        return ids

    def backlog(self, queue: str) -> int:
        return self.directory.backlog.get(queue, 0) + self._backlog.get(queue, 0)

    def minute(self, key: Key) -> Minute | None:
        """What a principal sent in the last minute."""
        return self._minutes.get(key) or self.directory.minutes.get(key)

    def passed(self, id: str) -> str | None:
        """The digest of a direct message that left without a row, if the hub still remembers it."""
        return self._passed.get(id) or self.directory.passed.get(id)

    def used(self, id: int) -> int | None:
        """The content that belongs to a message id, if the hub still remembers it (`policy.replay`)."""
        content = self._used.get(id)
        return self.directory.used.get(id) if content is None else content

    @property
    def anybody_queues(self) -> bool:
        return bool(self.directory.backlog or self._backlog)

    def queues(self) -> list[str]:
        """The queues that have tasks."""
        names = {**self.directory.backlog, **self._backlog}
        return [name for name in names if self.backlog(name) > 0]

    # -- writing: every change also notes how it is undone -------------------------------------------------------------

    def put(self, row: Row) -> None:
        """Add the row, or change it if it is there."""
        self._write(row, row)

    def remove(self, row: Row) -> None:
        self._write(row, None)

    def _write(self, named: Any, row: Row | None) -> None:
        """Write `row`, or its removal, under the key of `named`."""
        table = type(named)
        id: Any = (named.task, named.seq) if table is Event else named.id  # `key_of` inlined: this runs for every row
        dirty = self._dirty[table]
        entry = dirty.get(id)
        if entry is None:
            base: Any = self.directory.agents.get(id) if table is Agent else self._base[table].get(id)
            if table is Entity and base is None:
                base = self.directory.entities.get(id)
            elif table is Person:
                base = self.directory.people.get(id)
            old: Any = base
            dirty[id] = Entry(base, row)
            self._undo.append((dirty.pop, id, ...))
            # The shortcuts of `_changed`. They are not undone, since `_changed` looks up what they name among the dirty
            # rows.
            if table is Delivery:
                self._lanes.setdefault((row or base).task, {})[id] = None  # type: ignore[union-attr,arg-type]
            elif table is Task:
                origin = (row or base).origin  # type: ignore[union-attr]
                self._requests[origin.principal, origin.request_id] = id
        else:
            old = entry.row
            if table is Task and old is None and entry.base is not None:
                raise refuse(
                    Kind.OVERLOADED, "a task of this id is just being forgotten", next="try again", retryable=True
                )
            self._undo.append((Entry.put, entry, old))
            entry.row = row
        if table is Question:
            self.touched_tasks.add(id)
        if table is Task:
            self._count(old, row)  # type: ignore[arg-type]
            self.touched_tasks.add(id)

    def _count(self, old: Task | None, new: Task | None) -> None:
        held = None if old is None else old.holder
        holds = None if new is None else new.holder
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

    def note_used(self, id: int, content: int) -> None:
        self._used[id] = content
        self._undo.append((self._used.pop, id, ...))

    def share(self, change: Change, entity: Entity | None, was: Entity | None = None) -> None:
        """Write an entity of the shared state, and its change into the log. `entity` None: it is deleted."""
        if entity is not None:
            self.put(entity)
        elif was is not None:
            self.remove(was)
        self._log.append(change)
        self._undo.append((self._log.pop, -1, ...))

    def put_versioned(self, task: Task) -> None:
        """Put a task whose version the decision has raised itself, because it already told an agent of it."""
        self.put(task)
        before = self._versioned.get(task.id)
        if before is None:
            self._undo.append((self._versioned.pop, task.id, ...))
        else:
            self._undo.append((self._versioned.__setitem__, task.id, before))
        self._versioned[task.id] = task

    def seen_from(self, agent: AgentId) -> None:
        """Note a sign of life. It changes no row and is not undone."""
        self._seen.add(agent)

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

    def close_link(self, session: SessionId, reason: CloseReason) -> None:
        """Drop a link; after the commit, the hub closes its connection."""
        self.drop_link(session)
        self.closed_links.append((session, reason))
        self._undo.append((self.closed_links.pop, -1, ...))

    def ask_afterwards(self, command: Command) -> None:
        """Run this command in a unit of its own, after the commit."""
        self.afterwards.append(command)
        self._undo.append((self.afterwards.pop, -1, ...))

    def send(self, link: Link, outgoing: Outgoing) -> None:
        """Give an outgoing message to a link, after the commit."""
        self.outgoing_messages.append((link.session, outgoing))
        self._undo.append((self.outgoing_messages.pop, -1, ...))

    def record(
        self,
        task: Task,
        kind: EventKind,
        content: Content | msgspec.Raw = NOTHING,
        *,
        agent: AgentId | None = None,
        protocol: str | None = None,
        raw: bytes | None = None,
    ) -> Task:
        """Append an event to a task's history and return the task with its new number (not yet put). `content` may be
        encoded already."""
        seq = task.seq + 1
        body = content if type(content) is msgspec.Raw else written(content)
        self.put(
            Event(
                task=task.id, seq=seq, at=self.now, kind=kind, agent=agent, body=body, protocol=protocol, raw=raw,
                personal=task.agreement.personal,
            )
        )  # fmt: skip
        return replace(task, seq=seq, updated_at=self.now)

    def sign_of_life(self, task: Task, *, acknowledged: bool = True, **changes: Any) -> Task:
        """The task after a message from its agent (not yet put). `acknowledged`: the message also acknowledges the work
        order.

        If the link over which the hub assigned the task is gone, the task moves to the agent's next link; when that one
        breaks, too, the agent is lost. If the task waits, its deadline moves along.
        """
        timing, attempt = task.timing, task.attempt
        session = attempt.session
        if session is not None and task.owner is not None and self.link(session) is None:
            session = next((link.session for link in self.links_to(task.owner) if link.ordered), session)
        return replace(
            task,
            timing=replace(timing, last_sign_at=self.now, deadline=task.due(self.now), lost_at=None, expires_at=None),
            attempt=replace(
                attempt,
                session=session,
                answered=False,
                delivery=None if acknowledged else attempt.delivery,
            ),
            **changes,
        )

    # -- the audit record ----------------------------------------------------------------------------------------------

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
        seq, prev = (last.seq, last.hash) if last else (self.directory.audit_seq, self.directory.audit_hash)
        content = (principal, action, outcome, protocol, subject, reason, digest)
        self._audit.append(sealed(seq + 1, self.now, prev, *content))
        self._undo.append((self._audit.pop, -1, ...))

    # -- the intake's side ---------------------------------------------------------------------------------------------

    def feed(self, loaded: Mapping[Lookup[Any], Sequence[Any]]) -> None:
        """Take the rows that the store loaded."""
        self._loaded.update(loaded)
        base = self._base
        for rows in loaded.values():
            for row in rows:
                base[type(row)][key_of(row)] = row

    def begin(self) -> None:
        """A new decision starts: the changes of the earlier ones stand."""
        self._undo.clear()

    def rollback(self) -> None:
        """Undo everything since `begin`, the last change first."""
        self._ready.clear()
        while self._undo:
            undo, what, before = self._undo.pop()
            if before is ...:
                undo(what)
            else:
                undo(what, before)

    def changes(self) -> Changes:
        """What the store must commit. The decisions are over, and nothing is undone any more.

        Nothing in a unit, the undo log included, may refer back to the unit: so it is freed as soon as it is done.
        Otherwise the cycle collector would have to find it among thousands of rows.
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
            cursor = self.directory.state_cursor + len(self._log)
            self.changed = Changed(cursor=cursor, at=self.now, entries=tuple(self._log))
            added.append(self.changed)
            forget = max(0, cursor - self.rules.state_log)
        return Changes(added=added, changed=changed, removed=removed, audit=self._audit, forget=forget, used=self._used)

    @property
    def passing(self) -> Mapping[str, str]:
        """Direct messages that leave at most once: the store notes them before they leave."""
        return self._passed

    def _log_tasks(self) -> None:
        """Raise the version of each task that took a step which others can see, and log it, once for the unit."""
        log, versioned = self._log, self._versioned
        for id, entry in self._dirty[Task].items():
            row: Any = entry.row
            base: Any = entry.base
            if row is base or row is None:
                continue
            published = versioned.get(id) if versioned else None
            if base is None:
                patch: dict[str, Any] | None = beginning(row)
                raised = published is not None and step(published, row) is not None
            else:
                patch = step(base, row)
                if patch is None and published is None:
                    continue
                raised = published is None or step(published, row) is not None
            if raised:
                entry.row = row = replace(row, version=row.version + 1)
            operation = Operation.CREATE if base is None else Operation.UPDATE
            by = row.origin.principal if base is None else row.owner or HUB
            log.append(Change(operation, Registry.TASK, id, row.version, patch or {}, by, 1))

    def settle(self) -> None:
        """The commit is done: bring the directory up to date."""
        directory = self.directory
        for entry in self._dirty[Agent].values():
            if isinstance(entry.row, Agent):
                directory.put_agent(entry.row)
            elif isinstance(entry.base, Agent):
                directory.drop_agent(entry.base)
        for name, entry in self._dirty[Person].items():
            directory.put_person(name, entry.row)  # type: ignore[arg-type]
        for entry in self._dirty[Task].values():
            self._settle_task(entry)
        for entry in self._dirty[Delivery].values():
            if type(was := entry.base) is Delivery and was.direct_message is not None:
                directory.note_holding(was, -1)
            if type(row := entry.row) is Delivery and row.direct_message is not None:
                directory.note_holding(row, 1)
        for entry in self._dirty[Entity].values():
            if entry.base is not None:
                directory.note_holding(entry.base, -1)
            if entry.row is not None:
                directory.note_holding(entry.row, 1)
            if isinstance(entry.row, Entity):
                directory.put_entity(entry.row)
            elif isinstance(entry.base, Entity):
                directory.drop_entity(entry.base)
        if self.changed is not None:
            directory.state_cursor = self.changed.cursor
        for id in self._seen:
            agent = directory.agents.get(id)
            if agent is not None and agent.converses:
                directory.seen_at[id] = self.now
        for queue, n in self._backlog.items():
            total = directory.backlog.get(queue, 0) + n
            if total > 0:
                directory.backlog[queue] = total
            else:
                directory.backlog.pop(queue, None)
        for session, link in self._links.items():
            if link is None:
                directory.drop_link(session)
            else:
                directory.put_link(link)
                if not link.ordered and not link.awaits:
                    directory.polled_at[link.agent] = self.now
        for session, outgoing in self.outgoing_messages:
            polled = directory.links.get(session)
            if polled is not None and not polled.ordered:  # a poll takes outgoing messages once
                if not polled.awaits:
                    directory.polled_at[outgoing.delivery.receiver] = self.now
                directory.drop_link(session)
        if self._passed:
            directory.note_passed(self._passed)
        if self._used:
            directory.note_used(self._used)
        if self._minutes:
            directory.note_minutes(self._minutes, self.now)
        if self.allowances:
            directory.note_allowances(self.allowances, self.now)
        for key, count in self.refusal_counts.items():
            if count is None:
                directory.refusal_counts.pop(key, None)
            else:
                directory.refusal_counts[key] = count
        if self._audit:
            directory.audit_seq, directory.audit_hash = self._audit[-1].seq, self._audit[-1].hash

    # -- what the unit touched, for nodes that mirror the directory ----------------------------------------------------

    def entries(self, table: type[Any]) -> Mapping[Any, Entry]:
        """The rows of this table that the unit touched, by their keys."""
        return self._dirty[table]

    @property
    def links(self) -> Mapping[SessionId, Link | None]:
        """The links that the unit opened, changed or dropped (None)."""
        return self._links

    @property
    def seen(self) -> frozenset[AgentId]:
        """The agents that showed a sign of life."""
        return frozenset(self._seen)

    @property
    def queued(self) -> int:
        """How many more tasks wait in queues than before the unit."""
        return sum(self._backlog.values())

    @property
    def audited(self) -> bool:
        return bool(self._audit)

    def _settle_task(self, entry: Entry) -> None:
        active = self.directory.active
        base: Any = entry.base
        row: Any = entry.row
        was = base is not None and not base.final
        if was is not (row is not None and not row.final):
            self.directory.note_holding(base if was else row, -1 if was else 1)
        old = None if base is None else base.holder
        new = None if row is None else row.holder
        if old == new:
            return
        id = (row or base).id
        if old is not None and old in active:
            active[old].pop(id, None)
            if not active[old]:
                del active[old]
        if new is not None:
            active.setdefault(new, {})[id] = None
            self.directory.gave_work_to(new)


def _standing(row: Task, queue: str, dirty: dict[Any, Entry]) -> Task | None:
    """The task as it is now, if it is still in the queue."""
    entry = dirty.get(row.id)
    now: Any = row if entry is None else entry.row
    return now if now is not None and now.queue == queue else None
