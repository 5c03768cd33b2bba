"""An agent that is a WebAssembly module: the process that the spawner starts for it, between the hub and the module.

    python -m dragoman.supervisor.wasm_agent PLAN -- MODULE ARG…

Each task is one run of the module, in a fork of its own (`sandbox.wasm_host`), with its own memory, fuel and time:
nothing of one task is left when the next begins. The module's stdin is one line, the `notify:task-assigned`, and then
its end. Its output is the agent's: forge's messages, and log lines.

    a module that…                       its task
    reports `completed` or `failed`      is that
    ends without a result                failed: how it ended
    uses up its time, fuel or memory     failed: what it used up; the next run may do better on other input, not on this
    is cancelled, or the hub goes        ended with it

No thread and no event loop: it forks.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import select
import signal
import sys
from collections.abc import Iterable
from typing import Any

from dragoman.sandbox import launcher, wasm_host

LONGEST_LINE = 1 << 20
AT_ONCE = 1 << 16
REASONS = {
    wasm_host.TIME: "the module has used up its time",
    wasm_host.FUEL: "the module has used up its fuel",
    wasm_host.REFUSED: "the module could not be run; the agent's log says why",
    wasm_host.TRAPPED: "the module trapped",
}


def argv(command_line: tuple[str, ...]) -> tuple[str, ...]:
    """What starts an agent, from what would run its module once."""
    host = command_line.index(wasm_host.__name__)
    return (*command_line[:host], __name__, *command_line[host + 1 :])


class Lines:
    """Whole lines from pieces; those beyond the limit are dropped."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._dropping = False

    def feed(self, piece: bytes) -> Iterable[bytes]:
        self._kept += piece
        *whole, rest = bytes(self._kept).split(b"\n")
        self._kept = bytearray(rest)
        for line in whole:
            if not self._dropping and len(line) <= LONGEST_LINE:
                yield line
            self._dropping = False
        if len(self._kept) > LONGEST_LINE:
            self._kept.clear()
            self._dropping = True


class ModuleRun:
    """One task, and the run of the module for it."""

    def __init__(self, task: str, pid: int, stdout: int) -> None:
        self.task = task
        self.pid = pid
        self.stdout = stdout
        self.end = os.pidfd_open(pid)
        self.lines = Lines()
        self.found = False
        """Whether the module itself reported what became of the task."""
        self.cancelled = False


class ModuleHost:
    def __init__(self, plan: dict[str, Any], words: list[str]) -> None:
        self._plan = plan
        self._words = words
        self._environ = dict(os.environ)
        self._jobs: dict[str, ModuleRun] = {}
        self._by: dict[int, ModuleRun] = {}
        self._results = Lines()
        self._poll = select.poll()
        self._leaving = False
        self._sent = 0

    def serve(self) -> int:
        """Until the hub says so, or is gone."""
        import wasmtime  # noqa: F401  (before the first fork)

        wasm_host.engine(self._plan["limits"]["fuel"] is not None)
        self._poll.register(0, select.POLLIN)
        while not self._leaving or self._jobs:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    self._listen()
                elif descriptor in self._by:
                    job = self._by[descriptor]
                    if descriptor == job.end:
                        self._on_end(job)
                    else:
                        self._on_output(job)
        return 0

    # -- the hub

    def _listen(self) -> None:
        piece = os.read(0, AT_ONCE)
        if not piece:
            self._poll.unregister(0)
            self._leaving = True
            for job in self._jobs.values():
                self._stop(job)
            return
        for line in self._results.feed(piece):
            message = json.loads(line)
            payload = message.get("payload") or {}
            match message["type"]:
                case "notify:task-assigned":
                    self._start(payload["task"]["id"], line)
                case "notify:task-cancelled" if payload.get("taskId") in self._jobs:
                    self._stop(self._jobs[payload["taskId"]])
                case "notify:shutdown":
                    self._leaving = True

    def _start(self, task: str, order: bytes) -> None:
        if task in self._jobs:
            return  # it was sent again
        # A file takes the order: a pipe would hold only so much of it.
        stdin = os.memfd_create("order")
        os.write(stdin, order + b"\n")
        os.lseek(stdin, 0, os.SEEK_SET)
        out, stdout = os.pipe()
        host = os.getpid()
        pid = os.fork()
        if pid == 0:
            request = {"plan": self._plan, "words": self._words, "environ": self._environ}
            wasm_host.become(request, [stdin, stdout, 2], host)
        os.close(stdin)
        os.close(stdout)
        job = self._jobs[task] = ModuleRun(task, pid, out)
        for descriptor in (job.stdout, job.end):
            self._by[descriptor] = job
            self._poll.register(descriptor, select.POLLIN)

    def _stop(self, job: ModuleRun) -> None:
        job.cancelled = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.pid, signal.SIGKILL)

    # -- the module

    def _on_output(self, job: ModuleRun) -> bool:
        """Whether there may be more."""
        piece = os.read(job.stdout, AT_ONCE)
        for line in job.lines.feed(piece):
            job.found = job.found or _is_final(line, job.task)
            _write(line)
        if not piece:
            self._unregister(job.stdout)
        return bool(piece)

    def _on_end(self, job: ModuleRun) -> None:
        while job.stdout in self._by and self._on_output(job):
            pass
        _, status = os.waitpid(job.pid, 0)
        self._unregister(job.end)
        del self._jobs[job.task]
        if not (job.found or job.cancelled):
            code = os.waitstatus_to_exitcode(status)
            how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
            self._fail(job.task, REASONS.get(code, f"the module ended ({how}) without a result"))

    def _unregister(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._by[descriptor]
        os.close(descriptor)

    def _fail(self, task: str, why: str) -> None:
        self._sent += 1
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        report = {
            "type": "request:update-task",
            "id": f"module-{os.getpid()}-{self._sent}",
            "timestamp": now,
            "payload": {"taskId": task, "status": "failed", "error": why, "retryable": False},
        }
        _write(json.dumps(report).encode())


def _is_final(line: bytes, task: str) -> bool:
    """Whether this says what became of the task, so that this process need not report it."""
    if b'"request:update-task"' not in line and b'"event:progress"' not in line:
        return False
    try:
        payload = json.loads(line)["payload"]
        return payload["taskId"] == task and (
            payload.get("status") in ("completed", "failed") or (payload.get("progress") == 1 and "result" in payload)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _write(line: bytes) -> None:
    rest = memoryview(line + b"\n")
    while rest:
        rest = rest[os.write(1, rest) :]


def main(words: list[str]) -> int:
    launcher.close_all_but(set())
    return ModuleHost(json.loads(words[0]), words[2:]).serve()


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
