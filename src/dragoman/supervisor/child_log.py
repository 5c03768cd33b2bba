"""The output of children, kept unchanged: on the disk within limits, the newest lines in memory, and with the task.

    on the disk    a line of JSON each, `<agent>.jsonl` and one older generation, 4 MiB each
    in memory      the newest lines, up to 1000 and 512 KiB
    with the task  while an agent holds exactly one task, what it prints belongs to it (`TaskLogWriter`)

Nothing is escaped here: the API does that where it shows a line (forge-D13). Only bytes that are not UTF-8 are spelt
out. A thread writes the gathered lines together. If the disk does not keep up, lines are dropped and counted; the hub
never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dragoman.core.commands import WriteLog
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.ports import Intake
from dragoman.messages.faults import Refused
from dragoman.messages.tasks import LogEntry

log = structlog.get_logger("dragoman.children")

GENERATION = 4 * 1024 * 1024
NEWEST_LINES, NEWEST_BYTES = 1000, 512 * 1024
UNWRITTEN = 4 * 1024 * 1024
"""Bytes of one agent that may wait for the disk."""
GATHER_SECONDS = 0.05
GATHERED_LINES, GATHERED_BYTES = 500, 256 * 1024
"""Lines and bytes that may wait for the commit that keeps them with the task."""
LINE_WITH_TASK = 16 * 1024
"""Characters of a line that are kept with the task; the whole of it is in the log."""

LINES_A_TASK, BYTES_A_TASK = 10_000, 4 * 1024 * 1024
"""Lines and bytes that one run of an agent may add to one task."""

LEVELS = ("debug", "info", "warn", "error")


class Entry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A line. `seq` only ever grows, also over restarts of the hub. `stream`: stdout, stderr, event or hub."""

    seq: int
    at: Instant
    level: str
    stream: str
    message: str
    task: str | None = None
    context: dict[str, Any] = {}


_decode = msgspec.json.Decoder(Entry).decode
_encode = msgspec.json.Encoder().encode


def severity(level: str) -> int:
    """An unknown level counts as information."""
    return LEVELS.index(level) if level in LEVELS else 1


class ChildLog:
    """One agent's lines."""

    def __init__(self, path: Path, write: Callable[[ChildLog], None]) -> None:
        self.path = path
        self._write = write
        self._newest: deque[tuple[Entry, int]] = deque()
        self._size = 0
        self._last = 0
        self._whole = not path.exists()  # the disk has no older lines
        self._changed = asyncio.Event()
        self._unwritten: list[bytes] = []
        self._waiting = 0
        self._lost = 0

    def add(
        self,
        at: Instant,
        stream: str,
        message: str,
        *,
        level: str = "info",
        task: str | None = None,
        context: dict[str, Any] | None = None,
    ) -> Entry:
        self._last = max(self._last + 1, at)
        entry = Entry(
            seq=self._last, at=at, level=level, stream=stream, message=message, task=task, context=context or {}
        )
        line = _encode(entry) + b"\n"
        self._newest.append((entry, len(line)))
        self._size += len(line)
        while len(self._newest) > NEWEST_LINES or (self._size > NEWEST_BYTES and len(self._newest) > 1):
            self._size -= self._newest.popleft()[1]
            self._whole = False
        if self._waiting + len(line) > UNWRITTEN:
            self._lost += 1
        else:
            self._unwritten.append(line)
            self._waiting += len(line)
        self._changed.set()
        self._write(self)
        return entry

    def take_unwritten(self) -> tuple[bytes, int]:
        """The bytes to write to the disk, and how many lines were dropped before them."""
        lines, lost = self._unwritten, self._lost
        self._unwritten, self._waiting, self._lost = [], 0, 0
        return b"".join(lines), lost

    async def tail(self, limit: int, *, level: str | None = None, after: int = 0) -> Sequence[Entry]:
        """Lines of at least this `level`, oldest first: the newest ones, or the first ones after `after`."""
        most = None if after else limit
        found = _newest((entry for entry, _ in reversed(self._newest)), most, level, after)
        oldest = self._newest[0][0].seq if self._newest else None
        if len(found) != most and not self._whole and (oldest is None or oldest > after):
            found = [*await asyncio.to_thread(_read, self.path, most, level, after, oldest), *found]
        return found[:limit] if after else found[-limit:]

    async def changed(self, after: int, seconds: float) -> None:
        """Wait until there is a line after this one, or the time is up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._last <= after:
                    self._changed.clear()
                    await self._changed.wait()


class ChildLogs:
    """All agents' logs, in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._logs: dict[str, ChildLog] = {}
        self._dirty: dict[ChildLog, None] = {}
        self._writing: asyncio.Task[None] | None = None

    def of(self, agent: AgentId) -> ChildLog:
        found = self._logs.get(agent)
        if found is None:
            found = self._logs[agent] = ChildLog(self._directory / f"{agent}.jsonl", self._note)
        return found

    async def forget(self, agent: AgentId) -> None:
        found = self._logs.pop(agent, None)
        if found is not None:
            self._dirty.pop(found, None)
        await self.flushed()
        path = self._directory / f"{agent}.jsonl"
        for file in (path, older(path)):
            await asyncio.to_thread(file.unlink, missing_ok=True)

    async def flushed(self) -> None:
        """Wait until the added lines are written."""
        while self._writing is not None:
            await asyncio.wait({self._writing})

    def _note(self, found: ChildLog) -> None:
        self._dirty[found] = None
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._dirty:
                batches = []
                for found in self._dirty:
                    data, lost = found.take_unwritten()
                    batches.append((found.path, data))
                    if lost:
                        log.warning("log lines lost: the disk does not keep up", agent=found.path.stem, lines=lost)
                self._dirty.clear()
                await asyncio.to_thread(_append, batches)
                if self._dirty:
                    await asyncio.sleep(GATHER_SECONDS)  # gather lines, so that not every line is a write
        except OSError as error:
            log.error("logs cannot be written", why=str(error))
        finally:
            self._writing = None


