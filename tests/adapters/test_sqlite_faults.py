"""What the embedded store does when things go wrong: kills, full disks, damage, strangers."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from dragoman.core.audit.chain import Newest, cut_short, verify
from dragoman.core.ids import TaskId
from dragoman.core.lookups import TaskById
from dragoman.core.ports import Changes, StoreFailed, TaskFilter
from dragoman.core.tasks.model import Status
from dragoman.stores.sqlite import lock, schema, writer
from dragoman.stores.sqlite.channel import OutcomeUnknown, Writer
from dragoman.stores.sqlite.errors import StoreInUse, StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import chain, delivery, event, task

PATIENCE = 20.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    made = SqliteStore(tmp_path / "hub.db")
    await made.open()
    yield made
    await made.close()


async def commit(store: SqliteStore, *added: object, **changes: object) -> None:
    async with asyncio.timeout(PATIENCE):
        async with store.unit() as unit:
            await unit.commit(Changes(added=added, **changes))  # type: ignore[arg-type]


async def stored(store: SqliteStore) -> set[str]:
    tasks, _ = await store.tasks(TaskFilter(), after=None, limit=100_000)
    return {task.id for task in tasks}


@contextlib.contextmanager
def hub(directory: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.hub_process", str(directory), *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)
        assert process.stdout is not None
        process.stdout.close()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while lock._alive(pid) and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            await asyncio.sleep(0.005)


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
    descriptor = await lock.acquire(tmp_path)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(dead.pid).encode(), 0)
    waiting = asyncio.create_task(lock.acquire(tmp_path))
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


async def test_somebody_elses_database_is_refused(tmp_path: Path) -> None:
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
        assert lines(process, 1)[0].startswith("ready")
        heard = lines(process, 30)
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


# Kills.


async def test_nothing_acknowledged_is_lost_when_hub_and_writer_are_killed(tmp_path: Path) -> None:
    acknowledged = 0
    for victim in ("hub", "writer", "hub"):
        with hub(tmp_path) as process:
            _, pid = lines(process, 1)[0].split()
            heard = lines(process, 20)
            if victim == "writer":
                os.kill(int(pid), signal.SIGKILL)
            else:
                process.kill()
            assert process.stdout is not None
            rest = [line for line in process.stdout.read().split("\n") if line.isdigit()] if victim == "hub" else []
            process.kill()
            await gone(int(pid))
            acknowledged = int(([*heard, *rest])[-1])
        made = SqliteStore(tmp_path / "hub.db")
        begin = await made.open()
        assert begin.audit_seq >= acknowledged
        assert await stored(made) == {f"t{n}" for n in range(1, begin.audit_seq + 1)}
        finished, _ = await made.tasks(TaskFilter(status=Status.COMPLETED), after=None, limit=100_000)
        assert len(finished) == begin.audit_seq - 1
        assert verify(await made.audit(limit=100_000))[2] is None
        assert await made.integrity_check() == []
        await made.close()


@pytest.mark.parametrize(("step", "there"), [("before_commit", 4), ("after_commit", 5)])
async def test_killed_at_a_named_step_the_unit_is_there_or_not(tmp_path: Path, step: str, there: int) -> None:
    with hub(tmp_path, DRAGOMAN_CRASH_AT=f"writer:{step}:5") as process:
        assert lines(process, 6)[1:] == ["1", "2", "3", "4", ""]
        assert process.wait(PATIENCE) == -signal.SIGKILL
    made = SqliteStore(tmp_path / "hub.db")
    begin = await made.open()
    assert begin.audit_seq == there
    assert await stored(made) == {f"t{n}" for n in range(1, there + 1)}
    await made.close()


async def test_writer_killed_is_restarted(store: SqliteStore) -> None:
    await commit(store, task("a"))
    first = store.writer_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await gone(first)
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE):
        while True:  # the unit that notices may fail; the next one must not
            try:
                await commit(store, task("b"))
                break
            except StoreFailed:
                continue
    assert store.writer_pid != first
    assert await stored(store) == {"a", "b"}


async def test_the_unit_in_hand_of_a_killed_writer_is_written_by_the_next_one(store: SqliteStore) -> None:
    await commit(store, task("a"))
    pid = store.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    unit = asyncio.create_task(commit(store, task("b"), changed=[task("a", status=Status.RUNNING)]))
    await asyncio.sleep(0)
    os.kill(pid, signal.SIGKILL)
    await unit
    async with store.unit() as again:
        found = await again.load([TaskById(TaskId("a")), TaskById(TaskId("b"))])
    assert [list(rows) for rows in found.values()] == [[task("a", status=Status.RUNNING)], [task("b")]]
    await commit(store, task("c"))
    assert await stored(store) == {"a", "b", "c"}


async def test_a_unit_that_kills_every_writer_fails_and_the_store_stays_truthful(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(writer: Writer, _: object) -> None:
        os.kill(writer.pid, signal.SIGKILL)
        await writer._gone
        raise OutcomeUnknown

    await commit(store, task("a"))
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "commit", dies)
        with pytest.raises(StoreFailed, match="two writer processes ended"):
            await commit(store, task("b"), changed=[task("a", status=Status.RUNNING)])
    async with store.unit() as again:
        found = await again.load([TaskById(TaskId("a")), TaskById(TaskId("b"))])
    assert [list(rows) for rows in found.values()] == [[task("a")], []]
    await commit(store, task("b"))
    assert await stored(store) == {"a", "b"}


@pytest.fixture
async def speechless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SqliteStore]:
    """A store whose writer dies over its second unit: written, and nobody was told. The next writer is well."""
    monkeypatch.setenv("DRAGOMAN_CRASH_AT", "writer:before_answer:2")
    made = SqliteStore(tmp_path / "hub.db")
    await made.open()
    monkeypatch.delenv("DRAGOMAN_CRASH_AT")
    await commit(made, task("a"), event("a", 1), delivery("d", "a", "boss"), audit=chain(1))
    yield made
    await made.close()


RUNNING = task("a", status=Status.RUNNING, owner="i1", seq=2)
UNITS: dict[str, dict[str, Any]] = {
    "audited": {"changed": [RUNNING], "audit": chain(1, after=chain(1)[0])},
    "added": {"added": [event("a", 2)], "changed": [RUNNING]},
    "removed": {"removed": [delivery("d", "a", "boss")]},
    "changed": {"changed": [RUNNING]},
}


@pytest.mark.parametrize("unit", UNITS)
async def test_a_unit_that_was_written_by_a_writer_that_died_before_it_said_so_is_done(
    speechless: SqliteStore, unit: str
) -> None:
    """The hub's memory follows what it is told: a unit that is there and counted as failed would be in its way."""
    first = speechless.writer_pid
    added = UNITS[unit].get("added", ())
    await commit(speechless, *added, **{name: rows for name, rows in UNITS[unit].items() if name != "added"})
    assert speechless.writer_pid != first
    assert await speechless.task(TaskId("a")) == (task("a") if unit == "removed" else RUNNING)
    assert len(await speechless.events(TaskId("a"))) == 1 + (unit == "added")
    assert len(await speechless.deliveries()) == (unit != "removed")
    records = list(await speechless.audit())
    await commit(speechless, task("b"), audit=chain(1, after=records[-1]))
    assert verify(await speechless.audit())[2] is None


