"""What disks do: fill up, stand still, hold a file of another time, and be asked for by two hubs at once. What they do
when the power goes is in `test_power_cuts.py`.

Full disks are real filesystems in memory, so they need root; without it they are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from tests.support.chiffon import kinds, task_of, work_request, work_result
from tests.support.hubproc import PATIENCE, HubProcess, running, until
from tests.support.machine import ROOT, mount, unmount
from tests.support.sse import Reader

# -- one file, two hubs; other times' files ---------------------------------------------------------------------


def test_a_second_hub_on_the_same_data_is_refused_with_a_clear_sentence(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        second = HubProcess(tmp_path / "second", data=hub.data)
        second.launch()
        assert second.died() == 4
        said = second.log.read_text()
        assert "already serves" in said
        assert str(hub.pid) in said
        assert "--data" in said  # what to do
        # The same, when the first one's note is gone: then the lock says it.
        (hub.data / "hub.json").unlink()
        second.launch()
        assert second.died() == 4
        assert str(hub.data) in second.log.read_text()
        boss.submit()
        worker.send(work_result(worker.work()))
        assert kinds(boss.take()) == ["work_result"]


def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        assert hub.stop() == 0
        database = apsw.Connection(str(hub.database))
        version = database.pragma("user_version")
        database.pragma("user_version", version + 1)
        database.close()
        before = hub.database.read_bytes()
        hub.launch()
        assert hub.died() == 4
        said = hub.log.read_text()
        assert str(hub.database) in said
        assert str(version + 1) in said
        assert hub.database.read_bytes() == before


def test_a_damaged_file_is_refused_and_a_backup_restores_everything(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        boss, _ = hub.orchestrator(), hub.worker()
        request, _ = boss.submit()
        copy = tmp_path / "copy.sqlite"
        made = hub.admin.post("/api/v1/backup", {"target": str(copy)})
        assert made.status in (200, 201), made
        assert hub.stop() == 0
        good = hub.database.read_bytes()
        hub.database.write_bytes(good[:4096] + os.urandom(len(good) - 4096))
        hub.launch()
        assert hub.died() == 4
        assert "damaged" in hub.log.read_text()
        assert "backup" in hub.log.read_text()  # what to do
        for leftover in hub.data.glob("hub.sqlite*"):
            leftover.unlink()
        hub.database.write_bytes(copy.read_bytes())
        hub.start()
        assert hub.status(task_of(request)) == "queued"


LOOK = """
import sqlite3, sys
for _ in range(3):
    database = sqlite3.connect(sys.argv[1])
    print(database.execute("SELECT count(*) FROM task").fetchone())
    database.close()
"""


def test_a_look_into_the_database_beside_the_hub_takes_nothing_away(tmp_path: Path) -> None:
    """SQLite tidies up when the last connection closes: it must never believe that ours are gone. They were, once:
    closing a descriptor of a file cancels all of a process's locks on it."""

    def look() -> None:
        subprocess.run([sys.executable, "-c", LOOK, str(hub.database)], check=True, capture_output=True, timeout=60)

    with running(tmp_path) as hub:
        boss, _ = hub.orchestrator(), hub.worker()
        acknowledged = []
        for round in range(3):
            for n in range(20):  # together more than the log may hold, so that it is moved meanwhile
                request, answer = boss.submit(parameters={"n": n, "filler": "x" * 1_000_000})
                assert answer.status == 202, (round, n, answer)
                acknowledged.append(task_of(request))
                if n % 5 == 0:
                    look()
            hub.restart()  # a log is left behind
            boss.url = hub.url
            look()
        assert {task["id"] for task in hub.tasks()} == set(acknowledged)
        assert "nothing was committed" not in hub.log.read_text()


