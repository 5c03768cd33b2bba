"""What children printed: kept word for word, within bounds, and found again after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.commands import Command, WriteLog
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.supervisor import child_log
from dragoman.supervisor.child_log import ChildLogs, TaskLogWriter

NOW = Instant(1_768_796_464_000_000)
A1 = AgentId("a1")


async def test_the_newest_lines_in_order_and_by_level(tmp_path: Path) -> None:
    log = ChildLogs(tmp_path / "logs").of(A1)
    for number, level in enumerate(("info", "error", "debug", "warn", "odd")):
        log.add(NOW, "stdout", f"line {number}", level=level)
    assert [entry.message for entry in await log.tail(3)] == ["line 2", "line 3", "line 4"]
    assert [entry.message for entry in await log.tail(9, level="warn")] == ["line 1", "line 3"]
    third = (await log.tail(9))[2]
    assert [entry.message for entry in await log.tail(1, after=third.seq)] == ["line 3"]


async def test_lines_survive_unchanged(tmp_path: Path) -> None:
    nasty = "\x1b[31m<img onerror=x>\r\u202e\x00 ' \" \\ line"
    book = ChildLogs(tmp_path / "logs")
    book.of(A1).add(NOW, "stderr", nasty, level="warn", task="t1", context={"a": [1]})
    await book.flushed()
    (found,) = await ChildLogs(tmp_path / "logs").of(A1).tail(10)
    assert (found.message, found.stream, found.level, found.task, found.context) == (
        nasty, "stderr", "warn", "t1", {"a": [1]},
    )  # fmt: skip


async def test_numbers_only_grow_also_over_a_restart(tmp_path: Path) -> None:
    book = ChildLogs(tmp_path / "logs")
    seqs = [book.of(A1).add(NOW, "stdout", "x").seq for _ in range(5)]
    await book.flushed()
    book = ChildLogs(tmp_path / "logs")
    seqs.append(book.of(A1).add(Instant(NOW + 1000), "stdout", "y").seq)
    await book.flushed()
    assert seqs == sorted(set(seqs))
    again = ChildLogs(tmp_path / "logs").of(A1)
    assert [entry.seq for entry in await again.tail(10, after=seqs[2])] == seqs[3:]


async def test_memory_and_disk_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_log, "GENERATION", 10_000)
    monkeypatch.setattr(child_log, "NEWEST_LINES", 10)
    book = ChildLogs(tmp_path / "logs")
    log = book.of(A1)
    for number in range(500):
        log.add(NOW, "stdout", f"line {number}")
        if number % 7 == 0:
            await book.flushed()
    await book.flushed()
    sizes = [path.stat().st_size for path in sorted((tmp_path / "logs").iterdir())]
    assert len(sizes) == 2
    assert max(sizes) <= 10_000
    found = await log.tail(1000)
    assert [entry.message for entry in found] == [f"line {n}" for n in range(500 - len(found), 500)]
    assert 10 < len(found) < 500


async def test_a_disk_that_does_not_keep_up_costs_lines_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_log, "UNWRITTEN", 1000)
    book = ChildLogs(tmp_path / "logs")
    log = book.of(A1)
    for number in range(100):
        log.add(NOW, "stdout", f"line {number}")
    assert log._waiting <= 1000
    assert log._lost > 50
    await book.flushed()
    assert (log._waiting, log._lost) == (0, 0)


async def test_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    book = ChildLogs(tmp_path / "logs")
    book.of(A1).add(NOW, "stdout", "whole")
    await book.flushed()
    with (tmp_path / "logs" / "a1.jsonl").open("ab") as file:
        file.write(b'{"seq": 1, "at"')
    assert [entry.message for entry in await ChildLogs(tmp_path / "logs").of(A1).tail(10)] == ["whole"]


async def test_waiting_ends_with_the_next_line(tmp_path: Path) -> None:
    log = ChildLogs(tmp_path / "logs").of(A1)
    last = log.add(NOW, "stdout", "first").seq
    async with asyncio.timeout(60):
        await log.changed(0, 60)  # there is one already
        waiting = asyncio.create_task(log.changed(last, 60))
        await asyncio.sleep(0)
        log.add(NOW, "stdout", "second")
        await waiting
        await log.changed(last + 1, 0)  # the time is up at once


async def test_a_forgotten_agent_leaves_no_log(tmp_path: Path) -> None:
    book = ChildLogs(tmp_path / "logs")
    book.of(A1).add(NOW, "stdout", "x")
    await book.flushed()
    await book.forget(A1)
    assert list((tmp_path / "logs").iterdir()) == []


class Hub:
    """Holds commands back until they are let through."""

    def __init__(self) -> None:
        self.held = ["t1"]
        self.given: list[tuple[WriteLog, Callable[[Any, Any], None]]] = []

    def load_of(self, id: AgentId) -> list[str]:
        return self.held

    def enqueue_then(self, command: Command, then: Callable[[Any, Any], None]) -> None:
        assert isinstance(command, WriteLog)
        self.given.append((command, then))


async def test_lines_gather_while_a_commit_is_under_way(tmp_path: Path) -> None:
    hub = Hub()
    scribe = TaskLogWriter(hub, A1)  # type: ignore[arg-type]
    log = ChildLogs(tmp_path / "logs").of(A1)
    for number in range(3):
        scribe.add(TaskId("t1"), log.add(NOW, "stdout", f"{number}"))
    await asyncio.sleep(0)
    for number in range(3, 2000):
        scribe.add(TaskId("t1"), log.add(NOW, "stdout", f"{number}"))
    await asyncio.sleep(0)
    ((first, then),) = hub.given
    assert [line.message for line in first.lines] == ["0", "1", "2"]
    assert (first.principal, first.task_id) == (A1, "t1")
    then(None, None)
    await asyncio.sleep(0)
    second = hub.given[1][0]
    assert len(second.lines) == child_log.GATHERED_LINES + 1
    assert second.lines[-1].message == f"{1997 - child_log.GATHERED_LINES} more lines are only in the agent's log"


async def test_lines_go_with_a_task_only_while_it_is_the_only_one(tmp_path: Path) -> None:
    hub = Hub()
    scribe = TaskLogWriter(hub, A1)  # type: ignore[arg-type]
    assert scribe.current() == "t1"
    hub.held = ["t1", "t2"]
    assert scribe.current() is None
    hub.held = []
    assert scribe.current() is None
    log = ChildLogs(tmp_path / "logs").of(A1)
    scribe.add(TaskId("t1"), log.add(NOW, "stdout", "of the first"))
    scribe.add(TaskId("t2"), log.add(NOW, "stdout", "of the second"))
    await asyncio.sleep(0)
    while len(hub.given) < 2:
        hub.given[-1][1](None, None)
        await asyncio.sleep(0)
    assert [(c.task_id, c.lines[0].message) for c, _ in hub.given] == [("t1", "of the first"), ("t2", "of the second")]


async def test_what_was_printed_goes_before_the_next_message(tmp_path: Path) -> None:
    hub = Hub()
    scribe = TaskLogWriter(hub, A1)  # type: ignore[arg-type]
    log = ChildLogs(tmp_path / "logs").of(A1)
    scribe.add(TaskId("t1"), log.add(NOW, "stdout", "first"))
    scribe.flush()
    scribe.add(TaskId("t1"), log.add(NOW, "stdout", "second"))
    scribe.flush()  # although the first has not been committed
    scribe.flush()
    assert [command.lines[0].message for command, _ in hub.given] == ["first", "second"]


async def test_a_task_takes_so_many_lines_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_log, "LINES_A_TASK", 10)
    hub = Hub()
    scribe = TaskLogWriter(hub, A1)  # type: ignore[arg-type]
    log = ChildLogs(tmp_path / "logs").of(A1)
    for number in range(30):
        scribe.add(TaskId("t1"), log.add(NOW, "stdout", f"{number}"))
    scribe.flush()
    said = [line.message for command, _ in hub.given for line in command.lines]
    assert said[:10] == [f"{number}" for number in range(10)]
    assert said[10:] == ["this task has enough lines; what follows is only in the agent's log"]
    scribe.add(TaskId("t2"), log.add(NOW, "stdout", "another task"))
    scribe.flush()
    assert hub.given[-1][0].task_id == "t2"


async def test_naming_tasks_by_turns_gets_none_of_them_more_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_log, "LINES_A_TASK", 10)
    hub = Hub()
    hub.held = ["t1", "t2"]
    scribe = TaskLogWriter(hub, A1)  # type: ignore[arg-type]
    log = ChildLogs(tmp_path / "logs").of(A1)
    for number in range(60):
        for task in ("t1", "not its own", "t2"):
            scribe.add(TaskId(task), log.add(NOW, "event", f"{number}"))
    scribe.flush()
    lines = {"t1": 0, "t2": 0, "not its own": 0}
    for command, _ in hub.given:
        lines[command.task_id] += len(command.lines)
    assert (lines["t1"], lines["t2"]) == (11, 11)
