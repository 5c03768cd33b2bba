"""The spawner: a small process of one thread that starts children for the hub, and reaps them.

A bare interpreter runs it as a script (`python -I -S spawner.py FD MARK`). It is not forked from the hub: forking a
large process with threads is slow and unsafe, forking this one is neither. It imports nothing of dragoman.

Why no process outlives the hub:

    the hub dies                the spawner's end of the socket reads EOF: it kills every descendant, then ends
    the spawner dies            each child asked the kernel for SIGKILL at its parent's death (PR_SET_PDEATHSIG)
    a child ends                the spawner kills its process group before it reaps it and so frees its number
    a descendant of a child     leaves for a session of its own: when orphaned it becomes the spawner's child
                                (PR_SET_CHILD_SUBREAPER), and is killed with the child it stems from. The spawner knows
                                it by the mark in its environment; without the mark, in a sandbox, by the seccomp
                                filters, which no process can remove; else, if it was still below its child when that
                                was signalled, or as soon as it is older than every living child
    any of them ends            the spawner reaps it, so there are no zombies

Messages are JSON, one a packet (SOCK_SEQPACKET):

    hub → spawner   {"do": "start", "key", "argv", "env", "cwd", "limits", "privileges"}, with stdin, stdout and stderr
                    {"do": "signal", "key", "signal"}: to its whole group
    spawner → hub   {"key", "started": pid} | {"key", "failed": why, "later": whether a retry may work}
                    {"key", "code": n, "signal": n}
"""

import array
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

LARGEST = 512 * 1024
"""Bytes of a message: command and environment of a child."""
MARK_VARIABLE = "DRAGOMAN_DESCENDANT"
"""The variable that every descendant inherits: the hub's mark, then the child's key."""
KILL_SECONDS = 30.0
RESOURCES = {
    "core": resource.RLIMIT_CORE,
    "open_files": resource.RLIMIT_NOFILE,
    "memory": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "processes": resource.RLIMIT_NPROC,
    "file_size": resource.RLIMIT_FSIZE,
}
OOM_SCORE = b"300"
"""When memory runs out the kernel kills a child before the hub."""

_libc = ctypes.CDLL(None, use_errno=True)


