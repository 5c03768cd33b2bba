"""What is refused when a store is opened: a second hub, strange or damaged files, an old SQLite, a cut audit record."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from dragoman.core.ids import TaskId
from dragoman.core.model.audit import Newest, cut_short, verify
from dragoman.stores.sqlite import schema, writer_process
from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import chain, event, task
from tests.adapters.sqlite_faults.steps import PATIENCE, commit, hub, lines, stored

# One hub at a time.


async def test_second_process_on_the_same_file_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    with hub(tmp_path) as second:
        [said] = lines(second, 1)
    assert said.startswith("StoreInUse:")
    assert f"process {os.getpid()}:" in said
    assert "choose another data directory" in said
    with pytest.raises(StoreInUse) as refusal:
        await SqliteStore(tmp_path / "hub.db").open()
    assert refusal.value.pid == os.getpid()
    await commit(store, task("t"))


async def test_a_writer_that_outlives_its_hub_is_waited_for(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(PATIENCE)
    descriptor = await writer_process.lock_directory(tmp_path)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(dead.pid).encode(), 0)
    waiting = asyncio.create_task(writer_process.lock_directory(tmp_path))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    async with asyncio.timeout(PATIENCE):
        os.close(await waiting)
    os.close(descriptor)


async def test_the_file_is_free_again_after_closing(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made = SqliteStore(tmp_path / "hub.db")
        await made.open()
        await commit(made, task(name))
        await made.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hub.db", "hub.passed", "lock"]


# Refusals at the start.


def change_file(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(statement)
    connection.close()


async def made_once(path: Path, tasks: int = 1) -> None:
    made = SqliteStore(path)
    await made.open()
    await commit(made, *(task(f"t{n}", description="x" * 500) for n in range(tasks)))
    await made.close()


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("UPDATE audit SET body = replace(body, 'ada', 'eve') WHERE seq = 3", 3),
        ("UPDATE audit SET body = substr(body, 2) WHERE seq = 3", 3),
        ("UPDATE audit SET body = x'00ff' WHERE seq = 5", 5),
        ("UPDATE audit SET body = 7 WHERE seq = 3", 3),
        ('UPDATE audit SET body = replace(body, \'"seq":\', \'"action":"fly","seq":\') WHERE seq = 3', 3),
        ("UPDATE audit SET body = replace(body, '}', ' }') WHERE seq = 5", 5),
        ("UPDATE audit SET principal = 'eve' WHERE seq = 3", 3),
        ("UPDATE audit SET subject = 'another' WHERE seq = 3", 3),
        ("UPDATE audit SET outcome = 'refused' WHERE seq = 3", 3),
        ("UPDATE audit SET seq = 9 WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 1", 1),
        ("DELETE FROM audit WHERE seq = 3", 3),
        ("DELETE FROM audit WHERE seq = 5", 5),
        ("DELETE FROM audit WHERE seq > 1", 2),
        ("DELETE FROM audit", 1),
    ],
)
async def test_an_audit_record_that_was_edited_or_deleted_is_named(tmp_path: Path, statement: str, first: int) -> None:
    """Also one column of it, also the last one, and still after the hub has written on."""
    path = tmp_path / "hub.db"
    made = SqliteStore(path)
    await made.open()
    await commit(made, audit=chain(5))
    await made.close()
    change_file(path, statement)
    made = SqliteStore(path)
    begin = await made.open()
    newest = Newest(begin.audit_seq, begin.audit_hash)
    for _ in range(2):
        seq, prev, broken = verify(await made.audit())
        broken = broken or cut_short(seq, prev, newest)
        assert broken is not None
        assert broken.seq == first
        [last] = chain(1, after=replace(chain(1)[0], seq=newest.seq, hash=newest.hash))
        await commit(made, audit=[last])
        newest = Newest(last.seq, last.hash)
    await made.close()


async def test_unknown_schema_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    await made_once(path)
    change_file(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    with pytest.raises(StoreRefused, match=rf"schema version 99.*up to {schema.VERSION}: use the Dragoman that"):
        await SqliteStore(path).open()
    assert path.read_bytes() == before
    change_file(path, f"PRAGMA user_version = {schema.VERSION}")
    await made_once(tmp_path / "other.db")


async def test_a_foreign_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    change_file(path, "CREATE TABLE recipes (name)")
    with pytest.raises(StoreRefused, match="not a Dragoman database"):
        await SqliteStore(path).open()


async def test_a_database_without_one_of_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    await made_once(path)
    change_file(path, "DROP INDEX task_wake")
    with pytest.raises(StoreRefused, match="restore from a backup"):
        await SqliteStore(path).open()


@pytest.mark.parametrize("offset", [0, 40, 4096 * 8, 4096 * 20])
async def test_damaged_database_is_refused(tmp_path: Path, offset: int) -> None:
    path = tmp_path / "hub.db"
    await made_once(path, tasks=100)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * 2000)
    with pytest.raises(StoreRefused, match="restore from a backup"):
        await SqliteStore(path).open()


async def left_behind(directory: Path) -> int:
    """A write-ahead log as a killed hub leaves it; how many units were acknowledged."""
    with hub(directory) as process:
        said, writer = lines(process, 1)[0].split()
        assert said == "ready"
        heard = lines(process, 30)
        process.send_signal(signal.SIGSTOP)
        os.kill(int(writer), signal.SIGKILL)  # else it may hear that the hub died, and tidy up, before it dies of that
        process.kill()
    assert (directory / "hub.db-wal").stat().st_size > 0
    return int(heard[-1])


async def test_damaged_write_ahead_log_is_refused(tmp_path: Path) -> None:
    await left_behind(tmp_path)
    wal = tmp_path / "hub.db-wal"
    (tmp_path / "hub.db-shm").unlink(missing_ok=True)
    whole = wal.read_bytes()
    frame = 24 + schema.PAGE_SIZE
    for offset in (8, 32 + 24 + 100, 32 + 10 * frame + 500):
        wal.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :])
        (tmp_path / "hub.db-shm").unlink(missing_ok=True)
        with pytest.raises(StoreRefused, match="restore from a backup"):
            await SqliteStore(tmp_path / "hub.db").open()
        assert len(wal.read_bytes()) == len(whole)


async def test_a_torn_last_commit_is_not_damage(tmp_path: Path) -> None:
    acknowledged = await left_behind(tmp_path)
    wal = tmp_path / "hub.db-wal"
    (tmp_path / "hub.db-shm").unlink(missing_ok=True)
    with wal.open("ab") as file:  # as if the power went while the next one was written
        file.write(wal.read_bytes()[32 : 32 + 24 + 1000])
    made = SqliteStore(tmp_path / "hub.db")
    await made.open()
    assert {f"t{n}" for n in range(1, acknowledged + 1)} <= await stored(made)
    await made.close()


async def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(StoreRefused, match=r"SQLite 3\.51\.2 can damage a database.*install apsw"):
        await SqliteStore(tmp_path / "hub.db").open()
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hub.db").mkdir()
    with pytest.raises(StoreRefused, match="cannot be opened"):
        await SqliteStore(tmp_path / "hub.db").open()


# The cost of history.


async def test_numbers_of_tasks_are_not_used_again(tmp_path: Path) -> None:
    """An event lies under its task's number: a new task must not inherit those of a removed one."""
    for round in range(2):
        made = SqliteStore(tmp_path / "hub.db")
        await made.open()
        await commit(made, task(f"t{round}"))
        assert await made.events(TaskId(f"t{round}")) == []
        await commit(made, event(f"t{round}", 1))
        await commit(made, removed=[task(f"t{round}")])
        await made.close()
