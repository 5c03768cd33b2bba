"""The promises that the hub's core asks of its surroundings.

A port is a promise, not a shape: what the docstrings say about order, atomicity and durability is checked by
one suite on every adapter, the memory one included.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.lookups import Lookup, Row
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import GENESIS, AuditRecord, Newest
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.holdings import Holding
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.people import Person
from dragoman.core.model.policy import Policy
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.silence import Watched
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Status, Task
from dragoman.core.streams import Streams
from dragoman.messages.faults import Refused
from dragoman.messages.files import FileRef, KeptFile
from dragoman.wire.closing import CloseReason

T = TypeVar("T", covariant=True)


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one unit of work changes. A row stands in at most one of `added`, `changed`, `removed`;
    rows of a table that a later row refers to may come in any order: stores declare no foreign keys.

    The events of a task are removed with it, and are not named: there may be a million. From the commit on nobody sees
    them. A store may take its time to delete them, but not longer than it has anything else to do.
    """

    added: Sequence[Row] = ()
    changed: Sequence[Row] = ()
    removed: Sequence[Row] = ()
    audit: Sequence[AuditRecord] = ()
    forget: int = 0
    """Rows of the log of the shared state (`Changed`) up to this number may be forgotten, some at every commit."""
    used: Mapping[int, int] = {}
    """Message ids that stand for one content from now on, and that content: two numbers of 64 bits (`policy.replay`).
    The store keeps at least the last `USED` of them."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.audit or self.used)


PASSED = 100_000
"""How many direct messages that left at most once are remembered."""

USED = 100_000
"""How many message ids are remembered with the content that they stand for."""


class StoreFailed(Exception):
    """The store could not commit (disk full, I/O error, connection lost). Nothing of the unit was written, or it is
    unknown whether it was and the store has reopened and will answer truthfully from now on."""


class Unit(Protocol):
    """One unit of work: what it loads and what it commits belong to one transaction.

    `peek` is there where an answer needs no waiting (an embedded store): what `load` would say of one lookup. Where
    it is None, decisions run on what was loaded before, and again when they turn out to need more.
    """

    @property
    def peek(self) -> Callable[[Lookup[Any]], Sequence[Any]] | None: ...

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        """The rows each lookup means, in its order, at most `most` of them, as of the last commit.

        On a store shared by several hub nodes the rows found are locked until the unit ends; `Ready` and `Inbox`
        skip rows that another node holds (`FOR UPDATE SKIP LOCKED`), so that a task or a lane is claimed by one
        node only.
        """
        ...

    async def commit(self, changes: Changes) -> None:
        """All of the changes, durably, or none of them.

        When this returns, the changes survive a kill and a power cut (a real fsync; on a cluster the configured
        synchronous replication). Raises `StoreFailed` when that cannot be promised; the store never retries an
        fsync. Adding a row that exists, or changing or removing one that does not, fails the unit.
        """
        ...


class Recovered(msgspec.Struct, frozen=True, kw_only=True):
    """What a hub needs in memory to begin: everything else is read when it is needed."""

    agents: Sequence[Agent] = ()
    people: Sequence[Person] = ()
    active: Mapping[AgentId, Sequence[TaskId]] = {}
    """The tasks each agent holds (`Task.holder`)."""
    backlog: Mapping[str, int] = {}
    """How many tasks stand in each queue."""
    audit_seq: int = 0
    audit_hash: str = GENESIS
    entities: Sequence[Entity] = ()
    """What agents share, save for the tasks that they keep among themselves."""
    state_cursor: int = 0
    """The number of the last change of the shared state."""
    parted: Sequence[AgentId] = ()
    """Who is not there, though a contract that nobody ended names it or something is on its way to it: the hub stopped
    while what was left of a removed agent was cleared away."""
    holdings: Mapping[AgentId, Holding] = {}
    """What each principal has lying here that is not done with."""
    passed: Mapping[str, str] = {}
    """The last direct messages that were noted (`Store.note`), the oldest first."""
    used: Mapping[int, int] = {}
    """The last message ids that were used (`Changes.used`), the oldest first."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """Rows whose `wake_at` has come. At most the asked number of each."""

    tasks: Sequence[TaskId] = ()
    deliveries: Sequence[DeliveryId] = ()
    agents: Sequence[AgentId] = ()
    questions: Sequence[QuestionId] = ()
    next_at: Instant | None = None
    """The earliest `wake_at` after `now`, or an earlier one if there were more due rows than asked for."""


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    status: Status | None = None
    type: str | None = None
    agent: AgentId | None = None  # its owner
    principal: AgentId | None = None  # who asked
    parent: TaskId | None = None
    since: Instant | None = None  # born then or later
    before: Instant | None = None  # born earlier


class Vault(Protocol):
    """What keeps personal data shut at rest. `about` is the row it belongs to: in another one it stays shut. Both raise
    `StoreFailed` where the key will not do, and say what to do about it."""

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes: ...

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes: ...


class Store(Protocol):
    """The truth. Queues, leases, retries, breakers, questions and the audit record are rows here.

    Promises, on every adapter:

    - *Atomic and durable*: a unit's changes are all there after `commit` returned, whatever dies next, or none.
    - *Serial per node*: a node has at most one unit open; units of several nodes behave as if one came after the
      other (row locks, or the store refuses the second node: SQLite).
    - *Read your writes*: reads and loads that begin after `commit` returned see it.
    - *Reads do not block writes*, and a long read never holds up a commit.
    - *Costs do not grow with history*: loads, commits and `due` depend on what is unfinished, not on what is stored.
    - *Time-ordered keys*: ids made by the hub are version 7 UUIDs; stores may rely on that for speed, never for truth.
      Ids chosen by clients (task and request ids) may be random.
    """

    async def open(self) -> Recovered: ...

    async def close(self) -> None: ...

    def unit(self) -> AbstractAsyncContextManager[Unit]: ...

    async def note(self, direct_messages: Mapping[str, str]) -> None:
        """Remember direct messages that are about to leave at most once: at least the last `PASSED`, each with what it
        said, both in 32 hexadecimal digits.

        When this returns they are durable, whatever dies next: one wait for all of a unit. Raises `StoreFailed` when
        that cannot be promised. Called within a unit, before its commit.
        """
        ...

    @property
    def log_bytes(self) -> int:
        """What is committed and not yet in its place: the length of a write-ahead log, or 0 where there is none."""
        ...

    async def due(self, now: Instant, limit: int) -> Due: ...

    # What people and the API read. All of them answer as of the last commit.

    async def task(self, id: TaskId) -> Task | None: ...

    async def tasks(self, where: TaskFilter, *, after: str | None, limit: int) -> tuple[Sequence[Task], str | None]:
        """Newest first; the second value is the cursor for the next page, or None."""
        ...

    async def find_tasks(self, prefix: str, limit: int) -> Sequence[Task]:
        """Tasks whose id begins so: people type eight characters, not thirty-six."""
        ...

    async def events(self, task: TaskId, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """In order, without gaps: an event with a higher number never becomes visible before a lower one."""
        ...

    async def events_since(self, at: Instant, limit: int) -> Sequence[Event]:
        """Events of all tasks that happened after this instant, the oldest first; those of one instant in the order of
        their tasks and their numbers. Commits have growing instants, so an event that becomes visible later is never
        older than one that was read."""
        ...

    async def series(self, step: int, *, since: int, until: int | None = None) -> Sequence[SeriesRow]:
        """Figures of this resolution that begin within these seconds, the oldest first. They are written as added rows;
        written again, they replace those before. The store deletes what is older than the newest one by more than
        `core.model.series.KEPT`."""
        ...

    async def deliveries(
        self, *, task: TaskId | None = None, receiver: AgentId | None = None, limit: int = 1000
    ) -> Sequence[Delivery]: ...

    async def dead_letters(
        self, *, task: TaskId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]: ...

    async def questions(
        self,
        *,
        status: QuestionStatus | None = None,
        task: TaskId | None = None,
        asked_of: AgentId | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[Question]:
        """By their ids, those after `after`."""
        ...

    async def question(self, id: QuestionId) -> Question | None: ...

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        principal: str | None = None,
        subject: str | None = None,
        outcome: str | None = None,
    ) -> Sequence[AuditRecord]: ...

    async def entity(self, id: str) -> Entity | None: ...

    async def entities(self, registry: Registry, *, after: str = "", limit: int = 1000) -> Sequence[Entity]:
        """By their names."""
        ...

    async def contract(self, id: str) -> Contract | None: ...

    async def contracts(
        self, *, agent: AgentId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Contract]:
        """Newest first; of one agent, as source or target, if it is named. `after` is the id of the last one seen."""
        ...

    async def contract_of(self, collaboration: str) -> Contract | None:
        """The newest contract of a collaboration."""
        ...

    async def changes(self, *, after: int = 0, limit: int = 100) -> Sequence[Changed]:
        """The log of the shared state: rows whose `cursor` is above `after`, in order, without a gap."""
        ...

    async def attached(self, files: Sequence[str]) -> Collection[str]:
        """Those of the files that belong to a task."""
        ...

    async def counts(self) -> Mapping[str, int]:
        """Cheap figures for gauges: tasks per unfinished status, deliveries waiting, dead letters, open questions."""
        ...

    async def backup(self, target: str) -> None:
        """A consistent copy while everything goes on. `target` must not exist. Raises `OSError` if it cannot be
        written."""
        ...


class Files(Protocol):
    """Where the bytes of files lie: beside the store, under names of ours.

    A file is kept before the command that refers to it is handed in, so that no committed task ever refers to bytes
    that are not there. What is kept and then not referred to (the command was refused) its keeper drops again. What is
    left over nevertheless, or belonged to a task that was forgotten, is found by its age (`unwanted`).
    """

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        """Durably there when this returns. Refused with TOO_LARGE above the size of one file, with RESOURCES when all
        files together, or those of their owner, would exceed what is set aside for them."""
        ...

    async def fetch(self, id: str) -> bytes | None: ...

    async def describe(self, id: str, *, claim: bool = True) -> KeptFile | None:
        """`claim`: for who may make it part of a task: then it is not old, and is not removed for a while."""
        ...

    async def listing(self, *, after: str, limit: int) -> Sequence[KeptFile]:
        """What is kept, in the order of ids, which is that of time: those behind `after`."""
        ...

    def is_claimed(self, id: str, since: Instant) -> bool:
        """Whether it was claimed at that time or later, since this hub runs."""
        ...

    async def drop(self, id: str) -> None:
        """Forget it; nothing happens if it is not there."""
        ...

    def unwanted(self, before: Instant) -> AsyncGenerator[Sequence[str]]:
        """Files that nobody kept or asked to be described since that time, page by page. Whether they belong to a task
        the store knows."""
        ...

    async def drop_unwanted(self, id: str, before: Instant) -> bool:
        """Forget it, unless it was described since that time: whoever did may be about to make it part of a task. False
        if it stays."""
        ...


class Future(Awaitable[T], Protocol[T]):
    """What `Intake.post` gives: an outcome that will be there (`asyncio.Future` is one)."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class LinkEnd(Protocol):
    """The transport's end of a link: how outgoing messages leave."""

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        """Send these, in this order. Called on the event loop, only after their commit; must not block or raise:
        a link that cannot send tells the hub with `CloseLink`."""
        ...

    def hang_up(self, reason: CloseReason) -> None:
        """The hub has let go of this link (replaced, agent removed, hub stopping)."""
        ...


