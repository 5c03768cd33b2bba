"""The disk fails, fills up, or is read for long; and backups of it."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from dragoman.core.ids import TaskId
from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite import schema
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import chain, event, task
from tests.adapters.sqlite_faults.steps import PATIENCE, commit, stored

# Disks.


async def test_an_io_error_refuses_then_recovers(store: SqliteStore) -> None:
    """A file may not grow any further: what a quota, or a limit of the filesystem, does."""
    pid = store.writer_pid
    assert pid is not None
    await commit(store, task("a"), audit=chain(1))
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
    for _ in range(3):
        with pytest.raises(StoreFailed, match="could not commit"):
            await commit(store, task("b"), event("b", 1, raw=os.urandom(1 << 20)))
        assert await stored(store) == {"a"}
    resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)
    await commit(store, task("b"), event("b", 1, raw=os.urandom(1 << 20)))
    assert store.writer_pid == pid
    assert await stored(store) == {"a", "b"}
    assert await store._list(schema.integrity) == []


async def test_a_sync_that_fails_refuses_then_recovers(store: SqliteStore) -> None:
    """The disk takes what is written and fails to keep it: nothing was committed, and what comes next is."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    await commit(store, task("a"), audit=chain(1))
    once = "inject=fdatasync,fsync:error=EIO:when=1"
    command = ["strace", "-f", "-e", "trace=fdatasync,fsync", "-e", once, "-p", str(store.writer_pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace may not attach here: {said.strip()}")
        with pytest.raises(StoreFailed, match="could not commit"):
            await commit(store, task("b"))
        assert await stored(store) == {"a"}
        await commit(store, task("c"))
    finally:
        tracer.kill()
        tracer.communicate()
    assert await stored(store) == {"a", "c"}
    assert await store._list(schema.integrity) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small filesystem needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_disk_full_refuses_then_recovers(small_disk: Path) -> None:
    made = SqliteStore(small_disk / "hub.db")
    await made.open()
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(2 << 20))
    kept: set[str] = set()

    async def fill() -> None:
        for n in range(100):
            await commit(made, task(f"t{n}"), event(f"t{n}", 1, raw=os.urandom(100_000)))
            kept.add(f"t{n}")

    with pytest.raises(StoreFailed, match="full"):
        await fill()
    assert await stored(made) == kept
    with pytest.raises(StoreFailed, match="full"):
        await commit(made, task("again"), event("again", 1, raw=os.urandom(100_000)))
    ballast.unlink()
    await commit(made, task("again"), event("again", 1, raw=os.urandom(100_000)))
    assert await stored(made) == {*kept, "again"}
    assert await made._list(schema.integrity) == []
    await made.close()


async def test_a_long_read_holds_up_neither_commits_nor_the_loop(store: SqliteStore) -> None:
    await commit(store, task("a"))
    reading, go_on = threading.Event(), threading.Event()

    def slow(connection: apsw.Connection) -> int:
        first = connection.execute("SELECT count(*) FROM task").fetchall()
        reading.set()
        assert go_on.wait(PATIENCE)
        assert connection.execute("SELECT count(*) FROM task").fetchall() == first
        return int(first[0][0])

    long_one = asyncio.create_task(store._list(slow))
    assert await asyncio.to_thread(reading.wait, PATIENCE)
    await commit(store, task("b"))
    assert await stored(store) == {"a", "b"}
    go_on.set()
    assert await long_one == 1


# Backups.


async def test_a_backup_taken_under_load_opens_and_is_a_moment_of_the_original(
    store: SqliteStore, tmp_path: Path
) -> None:
    for n in range(20):
        await commit(store, task(f"t{n}"), event(f"t{n}", 1, raw=os.urandom(10_000)))
    target = tmp_path / "elsewhere" / "hub.db"
    target.parent.mkdir()
    copying = asyncio.create_task(store.backup(str(target)))
    for n in range(20, 30):
        await commit(store, task(f"t{n}"), event(f"t{n}", 1))
    async with asyncio.timeout(PATIENCE):
        await copying
    assert sorted(file.name for file in target.parent.iterdir()) == ["hub.db"]
    restored = SqliteStore(target)
    await restored.open()
    tasks = await stored(restored)
    assert tasks == {f"t{n}" for n in range(len(tasks))}
    assert len(tasks) >= 20
    for id in sorted(tasks):
        assert await restored.events(TaskId(id)) == await store.events(TaskId(id))
    await restored.close()


async def test_a_backup_that_fails_leaves_nothing(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot be opened"):
        await store.backup(str(tmp_path / "no such directory" / "hub.db"))
    assert not (tmp_path / "no such directory").exists()


async def test_a_backup_to_a_full_disk_says_so_and_leaves_nothing(store: SqliteStore, small_disk: Path) -> None:
    """It is the disk of the copy that is full: the store can be read as ever."""
    await commit(store, task("a"), event("a", 1, raw=os.urandom(5 << 20)), audit=chain(1))
    with pytest.raises(OSError, match="no space is left"):
        await store.backup(str(small_disk / "copy.db"))
    assert list(small_disk.iterdir()) == []
    assert await stored(store) == {"a"}
