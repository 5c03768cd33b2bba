"""Forge over the standard streams: for an agent that the hub starts as its child.

The link takes the two pipes for itself before anything else can write to them:

    stream              was                  is from then on
    ------------------  -------------------  ---------------------------------------------------------------------
    descriptor 0        the hub's messages   empty: programs that the agent starts (ssh, ffmpeg, …) cannot eat them
    descriptor 1        messages to the hub  the same as 2: print(), C libraries and started programs write logs
    logging             wherever it went     event:log, with the task it was written in; the overflow goes to 2
    private copies      -                    the link's, closed in whatever the agent starts

So nothing that is printed can be taken for a message, or stand in the middle of one. Lines on descriptor 2 reach the
hub's log even if the process dies the next moment, which is why print() goes there and not through the event loop.

Reading and writing never block the loop, and leave the descriptors' flags alone, which others may share: a read after
the system reported "readable" does not wait, nor does a write of up to PIPE_BUF bytes after "writable".
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import stat
import sys
import threading
from collections import deque

from dragoman.protocols.forge.types import Level, LogEvent
from dragoman.sdk import trace
from dragoman.sdk.errors import Misconfigured
from dragoman.sdk.forge.link import ForgeLink
from dragoman.sdk.forge.session import HungUp, Session
from dragoman.sdk.links import Introduction
from dragoman.sdk.runtime import Runtime

READ = 64 * 1024
HIGH = 256 * 1024
"""Bytes that may wait for the hub to read them before handlers that send more are made to wait."""
CLOSE_SECONDS = 2.0
"""For the hub to read what is still unwritten."""
LONGEST_RECORD = 16 * 1024

#: The least of logging's levels → forge's level.
LEVELS: tuple[tuple[int, Level], ...] = (
    (logging.ERROR, "error"),
    (logging.WARNING, "warn"),
    (logging.INFO, "info"),
    (logging.NOTSET, "debug"),
)


class StdioLink(ForgeLink):
    """Forge over the standard streams, with the agent's logging."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(StdioWire(), runtime, is_child=True)
        self._records = Records(self.session)

    async def open(self, who: Introduction) -> None:
        await super().open(who)
        self._records.begin(asyncio.get_running_loop())

    async def close(self) -> None:
        self._records.end()
        await super().close()


