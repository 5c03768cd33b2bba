"""The words of tasks, for people who search: a full-text index in a file of its own, beside the database.

It is derived, and made when the first search since the start comes: a hub that nobody searches pays nothing for it, and
commits never write it. From then on each search first takes in what is new, and a background task goes on from the
newest tasks to the oldest ones, in short steps, so the newest are found at once and all of them before long. When
nobody searched for a while, and when the hub stops, the file is deleted.

`covered` has the ranges of task numbers whose texts are in. A text changes when a task fails: `failures` is the instant
up to which events were looked through for that. Texts of forgotten tasks are deleted on the way.

All work is done by SQLite in threads, which do not hold up the hub meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from dragoman.core.ids import Instant
from dragoman.core.ports import StoreFailed
from dragoman.stores import layout
from dragoman.stores.sqlite.lists import ListReader, unreadable

T = TypeVar("T")

STEP = 1_000
"""Tasks whose texts are taken in at once."""
EVENTS = 10_000
"""Events that are looked through at once."""
SWEPT = 20_000
"""Tasks of which is checked at once whether they are still there."""
CATCH_UP_SECONDS = 0.05
"""How long a search waits for the index; what is still missing then is taken in while it is answered."""
KEPT_SECONDS = 3600.0
"""The index is deleted when nobody searched for so long."""
SWEEP_SECONDS = 600.0
"""Texts of forgotten tasks are looked for so often, as long as there are searches."""
REST = 0.02

SCHEMA = """
    CREATE VIRTUAL TABLE words USING fts5(
        text, content='', contentless_delete=1, tokenize='unicode61 remove_diacritics 0', prefix='1 2');
    CREATE VIRTUAL TABLE vocabulary USING fts5vocab(words, instance);
    CREATE TABLE covered (low INTEGER PRIMARY KEY, high INTEGER NOT NULL);
    CREATE TABLE progress (failures INTEGER NOT NULL, swept INTEGER NOT NULL);
"""

TEXT = """
    SELECT no, id || ' ' || substr(id, -6) || ' ' || type || CASE WHEN body ->> '$.agreement.personal' THEN '' ELSE
        ' ' || ifnull(body ->> '$.name', '') || ' ' || ifnull(body ->> '$.description', '') || ' '
            || ifnull(body ->> '$.outcome.fault.message', '') END
    FROM task WHERE no
