"""The hub's end of the writer process: starts it, sends it one unit at a time, notices when it dies.

The writer is not forked from the hub with all its memory: `subprocess` starts a fresh interpreter (vfork and exec),
which inherits one end of a socket pair and the lock. The answer comes over the event loop like any other I/O.

One hub per data directory: `lock_directory` takes an flock on `<directory>/lock`. An flock belongs to the open file,
not to a process, and the writer inherits it: an orphaned writer that still finishes a commit after its hub was killed
keeps the next hub out until it is done.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec

from dragoman.core.ports import StoreFailed
from dragoman.stores.sqlite import frames
from dragoman.stores.sqlite.backups import NOT_WRITTEN
from dragoman.stores.sqlite.schema import StoreInUse, StoreRefused

START_PATIENCE = 600.0
"""Seconds that a writer has to become ready: it may have a large write-ahead log to recover."""

BUFFER = 1 << 20
PUSHED = 4 << 20
"""Bytes of a frame sent without yielding to the event loop: two milliseconds or so."""
PUSH_PATIENCE = 1
"""Milliseconds to wait for a writer that reads nothing."""


class OutcomeUnknown(StoreFailed):
    """The writer died during a unit: only the database shows whether it was committed."""


_encoder = msgspec.msgpack.Encoder()


class Answer(NamedTuple):
    """The writer's answer (`writer.Answer`)."""

    error: str | None
    because: str
    advice: str
    log: int
    left: int


_decoder = msgspec.msgpack.Decoder(Answer)


class Writer(asyncio.Protocol):
    """A running writer process."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket) -> None:
        self._process = process
        self._socket = link  # the transport's; used directly only while that has nothing to send
        self._writable = select.poll()
        self._writable.register(link, select.POLLOUT)
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[Answer]] = deque()
        self._turn = asyncio.Lock()
        """Held by one unit or one step of a backup at a time."""
        self.log_bytes = 0
        """Bytes in the write-ahead log after the last unit."""
        self._settled: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._opened = self._next_answer()
        """The writer's first answer comes without a request: whether it could open the database."""

    @classmethod
    async def start(cls, path: Path, lock: int, log_cap: int) -> Writer:
        """A writer that has opened and checked the database; raises `StoreRefused` with its sentence if it cannot."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        with theirs:
            command = [sys.executable, "-m", "dragoman.stores.sqlite.writer"]
            process = subprocess.Popen(  # noqa: ASYNC220 (vfork and exec: a millisecond, before we serve)
                [*command, str(theirs.fileno()), str(os.getpid()), str(log_cap), str(path)],
                pass_fds=(theirs.fileno(), lock),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        _, writer = await loop.create_unix_connection(lambda: cls(process, ours), sock=ours)
        try:
            async with asyncio.timeout(START_PATIENCE):
                opened = await writer._opened
        except BaseException:
            await writer.close()
            raise
        if opened.error is not None:
            await writer.close()
            raise StoreRefused(opened.error, opened.advice, because=opened.because)
        return writer

    @property
    def alive(self) -> bool:
        return not self._gone.done()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def commit(self, operations: list[tuple[Any, ...]]) -> None:
        """Returns when the operations are on the disk. Raises `StoreFailed` if they are not, `OutcomeUnknown` if they
        may be."""
        answer = await self._ask(operations)
        self.log_bytes = answer.log
        if answer.error is not None:
            raise StoreFailed(f"the store could not commit: {answer.error}")

    async def note(self, messages: list[tuple[bytes, bytes]]) -> None:
        """Returns when the messages are in the ring (`sent_messages`), on the disk."""
        answer = await self._ask([(frames.NOTED, messages)])
        if answer.error is not None:
            raise StoreFailed(f"messages that leave at most once cannot be noted: {answer.error}")

    async def copy(self, step: tuple[Any, ...]) -> int:
        """Do one step of a backup; gives how many pages are left. Raises `OSError` if the copy cannot be written."""
        answer = await self._ask([step])
        if answer.error is not None:
            if answer.because in NOT_WRITTEN:
                raise OSError(*NOT_WRITTEN[answer.because])
            raise StoreFailed(f"the store could not be copied: {answer.error}")
        return answer.left

    async def _ask(self, operations: list[tuple[Any, ...]]) -> Answer:
        async with self._turn:
            await self.settled()
            if self._transport is None or not self.alive:
                raise _ended()
            frame = bytearray(frames.HEADER)
            _encoder.encode_into(operations, frame, frames.HEADER)
            frame[: frames.HEADER] = (len(frame) - frames.HEADER).to_bytes(frames.HEADER, "big")
            sent = self._push(frame)
            if sent < len(frame):
                self._transport.write(memoryview(frame)[sent:])
            return await self._next_answer()

    def _push(self, frame: bytearray) -> int:
        """Send as much of a frame as the writer takes at once. It has nothing else to do, so that is nearly always all.

        The transport would wait for a turn of the event loop after every piece that the socket holds, and turns of a
        busy loop are long.
        """
        view = memoryview(frame)[:PUSHED]
        sent = 0
        while sent < len(view):
            try:
                sent += self._socket.send(view[sent:])
            except BlockingIOError:
                if not self._writable.poll(PUSH_PATIENCE):
                    break
            except OSError:
                break  # the writer died: the transport notices it
        return sent

    def _next_answer(self) -> asyncio.Future[Answer]:
        """A future of the next answer. Answers come in the order of the units. The answer to a cancelled unit is
        consumed in its turn, and never taken for the next one's."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.alive:
            self._waiting.append(answer)
        else:
            answer.set_exception(_ended())
        return answer

    async def settled(self) -> None:
        """Wait until every unit that was sent has its outcome, cancelled ones included."""
        if self._waiting:
            self._settled = self._settled or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._settled)

    async def close(self) -> None:
        """Let the writer finish and end. It ends by itself when the hub's end of the pair closes."""
        if self._transport is not None:
            self._transport.close()
        await self._gone
        await asyncio.to_thread(self._process.wait)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) > frames.HEADER:
            end = frames.HEADER + int.from_bytes(received[: frames.HEADER], "big")
            if len(received) < end:
                return
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_result(_decoder.decode(received[frames.HEADER : end]))
            del received[:end]
        if not self._waiting and self._settled is not None:
            self._settled.set_result(None)
            self._settled = None

    def connection_lost(self, error: Exception | None) -> None:
        if not self._gone.done():
            self._gone.set_result(None)
        self._process.poll()
        while self._waiting:
            answer = self._waiting.popleft()
            if not answer.done():
                answer.set_exception(_ended())
        if self._settled is not None:
            self._settled.set_result(None)
            self._settled = None


def _ended() -> OutcomeUnknown:
    return OutcomeUnknown("the writer process ended before it answered: it is not known whether the unit was written")


ORPHAN_PATIENCE = 5.0
"""Seconds to wait for the writer of a dead hub."""


async def lock_directory(directory: Path) -> int:
    """Lock the directory; gives the locked descriptor, or raises `StoreInUse` if a running hub has it."""
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = asyncio.get_running_loop().time() + ORPHAN_PATIENCE
        while not _try(descriptor):
            holder = _holder(descriptor)
            orphaned = holder is not None and not _alive(holder)
            if not orphaned or asyncio.get_running_loop().time() > deadline:
                raise StoreInUse(str(directory), holder)
            await asyncio.sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
