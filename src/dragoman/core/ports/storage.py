"""What the core asks of its surroundings: a store, files, a vault.

Adapters live in `stores`. One test suite checks what these docstrings say of order, atomicity and durability, on every
adapter, the memory one included.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, TaskId
from dragoman.core.lookups import Lookup, Row
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import GENESIS, AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.holdings import Holding
from dragoman.core.model.people import Person
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Status, Task
from dragoman.messages.files import FileRef, KeptFile


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one unit of work changes. A row is in at most one of `added`, `changed` and `removed`. Rows come
    in any order, also where one refers to another: stores declare no foreign keys.

    The events of a task are removed with it and are not listed, since there may be a million. From the commit on, no
    read returns them. A store may delete them later, whenever it has nothing else to do.
    """

    added: Sequence[Row] = ()
    changed: Sequence[Row] = ()
    removed: Sequence[Row] = ()
    audit: Sequence[AuditRecord] = ()
    forget: int = 0
    """The store may delete the rows of the state log (`Changed`) up to this number, some at every commit."""
    used: Mapping[int, int] = {}
    """Message ids and the content that each stands for from now on: two numbers of 64 bits (`policy.replay`). The store
    keeps at least the last `USED` of them."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.audit or self.used)


PASSED = 100_000
"""How many direct messages that left at most once are remembered."""

USED = 100_000
"""How many message ids are remembered with the content that they stand for."""


class StoreFailed(Exception):
    """The store could not commit (disk full, I/O error, connection lost). It wrote nothing of the unit; or it does not
    know, has reopened, and answers truthfully from now on."""


class Fenced(StoreFailed):
    """This node's epoch is over: another node leads, or may lead. The store commits nothing of this node any more.

    Raised also when the store cannot learn whether a commit of this epoch happened. So the node that gets it neither
    acknowledges nor refuses what it was deciding: it ends its term, and its connections.
    """


class Unit(Protocol):
    """One unit of work: what it loads and what it commits belong to one transaction.

    `peek` answers one lookup at once, as `load` would, where the store can (an embedded one). Where it is None, or
    gives None because only a cache is asked, decisions run on the rows that were loaded before, and again when they
    need more.
    """

    @property
    def peek(self) -> Callable[[Lookup[Any]], Sequence[Any] | None] | None: ...

    @property
    def complete(self) -> bool:
        """Whether `peek` answers every lookup."""
        ...

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        """The rows of each lookup, in its order, at most `most` of them, as of the last commit.

        On a store that several hub nodes share, the rows are locked until the unit ends; `Ready` and `Inbox` skip rows
        that another node holds (`FOR UPDATE SKIP LOCKED`), so that only one node claims a task or a lane.
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
    """What a hub loads into memory when it starts. It reads everything else when it needs it."""

    agents: Sequence[Agent] = ()
    people: Sequence[Person] = ()
    active: Mapping[AgentId, Sequence[TaskId]] = {}
    """The tasks each agent holds (`Task.holder`)."""
    backlog: Mapping[str, int] = {}
    """How many tasks stand in each queue."""
    audit_seq: int = 0
    audit_hash: str = GENESIS
    entities: Sequence[Entity] = ()
    """The entities of the shared state, except for the tasks that agents keep among themselves."""
    state_cursor: int = 0
    """The number of the last change of the shared state."""
    parted: Sequence[AgentId] = ()
    """Agents that were removed, but have an open contract or a waiting delivery: the hub stopped before it had cleaned
    up after them."""
    holdings: Mapping[AgentId, Holding] = {}
    """What each principal has in the store that is unfinished."""
    passed: Mapping[str, str] = {}
    """The last direct messages that were noted (`Store.note`), the oldest first."""
    used: Mapping[int, int] = {}
    """The last message ids that were used (`Changes.used`), the oldest first."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """Rows whose `wake_at` has come, at most the requested number of each."""

    tasks: Sequence[TaskId] = ()
    deliveries: Sequence[DeliveryId] = ()
    agents: Sequence[AgentId] = ()
    questions: Sequence[QuestionId] = ()
    next_at: Instant | None = None
    """The earliest `wake_at` after `now`, or an earlier one if more rows were due than requested."""


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    status: Status | None = None
    type: str | None = None
    agent: AgentId | None = None  # its owner
    principal: AgentId | None = None  # its caller
    parent: TaskId | None = None
    since: Instant | None = None  # created then or later
    before: Instant | None = None  # created earlier


class TaskSearch(TaskFilter, frozen=True, kw_only=True):
    """What people look for tasks by. `statuses` take the place of `status`. `protocol` is the caller's, or that of the
    agent that has the task. `text`: each of its words is the beginning of a word in the id, the last six characters of
    the id, the type, the name, the description or the error message; of a personal task, in its id and type only."""

    statuses: tuple[Status, ...] = ()
    protocol: str | None = None
    text: str = ""


class FoundTasks(msgspec.Struct, frozen=True, kw_only=True):
    """`next` is the cursor of the next page, None at the end of the list. `total`: how many there are in all, on the
    first page, if that is quickly counted and at most 10,000. `searched_since`: only tasks that were created then or
    later have been searched for the text so far; None: all."""

    tasks: Sequence[Task]
    next: str | None = None
    total: int | None = None
    searched_since: Instant | None = None


class Vault(Protocol):
    """Encrypts personal data at rest. `about` is the row that it belongs to: it cannot be decrypted as part of another
    row. Both methods raise `StoreFailed` if the key is wrong, with advice."""

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
        """Remember direct messages that are about to leave at most once: at least the last `PASSED`, each id with its
        digest, both as 32 hexadecimal digits.

        When this returns, they are durable: one wait for all of a unit. Raises `StoreFailed` if it cannot promise that.
        Called within a unit, before its commit.
        """
        ...

    @property
    def log_bytes(self) -> int:
        """The bytes that are committed and not yet in the main file: the length of a write-ahead log, or 0 where there
        is none."""
        ...

    async def due(self, now: Instant, limit: int) -> Due: ...

    # Reads for people and the API. All of them answer as of the last commit.

    async def task(self, id: TaskId) -> Task | None: ...

    async def tasks(self, where: TaskFilter, *, after: str | None, limit: int) -> tuple[Sequence[Task], str | None]:
        """Newest first; the second value is the cursor for the next page, or None."""
        ...

    async def search(self, where: TaskSearch, *, after: str | None, limit: int) -> FoundTasks:
        """What people look for: newest first, those of one instant in the order of acceptance. Takes a short time,
        however many tasks there are: a page may be shorter than `limit` though the list goes on. Raises `ValueError`
        for a cursor that is none."""
        ...

    async def find_tasks(self, prefix: str, limit: int) -> Sequence[Task]:
        """Tasks whose id begins with the prefix: people type eight characters, not thirty-six."""
        ...

    async def events(self, task: TaskId, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        """In order, without gaps: an event with a higher number never becomes visible before a lower one."""
        ...

    async def events_since(self, at: Instant, limit: int) -> Sequence[Event]:
        """Events of all tasks after this instant, the oldest first; those of one instant in the order of their tasks
        and numbers. The instants of commits grow, so an event that becomes visible later is never older than one that
        was read."""
        ...

    async def series(self, step: int, *, since: int, until: int | None = None) -> Sequence[SeriesRow]:
        """Figures of this resolution that begin in this range of seconds, the oldest first. They are written as added
        rows; written again, they replace those before. The store deletes what is older than the newest one by more than
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
        """In the order of their ids, from behind `after`."""
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
        """In the order of their names."""
        ...

    async def contract(self, id: str) -> Contract | None: ...

    async def contracts(
        self, *, agent: AgentId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Contract]:
        """Newest first; with `agent`, only those whose source or target it is. `after` is the id of the last one
        read."""
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
        """A consistent copy while the hub goes on. `target` must not exist. Raises `OSError` if it cannot be
        written."""
        ...