def take_over() -> tuple[int, int]:
    """The pipes to the hub, out of reach of all other code: to read from, to write to."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
        incoming, outgoing = os.dup(0), os.dup(1)
    except OSError as error:
        raise Misconfigured(f"stdio: needs standard streams, and there are none: {error.strerror}") from None
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    try:
        os.dup2(2, 1)
    except OSError:  # there is no stderr either
        os.dup2(nothing, 1)
    os.close(nothing)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # a log that comes hours later is none
    return incoming, outgoing


class StdioWire:
    """`session.Wire` over two descriptors; taken over from the standard streams unless they are given."""

    is_lines = True

    def __init__(self, incoming: int | None = None, outgoing: int | None = None) -> None:
        self._given = None if incoming is None or outgoing is None else (incoming, outgoing)
        self._in = self._out = -1
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()
        self._unwritten: deque[memoryview] = deque()
        self._size = 0
        self._is_writing = False
        self._is_gone = False
        self._moved = asyncio.Event()
        self._poll = select.poll()

    async def open(self) -> None:
        self._in, self._out = self._given or take_over()
        self._loop = asyncio.get_running_loop()
        self._poll.register(self._out, select.POLLOUT)
        if _can_be_watched(self._in):
            self._loop.add_reader(self._in, self._readable)
        else:
            threading.Thread(target=self._read_on, name="dragoman-stdin", daemon=True).start()
        self.send(b"\n")  # ends a line that was printed before and has no end

    # --- in ---

    async def receive(self) -> bytes:
        data = await self._arrived.get()
        if not data:
            raise HungUp("the hub has closed our input", hears=not self._is_gone and self._is_read())
        return data

    def _readable(self) -> None:
        assert self._loop is not None
        data = _read(self._in)
        if not data:
            self._loop.remove_reader(self._in)
        self._arrived.put_nowait(data)

    def _read_on(self) -> None:
        """In a thread of its own: a file cannot be watched."""
        assert self._loop is not None
        while True:
            data = _read(self._in)
            try:
                self._loop.call_soon_threadsafe(self._arrived.put_nowait, data)
            except RuntimeError:  # the loop has ended
                return
            if not data:
                return

    # --- out ---

    def send(self, data: bytes) -> None:
        if self._is_gone:
            return
        self._unwritten.append(memoryview(data))
        self._size += len(data)
        if not self._is_writing:
            self._write()

    def _write(self) -> None:
        """Write what fits now; the rest when the hub has read."""
        assert self._loop is not None
        try:
            while self._unwritten:
                if not self._poll.poll(0):
                    self._wait_for_room(True)
                    return
                view = self._unwritten[0]
                written = os.write(self._out, view[: select.PIPE_BUF])
                self._size -= written
                if written < len(view):
                    self._unwritten[0] = view[written:]
                else:
                    self._unwritten.popleft()
        except OSError:  # the hub reads it no more
            self._is_gone, self._size = True, 0
            self._unwritten.clear()
            self._arrived.put_nowait(b"")
        self._wait_for_room(False)
        self._moved.set()

    def _wait_for_room(self, wanted: bool) -> None:
        assert self._loop is not None
        if wanted and not self._is_writing:
            self._loop.add_writer(self._out, self._write)
        elif self._is_writing and not wanted:
            self._loop.remove_writer(self._out)
        self._is_writing = wanted
        if self._size < HIGH:
            self._moved.set()

    def _is_read(self) -> bool:
        """Whether the other end of our output is still open."""
        return not any(events & select.POLLERR for _, events in self._poll.poll(0))

    async def drain(self) -> None:
        await self._until(HIGH)

    async def _until(self, most: int) -> None:
        while self._size > most and not self._is_gone:
            self._moved.clear()
            await self._moved.wait()

    async def close(self) -> None:
        if self._loop is None:
            return
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._until(0)
        except TimeoutError:
            pass
        if _can_be_watched(self._in):
            self._loop.remove_reader(self._in)
        self._wait_for_room(False)
        self._loop = None
        os.close(self._out)  # our input may still be waited for in a thread, so it stays open


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, READ)
    except OSError:
        return b""


def _can_be_watched(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


class Records(logging.Handler):
    """Log records as event:log, as long as there is room beside the work; the others go to stderr."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._replaced: list[logging.Handler] = []

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the place of the handlers that write to our streams: else everything would be logged twice."""
        self._loop, self._thread = loop, threading.get_ident()
        root = logging.getLogger()
        ours = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        for handler in list(root.handlers):
            if isinstance(handler, logging.StreamHandler) and handler.stream in ours:
                root.removeHandler(handler)
                self._replaced.append(handler)
        root.addHandler(self)

    def end(self) -> None:
        self._loop = None
        root = logging.getLogger()
        root.removeHandler(self)
        for handler in self._replaced:
            root.addHandler(handler)
        self._replaced.clear()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)[:LONGEST_RECORD].encode("utf-8", "backslashreplace").decode()
            level = next(name for least, name in LEVELS if record.levelno >= least)
            span = trace.current()
            event = LogEvent(
                level=level,
                message=text,
                context={"logger": record.name},
                task_id=None if span is None else span.task_id,
            )
            if threading.get_ident() == self._thread:
                self._send(event)
            elif self._loop is not None:
                self._loop.call_soon_threadsafe(self._send, event)
        except Exception:
            self.handleError(record)

    def _send(self, event: LogEvent) -> None:
        if self._session.has_time():
            self._session.event(event)
        else:
            sys.stderr.write(f"{event.level}: {event.message}\n")