@pytest.mark.parametrize("written", [True, False], ids=["written", "not written"])
async def test_what_a_writer_had_in_hand_that_cannot_be_replaced_at_once_is_found_out_later(
    speechless: SqliteStore, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    async def refuse(*_: object) -> None:
        raise StoreRefused("no process can be started")

    pid = speechless.writer_pid
    assert pid is not None
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "start", refuse)
        if not written:
            os.kill(pid, signal.SIGSTOP)
        unit = asyncio.create_task(commit(speechless, task("b")))
        await asyncio.sleep(0)
        if not written:
            os.kill(pid, signal.SIGKILL)
        for attempt in (unit, commit(speechless, task("c"))):
            with pytest.raises(StoreFailed, match="no process can be started"):
                await attempt
    if written:  # who was told otherwise has to begin anew: refusing is all that is safe
        for _ in range(2):
            with pytest.raises(StoreFailed, match="start the hub again"):
                await commit(speechless, task("c"))
        assert await stored(speechless) == {"a", "b"}
    else:
        await commit(speechless, task("c"))
        assert await stored(speechless) == {"a", "c"}


async def test_a_cancelled_commit_is_not_taken_for_the_next_one(store: SqliteStore) -> None:
    pid = store.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    unit = asyncio.create_task(commit(store, task("a")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    unit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await unit
    then = asyncio.create_task(commit(store, task("a")))
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(StoreFailed):  # the cancelled one was written: the next sees it, and is not told its "done"
        await then
    assert await stored(store) == {"a"}


async def test_the_writer_does_not_hear_the_signals_that_stop_the_hub(store: SqliteStore) -> None:
    pid = store.writer_pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    await commit(store, task("a"))
    assert store.writer_pid == pid


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
    assert await store.integrity_check() == []


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
    assert await store.integrity_check() == []


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
    assert await made.integrity_check() == []
    await made.close()


async def test_wal_stays_bounded(store: SqliteStore, tmp_path: Path) -> None:
    wal = tmp_path / "hub.db-wal"
    largest = 0
    await commit(store, task("t"))
    for n in range(60):
        await commit(store, *(event("t", 5 * n + step + 1, raw=os.urandom(1 << 20)) for step in range(5)))
        largest = max(largest, wal.stat().st_size)
    assert largest < 3 * writer.CHECKPOINT_AT
    assert len(await store.events(TaskId("t"), after=290)) == 10


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
    with pytest.raises(StoreFailed):
        await store.backup(str(tmp_path / "no such directory" / "hub.db"))
    assert not (tmp_path / "no such directory").exists()


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
