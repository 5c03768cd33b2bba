"""The write-ahead log stays within its cap, whatever program reads meanwhile; where another program keeps it full,
units are refused.

A log may be longer than its cap by one unit. What is asserted are bytes, never times.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import apsw
import pytest

from dragoman.core.ids import TaskId
from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite import schema
from dragoman.stores.sqlite.store import SqliteStore
from dragoman.stores.sqlite.wal import LogIsFull, WriteAheadLog, waits_at
from tests.adapters.records import event, task
from tests.adapters.sqlite_faults.steps import PATIENCE, commit, stored

UNIT = 256 << 10
CAP = 16 * UNIT
BOUND = CAP + 2 * UNIT
"""A unit more than the cap, with the pages of its indexes and the headers of its frames."""


@asynccontextmanager
async def opened(path: Path, **settings: float) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(path / "hub.db", log_cap=CAP, **settings)  # type: ignore[arg-type]
    await made.open()
    try:
        await commit(made, task("t"))
        yield made
    finally:
        await made.close()


class Filling:
    """Commits a unit at a time, and looks how long the log gets."""

    def __init__(self, store: SqliteStore, path: Path) -> None:
        self._store = store
        self._wal = path / "hub.db-wal"
        self.committed = 0
        self.longest = 0

    async def __call__(self, units: int) -> None:
        for _ in range(units):
            await commit(self._store, event("t", self.committed + 1, raw=os.urandom(UNIT)))
            self.committed += 1
            self.longest = max(self.longest, self._wal.stat().st_size)

    async def until_refused(self) -> str:
        with pytest.raises(StoreFailed) as refusal:
            await self(10 * CAP // UNIT)
        return str(refusal.value)


@contextmanager
def foreign_reader(path: Path) -> Iterator[None]:
    """A connection that the hub does not know: to the writer, another program that does not end its transaction."""
    other = apsw.Connection(str(path / "hub.db"), flags=apsw.SQLITE_OPEN_READONLY)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM task").fetchall()
    try:
        yield
    finally:
        other.close()


async def test_without_readers_the_log_stays_at_a_quarter_of_its_cap(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        fill = Filling(store, tmp_path)
        await fill(80)
        assert fill.longest < waits_at(CAP) + 2 * UNIT
        assert store.log_bytes < waits_at(CAP) + 2 * UNIT
        assert len(await store.events(TaskId("t"), after=70)) == 10


async def test_readers_that_overlap_do_not_keep_the_log_from_a_reset(tmp_path: Path) -> None:
    """There is a reader at every moment: each ends only when the next one has begun."""
    async with opened(tmp_path) as store:
        fill = Filling(store, tmp_path)
        turns = [threading.Event() for _ in range(2)]
        over = threading.Event()

        def reads(mine: threading.Event, others: threading.Event) -> None:
            connection = apsw.Connection(str(tmp_path / "hub.db"), flags=apsw.SQLITE_OPEN_READONLY)
            connection.set_busy_timeout(10_000)
            while not over.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM event").fetchall()
                others.set()
                mine.wait(PATIENCE)
                mine.clear()
                connection.execute("COMMIT")
            others.set()
            connection.close()

        threads = [threading.Thread(target=reads, args=(turns[n], turns[1 - n]), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            await fill(80)
        finally:
            over.set()
            for turn in turns:
                turn.set()
            for thread in threads:
                await asyncio.to_thread(thread.join, PATIENCE)
        assert fill.longest < BOUND


async def test_a_long_list_of_our_own_is_interrupted_when_the_log_needs_it(tmp_path: Path) -> None:
    async with opened(tmp_path, read_seconds=0.0) as store:
        reading = threading.Event()

        def endless(connection: apsw.Connection) -> None:
            connection.execute("SELECT count(*) FROM task").fetchall()
            reading.set()
            connection.execute("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")

        long_one = asyncio.create_task(store._list(endless))
        assert await asyncio.to_thread(reading.wait, PATIENCE)
        fill = Filling(store, tmp_path)
        await fill(80)
        assert fill.longest < BOUND
        with pytest.raises(StoreFailed, match="ask for less, or later"):
            await asyncio.wait_for(long_one, PATIENCE)
        assert await stored(store) == {"t"}


async def test_beside_a_foreign_transaction_the_log_ends_at_its_cap_and_units_are_refused_until_it_ends(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as store:
        fill = Filling(store, tmp_path)
        with foreign_reader(tmp_path):
            said = await fill.until_refused()
            assert "of at most 4 (store.log_limit_bytes)" in said
            assert "end that program's transaction" in said
            assert CAP / 2 < fill.longest < BOUND
            for _ in range(3):
                await fill.until_refused()
            assert fill.longest < BOUND
            assert len(await store.events(TaskId("t"))) == fill.committed  # reads go on
        await fill(40)
        assert fill.longest < BOUND
        assert store.log_bytes < CAP
        assert len(await store.events(TaskId("t"))) == fill.committed
        assert await store._list(schema.integrity) == []


async def test_a_unit_above_the_cap_has_its_place_in_an_empty_log(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        for n in range(2):
            await commit(store, event("t", n + 1, raw=os.urandom(CAP + UNIT)))
        assert len(await store.events(TaskId("t"))) == 2


async def test_a_backup_under_load_reads_in_steps_and_keeps_no_log(tmp_path: Path) -> None:
    """Were it read at once, the log would hold all that is committed meanwhile; were it begun again with every commit,
    it would not end before they do."""
    async with opened(tmp_path) as store:
        fill = Filling(store, tmp_path)
        await fill(40)
        target = tmp_path / "elsewhere" / "hub.db"
        target.parent.mkdir()
        copying = asyncio.create_task(store.backup(str(target)))
        before = fill.committed
        while not copying.done():
            await fill(1)
        await copying
        assert fill.committed > before
        assert fill.longest < waits_at(CAP) + 2 * UNIT
        restored = SqliteStore(target)
        await restored.open()
        copied = await restored.events(TaskId("t"))
        assert before <= len(copied) <= fill.committed
        assert copied == (await store.events(TaskId("t")))[: len(copied)]
        assert await restored._list(schema.integrity) == []
        await restored.close()


async def test_a_slow_disk_makes_commits_wait_and_not_the_log_grow(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    async with opened(tmp_path) as store:
        slow = ["-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:delay_enter=20000"]
        command = ["strace", "-f", *slow, "-p", str(store.writer_pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        drain = threading.Thread(target=lambda: [None for _ in tracer.stderr or ()], daemon=True)
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"strace may not attach here: {said.strip()}")
            drain.start()
            fill = Filling(store, tmp_path)
            await fill(60)
            assert fill.longest < waits_at(CAP) + 2 * UNIT
        finally:
            tracer.kill()
            tracer.wait()


# -- without a process: the thread that moves the log stands still until somebody waits for it


@pytest.fixture
def database(tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = schema.connect(str(tmp_path / "hub.db"))
    connection.execute("CREATE TABLE filler (bytes BLOB)")
    yield connection
    connection.close()


def test_commits_wait_for_a_mover_that_does_not_keep_up(
    tmp_path: Path, database: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, waited_for = threading.Event(), threading.Event()
    real_sync, real_join = os.fdatasync, threading.Thread.join

    def slow_sync(file: int) -> None:
        moving.set()
        assert waited_for.wait(PATIENCE)
        real_sync(file)

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        waited_for.set()
        real_join(thread, PATIENCE)

    monkeypatch.setattr(os, "fdatasync", slow_sync)
    monkeypatch.setattr(threading.Thread, "join", join)
    log = WriteAheadLog(database, str(tmp_path / "hub.db"), CAP)
    longest = 0
    for _ in range(40):
        log.make_room(UNIT)
        database.execute("INSERT INTO filler VALUES (?)", (os.urandom(UNIT),))
        longest = max(longest, log.size)
        log.keep_bounded()
        if log.size > waits_at(CAP) // 2 + UNIT:
            assert moving.wait(PATIENCE)
    assert waited_for.is_set()
    assert longest < waits_at(CAP) + 2 * UNIT
    log.close()


def test_a_log_at_its_cap_refuses_before_anything_is_written(tmp_path: Path, database: apsw.Connection) -> None:
    log = WriteAheadLog(database, str(tmp_path / "hub.db"), CAP)

    def fill() -> None:
        for _ in range(2 * CAP // UNIT):
            log.make_room(UNIT)
            database.execute("INSERT INTO filler VALUES (?)", (os.urandom(UNIT),))

    with foreign_reader(tmp_path):
        with pytest.raises(LogIsFull, match=r"store\.log_limit_bytes"):
            fill()
        assert CAP - 2 * UNIT < log.size <= CAP + UNIT
    log.make_room(UNIT)
    assert log.size == 0
    log.close()
