"""Commands of ours without their imports: forked from one process, a nest, that has imported everything already.

A hub that is started as a command spends most of a second of CPU on imports, and a suite starts hundreds. What is
forked runs the same `main()` with the same arguments, in a process of its own that can be killed, stopped and watched;
that it also starts as a command is tried by tests of their own (tests/unit/app/test_demo.py, tests/unit/docs).

    test process                nest                         hub
    hatch() -- arguments, fds -> fork -----------------------> main()
            <- pid ------------
            <- exit code ------- wait() <--------------------- ends

So are the writer processes of stores: a hub has its first one forked off before it grows (`Egg`), and where a test
opens stores by the dozen it asks the nest (`writer`). They start as themselves when a hub starts another one, and in
tests/adapters/sqlite_faults.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from dragoman.stores.sqlite import writer, writer_process

WARM = (
    "dragoman.cli.main",
    "dragoman.cli.serving",
    "dragoman.app.process",
    "dragoman.stores.sqlite.store",
    "dragoman.server.coven.endpoint",
    "dragoman.server.agentmsg",
    "dragoman.server.a2acp",
    "dragoman.app.cluster.node",
    "dragoman.app.shared_files",
    "dragoman.stores.postgres.store",
    "asyncpg",
    "uvloop",
    "uvicorn.lifespan.off",
    *(
        f"dragoman.cli.{name}"
        for name in ("agent", "ask", "audit", "call", "cluster", "dlq", "doctor", "hubclient", "store", "task")
    ),
)
REQUEST = 1 << 20
HUBS = ("dev", "serve")
STARTING = ("LD_PRELOAD", "PYTHONPATH")
"""What only a program that starts looks at: with another value than the nest's, a hub's writer must start as itself."""

_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)


# -- on the tests' side ------------------------------------------------------------------------------------------


class Hatched:
    """What a test needs of `subprocess.Popen`."""

    def __init__(self, pid: int, ended: int, stdout: IO[bytes] | None) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
            answer = os.read(self._ended, 16)
            os.close(self._ended)
            self.returncode = int(answer) if answer else -signal.SIGKILL  # the nest is gone, and they with it
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nest:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        """A test may run commands in threads; the pid that is read must be the one of this request."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.nest", str(theirs.fileno())],
                cwd=Path(__file__).parents[2],
                env={k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )  # it leaves when our end is closed: PR_SET_PDEATHSIG would mean the thread that is here now

    def hatch(self, arguments: Sequence[str], *, cwd: Path, env: dict[str, str], stderr: IO[bytes]) -> Hatched:
        """`dragoman ARGUMENTS`, with its standard output in a pipe."""
        out, theirs = os.pipe()
        with open(os.devnull, "rb") as nothing, os.fdopen(theirs, "wb") as stdout:
            pid, ended = self._fork(arguments, cwd, env, (nothing, stdout, stderr))
        return Hatched(pid, ended, os.fdopen(out, "rb"))

    def writer(self, command: Sequence[str], *, pass_fds: Sequence[int], **_streams: int) -> Hatched:
        """In the place of the `subprocess.Popen` that starts a store's writer."""
        link, lock = pass_fds
        with open(os.devnull, "r+b") as nothing:
            streams = (nothing, nothing, sys.__stderr__ or nothing)
            return Hatched(*self._fork([*command[-2:]], Path.cwd(), dict(os.environ), streams, (link, lock)), None)

    def run(self, arguments: Sequence[str], *, env: dict[str, str], stdin: str, timeout: float) -> tuple[int, str, str]:
        """`dragoman ARGUMENTS` to its end: the exit code, and both streams."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            child = Hatched(*self._fork(arguments, Path.cwd(), env, (given, out, err)), None)
            try:
                code = child.wait(timeout)
            finally:
                child.kill()
            for file in (out, err):
                file.seek(0)
            return code, out.read().decode(), err.read().decode()

    def _fork(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: dict[str, str],
        streams: tuple[IO[Any], IO[Any], IO[Any]],
        kept: Sequence[int] = (),
    ) -> tuple[int, int]:
        """The process, and where its end is told. `kept`: a writer's connection, and the lock it holds."""
        ended, theirs = os.pipe()
        wish = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": env}).encode()
        assert len(wish) < REQUEST
        with self._lock:
            socket.send_fds(self._link, [wish], [*(stream.fileno() for stream in streams), theirs, *kept])
            os.close(theirs)
            return int(self._link.recv(32)), ended