class _Share(msgspec.Struct):
    """How many lines and bytes of an agent's output one task has got."""

    lines: int = 0
    bytes: int = 0

    def used_up(self) -> bool:
        return self.lines > LINES_A_TASK or self.bytes > BYTES_A_TASK


class TaskLogWriter:
    """Keeps what an agent prints with the one task it holds, or with the one that it names: many lines to a command,
    one command at a time."""

    def __init__(self, hub: Intake, agent: AgentId) -> None:
        self._hub = hub
        self._agent = agent
        self._task: TaskId | None = None
        self._lines: list[LogEntry] = []
        self._size = 0
        self._left_out = 0
        self._busy = False
        self._shares: dict[TaskId, _Share] = {}  # of the tasks that the agent holds, and the one it wrote of last

    def current(self) -> TaskId | None:
        held = self._hub.load_of(self._agent)
        return held[0] if len(held) == 1 else None

    def add(self, task: TaskId, entry: Entry) -> None:
        if task != self._task:
            self._send()
            held = self._hub.load_of(self._agent)
            self._task, self._shares = task, {id: share for id, share in self._shares.items() if id in held}
        share = self._shares.setdefault(task, _Share())
        if share.used_up():
            return
        message = entry.message if len(entry.message) <= LINE_WITH_TASK else f"{entry.message[:LINE_WITH_TASK]} …"
        if len(self._lines) >= GATHERED_LINES or self._size > GATHERED_BYTES:
            self._left_out += 1
            return
        self._size += len(message)
        share.lines += 1
        share.bytes += len(message)
        if share.used_up():
            message = "this task has enough lines; what follows is only in the agent's log"
        context = {"stream": entry.stream, **entry.context}
        self._lines.append(LogEntry(at=entry.at, level=entry.level, message=message, context=context))
        if not self._busy:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._send)

    def flush(self) -> None:
        """Printed lines go before the next message: that may end the task."""
        if self._lines:
            self._send()

    def _send(self) -> None:
        """Send the gathered lines as one event."""
        if self._task is None or not self._lines:
            self._busy = False
            return
        lines, self._lines, self._size = self._lines, [], 0
        if self._left_out:
            at = lines[-1].at
            note = f"{self._left_out} more lines are only in the agent's log"
            lines.append(LogEntry(at=at, level="warn", message=note, context={"stream": "hub"}))
            self._left_out = 0
        self._busy = True
        self._hub.enqueue_then(
            WriteLog(principal=self._agent, protocol="forge", task_id=self._task, lines=tuple(lines)), self._kept
        )

    def _kept(self, outcome: Any, refusal: Refused | None) -> None:
        # A refusal (the task has ended meanwhile) costs nothing: the lines are in the agent's log.
        self._busy = False
        if self._lines:
            self._busy = True
            asyncio.get_running_loop().call_soon(self._send)


# -- files ------------------------------------------------------------------------------------------------------


def older(path: Path) -> Path:
    return path.with_name(f"{path.stem}.1.jsonl")


def _append(batches: Iterable[tuple[Path, bytes]]) -> None:
    for path, data in batches:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        size = path.stat().st_size if path.exists() else 0
        if size and size + len(data) > GENERATION:
            os.replace(path, older(path))
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)


def _newest(entries: Iterable[Entry], limit: int | None, level: str | None, after: int) -> list[Entry]:
    """The wanted ones of `entries`, which come newest first; the result is oldest first."""
    found: list[Entry] = []
    for entry in entries:
        if entry.seq <= after or len(found) == limit:
            break
        if level is None or severity(entry.level) >= severity(level):
            found.append(entry)
    return found[::-1]


def _read(path: Path, limit: int | None, level: str | None, after: int, before: int | None) -> list[Entry]:
    def backwards() -> Iterable[Entry]:
        for file in (path, older(path)):
            with contextlib.suppress(FileNotFoundError):
                for line in reversed(file.read_bytes().splitlines()):
                    with contextlib.suppress(msgspec.MsgspecError):  # cut off when a hub died
                        entry = _decode(line)
                        if before is None or entry.seq < before:
                            yield entry

    return _newest(backwards(), limit, level, after)
