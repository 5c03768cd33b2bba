"""Processes under measurement: start, wait until ready, read CPU and memory, stop.

A server under test runs in a process group of its own, so that its helpers (a writer process, say) are
counted with it and stopped with it. Linux only: the numbers come from /proc. A child dies with its parent
(PR_SET_PDEATHSIG), so an interrupted benchmark leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
QUIET = 0.5
"""Seconds without work that show that a process has nothing to do."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Usage(msgspec.Struct, frozen=True):
    """CPU seconds since start and resident bytes, of one process or of a group."""

    cpu: float
    rss: int


def group_usage(group: int) -> dict[int, Usage]:
    """Usage of every living process of a process group, by pid; none for group 0."""
    found: dict[int, Usage] = {}
    if not group:
        return found
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_bytes()
        except OSError:
            continue
        # The command may hold spaces and brackets: fields are counted from the last ')'.
        fields = stat[stat.rindex(b")") + 2 :].split()
        if int(fields[2]) == group:
            cpu = (int(fields[11]) + int(fields[12])) * TICK
            found[int(entry.name)] = Usage(cpu, int(fields[21]) * PAGE)
    return found


def total(usages: dict[int, Usage]) -> Usage:
    return Usage(sum(u.cpu for u in usages.values()), sum(u.rss for u in usages.values()))


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Proc:
    """A child in its own process group. Use as a context manager: leaving it stops the whole group."""

    def __init__(
        self, command: Sequence[str], *, env: dict[str, str] | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        self.started_at = time.perf_counter()
        self._child = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_die_with_parent,
            pass_fds=tuple(pass_fds),
        )
        self.group = self._child.pid
        self._said = b""

    def ready(self, timeout: float = 20.0) -> dict[str, Any]:
        """The first line on stdout, as JSON: what our servers and `dragoman dev --ready-json` say."""
        return msgspec.json.decode(self.line(timeout))

    def line(self, timeout: float) -> bytes:
        """The next line of stdout, or TimeoutError / RuntimeError when none comes."""
        assert self._child.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"{self._child.args!r} said nothing for {timeout:.0f} s")
                piece = os.read(self._child.stdout.fileno(), 65536)
                if not piece:
                    code = self._child.wait(5)
                    raise RuntimeError(f"{self._child.args!r} ended with {code} before it answered")
                self._said += piece
        line, self._said = self._said.split(b"\n", 1)
        return line

    def usage(self) -> Usage:
        return total(group_usage(self.group))

    def settle(self, timeout: float = 60.0) -> float:
        """Wait until it has nothing to do; how many seconds that took."""
        began = time.monotonic()
        before = self.usage().cpu
        while time.monotonic() - began < timeout:
            time.sleep(QUIET)
            now = self.usage().cpu
            if now - before <= TICK:
                return time.monotonic() - began - QUIET
            before = now
        raise TimeoutError(f"{self._child.args!r} was still busy after {timeout:.0f} s")

    def stop(self, timeout: float = 5.0) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        self._signal(signal.SIGKILL)
        self._child.wait(timeout)
        if self._child.stdout:
            self._child.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.group, number)
        except ProcessLookupError:
            pass

    def __enter__(self) -> Proc:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def python(
    module: str,
    *arguments: str,
    env: dict[str, str] | None = None,
    interpreter: str = sys.executable,
    pass_fds: Sequence[int] = (),
) -> Proc:
    """Start `python -m module arguments…` with the interpreter of this run, or a given one."""
    return Proc([interpreter, "-m", module, *arguments], env=env, pass_fds=pass_fds)


def ask(
    module: str, question: Any, *, timeout: float, interpreter: str = sys.executable, pass_fds: Sequence[int] = ()
) -> Any:
    """Run `python -m module '<json>'` to its end and return the JSON line that it prints."""
    with python(module, msgspec.json.encode(question).decode(), interpreter=interpreter, pass_fds=pass_fds) as child:
        return msgspec.json.decode(child.line(timeout))