READER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN")
print(database.execute("SELECT count(*) FROM task").fetchone(), flush=True)
sys.stdin.read()
"""


def test_a_foreign_transaction_ends_in_503_at_the_cap_of_the_log_and_the_hub_recovers(tmp_path: Path) -> None:
    cap = 8 << 20
    with running(tmp_path, DRAGOMAN_STORE__LOG_LIMIT_BYTES=str(cap)) as hub:
        boss, _ = hub.orchestrator(), hub.worker()
        command = [sys.executable, "-c", READER, str(hub.database)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
            try:
                assert reader.stdout is not None
                assert reader.stdout.readline()
                acknowledged, refusal = [], None
                for _ in range(3 * cap >> 20):
                    request, refusal = boss.submit(parameters={"filler": "x" * (1 << 20)})
                    if refusal.status != 202:
                        break
                    acknowledged.append(task_of(request))
                assert refusal is not None
                assert (refusal.status, refusal.code) == (503, 5002)
                assert "retry-after" in refusal.headers
                assert b"store.log_limit_bytes" in refusal.body
                assert hub.database.with_name("hub.sqlite-wal").stat().st_size < cap + (4 << 20)
                assert cap / 2 < hub.gauge("dragoman_store_log_bytes") < cap + (4 << 20)
                ready = hub.admin.get("/readyz")
                assert (ready.status, b"store.log_limit_bytes" in ready.body) == (503, True)
                assert {task["id"] for task in hub.tasks()} == set(acknowledged)  # reads go on
            finally:
                assert reader.stdin is not None
                reader.stdin.close()
        until(lambda: boss.send(request).status == 202, "nobody reads, so it takes requests again")
        until(lambda: hub.admin.get("/readyz").status == 200, "it says that it is ready again")
        assert {task["id"] for task in hub.tasks()} == {*acknowledged, task_of(request)}


# -- full -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=6m", "tmpfs", place)
    yield place
    unmount(place)


@ROOT
@pytest.mark.parametrize("left", [0, 4, 12, 20, 60, 200], ids=lambda left: f"{left} KiB left")
def test_a_full_disk_at_the_start_is_one_sentence_that_says_what_to_free(
    small_disk: Path, tmp_path: Path, left: int
) -> None:
    """With so much space the first start gets as far as the token, the lock, the database, its log, and on."""
    hub = HubProcess(tmp_path / "home", data=small_disk / "data")
    hub.data.mkdir(mode=0o700)
    (hub.data / "ballast").write_bytes(bytes((6 << 20) - (left << 10)))
    hub.launch()
    assert hub.died() == 4
    said = hub.log.read_text()
    assert f"the disk of {hub.data} is full, so the hub cannot start" in said
    assert f"df -h {hub.data}" in said
    assert "the largest in it: ballast 6." in said.replace(f"in {hub.data}:", "in it:")
    assert "Traceback" not in said
    (hub.data / "ballast").unlink()
    with running(tmp_path / "home", data=hub.data) as hub:
        assert hub.stop() == 0


@ROOT
def test_a_full_disk_refuses_instead_of_acknowledging_and_recovers(small_disk: Path, tmp_path: Path) -> None:
    with running(tmp_path / "home", data=small_disk / "data") as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        first, answer = boss.submit()
        assert answer.status == 202
        ballast = small_disk / "ballast"
        with ballast.open("wb") as file:
            try:
                while True:
                    file.write(bytes(64 * 1024))
                    file.flush()
            except OSError:
                pass

        acknowledged, refusal = [first], None
        for _ in range(200):
            request, answer = boss.submit(parameters={"filler": "x" * 20_000})
            if answer.status != 202:
                refusal = answer
                break
            acknowledged.append(request)
        assert refusal is not None
        assert (refusal.status, refusal.code) == (503, 5002)
        assert "retry-after" in refusal.headers
        assert hub.admin.get("/livez").status == 200
        ready = hub.admin.get("/readyz")
        assert ready.status == 503  # and it says why
        assert b"commit" in ready.body
        assert hub.status(task_of(first)) == "queued"  # it still answers

        ballast.unlink()
        until(lambda: boss.send(request).status == 202, "space is back, so it takes requests again")
        acknowledged.append(request)
        until(lambda: hub.admin.get("/readyz").status == 200, "it says that it is ready again")
        hub.restart()
        assert {task["id"] for task in hub.tasks()} == {task_of(r) for r in acknowledged}
        worker.url = hub.url
        assert worker.work()["request_id"] == first["request_id"]


# -- slow -------------------------------------------------------------------------------------------------------


def test_while_the_disk_stands_still_senders_wait_and_all_others_are_served(tmp_path: Path) -> None:
    """The writer is stopped, as a disk that does not answer stops it. A request waits for it, however long; health,
    reads of the store, pings of a connection and an event stream do not."""
    with running(tmp_path) as hub:
        boss, worker = hub.orchestrator(), hub.worker()
        first, _ = boss.submit()
        (writer,) = map(int, Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split())
        with worker.websocket() as link, ThreadPoolExecutor(1) as pool:
            assert link.recv()["request_id"] == first["request_id"]
            reader = Reader(task_of(first))
            os.kill(writer, signal.SIGSTOP)
            try:
                request = work_request()
                sending = pool.submit(boss.send, request)
                until(sending.running, "it is under way")
                for _ in range(20):
                    assert hub.admin.get("/livez").status == 200
                    assert [task["id"] for task in hub.tasks()] == [task_of(first)]
                    assert link.raw.ping().wait(PATIENCE)
                assert reader.read(hub.url, hub.ready["admin_token"], most=1).seen
                assert not sending.done()
            finally:
                os.kill(writer, signal.SIGCONT)
            assert sending.result(PATIENCE).status == 202
        assert {task["id"] for task in hub.tasks()} == {task_of(first), task_of(request)}


SYNC_SECONDS = 0.8


@pytest.fixture
def slow_disk(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub whose writer waits for every sync."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    with running(tmp_path) as hub:
        hub.token("boss", "orchestrator")
        hub.worker()
        (writer,) = Path(f"/proc/{hub.pid}/task/{hub.pid}/children").read_text().split()
        syncs = ["-e", "trace=fdatasync,fsync", "-e", f"inject=fdatasync,fsync:delay_enter={SYNC_SECONDS * 1e6:.0f}"]
        tracer = subprocess.Popen(["strace", "-f", *syncs, "-p", writer], stderr=subprocess.PIPE, text=True)
        try:
            assert tracer.stderr is not None
            said = tracer.stderr.readline()
            if "attached" not in said:
                pytest.skip(f"strace may not attach here: {said.strip()}")
            yield hub
        finally:
            tracer.kill()
            tracer.communicate()


def test_a_slow_disk_slows_senders_and_nobody_else(slow_disk: HubProcess) -> None:
    """Were others to wait for it, one of them would wait for nearly all of the sender's time, however often we look."""
    until(lambda: slowed_alone(slow_disk), "the sender waits, and nobody else")


def slowed_alone(hub: HubProcess) -> bool:
    boss = hub.orchestrator()
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        sending = pool.submit(boss.submit)
        answered: list[float] = []
        while not sending.done():
            before = time.monotonic()
            assert hub.admin.get("/livez").status == 200
            answered.append(time.monotonic() - before)
        assert sending.result()[1].status == 202
    waited = time.monotonic() - began
    assert waited > SYNC_SECONDS  # the sender waited for the disk
    return max(answered) < waited * 3 / 4
