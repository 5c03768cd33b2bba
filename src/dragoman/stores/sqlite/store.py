"""`core.ports.Store` on one SQLite file.

Writes go to the writer process (`writer`), one frame per unit. Reads for decisions go to a hot cache and then to a
read-only connection, on the event loop: they are point reads. Lists for people run in threads with read-only
connections of their own, so a long one holds nothing up.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from dragoman import durable
from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import Lane, LaneEnd, Lookup, TaskById
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task
from dragoman.core.ports import Changes, Due, FoundTasks, Recovered, StoreFailed, TaskFilter, TaskSearch, Vault
from dragoman.stores import personal
from dragoman.stores.bloom_filter import NameFilter
from dragoman.stores.cache import SHORT, HotCache
from dragoman.stores.shared import StoreUnit, search_words
from dragoman.stores.sqlite import (
    backups,
    frames,
    lists,
    master_keys,
    queries,
    recovery,
    schema,
    search,
    used,
    writer_process,
)
from dragoman.stores.sqlite.lists import ListReader, unreadable
from dragoman.stores.sqlite.rows import pack
from dragoman.stores.sqlite.schema import StoreRefused
from dragoman.stores.sqlite.sent_messages import SentMessages, beside
from dragoman.stores.sqlite.text_index import TextIndex
from dragoman.stores.sqlite.wal import CAP, waits_at
from dragoman.stores.sqlite.writer_process import OutcomeUnknown, Writer

T = TypeVar("T")


class SqliteStore:
    """The embedded store. `cached_rows=0` turns the hot cache off. `log_cap`: see `wal`; while the log waits for
    readers, a list that takes longer than `read_seconds` is interrupted."""

    def __init__(
        self,
        path: Path,
        *,
        cached_rows: int = 8192,
        list_threads: int = 2,
        vault: Vault | None = None,
        keys: master_keys.KeyHolder | None = None,
        log_cap: int = CAP,
        read_seconds: float = 2.0,
    ) -> None:
        self._path = path.absolute()
        self._vault = vault
        self._keys = keys
        self._sealed_under: set[str] = set()
        """The ids of the master keys that the store has recorded."""
        self._cache = HotCache(cached_rows) if cached_rows else None
        self._lock: int | None = None
        self._writer: Writer | None = None
        self._reader: apsw.Connection | None = None
        self._next_number = 1
        self._in_unit = False
        self._doubtful: Changes | None = None
        """The changes that the last writer had when it died, until it is known whether they were committed."""
        self._outrun = False
        """Whether those were committed after the hub got an error for them: the hub's memory is behind the store."""
        self._naming: asyncio.Task[None] | None = None
        self._lists = ListReader(str(self._path), threads=list_threads, seconds=read_seconds)
        self._texts = TextIndex(self._path, threads=list_threads, seconds=read_seconds)
        self._log_cap = log_cap
        self._copying = asyncio.Lock()

    async def open(self) -> Recovered:
        """Raises `StoreInUse` or `StoreRefused`, with a sentence that says what to do."""
        schema.require_sqlite()
        durable.make_directory(self._path.parent)
        self._lock = await writer_process.lock_directory(self._path.parent)
        try:
            self._writer = await Writer.start(self._path, self._lock, self._log_cap)
            return self._begin()
        except apsw.Error as error:
            await self.close()
            raise StoreRefused(
                f"{self._path} cannot be read ({error})", "restore from a backup", because=schema.name_of(error)
            ) from error
        except BaseException:
            await self.close()
            raise

    def _begin(self) -> Recovered:
        self._reader = queries.connect(str(self._path))
        self._texts.discard()
        if self._keys is not None:
            in_use, given_up = master_keys.keys(self._reader)
            self._keys.check(in_use, given_up)
            self._sealed_under = set(in_use)
        recovered, self._next_number = recovery.recovered(self._reader)
        if self._cache is not None:
            self._naming = asyncio.create_task(self._note_names(self._cache.names), name="names")
        ring = SentMessages(beside(str(self._path)))
        try:
            return msgspec.structs.replace(recovered, passed=ring.read(), used=used.read(self._reader))
        finally:
            ring.close()

    async def _note_names(self, names: NameFilter) -> None:
        """Add the names of all rows that were there at the start, one page at a time."""
        for sql, first in recovery.NAMES:
            after: tuple[Any, ...] | None = first
            while after is not None:
                try:
                    page, after = await self._list(partial(recovery.names, sql=sql, after=after))
                except StoreFailed:
                    return  # the next read of a row fails as well, and its caller gets the error
                names.note_all(page)
        names.complete = True

    async def close(self) -> None:
        if self._naming is not None:
            self._naming.cancel()
            self._naming = None
        await self._lists.close()
        await self._texts.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        writer, self._writer = self._writer, None
        if writer is not None:  # the last connection that closes removes the write-ahead log
            await writer.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def writer_pid(self) -> int | None:
        """For `doctor` and fault tests."""
        return self._writer.pid if self._writer else None

    # Units of work.

    @asynccontextmanager
    async def unit(self) -> AsyncIterator[StoreUnit]:
        if self._in_unit:
            raise RuntimeError("a unit of work is open already: a node has at most one")
        self._in_unit = True
        try:
            if self._writer is None or not self._writer.alive:
                self._outrun |= await self._restart_writer()
            else:
                await self._writer.settled()
            if self._outrun:
                raise StoreFailed("the writer process died over a unit that was written after all: start the hub again")
            if self._cache is not None:
                self._cache.absent.clear()
            yield StoreUnit(self._load, self._commit)
        finally:
            self._in_unit = False

    async def _restart_writer(self) -> bool:
        """Start a writer after the last one died; gives whether the changes that it had were committed."""
        if self._lock is None or self._reader is None:
            raise StoreFailed("the store is not open")
        self._drop_cache()
        if self._writer is not None:
            await self._writer.close()
            self._writer = None
        try:
            self._writer = await Writer.start(self._path, self._lock, self._log_cap)
            _, free = recovery.recovered(self._reader)
            there = self._doubtful is not None and recovery.is_there(self._reader, self._doubtful)
        except (StoreRefused, apsw.Error, OSError) as error:
            raise StoreFailed(f"the writer process cannot be started: {error}") from error
        self._doubtful = None
        self._next_number = max(self._next_number, free)
        return there

    async def note(self, direct_messages: Mapping[str, str]) -> None:
        if self._writer is None:
            raise StoreFailed("the store is not open")
        await self._writer.note(
            [(bytes.fromhex(id), bytes.fromhex(content)) for id, content in direct_messages.items()]
        )

    def _drop_cache(self) -> None:
        if self._cache is not None:
            self._cache.clear()

    def _read(self) -> apsw.Connection:
        if self._reader is None:
            raise StoreFailed("the store is not open")
        return self._reader

    def _load(self, lookup: Lookup[Any]) -> list[Any]:
        cache = self._cache
        if cache is None:
            try:
                return self._clear(lookup, queries.answer(self._read(), lookup))
            except apsw.Error as error:
                raise unreadable(error) from error
        known = cache.answer(lookup)
        if known is not None:
            return known
        try:
            return self._look_up(cache, lookup)
        except apsw.Error as error:
            raise unreadable(error) from error

    def _look_up(self, cache: HotCache, lookup: Lookup[Any]) -> list[Any]:
        if isinstance(lookup, Lane | LaneEnd):  # all of the task's at once: its other lanes are asked for next
            rows = personal.opened(queries.of_task(self._read(), lookup.task, SHORT + 1), self._vault)
            if len(rows) <= SHORT:
                cache.learn_deliveries(lookup.task, rows)
                return sorted(filter(lookup.matches, rows), key=lookup.order)[: lookup.most]
        wider = cache.wider(lookup)
        rows = self._clear(lookup, queries.answer(self._read(), wider))
        cache.learn(wider, rows)
        return rows if wider is lookup else rows[: lookup.most]

    def _clear(self, lookup: Lookup[Any], rows: list[Any]) -> list[Any]:
        return personal.opened(rows, self._vault) if lookup.row in personal.KEPT else rows

    async def _commit(self, changes: Changes) -> None:
        if not changes:
            return
        new: dict[TaskId, int] = {}
        for row in changes.added:
            if type(row) is Task:
                if row.id in new:
                    raise StoreFailed(f"task {row.id} stands twice in one unit")
                new[row.id] = self._next_number
                self._next_number += 1
        try:
            if self._cache is not None:
                self._cache.expect(changes.added)
            written = personal.shut(changes, self._vault)
            operations = pack(written, lambda task: new.get(task) or self._number(task), new)
            key = None if self._keys is None else self._keys.in_use
            if key is not None and key not in self._sealed_under:
                operations.append((frames.ROWS, frames.MASTER_KEY, [(master_keys.label_of(key),)]))
            await self._write(operations, written)
            if key is not None:
                self._sealed_under.add(key)
        except BaseException as error:
            self._drop_cache()
            if isinstance(error, (ValueError, TypeError, OverflowError, apsw.Error)):
                raise StoreFailed(f"the unit cannot be written: {error}") from error
            raise
        if self._cache is not None:
            self._cache.follow(changes, new)

    async def _write(self, operations: list[tuple[Any, ...]], written: Changes) -> None:
        """Commit a unit. If the writer dies and the unit was not committed, the next writer gets it: a sender that
        expects no answer would not notice the loss. Only once, because the unit itself may crash the writer."""
        for _ in range(2):
            if self._writer is None:
                raise StoreFailed("the store is not open")
            try:
                try:
                    await self._writer.commit(operations)
                finally:  # a log that waits for readers must not wait for the hub's own
                    if self.log_bytes > waits_at(self._log_cap):
                        self._lists.interrupt_long_ones()
                        self._texts.interrupt_long_ones()
                return
            except OutcomeUnknown:
                self._doubtful = written
                if await self._restart_writer():
                    return
        raise StoreFailed("two writer processes ended over this unit, and it was not written")

    @property
    def log_bytes(self) -> int:
        return self._writer.log_bytes if self._writer else 0

    def _number(self, task: TaskId) -> int:
        if self._cache is not None and (known := self._cache.number(task)) is not None:
            return known
        no = queries.number(self._read(), task)
        if no is None:
            raise StoreFailed(f"task {task} does not exist")
        if self._cache is not None:
            self._cache.learn_number(task, no)
        return no

    async def due(self, now: Instant, limit: int) -> Due:
        try:
            return recovery.due(self._read(), now, limit)
        except apsw.Error as error:
            raise unreadable(error) from error

    # What people and the API read.

    async def task(self, id: TaskId) -> Task | None:
        if self._cache is not None and (known := self._cache.task(id)) is not None:
            return known
        try:
            found = personal.opened(queries.answer(self._read(), TaskById(id)), self._vault)
            return found[0] if found else None
        except apsw.Error as error:
            raise unreadable(error) from error

    async def tasks(self, where: TaskFilter, *, after: str | None, limit: int) -> tuple[Sequence[Task], str | None]:
        found, on = await self._list(lambda connection: lists.tasks(connection, where, after, limit))
        return personal.opened(found, self._vault), on

    async def search(self, where: TaskSearch, *, after: str | None, limit: int) -> FoundTasks:
        since = None
        if search_words(where.text):
            self._read()
            found, since = await self._texts.read(lambda connection: search.search(connection, where, after, limit))
        else:
            found = await self._list(lambda connection: search.search(connection, where, after, limit))
        return msgspec.structs.replace(
            found,
            tasks=personal.opened(found.tasks, self._vault),
            total=found.total if since is None else None,
            searched_since=since,
        )

    async def find_tasks(self, prefix: str, limit: int) -> Sequence[Task]:
        found = await self._list(lambda connection: lists.find_tasks(connection, prefix, limit))
        return personal.opened(found, self._vault)

    async def events(self, task: TaskId, *, after: int = 0, limit: int = 1000) -> Sequence[Event]:
        found = await self._list(lambda connection: lists.events(connection, task, after, limit))
        return personal.opened(found, self._vault)

    async def deliveries(
        self, *, task: TaskId | None = None, receiver: AgentId | None = None, limit: int = 1000
    ) -> Sequence[Delivery]:
        found = await self._list(lambda connection: lists.deliveries(connection, task, receiver, limit))
        return personal.opened(found, self._vault)

    async def dead_letters(
        self, *, task: TaskId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[DeadLetter]:
        found = await self._list(lambda connection: lists.dead_letters(connection, task, after, limit))
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
        found = await self._list(lambda connection: lists.questions(connection, status, task, asked_of, after, limit))
        return personal.opened(found, self._vault)

    async def question(self, id: QuestionId) -> Question | None:
        try:
            found = lists.question(self._read(), id)
            return None if found is None else personal.opened([found], self._vault)[0]
        except apsw.Error as error:
            raise unreadable(error) from error

    async def audit(
        self,
        *,
        after: int = 0,
        limit: int = 1000,
        principal: str | None = None,
        subject: str | None = None,
        outcome: str | None = None,
    ) -> Sequence[AuditRecord]:
        return await self._list(lambda connection: lists.audit(connection, after, limit, principal, subject, outcome))

    async def contract(self, id: str) -> Contract | None:
        try:
            return lists.contract(self._read(), id)
        except apsw.Error as error:
            raise unreadable(error) from error

    async def contracts(
        self, *, agent: AgentId | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Contract]:
        return await self._list(lambda connection: lists.contracts(connection, agent, after, limit))

    async def events_since(self, at: Instant, limit: int) -> Sequence[Event]:
        found = await self._list(lambda connection: lists.events_since(connection, at, limit))
        return personal.opened(found, self._vault)

    async def series(self, step: int, *, since: int, until: int | None = None) -> Sequence[SeriesRow]:
        return await self._list(lambda connection: lists.series(connection, step, since, until))

    async def contract_of(self, collaboration: str) -> Contract | None:
        return await self._list(lambda connection: lists.contract_of(connection, collaboration))

    async def entity(self, id: str) -> Entity | None:
        try:
            return lists.entity(self._read(), id)
        except apsw.Error as error:
            raise unreadable(error) from error

    async def entities(self, registry: Registry, *, after: str = "", limit: int = 1000) -> Sequence[Entity]:
        return await self._list(lambda connection: lists.entities(connection, registry, after, limit))

    async def changes(self, *, after: int = 0, limit: int = 100) -> Sequence[Changed]:
        return await self._list(lambda connection: lists.changes(connection, after, limit))

    async def attached(self, files: Sequence[str]) -> Collection[str]:
        return await self._list(lambda connection: lists.attached(connection, files))

    async def counts(self) -> Mapping[str, int]:
        return await self._list(lists.counts)

    async def backup(self, target: str) -> None:
        path, writer = Path(target), self._writer
        if writer is None:
            raise StoreFailed("the store is not open")
        async with self._copying:
            part = backups.part_of(path)
            try:
                left, pages = await writer.copy((frames.COPY_BEGIN, str(part))), backups.STEP
                while left:
                    before, left = left, await writer.copy((frames.COPY_STEP, pages))
                    if left > before - pages // 2:  # half as much, or more, was written meanwhile
                        pages = min(2 * pages, backups.LONGEST_STEP)
                await writer.copy((frames.COPY_END,))
                await asyncio.to_thread(backups.finish, part, path)
            except apsw.Error as error:
                raise unreadable(error) from error
            finally:
                with contextlib.suppress(StoreFailed, OSError):
                    await writer.copy((frames.COPY_END,))
                backups.discard(part)

    async def _list(self, read: Callable[[apsw.Connection], T]) -> T:
        self._read()
        return await self._lists.read(read)
