"""A cluster of real hub processes over a real PostgreSQL: nodes that can be killed, stopped and started again.

`Cluster` stands where one hub does in the tests of a single one (`Fleet`, the ledger): its address is that of any node
that runs, a new one each time, as behind a load balancer.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.chiffon import HttpClient, Party
from tests.support.cli import dragoman
from tests.support.fleet import BROKEN, Fleet
from tests.support.hubproc import HubProcess, until

REALM = "default"


class Node(HubProcess):
    """One node. `url` is its own."""

    def __init__(self, home: Path, store: str, name: str, *, realm: str = REALM, **settings: str | None) -> None:
        super().__init__(home, **{"DRAGOMAN_STORE__URL": store, "DRAGOMAN_LOG__LEVEL": "info", **settings})
        self.name = name
        self.realm = realm
        self.frozen = False

    def arguments(self) -> list[str]:
        ports = ("--port", str(self._port), "--grpc-port", "0")
        named = ("--node", self.name, "--realm", self.realm)
        return ["serve", *named, *ports, "--ready-json", "--data", str(self.data)]

    def kill(self) -> None:
        self.thaw()
        super().kill()

    def freeze(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        if self.frozen and self.process is not None:
            os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    @property
    def ready_detail(self) -> tuple[int, str]:
        """Status and sentence of `/readyz`; 0 where it does not answer."""
        try:
            answer = HttpClient(self.url).ask("GET", "/readyz", timeout=2.0)
            return answer.status, str(answer.json["detail"])
        except (*BROKEN, KeyError):
            return 0, ""

    @property
    def leads(self) -> bool:
        status, detail = self.ready_detail
        return status == 200 and f"{self.name} leads" in detail

    @property
    def is_ready(self) -> bool:
        return self.ready_detail[0] == 200


class Cluster(HubProcess):
    """What `HubProcess` is for one hub. Nothing of it runs but its nodes."""

    def __init__(
        self, home: Path, store: str, names: str = "ab", *, realm: str = REALM, **settings: str | None
    ) -> None:
        super().__init__(home)
        self.store = store
        self.realm = realm
        self.nodes = {name: Node(home / name, store, name, realm=realm, **settings) for name in names}
        self._turn = itertools.count()

    # -- life

    def start_all(self) -> Cluster:
        init(self.store, self.realm)
        first, *others = self.nodes.values()
        first.start()
        self.ready = first.ready
        for node in others:
            share_key(first, node)
            node.start()
        return self

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    # -- who is there

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.process is not None and not node.frozen]

    @property
    def url(self) -> str:
        """Of any node that runs."""
        here = self.running
        return here[next(self._turn) % len(here)].url if here else "http://127.0.0.1:9"

    @property
    def admin(self) -> HttpClient:
        """At a node that is ready."""
        node = until(lambda: next((node for node in self.running if node.is_ready), None), "a node that is ready")
        return HttpClient(node.url, self.ready["admin_token"])

    def leader(self) -> Node:
        return until(lambda: next((node for node in self.running if node.leads), None), "a node that leads")

    def follower(self) -> Node:
        return until(
            lambda: next((node for node in self.running if node.is_ready and not node.leads), None), "one that follows"
        )

    def epoch(self) -> int:
        return int(self.admin.get("/api/v1/cluster").json["epoch"])

    def fleet(self, ledger: Any, **more: Any) -> ClusterFleet:
        return ClusterFleet(self, ledger, **more)


class ClusterFleet(Fleet):
    """Clients that take 503 of a node without a leader for what it is: ask again, any node."""

    most_unanswered = 200

    def _poll(self, party: Party) -> list[dict[str, Any]]:
        got: list[dict[str, Any]] = []
        try:
            party.url = self.hub.url
            got = party.poll(wait=0.5, most=50)
            if got:
                party.ack(*got)
        except (*BROKEN, AssertionError):
            party.close()
            time.sleep(0.02)
        return got


def init(store: str, realm: str = REALM) -> None:
    done = dragoman("cluster", "init", "--store", store, "--realm", realm)
    assert done.code == 0, done


def share_key(source: Node, target: Node) -> None:
    """What an operator gives to every node: the master key."""
    key = source.data / "keys" / "master.json"
    place = target.data / "keys"
    if key.exists() and not (place / "master.json").exists():
        place.mkdir(parents=True, exist_ok=True)
        for directory in (target.data, place):
            directory.chmod(0o700)
        (place / "master.json").write_bytes(key.read_bytes())
        (place / "master.json").chmod(0o600)


@contextmanager
def cluster(home: Path, store: str, names: str = "ab", **more: Any) -> Iterator[Cluster]:
    made = Cluster(home, store, names, **more)
    try:
        yield made.start_all()
    finally:
        made.kill_all()
