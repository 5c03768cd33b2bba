"""`core.ports.Store` on PostgreSQL, for the node that leads a realm, and for those that only read.

With a term (the lease that this node took) it commits: one call of a function for each unit, which the epoch fences.
Decisions read the hot cache, which is coherent because only the leader writes; what it does not know is loaded. Without
a term it only reads, and keeps no cache.

Where the answer to a commit was lost, the store takes the next epoch: nobody, not even a statement of its own that is
still under way, can commit under the old one any more, so the lease then says which unit was the last. Where that
cannot be learned, or another node has taken the lease, it raises `Fenced`, and commits nothing ever after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import ContractById, EntityById, Lookup, QuestionById, TaskById, Terms
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task
from dragoman.core.ports import Changes, Due, Fenced, FoundTasks, Recovered, StoreFailed, TaskFilter, TaskSearch, Vault
from dragoman.stores import layout, personal
from dragoman.stores.bloom_filter import NameFilter
from dragoman.stores.cache import HotCache
from dragoman.stores.postgres import functions, lists, partitions, recovery, rows, schema, search
from dragoman.stores.postgres.connection import errors
from dragoman.stores.postgres.lease import Lease, LeaseTable
from dragoman.stores.postgres.loading import Loader
from dragoman.stores.postgres.names import read, written
from dragoman.stores.postgres.queries import STATEMENTS, rows_of, values_of
from dragoman.stores.postgres.sessions import OutcomeUnknown, Readers, Writer
from dragoman.stores.sqlite.master_keys import KeyHolder, id_of, label_of

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

DOUBT_SECONDS = 10.0
"""How long the store tries to learn whether a unit was committed."""
RETRY_SECONDS = 0.05
CLEAR_SECONDS = 60.0
"""How often the leader looks for partitions that nobody needs any more."""


def wall_clock() -> Instant:
    return Instant(time.time_ns() // 1000)


class PostgresUnit:
    """`core.ports.Unit`: `peek` answers from the cache, and gives None for what must be loaded."""

    complete = False

    def __init__(self, store: PostgresStore, hot: HotCache | None) -> None:
        self.peek = None if hot is None else hot.answer
        self._store = store
        self._committed = False

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        return await self._store.loader.load(lookups)

    async def commit(self, changes: Changes) -> None:
        if self._committed:
            raise RuntimeError("a unit of work commits once")
        self._committed = True
        await self._store.commit(changes)


class PostgresStore:
    """`term`: the lease that this node holds; None on a node that only reads. `cached_rows=0` turns the cache off.
    `now`: the hub's clock, whose last instant the lease keeps for the next leader."""

    def __init__(
        self,
        url: str,
        *,
        realm: str = "default",
        term: Lease | None = None,
        cached_rows: int = 8192,
        readers: int = 4,
        vault: Vault | None = None,
        keys: KeyHolder | None = None,
        now: Callable[[], Instant] = wall_clock,
        doubt_seconds: float = DOUBT_SECONDS,
    ) -> None:
        self._term = term
        self._vault = vault
        self._keys = keys
        self._now = now
        self._doubt_seconds = doubt_seconds
        self._sealed_under: set[str] = set()
        """The ids of the master keys that the store has recorded."""
        self._cache = HotCache(cached_rows) if cached_rows and term is not None else None
        self._lease = LeaseTable(url, realm)
        self._writer = Writer(url, realm)
        self._readers = Readers(url, realm, readers)
        self.loader = Loader(self._writer, self._cache, vault)
        self._unit = 0
        self._counters = recovery.Counters(1, 0, 0)
        self._made = -1
        """The last place that has partitions."""
        self._in_unit = False
        self._doubtful: int | None = None
        """The unit that was under way when its commit was cancelled."""
        self._over: str | None = None
        """Why this store commits nothing any more."""
        self._background: list[asyncio.Task[None]] = []

    @property
    def term(self) -> Lease | None:
        """The lease under which this store commits: of a later epoch than at the start, where a commit was in doubt."""
        return self._term

    @property
    def accepted(self) -> int:
        """The number of the last task."""
        return self._counters.number - 1

    async def open(self) -> Recovered:
        """Raises `StoreRefused`, `Fenced` or `StoreFailed`, with a sentence that says what to do. Without a term, it
        recovers nothing: who follows has all that from the leader."""
        try:
            if self._term is None:
                await self._readers.read(self._check_keys)
                return Recovered()
            connection = await self._writer.connection()
            try:
                await schema.migrate(connection, self._term)
                await self._check_keys(connection)
                recovered, self._counters = await recovery.recovered(connection)
                self._unit = self._term.last_unit
                await self._make_partitions(self._counters.number + partitions.SPAN)
            except errors() as error:
                raise StoreFailed(f"PostgreSQL cannot be used: {error}") from error
        except BaseException:
            await self.close()
            raise
        if self._cache is not None:
            self._background.append(asyncio.create_task(self._note_names(self._cache.names), name="names"))
        self._background.append(asyncio.create_task(self._clear_partitions(), name="partitions"))
        return recovered

    async def _check_keys(self, connection: asyncpg.Connection) -> None:
        known = await connection.fetch("SELECT id, given_up FROM master_key")
        if self._keys is not None:
            in_use = {id_of(label) for label, given_up in known if not given_up}
            self._keys.check(in_use, {id_of(label) for label, given_up in known if given_up})
            self._sealed_under = in_use

    async def _note_names(self, names: NameFilter) -> None:
        """Add the names of all rows that were there at the start, one page at a time."""
        for sql, first in recovery.NAMES:
            after: tuple[str, ...] | None = first
            while after is not None:
                try:
                    page, after = await self._readers.read(partial(recovery.names, sql=sql, after=after))
                except StoreFailed:
                    return  # until the next start, more names are looked up than necessary
                names.note_all(page)
        names.complete = True

    async def _make_partitions(self, number: int) -> None:
        """Make the partitions for tasks up to this number."""
        assert self._term is not None
        first = partitions.place_of(self._counters.number) if self._made < 0 else self._made + 1
        for place in range(first, partitions.place_of(number) + 1):
            await partitions.make(await self._writer.connection(), self._term, place)
            self._made = place

    async def _clear_partitions(self) -> None:
        while True:
            try:
                await self.clear()
            except StoreFailed:
                pass  # and again later
            await asyncio.sleep(CLEAR_SECONDS)

    async def clear(self) -> int:
        """Drop the partitions of forgotten tasks; gives how many."""
        below = partitions.place_of(self._counters.number)
        return await self._readers.read(lambda connection: partitions.clear(connection, below))

    async def close(self) -> None:
        self._over = self._over or "the store is closed"
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        self._writer.drop()
        self._readers.close()
        await self._lease.close()

    def fence(self, why: str) -> None:
        """Commit nothing any more: what is under way ends with `Fenced`, however long the server would take."""
        self._over = self._over or why
        self._writer.drop()

    # Units of work.

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[PostgresUnit]:
        if self._in_unit:
            raise RuntimeError("a unit of work is open already: a node has at most one")
        self._in_unit = True
        try:
            self._leading()
            if self._doubtful is not None and await self._was_committed(self._doubtful):
                raise self._fenced("a unit was committed after its commit had been given up")
            self._doubtful = None
            if self._cache is not None:
                self._cache.absent.clear()
            yield PostgresUnit(self, self._cache)
        finally:
            self._in_unit = False

    def _leading(self) -> Lease:
        if self._term is None:
            raise Fenced("this node does not lead: it only reads the store")
        if self._over is not None:
            raise Fenced(self._over)
        return self._term

    def _fenced(self, why: str) -> Fenced:
        self._over = why
        self._drop_cache()
        return Fenced(why)

    def _drop_cache(self) -> None:
        if self._cache is not None:
            self._cache.clear()

    async def note(self, direct_messages: Mapping[str, str]) -> None:
        epoch = self._leading().epoch
        packed = b"".join(
            recovery.NOTED.pack(bytes.fromhex(id), bytes.fromhex(content)) for id, content in direct_messages.items()
        )
        until = self._counters.passed + len(direct_messages)
        try:
            led = await self._writer.write(functions.CALL_NOTE, [epoch, until, packed])
        except OutcomeUnknown as error:
            self._counters.passed = until  # it may be there, and then its number is taken
            raise StoreFailed(f"PostgreSQL did not confirm it: {error}") from error
        if not led:
            raise self._fenced("another node leads")
        self._counters.passed = until

    async def commit(self, changes: Changes) -> None:
        self._leading()
        if not changes:
            return
        new: dict[TaskId, int] = {}
        number = self._counters.number
        for row in changes.added:
            if type(row) is Task:
                if row.id in new:
                    raise StoreFailed(f"task {row.id} stands twice in one unit")
                new[row.id] = number
                number += 1
        try:
            if self._cache is not None:
                self._cache.expect(changes.added)
            if partitions.place_of(number) > self._made:
                await self._make_more(number)
            numbers = await self._numbers(changes, new)
            scalars, arrays = rows.pack(personal.shut(changes, self._vault), numbers.__getitem__, self._key())
            await self._write(scalars, arrays, changes)
        except BaseException as error:
            self._drop_cache()
            if isinstance(error, (ValueError, TypeError, OverflowError)):
                raise StoreFailed(f"the unit cannot be written: {error}") from error
            raise
        self._counters.number = number
        self._counters.used += len(changes.used)
        if self._keys is not None and self._keys.in_use is not None:
            self._sealed_under.add(self._keys.in_use)
        if self._cache is not None:
            self._cache.follow(changes, new)

    async def _make_more(self, number: int) -> None:
        try:
            await self._make_partitions(number + partitions.SPAN)
        except errors() as error:
            if getattr(error, "sqlstate", None) == schema.FENCED:
                raise self._fenced("another node leads") from error
            raise StoreFailed(f"PostgreSQL cannot be used: {error}") from error

    def _key(self) -> str | None:
        """The label of the master key that seals now, if the store has not recorded it yet."""
        key = None if self._keys is None else self._keys.in_use
        return None if key is None or key in self._sealed_under else label_of(key)

    async def _numbers(self, changes: Changes, new: dict[TaskId, int]) -> dict[TaskId, int]:
        """The numbers of all tasks that the changes are about."""
        hot = self._cache
        numbers = dict(new)
        unknown: list[TaskId] = []
        for changed in (changes.added, changes.changed, changes.removed):
            for row in changed:
                kind = type(row)
                if kind is not Event and kind is not Task:
                    continue
                id: TaskId = row.task if kind is Event else row.id  # type: ignore[union-attr,assignment]
                if id not in numbers:
                    no = None if hot is None else hot.number(id)
                    numbers[id] = -1 if no is None else no
                    if no is None:
                        unknown.append(id)
        if unknown:
            self.loader.loads += 1
            sql = "SELECT id, no FROM task WHERE id = ANY($1::text[])"
            for id, no in await self._writer.fetch(sql, [written(one) for one in unknown]):
                numbers[TaskId(read(id))] = no
                if hot is not None:
                    hot.learn_number(TaskId(read(id)), no)
            if missing := [id for id in unknown if numbers[id] < 0]:
                raise StoreFailed(f"task {missing[0]} does not exist")
        return numbers

    async def _write(self, scalars: list[Any], arrays: list[Any], changes: Changes) -> None:
        """Commit a unit. If its answer is lost and it was not committed, it is sent once more: a sender that expects no
        answer would not notice the loss."""
        chain, newest, forget, rare = scalars
        used = layout.pack(changes.used) if changes.used else None
        until = self._counters.used + len(changes.used)
        self._unit += 1
        for _ in range(2):
            epoch = self._leading().epoch
            given = [epoch, self._unit, self._now(), chain, newest, forget, until, used, rare, *arrays]
            try:
                if await self._writer.write(functions.CALL_COMMIT, given):
                    return
                raise self._fenced("another node leads")
            except OutcomeUnknown:
                if await self._was_committed(self._unit):
                    return
            except asyncio.CancelledError:
                self._writer.drop()
                self._doubtful = self._unit
                raise
        raise StoreFailed("two connections were lost over this unit, and it was not written")

    async def _was_committed(self, unit: int) -> bool:
        """Take the next epoch: it says which unit was the last. Raises `Fenced` where that cannot be learned."""
        self._writer.drop()
        until = asyncio.get_running_loop().time() + self._doubt_seconds
        while True:
            term = self._leading()
            try:
                again = await self._lease.take_again(term.epoch)
            except StoreFailed as error:
                if asyncio.get_running_loop().time() >= until:
                    raise self._fenced(f"whether a unit was committed cannot be learned: {error}") from error
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if again is None:
                raise self._fenced("another node leads")
            self._term = again
            return again.last_unit == unit

    @property
    def log_bytes(self) -> int:
        return 0

    # What people and the API read.

    async def due(self, now: Instant, limit: int) -> Due:
        found = await self._read(lambda connection: connection.fetch(recovery.DUE, now, limit + 1))
        return recovery.due_of(found, limit)

    async def _read(self, read: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        return await self._readers.read(read)

    async def _one(self, lookup: Lookup[Any]) -> Any:
        """The first row of a lookup, or None."""
        found = await self._read(lambda connection: connection.fetch(STATEMENTS[type(lookup)], *values_of(lookup)))
        opened = rows_of(lookup, found)
        if lookup.row in personal.KEPT:
            opened = personal.opened(opened, self._vault)
        return opened[0] if opened else None

    async def task(self, id: TaskId) -> Task | None:
        if self._cache is not None and (known := self._cache.task(id)) is not None:
            return known
        found: Task | None = await self._one(TaskById(id))
        return found

    async def tasks(self, where: TaskFilter, *, after: str | None, limit: int) -> tuple[Sequence[Task], str | None]:
        found, on = await self._read(lambda connection: lists.tasks(connection, where, after, limit))
        return personal.opened(found, self._vault), on

    async def search(self, where: TaskSearch, *, after: str | None, limit: int) -> FoundTasks:
        found = await self._read(lambda connection: search.search(connection, where, after, limit))
        return msgspec.structs.replace(found, tasks=personal.opened(found.tasks, self._vault))

    async def find_tasks(self, prefix: str, limit: int) -> Sequence[Task]:
        found = await self._read(lambda connection: lists.find_tasks(connection, prefix, limit))
        return personal.opened(found, self._vault)

    async def events(self, task: TaskId, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        found = await self._read(lambda connection: lists.events(connection, task, after, limit))
        return personal.opened(found, self._vault)

    async def events_since(self, at: Instant, limit: int) -> Sequence[Event]:
        found = await self._read(lambda connection: lists.events_since(connection, at, limit))
        return personal.opened(found, self._vault)

    async def series(self, step: int, *, since: int, until: int | None = None) -> Sequence[SeriesRow]:
        return await self._read(lambda connection: lists.series(connection, step, since, until))

    async def deliveries(
        self, *, task: TaskId | None = None, receiver: AgentId | None = None, limit: int = 1000
    ) -> Sequence[Delivery]:
        found = await self._read(lambda connection: lists.deliveries(connection, task, receiver, limit))
        return personal.opened(found, self._vault)

    async def dead_letters(
        self, *, task: TaskId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        found = await self._read(lambda connection: lists.dead_letters(connection, task, after, limit))
        return personal.opened(found, self._vault)

    async def questions(
        self,
        *,
        status: QuestionStatus | None = None,
        task: TaskId | None = None,
        asked_of: AgentId | None = None,
        after: str = "",
        limit: int = 100,
    ) -> Sequence[Question]:
        found = await self._read(lambda connection: lists.questions(connection, status, task, asked_of, after, limit))
        return personal.opened(found, self._vault)

    async def question(self, id: QuestionId) -> Question | None:
        found: Question | None = await self._one(QuestionById(id))
        return found

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        principal: str | None = None,
        subject: str | None = None,
        outcome: str | None = None,
    ) -> Sequence[AuditRecord]:
        return await self._read(lambda connection: lists.audit(connection, after, limit, principal, subject, outcome))

    async def entity(self, id: str) -> Entity | None:
        found: Entity | None = await self._one(EntityById(id))
        return found

    async def entities(self, registry: Registry, *, after: str = "", limit: int = 1000) -> Sequence[Entity]:
        return await self._read(lambda connection: lists.entities(connection, registry, after, limit))

    async def contract(self, id: str) -> Contract | None:
        found: Contract | None = await self._one(ContractById(id))
        return found

    async def contracts(
        self, *, agent: AgentId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Contract]:
        return await self._read(lambda connection: lists.contracts(connection, agent, after, limit))

    async def contract_of(self, collaboration: str) -> Contract | None:
        found: Contract | None = await self._one(Terms(collaboration, 1))
        return found

    async def changes(self, *, after: int = 0, limit: int = 100) -> Sequence[Changed]:
        return await self._read(lambda connection: lists.changes(connection, after, limit))

    async def attached(self, files: Sequence[str]) -> Collection[str]:
        return await self._read(lambda connection: lists.attached(connection, files))

    async def counts(self) -> Mapping[str, int]:
        return await self._read(lists.counts)

    async def backup(self, target: str) -> None:
        raise OSError(
            "a store in PostgreSQL is backed up by PostgreSQL: use pg_basebackup with an archive of its log, or the"
            " backups of your provider"
        )