_nest: Nest | None = None


def nest() -> Nest:
    """One for this process, started when it is first asked for."""
    global _nest
    if _nest is None:
        _nest = Nest()
    return _nest


# -- in the nest -------------------------------------------------------------------------------------------------


def sit(link: socket.socket) -> None:
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # as the hub itself has it
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a hub collects its garbage once when it starts: of what it has from here, there is none
    wake, woken = os.pipe()
    for end in (wake, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    ended: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is link:
                    request, fds, _, _ = socket.recv_fds(link, REQUEST, 6)
                    if not request:
                        return
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        selector.close()
                        for end in (link.fileno(), wake, woken, fds[3], *ended.values()):
                            os.close(end)
                        become(json.loads(request), fds[:3], fds[4:])
                    for end in (*fds[:3], *fds[4:]):
                        os.close(end)
                    ended[pid] = fds[3]
                    link.send(str(pid).encode())
                else:
                    os.read(wake, 4096)
                    reap(ended)


def reap(ended: dict[int, int]) -> None:
    while ended:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        tell = ended.pop(pid)
        os.write(tell, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(tell)


class Egg:
    """A hub's writer to be: a child of it that waits to be told its database."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        hub = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            self._link.close()
            self._wait(theirs, hub)
        theirs.close()
        self._fresh = True

    def _wait(self, link: socket.socket, hub: int) -> None:
        """Does not return."""
        code = 70
        try:
            die_with_parent()
            with open(os.devnull, "r+b") as nothing:
                for standard in (0, 1):
                    os.dup2(nothing.fileno(), standard)
            request, fds, _, _ = socket.recv_fds(link, REQUEST, 2)
            link.close()
            if request:
                mask, log_cap, path = request.decode().split(" ", 2)
                os.umask(int(mask))
                writer.main([str(fds[0]), str(hub), log_cap, path])
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def popen(self, command: Sequence[str], *, pass_fds: Sequence[int], **how: Any) -> Any:
        """In the place of `subprocess.Popen`: the first time, what waits here; then the real thing."""
        if not self._fresh:
            return subprocess.Popen(command, pass_fds=pass_fds, **how)
        self._fresh = False
        os.umask(mask := os.umask(0o077))
        socket.send_fds(self._link, [f"{mask} {command[-2]} {command[-1]}".encode()], pass_fds)
        self._link.close()
        return self

    def wait(self) -> int:
        return self._ended(0) or 0

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def _ended(self, how: int) -> int | None:
        try:
            pid, status = os.waitpid(self.pid, how)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status) if pid else None


def become(wish: dict[str, Any], streams: list[int], kept: list[int]) -> None:
    """The command itself; does not return."""
    code: Any = 70
    try:
        die_with_parent()
        alike = all(os.environ.get(name) == wish["env"].get(name) for name in STARTING)
        os.chdir(wish["cwd"])
        os.environ.clear()
        os.environ.update(wish["env"])
        for standard, mine in enumerate(streams):
            os.dup2(mine, standard)
            os.close(mine)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        if kept:
            writer.main([str(kept[0]), str(os.getppid()), *wish["arguments"]])
            code = 0
        else:
            sys.argv = ["dragoman", *wish["arguments"]]
            if alike and wish["arguments"][0] in HUBS:
                writer_process.subprocess = SimpleNamespace(Popen=Egg().popen, DEVNULL=subprocess.DEVNULL)  # type: ignore[attr-defined]
            from dragoman.cli.main import main

            code = main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    sit(socket.socket(fileno=int(sys.argv[1])))