class Files(Protocol):
    """Keeps the bytes of files, under ids of the hub.

    A transport keeps a file before it enqueues the command that refers to it, so no committed task refers to missing
    bytes. If the hub refuses the command, the transport drops the file. `unwanted` finds the rest by age: files that
    were left over, and files of forgotten tasks.
    """

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        """The file is durable when this returns. Refused with TOO_LARGE above the size of one file, with RESOURCES when
        all files, or those of the owner, would exceed their quota."""
        ...

    async def fetch(self, id: str) -> bytes | None: ...

    async def describe(self, id: str, *, claim: bool = True) -> KeptFile | None:
        """`claim`: the caller may attach the file to a task, so it is not removed for a while."""
        ...

    async def listing(self, *, after: str, limit: int) -> Sequence[KeptFile]:
        """The files behind `after`, in the order of their ids, which is the order of time."""
        ...

    async def is_claimed(self, id: str, since: Instant) -> bool:
        """Whether a caller claimed the file at that time or later: of this hub since it runs, or of any node where they
        share the files."""
        ...

    async def drop(self, id: str) -> None:
        """Delete a file. Nothing happens if it does not exist."""
        ...

    def unwanted(self, before: Instant) -> AsyncGenerator[Sequence[str]]:
        """Files that no caller kept or claimed since that time, page by page. The store knows whether they belong to a
        task."""
        ...

    async def drop_unwanted(self, id: str, before: Instant) -> bool:
        """Delete the file, unless a caller claimed it since that time and may be about to attach it. False if it
        stays."""
        ...
