"""Clients at work at all nodes of a cluster while nodes and PostgreSQL fail, judged by the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import task_of
from tests.support.cluster import Cluster
from tests.support.fleet import BROKEN
from tests.support.hubproc import PATIENCE, until
from tests.support.ledger import Ledger

LONG = {"DRAGOMAN_RULES__IDLE_SECONDS": "20", "DRAGOMAN_RULES__UNREACHABLE_DELAYS_SECONDS": "60,60,60,60"}
"""Settings of a hub whose agents may be away for longer than a failover takes."""


def command(hub: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DRAGOMAN_")}
    return subprocess.run(
        [sys.executable, "-m", "dragoman.cli", *arguments], capture_output=True, text=True, timeout=PATIENCE,
        stdin=subprocess.DEVNULL, env={**environment, "DRAGOMAN_TOKEN": hub.ready["admin_token"]},
    )  # fmt: skip


def audit_is_whole(hub: Cluster) -> None:
    done = command(hub, "audit", "verify", "--hub", hub.follower().url)
    assert done.returncode == 0, done.stdout + done.stderr


class TimedLedger(Ledger):
    """Writes down when, too."""

    def __init__(self) -> None:
        super().__init__()
        self.began: dict[str, float] = {}
        self.accepted: list[float] = []
        """When each acknowledgment came."""
        self.waits: list[float] = []
        """Seconds from the first attempt to send a request to its acknowledgment."""
        self.round_trips: list[float] = []
        """Seconds from there to its outcome."""

    def sends(self, request: Mapping[str, Any]) -> None:
        super().sends(request)
        self.began[task_of(request)] = time.monotonic()

    def was_acknowledged(self, request: Mapping[str, Any]) -> None:
        super().was_acknowledged(request)
        now = time.monotonic()
        self.accepted.append(now)
        self.waits.append(now - self.began[task_of(request)])

    def hears(self, message: Mapping[str, Any]) -> None:
        super().hears(message)
        if message["type"] == "work_result" and (began := self.began.pop(task_of(message), None)) is not None:
            self.round_trips.append(time.monotonic() - began)

    def longest_pause(self, start: float, end: float) -> float:
        """The longest time within which nothing was acknowledged."""
        moments = [start, *(at for at in self.accepted if start <= at <= end), end]
        return max(later - earlier for earlier, later in pairwise(moments))


class AtMostOnce:
    """An agent that tells another one what is promised at most once, and that one, which never acknowledges."""

    def __init__(self, hub: Cluster) -> None:
        self.hub = hub
        self.taken = 0
        self.came: Counter[str] = Counter()
        self._sender, self._receiver = Plain(hub, "ada"), Plain(hub, "bob")
        self._over = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]

    def __enter__(self) -> AtMostOnce:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)

    def _send(self) -> None:
        """Each until a node has taken it, and the same once more."""
        while not self._over.wait(0.05):
            message = self._sender.message("HEARTBEAT", "bob", {"agent_id": "ada"}, priority="low")
            answers = 0
            while answers < 2 and not self._over.is_set():
                try:
                    answers += self._sender.send(message).status == 202
                except BROKEN:
                    self._over.wait(0.02)
            self.taken += answers == 2

    def _receive(self) -> None:
        while not self._over.is_set():
            try:
                for one in self._receiver.poll(0.5):
                    self.came[one["message"]["id"]] += 1
            except (*BROKEN, AssertionError, KeyError):
                self._over.wait(0.02)


class Load:
    """Clients at work during a block; at its end everything that was acknowledged is answered, once, in order."""

    def __init__(self, hub: Cluster, seed: int = 1, ledger: Ledger | None = None, **clients: int) -> None:
        self.hub = hub
        self.seed = seed
        self.ledger = ledger or Ledger()
        self._clients = clients

    def __enter__(self) -> Load:
        self.fleet = self.hub.fleet(self.ledger, seed=self.seed, **self._clients)
        self.fleet.__enter__()
        self.more()
        return self

    def more(self, count: int = 5) -> None:
        """So many acknowledgments more."""
        before = len(self.ledger.acknowledged)
        until(lambda: len(self.ledger.acknowledged) >= before + count or self.fleet.failures, "traffic")

    def __exit__(self, kind: object, *_: object) -> None:
        fleet, ledger = self.fleet, self.ledger
        try:
            if kind is None:
                self.more()
                fleet.sending.clear()
                self._drain()
        finally:
            fleet.__exit__()
        assert fleet.failures == []
        if kind is None:
            assert ledger.verdict(self.hub.dead_letters()) == [], f"seed {self.seed}"

    def _drain(self) -> None:
        fleet, ledger = self.fleet, self.ledger
        try:
            until(lambda: not ledger.unanswered or fleet.failures, "every acknowledged task is answered")
            until(lambda: self.hub.pending == 0 or fleet.failures, "nothing is pending")
        except AssertionError as late:
            late.add_note(f"seed {self.seed}: {len(ledger.unanswered)} of {len(ledger.acknowledged)} unanswered")
            late.add_note("\n".join(fleet.where()))
            for task in sorted(ledger.unanswered)[:3]:
                late.add_note(self.hub.admin.get(f"/api/v1/tasks/{task}/why").body.decode())
            raise