class Intake(Protocol):
    """The hub as transports see it: the one door for everything that changes something.

    Commands from all connections meet here. As soon as the last commit ended, everything waiting is decided in the
    order of arrival and committed together.
    """

    async def execute(self, command: Command) -> Any:
        """The command's outcome, after it is durably committed. Raises `Refused` (audited, if the command has an
        action). Raises `Refused` OVERLOADED or INTERNAL when the hub cannot commit; then nothing happened."""
        ...

    def enqueue(self, command: Command) -> Future[Any]:
        """`execute` without waiting. Commands are decided in the order in which they are enqueued."""
        ...

    def enqueue_then(self, command: Command, then: Callable[[Any, Refused | None], None]) -> None:
        """`enqueue` without a future: the intake calls `then` with the outcome or the refusal, in the turn of the loop
        in which it publishes the commit. `then` must not block or raise."""
        ...

    def enqueue_and_forget(self, command: Command) -> None:
        """Something nobody waits for, and that may get lost: an acknowledgment, which is then asked for again. It goes
        along with the next unit of work, or alone after a moment, so that it costs no commit of its own."""
        ...

    @property
    def memory(self) -> MemoryBudget:
        """The bytes of messages that are held until they are decided: doors take them before they read."""
        ...

    @property
    def streams(self) -> Streams:
        """The streams of events that are open."""
        ...

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        """Before `OpenLink`: where the outgoing messages of this session go."""
        ...

    def detach(self, session: SessionId) -> None:
        """After `CloseLink`."""
        ...

    def agent_of(self, token_hash: str) -> Agent | None:
        """Whose token this is. In memory: authentication costs no read."""
        ...

    def agent(self, id: AgentId) -> Agent | None: ...

    def agents(self) -> Sequence[Agent]: ...

    @property
    def people(self) -> Mapping[str, Person]:
        """By their names, as of the last commit."""
        ...

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        """The unfinished tasks it holds."""
        ...

    def holds(self, id: AgentId, task: TaskId) -> bool: ...

    async def contract(self, id: str) -> Contract | None:
        """A contract as of the last commit. The ones that are used are remembered."""
        ...

    def watched(self, task: Task) -> Watched:
        """What is known of the agent that has a task: how long it may be silent follows from that."""
        ...

    def holding(self, id: AgentId) -> Holding:
        """What it has lying in the store that is not done with, as of the last commit."""
        ...

    def reachable(self, id: AgentId) -> bool:
        """Whether a link to it is open now."""
        ...

    def watch(self, task: TaskId) -> AbstractAsyncContextManager[Watch]:
        """Be woken when something was committed about a task (its events are in the store then), or a question, by
        its id."""
        ...

    def watch_state(self) -> AbstractAsyncContextManager[Watch]:
        """Be woken when something of the shared state was committed (its log is in the store then)."""
        ...

    def entity(self, id: str) -> Entity | None:
        """What agents share, save for the tasks that they keep among themselves. In memory."""
        ...

    def entities(self) -> Sequence[Entity]: ...

    @property
    def newest_audit(self) -> Newest:
        """The newest audit record as of the last commit, also if somebody has deleted it since."""
        ...

    @property
    def policy(self) -> Policy:
        """What is in force."""
        ...

    def seen_at(self, id: AgentId) -> Instant | None:
        """When an agent that converses was last heard, since this hub runs."""
        ...

    @property
    def state_cursor(self) -> int:
        """The number of the last change of the shared state."""
        ...

    def now(self) -> Instant: ...

    def mint(self) -> str:
        """A fresh version 7 UUID."""
        ...


class Watch(Protocol):
    async def changed(self, timeout: float) -> bool:
        """True as soon as something changed since the last call; False when the time is up."""
        ...