class Spawner:
    def __init__(self, hub: socket.socket, mark: str) -> None:
        self._hub = hub
        self._mark = mark
        self._keys: dict[int, int] = {}  # pid → key
        self._pids: dict[int, int] = {}  # key → pid
        self._descendants_of: dict[int, set[int]] = {}  # key → all descendants when it was signalled
        self._start_pipes: dict[int, int] = {}  # the pipe that reports whether a start succeeded → key
        self._poll = select.poll()
        self._wake, self._signalled = os.pipe()
        os.set_blocking(self._signalled, False)
        os.set_blocking(self._wake, False)
        self._ending = False

    def serve(self) -> None:
        """Serve until the hub is gone or sends SIGTERM; then no descendant is left."""
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.set_wakeup_fd(self._signalled, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._end)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._poll.register(self._hub, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        try:
            while not self._ending:
                for descriptor, _ in self._poll.poll():
                    if descriptor == self._hub.fileno():
                        self._receive()
                    elif descriptor == self._wake:
                        self._drain_wakeups()
                        self._reap()
                    elif descriptor in self._start_pipes:  # unless it was reported already, when the child was reaped
                        self._report_start(descriptor)
        except (BrokenPipeError, ConnectionError):
            pass
        finally:
            self._kill_all()

    def _end(self, *_: object) -> None:
        self._ending = True

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake, 4096)
        except BlockingIOError:
            pass

    def _send(self, **answer: object) -> None:
        self._hub.send(json.dumps(answer).encode())

    # -- starting

    def _receive(self) -> None:
        room = array.array("i")
        flags = socket.MSG_CMSG_CLOEXEC
        data, ancillary, _, _ = self._hub.recvmsg(LARGEST, socket.CMSG_LEN(3 * room.itemsize), flags)
        if not data:
            self._ending = True
            return
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                room.frombytes(payload[: len(payload) - len(payload) % room.itemsize])
        request = json.loads(data)
        if request["do"] == "start":
            self._start(request, list(room))
        elif request["do"] == "signal" and request["key"] in self._pids:
            pid = self._pids[request["key"]]
            self._descendants_of.setdefault(request["key"], set()).update(descendants(pid))
            _kill_group(pid, request["signal"])

    def _start(self, request: "dict[str, Any]", streams: "list[int]") -> None:
        key = request["key"]
        request["env"][MARK_VARIABLE] = f"{self._mark}:{key}"
        pipe, failure_pipe = os.pipe()
        os.set_blocking(pipe, False)
        us = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            for descriptor in (*streams, pipe, failure_pipe):
                os.close(descriptor)
            self._send(key=key, failed=f"no process can be started now: {error.strerror}", later=True)
            return
        if pid == 0:
            _exec(request, streams, failure_pipe, us)
        for descriptor in (*streams, failure_pipe):
            os.close(descriptor)
        self._keys[pid], self._pids[key] = key, pid
        self._start_pipes[pipe] = key
        self._poll.register(pipe, select.POLLIN)

    def _report_start(self, pipe: int) -> None:
        """Report a start. It succeeded if exec closed the pipe without an error in it."""
        try:
            why = os.read(pipe, 4096)
        except BlockingIOError:  # another pipe with the same number
            return
        key = self._start_pipes.pop(pipe)
        self._poll.unregister(pipe)
        os.close(pipe)
        if why:
            self._send(key=key, failed=why.decode("utf-8", "replace"))
        elif key in self._pids:
            self._send(key=key, started=self._pids[key])

    # -- ending

    def _reap(self) -> None:
        """Reap everything that has ended. A child's group is killed while the child still holds its number."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if ended is None:
                break
            pid = ended.si_pid
            key = self._keys.pop(pid, None)
            if key is not None:
                _kill_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if key is not None:
                for pipe in [found for found, of in self._start_pipes.items() if of == key]:
                    self._report_start(pipe)  # it ended before its start was reported
                del self._pids[key]
                for descendant in self._descendants_of.pop(key, set()).intersection(descendants(os.getpid())):
                    _kill(descendant, signal.SIGKILL)
                by_exit = ended.si_code == os.CLD_EXITED
                self._send(
                    key=key, code=ended.si_status if by_exit else None, signal=None if by_exit else ended.si_status
                )
        self._kill_orphans()

    def _kill_orphans(self) -> None:
        """Kill orphans whose child has ended."""
        us = os.getpid()
        orphans = [pid for pid, parent in parents().items() if parent == us and pid not in self._keys]
        for pid in orphans:
            found = mark_of(pid)
            if found is None:
                if filters_of(pid) > filters_of(us) or self._is_older_than_all_children(pid):
                    _kill(pid, signal.SIGKILL)
                continue
            mark, _, key = found.rpartition(":")
            if mark == self._mark and key.isdigit() and int(key) not in self._pids:
                _kill(pid, signal.SIGKILL)

    def _is_older_than_all_children(self, pid: int) -> bool:
        """Whether no living child can have started it."""
        when = start_time(pid)
        return when is not None and all(when < (start_time(child) or 0) for child in self._keys)

    def _kill_all(self) -> None:
        self._hub.close()
        until = time.monotonic() + KILL_SECONDS
        while time.monotonic() < until:
            left = descendants(os.getpid())
            for pid in left:
                _kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                if not left:
                    return
            time.sleep(0.002)


def _exec(request: "dict[str, Any]", streams: "list[int]", failure_pipe: int, parent: int) -> None:
    """The child's first steps; ends in exec, or with an error in the pipe to the spawner."""
    try:
        os.setsid()
        _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the request to the kernel
            os._exit(1)
        if not request["privileges"]:
            _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in (*range(1, 32), signal.SIGRTMIN):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for place, descriptor in enumerate(streams):
            os.dup2(descriptor, place, inheritable=True)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != failure_pipe:
                try:
                    os.close(int(name))
                except OSError:  # the descriptor that listed them
                    pass
        _raise_oom_score()
        os.umask(0o077)
        try:
            os.chdir(request["cwd"])
        except OSError as error:
            os.write(failure_pipe, f"the directory {request['cwd']!r} cannot be entered: {error.strerror}".encode())
            os._exit(127)
        for name, most in request["limits"].items():
            _limit(RESOURCES[name], most)
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except BaseException as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        os.write(failure_pipe, f"{request['argv'][0]!r} cannot be started: {why}".encode("utf-8", "replace"))
    finally:
        os._exit(127)


def _limit(which: int, most: int) -> None:
    """Set the soft and the hard limit; never above the spawner's own."""
    _, hard = resource.getrlimit(which)
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(which, (allowed, allowed))


def _raise_oom_score() -> None:
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(OOM_SCORE)
    except OSError:
        pass


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_group(pid: int, number: int) -> None:
    """Signal its group; or the process itself, before it has a group."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        _kill(pid, number)
    except PermissionError:
        pass


# -- processes and their parents, from /proc. The hub uses these too, to find processes that were left over.


def _stat(pid: "int | str") -> "list[bytes] | None":
    """The fields of its /proc/N/stat from the third on; None if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def parents() -> "dict[int, int]":
    """Every process and its parent."""
    stats = {int(name): _stat(name) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: int(fields[1]) for pid, fields in stats.items() if fields}


def descendants(root: int) -> "list[int]":
    found, of = [], parents()
    children: dict[int, list[int]] = {}
    for pid, parent in of.items():
        children.setdefault(parent, []).append(pid)
    next_ones = list(children.get(root, ()))
    while next_ones:
        pid = next_ones.pop()
        found.append(pid)
        next_ones.extend(children.get(pid, ()))
    return found


def mark_of(pid: int) -> "str | None":
    """The mark in its environment at its start, if this process may read it."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            answer = file.read()
    except OSError:
        return None
    for pair in answer.split(b"\0"):
        name, _, value = pair.partition(b"=")
        if name == MARK_VARIABLE.encode():
            return value.decode("ascii", "replace")
    return None


def start_time(pid: int) -> "int | None":
    """When it was started, in the kernel's ticks."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def filters_of(pid: int) -> int:
    """How many seccomp filters it has (since Linux 5.9)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            found = [line.split()[1] for line in file if line.startswith(b"Seccomp_filters:")]
    except OSError:
        return 0
    return int(found[0]) if found else 0


def main() -> None:
    hub = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(hub.fileno(), False)
    Spawner(hub, sys.argv[2]).serve()


if __name__ == "__main__":
    main()
