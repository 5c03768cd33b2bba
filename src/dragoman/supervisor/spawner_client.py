"""The hub's end of the spawner: starts it with the first child, passes it streams, notices when it dies.

Nothing here blocks the event loop. Reports of the spawner come over the loop like any other I/O. Requests go into a
socket with far more room than they need; one that does not fit waits for a moment.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import structlog

from dragoman.supervisor import spawner

log = structlog.get_logger("dragoman.children")

SCRIPT = Path(spawner.__file__)
BUFFER = 1 << 20
GONE_WITHIN_MS = 2000
"""Milliseconds to wait for a killed process: one that waits for a disk may take its time."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A process to be started. `env` is all of its environment; `limits` go by the names of `spawner.RESOURCES`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    limits: dict[str, int] = {}
    privileges: bool = False
    """Whether it may gain privileges by starting programs that have them (sudo)."""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended: with an exit code, by a signal, or never started (`failed` says why; `permanent`: a retry
    would fail as well)."""

    code: int | None = None
    signal: int | None = None
    failed: str | None = None
    permanent: bool = False

    @property
    def clean(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        if self.failed is not None:
            return self.failed
        if self.signal is not None:
            return f"killed by {_name(self.signal) or f'signal {self.signal}'}"
        # Shells and bubblewrap report a program that was killed inside them by this code.
        inside = _name(self.code - KILLED_INSIDE) if self.code is not None and self.code > KILLED_INSIDE else None
        return f"exit code {self.code}" + (f" (a program in it was killed by {inside})" if inside else "")


KILLED_INSIDE = 128


def _name(number: int) -> str | None:
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


class Handle(msgspec.Struct, frozen=True, eq=False):
    """One process, from the request to its end. `started` gives its number, or None if it never started."""

    key: int
    started: asyncio.Future[int | None]
    ended: asyncio.Future[Ended]


class SpawnerClient:
    """Starts processes, and reports how they end. A spawner that dies is replaced when the next process is started."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._handles: dict[int, Handle] = {}
        self._pids: dict[int, int] = {}
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._next = 0
        self._starting = asyncio.Lock()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._socket is not None else None

    async def start(self, launch: Launch, streams: tuple[int, int, int]) -> Handle:
        """Start a process on these descriptors, which are closed here in any case."""
        try:
            await self._ensure_started()
            self._next += 1
            loop = asyncio.get_running_loop()
            handle = Handle(self._next, loop.create_future(), loop.create_future())
            request = msgspec.json.encode({"do": "start", "key": handle.key, **msgspec.to_builtins(launch)})
            if len(request) > spawner.LARGEST:
                handle.started.set_result(None)
                handle.ended.set_result(Ended(failed="command and environment are too long", permanent=True))
                return handle
            self._handles[handle.key] = handle
            self._send(request, tuple(os.dup(stream) for stream in streams))
            return handle
        finally:
            for stream in streams:
                os.close(stream)

    def signal(self, handle: Handle, number: int) -> None:
        """Signal its whole process group; does nothing if it has ended."""
        if handle.key in self._handles and self._socket is not None:
            self._send(msgspec.json.encode({"do": "signal", "key": handle.key, "signal": int(number)}), ())

    async def close(self) -> None:
        """Kill all processes that still run."""
        self._closed = True
        process = self._process
        self._let_go()
        if process is not None:
            await asyncio.to_thread(process.wait)
        self._end_all()
        for cleanup in list(self._cleanups):
            await cleanup

    async def sweep(self) -> int:
        """Kill processes that an earlier spawner of this mark left over; gives how many there were."""
        return await asyncio.to_thread(kill_marked, self.mark, self.pid)

    # -- the process

    async def _ensure_started(self) -> None:
        async with self._starting:
            if self._socket is not None:
                return
            if self._closed:
                raise RuntimeError("the spawner is closed")
            for cleanup in list(self._cleanups):
                await cleanup
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (ours, theirs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            ours.setblocking(False)
            with theirs:
                self._process = await asyncio.to_thread(_spawn, theirs.fileno(), self.mark)
            self._socket = ours
            asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)

    def _let_go(self) -> None:
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None
        self._process = None
        while self._unsent:
            for descriptor in self._unsent.popleft()[1]:
                os.close(descriptor)

    # -- out

    def _send(self, packet: bytes, descriptors: tuple[int, ...]) -> None:
        self._unsent.append((packet, descriptors))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        link = self._socket
        if link is None:
            return
        loop = asyncio.get_running_loop()
        while self._unsent:
            packet, descriptors = self._unsent[0]
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
            try:
                link.sendmsg([packet], rights)
            except BlockingIOError:
                loop.add_writer(link.fileno(), self._flush)
                return
            except OSError:
                return  # it died; its end of the socket shows that
            self._unsent.popleft()
            for descriptor in descriptors:
                os.close(descriptor)
        loop.remove_writer(link.fileno())

    # -- in

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(spawner.LARGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._died()
            return
        answer: dict[str, Any] = msgspec.json.decode(data)
        handle = self._handles.get(answer["key"])
        if handle is None:
            return
        if "started" in answer:
            self._pids[handle.key] = answer["started"]
            _settle(handle.started, answer["started"])
        elif "failed" in answer:
            self._end(handle, Ended(failed=answer["failed"], permanent=not answer.get("later")))
        else:
            self._end(handle, Ended(code=answer["code"], signal=answer["signal"]))

    def _end(self, handle: Handle, how: Ended) -> None:
        self._handles.pop(handle.key, None)
        self._pids.pop(handle.key, None)
        _settle(handle.started, None)
        _settle(handle.ended, how)

    def _end_all(self) -> None:
        for handle in list(self._handles.values()):
            self._end(handle, Ended(signal=signal.SIGKILL))

    def _died(self) -> None:
        """The spawner died and its children with it; their descendants may still live."""
        process = self._process
        groups = tuple(self._pids.values())
        log.error("the spawner ended; its children with it", children=len(self._handles))
        self._let_go()
        cleanup = asyncio.get_running_loop().create_task(self._clean_up(process, groups))
        self._cleanups.add(cleanup)
        cleanup.add_done_callback(self._cleanups.discard)

    async def _clean_up(self, process: subprocess.Popen[bytes] | None, groups: tuple[int, ...]) -> None:
        if process is not None:
            await asyncio.to_thread(process.wait)
        for group in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        await self.sweep()
        self._end_all()


def _settle(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _spawn(descriptor: int, mark: str) -> subprocess.Popen[bytes]:
    """Start a bare interpreter: without site, the hub's environment or other descriptors. It has a session of its own,
    so Ctrl-C at the hub's terminal reaches only the hub."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT), str(descriptor), mark],
        pass_fds=(descriptor,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        cwd="/",
    )


def kill_marked(mark: str, spared: int | None = None) -> int:
    """Kill every process that carries this mark, and those they start meanwhile; descendants of `spared` live.

    Returns when they are gone: a killed process may run for another moment.
    """
    killed: set[int] = set()
    dying: list[int] = []
    while True:
        living = set(spawner.descendants(spared)) if spared is not None else set()
        found = [
            pid
            for pid in spawner.parents()
            if pid not in living and pid not in killed and (spawner.mark_of(pid) or "").rpartition(":")[0] == mark
        ]
        if not found:
            break
        for pid in found:
            killed.add(pid)
            with contextlib.suppress(OSError):
                dying.append(os.pidfd_open(pid))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    for descriptor in dying:
        over = select.poll()
        over.register(descriptor, select.POLLIN)
        over.poll(GONE_WITHIN_MS)
        os.close(descriptor)
    return len(killed)