"""
"""What can be found of a task: the same as `stores.shared.search_text`."""

FAILING = "('failed', 'attempt_failed', 'cancelled', 'dead_lettered', 'retried')"


class TextIndex:
    def __init__(self, database: Path, *, threads: int, seconds: float) -> None:
        self._database = database
        self._path = database.with_suffix(".search")
        self._readers_setting = (threads, seconds)
        self._readers: ListReader | None = None
        self._writer: apsw.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dragoman-search")
        self._keeper: asyncio.Task[None] | None = None
        self._asked = asyncio.Event()
        self._swept = 0.0

    def discard(self) -> None:
        """Delete what an earlier hub left."""
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    async def read(self, read: Callable[[apsw.Connection], T]) -> tuple[T, Instant | None]:
        """What `read` finds with a connection that has the table `words` beside those of the database; and since when
        tasks have been searched, None if all of them were. Raises `StoreFailed`."""
        await self._in_thread(self._catch_up)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="text index")
        self._asked.set()
        if self._readers is None:
            threads, seconds = self._readers_setting
            self._readers = ListReader(str(self._path), threads=threads, seconds=seconds, connect=self._connect)
        return await self._readers.read(lambda connection: (read(connection), searched_since(connection)))

    def interrupt_long_ones(self) -> None:
        if self._readers is not None:
            self._readers.interrupt_long_ones()

    async def close(self) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._drop()
        await asyncio.to_thread(self._thread.shutdown)

    async def _drop(self) -> None:
        readers, self._readers = self._readers, None
        if readers is not None:
            await readers.close()
        if self._writer is not None:  # else there is nothing to close, perhaps not even the thread any more
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close_writer)

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            self.discard()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except apsw.Error as error:
            raise unreadable(error) from error

    async def _keep(self) -> None:
        """Take in older tasks, resting as long as working; then wait for the next search."""
        while True:
            self._asked.clear()
            try:
                begun, is_behind = time.monotonic(), True
                while is_behind:
                    begun, is_behind = time.monotonic(), await self._in_thread(self._step)
                    await asyncio.sleep(max(REST, time.monotonic() - begun) if is_behind else 0)
                async with asyncio.timeout(KEPT_SECONDS):
                    await self._asked.wait()
            except (TimeoutError, StoreFailed):
                await self._drop()
                return

    # In the thread.

    def _connect(self, path: str) -> apsw.Connection:
        connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        self._attach(connection)
        return connection

    def _attach(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(5_000)
        connection.execute("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384")
        connection.execute("ATTACH ? AS hub", (f"file:{quote(str(self._database))}?mode=ro",))
        connection.execute("PRAGMA hub.cache_size = -16384")

    def _open(self) -> apsw.Connection:
        if self._writer is None:
            self.discard()
            flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
            connection = apsw.Connection(str(self._path), flags=flags)
            connection.execute("PRAGMA journal_mode = wal; PRAGMA synchronous = OFF")
            self._attach(connection)
            with connection:
                connection.execute(SCHEMA)
                connection.execute("INSERT INTO progress SELECT ifnull(max(at), 0), 0 FROM event")
            self._writer, self._swept = connection, time.monotonic()
        return self._writer

    def _catch_up(self) -> None:
        """Take in what is new, for a moment."""
        connection, until = self._open(), time.monotonic() + CATCH_UP_SECONDS
        while (take_newest(connection) or take_failures(connection)) and time.monotonic() < until:
            pass

    def _step(self) -> bool:
        """A little of everything; whether something is left."""
        connection = self._open()
        left = [take(connection) for take in (take_newest, take_failures, take_older)]
        if any(left) or time.monotonic() < self._swept + SWEEP_SECONDS:
            return any(left)
        if sweep(connection):
            return True
        self._swept = time.monotonic()
        return False


def one(connection: apsw.Connection, sql: str, *values: int) -> tuple[int, ...]:
    row = connection.execute(sql, values).fetchone()
    return tuple(int(value or 0) for value in row) if row else ()


TOP = "SELECT low, high FROM covered ORDER BY low DESC LIMIT 1"


def take(connection: apsw.Connection, low: int, high: int) -> None:
    connection.execute(f"INSERT OR REPLACE INTO words (rowid, text) {TEXT} BETWEEN ? AND ? ORDER BY no", (low, high))


def take_newest(connection: apsw.Connection) -> bool:
    """The texts of tasks that came since the last time. After too many, a new range begins at the newest one."""
    with connection:
        (newest,) = one(connection, "SELECT max(no) FROM task")
        top = one(connection, TOP)
        if top and newest <= top[1]:
            return False
        if top and newest - top[1] <= STEP:
            low = top[1] + 1
            connection.execute("UPDATE covered SET high = ? WHERE low = ?", (newest, top[0]))
        else:
            low = max(1, newest - STEP + 1)
            connection.execute("INSERT INTO covered (low, high) VALUES (?, ?)", (low, newest))
        take(connection, low, newest)
    return False


def take_older(connection: apsw.Connection) -> bool:
    """The texts below the range at the top, down to the next one, which then becomes a part of it."""
    with connection:
        low, high = one(connection, TOP)
        (oldest,) = one(connection, "SELECT min(no) FROM task")
        if low <= max(1, oldest):
            return False
        below = one(connection, "SELECT low, high FROM covered WHERE low < ? ORDER BY low DESC LIMIT 1", low)
        first = max(1, low - STEP, oldest, below[1] + 1 if below else 1)
        take(connection, first, low - 1)
        connection.execute("DELETE FROM covered WHERE low = ?", (low,))
        if below and first == below[1] + 1:
            connection.execute("UPDATE covered SET high = ? WHERE low = ?", (high, below[0]))
        else:
            connection.execute("INSERT INTO covered (low, high) VALUES (?, ?)", (first, high))
    return True


def take_failures(connection: apsw.Connection) -> bool:
    """The texts of tasks that failed since the last time: they say why."""
    with connection:
        (since,) = one(connection, "SELECT failures FROM progress")
        sql = "SELECT max(at), count(*) FROM (SELECT at FROM event WHERE at > ? ORDER BY at LIMIT ?)"
        until, count = one(connection, sql, since, EVENTS)
        if not count:
            return False
        connection.execute(
            f"INSERT OR REPLACE INTO words (rowid, text) {TEXT} IN (SELECT key >> {layout.SEQ_BITS} FROM event"
            f" WHERE at > ? AND at <= ? AND kind IN {FAILING}) AND EXISTS"
            " (SELECT 1 FROM covered WHERE no BETWEEN low AND high) ORDER BY no",
            (since, until),
        )
        connection.execute("UPDATE progress SET failures = ?", (until,))
    return count == EVENTS


def sweep(connection: apsw.Connection) -> bool:
    """Delete the texts of forgotten tasks, some numbers at a time."""
    with connection:
        (after,) = one(connection, "SELECT swept FROM progress")
        sql = "SELECT max(id), count(*) FROM (SELECT id FROM words_docsize WHERE id > ? ORDER BY id LIMIT ?)"
        until, count = one(connection, sql, after, SWEPT)
        connection.execute(
            "DELETE FROM words WHERE rowid IN (SELECT id FROM words_docsize WHERE id > ? AND id <= ?"
            " AND NOT EXISTS (SELECT 1 FROM task WHERE no = id))",
            (after, until),
        )
        connection.execute("UPDATE progress SET swept = ?", (until if count == SWEPT else 0,))
    return count == SWEPT


def searched_since(connection: apsw.Connection) -> Instant | None:
    """When the oldest task was created down to which all texts are in; None if all of them are."""
    low, _ = one(connection, TOP)
    row = connection.execute("SELECT no, created_at FROM task WHERE no >= ? ORDER BY no LIMIT 1", (low,)).fetchone()
    if row is None or connection.execute("SELECT 1 FROM task WHERE no < ? LIMIT 1", (low,)).fetchone() is None:
        return None
    return Instant(int(row[1]))
