"""A real hub: a process of its own on a free port, that can be killed, stopped and started again on the same data.

Judged only from outside: what it prints, what it answers, what its exit code is. It dies with the tests, however
they end (PR_SET_PDEATHSIG), and so does its writer, which asks the same of its own parent.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from tests.support.chiffon import HttpClient, Orchestrator, Worker
from tests.support.nest import Hatched, die_with_parent, nest

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that anything may take on a busy machine; a wait ends as soon as what it waits for is there."""

QUICK = {
    "DRAGOMAN_RULES__IDLE_SECONDS": "60",
    "DRAGOMAN_RULES__GRACE_SECONDS": "0.2",
    "DRAGOMAN_RULES__RETRY_DELAYS_SECONDS": "0,0.05,0.1,0.2,0.2,0.2,0.2,0.2",
    "DRAGOMAN_RULES__UNREACHABLE_DELAYS_SECONDS": "0,60,60,60",
    "DRAGOMAN_RULES__BREAKER_PAUSE_SECONDS": "0.3",
    "DRAGOMAN_RULES__POLL_LEASE_SECONDS": "0.5",
    "DRAGOMAN_RULES__NOTICE_ATTEMPTS": "50",
}
"""The rules at a pace at which a test can watch them. Only the idle clock is slow, because on a busy machine everybody
is silent for seconds, and the time for an agent to come: a test that waits for one of them says its own."""

EARLY = ("DRAGOMAN_TLS__", "DRAGOMAN_COVEN__TLS_")
"""Looked at before gRPC is imported: such a hub cannot be forked from one that has imported it."""


def until(condition: Callable[[], T], what: str = "", seconds: float = PATIENCE) -> T:
    """The first true value of `condition`, looked at every few milliseconds; where it is long in coming, less often: a
    look costs the processor time that what it waits for could need."""
    began = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - began
        assert waited < seconds, f"not within {seconds:g} s: {what or condition}"
        time.sleep(min(0.005 + waited / 20, 0.04))


class HubProcess:
    """`settings` are environment variables; `wrap` goes before the command (strace, for instance)."""

    def __init__(
        self, home: Path, *, data: Path | None = None, wrap: tuple[str, ...] = (), **settings: str | None
    ) -> None:
        self.home = home
        self.data = data or home / "data"
        self.settings: dict[str, str | None] = {**QUICK, **settings}
        self.wrap = wrap
        self.ready: dict[str, Any] = {}
        self.process: subprocess.Popen[bytes] | Hatched | None = None
        self._starts = 0
        self._port = 0
        self._tokens: dict[str, str] = {}
        home.mkdir(parents=True, exist_ok=True)

    # -- life -------------------------------------------------------------------------------------------------

    def launch(self, **settings: str | None) -> subprocess.Popen[bytes] | Hatched:
        """Start without waiting: for hubs that shall refuse to."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
        environment |= {k: v for k, v in {**self.settings, **settings}.items() if v is not None}
        self._starts += 1
        arguments = self.arguments()
        with open(self.log, "ab") as log:
            if not self.wrap and not any(name.startswith(EARLY) for name in environment):
                self.process = nest().hatch(arguments, cwd=self.home, env=environment, stderr=log)
                return self.process
            self.process = subprocess.Popen(
                [*self.wrap, sys.executable, "-m", "dragoman.cli", *arguments],
                cwd=self.home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        return self.process

    def arguments(self) -> list[str]:
        """Of the command line."""
        ports = ("--port", str(self._port), "--grpc-port", "0")
        return ["dev", "--no-demo", *ports, "--ready-json", "--data", str(self.data)]

    def start(self, **settings: str | None) -> HubProcess:
        """Until it says that it serves."""
        process = self.launch(**settings)
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"no ready line:\n{self.log.read_text()}"
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait(PATIENCE)}:\n{self.log.read_text()[-3000:]}"
        self.ready = json.loads(line)
        return self

    def kill(self) -> None:
        """kill -9, and nothing of it runs any more."""
        if self.process is not None:
            self.process.kill()
            self.died()

    def died(self, seconds: float = PATIENCE) -> int:
        """Wait for its end; its exit code (negative: the signal)."""
        assert self.process is not None
        code = self.process.wait(seconds)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None
        return code

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.died()

    def restart(self, **settings: str | None) -> HubProcess:
        """kill -9 if it still runs, and start it on the same data."""
        self.kill()
        return self.start(**settings)

    def return_to_its_port(self) -> HubProcess:
        """Start it after its end, where clients that reconnect will look for it."""
        self._port = int(self.url.rpartition(":")[2])
        return self.start()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        return self.home / "hub.log"

    @property
    def url(self) -> str:
        return str(self.ready["http"])

    @property
    def database(self) -> Path:
        return self.data / "hub.sqlite"

    # -- endpoints ------------------------------------------------------------------------------------------------

    @property
    def admin(self) -> HttpClient:
        return HttpClient(self.url, self.ready["admin_token"])

    def token(self, id: str, kind: str) -> str:
        """The token of an agent, added when it is first asked for."""
        if id not in self._tokens:
            made = self.admin.post("/api/v1/agents", {"agent_id": id, "protocol": "chiffon", "kind": kind})
            assert made.status == 201, made
            self._tokens[id] = made.json["token"]
        return self._tokens[id]

    @property
    def tokens(self) -> dict[str, str]:
        return dict(self._tokens)

    def orchestrator(self, id: str = "boss") -> Orchestrator:
        return Orchestrator(self.url, self.token(id, "orchestrator"), id)

    def worker(self, id: str = "i1", kind: str = "infra", **fields: Any) -> Worker:
        """An agent that has registered."""
        worker = Worker(self.url, self.token(id, kind), id, kind)
        answer = worker.register(**fields)
        assert answer.status == 200, answer
        return worker

    def task(self, id: str) -> dict[str, Any]:
        answer = self.admin.get(f"/api/v1/tasks/{id}")
        assert answer.status == 200, answer
        return dict(answer.json)

    def status(self, id: str) -> str:
        return str(self.task(id)["status"])

    def tasks(self, **where: str) -> list[dict[str, Any]]:
        return self._pages("tasks", where)

    def dead_letters(self) -> set[str]:
        """The tasks that were given up."""
        return {dead_letter["task_id"] for dead_letter in self._pages("deadletters", {})}

    def _pages(self, what: str, where: dict[str, str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query = where | {"limit": "500"}
        while True:
            page = self.admin.get(f"/api/v1/{what}?{urlencode(query)}").json
            found += page[what]
            if not page.get("next"):
                return found
            query["cursor"] = page["next"]

    def gauge(self, name: str) -> float:
        """A figure of /metrics, all labels summed."""
        text = self.admin.get("/metrics").body.decode()
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    @property
    def pending(self) -> float:
        """Unfinished tasks and undelivered news."""
        return self.gauge("dragoman_tasks") + self.gauge("dragoman_deliveries")


@contextmanager
def running(
    home: Path, *, data: Path | None = None, wrap: tuple[str, ...] = (), **settings: str | None
) -> Iterator[HubProcess]:
    """A hub for the length of a block, killed at its end."""
    hub = HubProcess(home, data=data, wrap=wrap, **settings)
    try:
        yield hub.start()
    finally:
        hub.kill()
