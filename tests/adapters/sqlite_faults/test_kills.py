"""The hub or its writer is killed: nothing acknowledged is lost, and nothing is written twice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.ids import TaskId
from dragoman.core.lookups import TaskById
from dragoman.core.model.audit import verify
from dragoman.core.model.tasks import Status
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.stores.sqlite import schema, writer_process
from dragoman.stores.sqlite.schema import StoreRefused
from dragoman.stores.sqlite.store import SqliteStore
from dragoman.stores.sqlite.writer_process import OutcomeUnknown, Writer
from tests.adapters.records import chain, delivery, event, task
from tests.adapters.sqlite_faults.steps import PATIENCE, commit, hub, lines, stored
from tests.support.children import runs


async def gone(pid: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while writer_process._alive(pid) and runs(pid):
            await asyncio.sleep(0.005)


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
        assert await made._list(schema.integrity) == []
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
async def test_a_unit_whose_writer_died_after_the_commit_counts_as_done(speechless: SqliteStore, unit: str) -> None:
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
