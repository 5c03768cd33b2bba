"""What an agent remembers: results by request, answers by task, direct messages by sender and id, so that nothing is
done, asked or handled twice.

Without a file the memory lasts as long as the process. With one, every result is fsynced before it is sent, and
every answer before the handler goes on; several that are ready together share one fsync. The file is a list of
JSON lines, only ever appended to; a line torn by a crash ends the reading. It is rewritten when most of it is old.

What was running when a process died is not here, so it runs again: a handler is called at least once, and its
result is sent once. A direct message is recorded before it is acknowledged, and handled again after a restart unless
its handler had ended.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from dragoman import durable
from dragoman.messages.tasks import Result
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.messages import Correlation, Outcome, failure
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

KEEP = timedelta(hours=24)
MOST_RESULTS = 10_000
MOST_BYTES = 64 * 1024 * 1024
SLACK_LINES = 2_000
SWEEP = 256
"""Old results are swept out once in so many lines: `recall` looks at their age itself."""


class Done(Struct, frozen=True, kw_only=True):
    """A result and every request it answers; `print` identifies the content of the last one."""

    outcome: Outcome
    print: str
    requests: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.outcome.output) + len(self.outcome.result_json)


_NO_RESULT = msgspec.Raw()
"""msgspec leaves a default out only if it is the very same object; an empty `Raw` written down would be no JSON."""


class _OutcomeRow(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"correlation": "errand"}):
    """An outcome as the file has it. msgspec cannot read "raw JSON or nothing", so no result is no JSON at all."""

    id: str
    at: datetime
    correlation: Correlation
    exit_code: int
    output: str = ""
    result: msgspec.Raw = _NO_RESULT
    error: dict[str, Any] | None = None
    seconds: int = 0
    usage: dict[str, float] | None = None


class _DoneLine(Struct, frozen=True, kw_only=True, tag="done"):
    outcome: _OutcomeRow
    print: str
    requests: tuple[str, ...]


class Answered(Struct, frozen=True, kw_only=True, tag="answered"):
    task_id: str
    request_id: str
    at: datetime
    answer: Any
    question: str | None = None


class Settled(Struct, frozen=True, kw_only=True, tag="settled"):
    """The hub has this result: no need to offer it after a restart."""

    id: str


class Forgotten(Struct, frozen=True, kw_only=True, tag="forgotten"):
    """A task started over: its answers are void."""

    task_id: str


class Noted(Struct, frozen=True, kw_only=True, tag="noted", rename={"message": "letter"}):
    """A direct message came and is not handled yet."""

    key: str
    at: datetime
    message: msgspec.Raw


class Dealt(Struct, frozen=True, kw_only=True, tag="dealt"):
    """A direct message is handled; only its id is remembered."""

    key: str
    at: datetime


_Line = Done | Answered | Settled | Forgotten | Noted | Dealt
_decode_line = msgspec.json.Decoder(_DoneLine | Answered | Settled | Forgotten | Noted | Dealt).decode
_encode_line = msgspec.json.Encoder().encode


def _encode(line: _Line) -> bytes:
    return _encode_line(_done_line(line) if isinstance(line, Done) else line)


def _decode(data: bytes) -> _Line:
    line = _decode_line(data)
    return _done(line) if isinstance(line, _DoneLine) else line


def _done_line(done: Done) -> _DoneLine:
    outcome, content, failed = done.outcome, done.outcome.content, done.outcome.failure
    row = _OutcomeRow(
        id=outcome.id,
        at=outcome.at,
        correlation=outcome.correlation,
        exit_code=content.exit_code or 0,
        output=outcome.output,
        result=_NO_RESULT if content.result is UNSET else content.result,
        error=None if failed is None else failed.report,
        seconds=outcome.seconds,
        usage=content.usage,
    )
    return _DoneLine(outcome=row, print=done.print, requests=done.requests)


def _done(line: _DoneLine) -> Done:
    row = line.outcome
    if row.exit_code:
        content: Result = failure(row.output, row.error or {}, exit_code=row.exit_code, usage=row.usage)
    else:
        result = msgspec.Raw(bytes(row.result)) if bytes(row.result) else UNSET
        content = Result(exit_code=0, output=row.output or None, result=result, usage=row.usage)
    outcome = Outcome(id=row.id, at=row.at, correlation=row.correlation, content=content, seconds=row.seconds)
    return Done(outcome=outcome, print=line.print, requests=line.requests)


class Journal:
    """The agent's memory, with or without a file."""

    def __init__(
        self,
        runtime: Runtime,
        path: Path | None = None,
        *,
        keep: timedelta = KEEP,
        most: int = MOST_RESULTS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._runtime = runtime
        self._path = path
        self._keep = keep
        self._most = most
        self._most_bytes = most_bytes
        self._done: dict[str, Done] = {}
        self._requests: dict[str, Done] = {}
        self._unsettled: dict[str, Done] = {}
        self._answers: dict[str, dict[str, Answered]] = {}
        self._noted: dict[str, Noted] = {}
        self._dealt: dict[str, Dealt] = {}
        self._bytes = 0
        self._lines = 0
        self._file: int | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[None] | None]] = []
        self._flushing: asyncio.Task[None] | None = None
        self._writer = ThreadPoolExecutor(1, "dragoman-journal") if path else None

    @property
    def is_writing(self) -> bool:
        """Whether lines wait for their fsync, which happens in a thread."""
        return self._flushing is not None

    # --- start and end ---

    def open(self) -> list[Outcome]:
        """Read the file; returns the results that the hub may not have yet."""
        if self._path is None or self._file is not None:
            return []
        try:
            durable.make_directory(self._path.parent)
            self._file = _lock(self._path)
        except OSError as error:
            raise Misconfigured(
                f"{self._path} cannot keep the agent's results: {error.strerror}. Give another state_dir."
            ) from error
        for line in self._path.read_bytes().split(b"\n"):
            try:
                self._take(_decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
        self._forget()
        self._file = _rewrite(self._path, self._file, self._snapshot())
        return [done.outcome for done in self._unsettled.values()]

    async def close(self) -> None:
        """Write the waiting lines, and close the file."""
        while self._flushing is not None:
            await asyncio.wait({self._flushing})
        if self._writer is not None:
            self._writer.shutdown()
        if self._file is not None:
            os.close(self._file)
            self._file = None

    # --- results ---

    def recall(self, request_id: str) -> Done | None:
        """The result of a request, if it has one that is not too old."""
        done = self._requests.get(request_id)
        return None if done is None or done.outcome.at < self._runtime.now() - self._keep else done

    async def record(self, outcome: Outcome, print: str, requests: Iterable[str]) -> None:
        """Remember a result. When this returns, it survives a crash, if there is a file."""
        done = Done(outcome=outcome, print=print, requests=tuple(requests))
        self._take(done)
        if self._lines % SWEEP == 0 or len(self._done) > self._most or self._bytes > self._most_bytes:
            self._forget()
        if self._file is not None:
            await self._commit(_encode(done))

    def settle(self, id: str) -> None:
        """The hub has the result. This does not wait for the disk: at worst the result is sent once more."""
        if self._unsettled.pop(id, None) is not None and self._file is not None:
            self._append(_encode(Settled(id=id)), None)

    # --- answers ---

    def answers(self, task_id: str) -> list[Answered]:
        """The answers given in the course of a task, in order."""
        return list(self._answers.get(task_id, {}).values())

    def has_answers(self, task_id: str) -> bool:
        return task_id in self._answers

    def answered_by(self, task_id: str, request_id: str) -> bool:
        return request_id in self._answers.get(task_id, ())

    async def answer(self, answered: Answered) -> None:
        """Remember an answer; the same request again changes nothing."""
        if self.answered_by(answered.task_id, answered.request_id):
            return
        self._take(answered)
        if self._file is not None:
            await self._commit(_encode(answered))

    def forget_answers(self, task_id: str) -> None:
        if self._answers.pop(task_id, None) is not None and self._file is not None:
            self._append(_encode(Forgotten(task_id=task_id)), None)

    # --- direct messages ---

    async def note(self, key: str, message: bytes) -> bool:
        """Remember a direct message; False if it came before. After that it survives a crash, if there is a file."""
        if key in self._noted or key in self._dealt:
            return False
        noted = Noted(key=key, at=self._runtime.now(), message=msgspec.Raw(message))
        self._take(noted)
        if self._file is not None:
            await self._commit(_encode(noted))
        return True

    def deal(self, key: str) -> None:
        """The message is handled. This does not wait for the disk: at worst it is handled once more."""
        if key in self._noted:
            dealt = Dealt(key=key, at=self._runtime.now())
            self._take(dealt)
            if self._file is not None:
                self._append(_encode(dealt), None)

    def undealt(self) -> list[Noted]:
        """Direct messages that a former process did not finish handling."""
        return list(self._noted.values())

    # --- memory ---

    def _take(self, line: _Line) -> None:
        self._lines += 1
        if isinstance(line, Done):
            self._done[line.outcome.id] = self._unsettled[line.outcome.id] = line
            self._bytes += line.size
            for request_id in line.requests:
                self._requests[request_id] = line
            self._answers.pop(line.outcome.correlation.task_id, None)
        elif isinstance(line, Answered):
            self._answers.setdefault(line.task_id, {})[line.request_id] = line
        elif isinstance(line, Settled):
            self._unsettled.pop(line.id, None)
        elif isinstance(line, Noted):
            self._noted[line.key] = line
        elif isinstance(line, Dealt):
            self._noted.pop(line.key, None)
            self._dealt[line.key] = line
            if len(self._dealt) > self._most:
                del self._dealt[next(iter(self._dealt))]
        else:
            self._answers.pop(line.task_id, None)

    def _forget(self) -> None:
        """Drop old results, and the oldest when there are too many."""
        limit = self._runtime.now() - self._keep
        while self._done:
            oldest = next(iter(self._done.values()))
            if len(self._done) <= self._most and self._bytes <= self._most_bytes and oldest.outcome.at >= limit:
                break
            del self._done[oldest.outcome.id]
            self._unsettled.pop(oldest.outcome.id, None)
            self._bytes -= oldest.size
            for request_id in oldest.requests:
                if self._requests.get(request_id) is oldest:
                    del self._requests[request_id]
        while self._answers:
            task_id, given = next(iter(self._answers.items()))
            if len(self._answers) <= self._most and next(iter(given.values())).at >= limit:
                break
            del self._answers[task_id]
        while self._dealt and next(iter(self._dealt.values())).at < limit:
            del self._dealt[next(iter(self._dealt))]

    def _snapshot(self) -> list[bytes]:
        lines: list[_Line] = list(self._done.values())
        lines += [Settled(id=id) for id in self._done if id not in self._unsettled]
        lines += [answered for given in self._answers.values() for answered in given.values()]
        lines += [*self._dealt.values(), *self._noted.values()]
        self._lines = len(lines)
        return [_encode(line) for line in lines]

    # --- file ---

    async def _commit(self, line: bytes) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._append(line, written)
        await asyncio.shield(written)

    def _append(self, line: bytes, written: asyncio.Future[None] | None) -> None:
        self._waiting.append((line, written))
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        """Write everything that waits with one write and one fsync, until nothing waits."""
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                # Taken on the event loop, where nothing changes the memory meanwhile; the snapshot holds the batch too.
                alive = len(self._done) + len(self._dealt) + len(self._noted)
                is_stale = self._lines > 2 * alive + SLACK_LINES
                snapshot = self._snapshot() if is_stale else None
                await loop.run_in_executor(self._writer, self._write, [line for line, _ in batch], snapshot)
                for _, written in batch:
                    if written is not None and not written.done():
                        written.set_result(None)
        finally:
            self._flushing = None

    def _write(self, lines: list[bytes], snapshot: list[bytes] | None) -> None:
        if self._file is None or self._path is None:
            return
        try:
            if snapshot is not None:
                self._file = _rewrite(self._path, self._file, snapshot)
                return
            _write_all(self._file, b"".join(line + b"\n" for line in lines))
            os.fsync(self._file)
        except OSError as error:
            # The work is done and its result should reach the hub: only the memory across a restart is lost. An
            # fsync that failed is never tried again: what it covered may be gone without another error.
            log.error("results no longer survive a restart: %s: %s", self._path, error.strerror)
            os.close(self._file)
            self._file = None


def _lock(path: Path) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_ino == path.stat().st_ino:  # else it was rewritten between opening and locking
                return file
            os.close(file)
        except BlockingIOError:
            os.close(file)
            raise Misconfigured(
                f"{path} is in use by another process of this agent. Stop it, or give this one its own state_dir."
            ) from None


def _rewrite(path: Path, old: int, lines: list[bytes]) -> int:
    """Replace the file by one with only these lines. The new one is locked before it can be seen."""
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    file = _lock(draft)
    _write_all(file, b"".join(line + b"\n" for line in lines))
    os.fsync(file)
    os.replace(draft, path)
    durable.sync_directory(path.parent)
    os.close(old)
    return file


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def path_for(state_dir: str | Path | None, agent_id: str) -> Path | None:
    """Where an agent of this id keeps its journal."""
    if state_dir is None:
        return None
    return Path(state_dir) / f"{re.sub(r'[^A-Za-z0-9._-]', '_', agent_id)}.journal"
