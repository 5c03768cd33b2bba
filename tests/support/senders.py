"""Senders of several protocols at once, who write down what was acknowledged to them, and what of it is there later."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

from websockets.exceptions import ConnectionClosed

from tests.conformance.a2acp.plain import PROVISION
from tests.conformance.a2acp.plain import Plain as Contracted
from tests.conformance.agentmsg import words
from tests.conformance.agentmsg.plain import Plain
from tests.support.chiffon import HttpClient, Orchestrator, task_of
from tests.support.fleet import BROKEN
from tests.support.forge import ForgeClient
from tests.support.hubproc import HubProcess

JOB = {"type": "build", "requiredRole": "worker", "payload": {"n": 1}}
FORGE = {"planner": "planner", "hand": "worker"}
GONE = (*BROKEN, ConnectionClosed, AssertionError, KeyError)
"""What senders meet when the disk, and then the hub, is gone: no connection, or a refusal."""


class Senders:
    """Senders of several protocols. `acknowledged`: by sender, what was acknowledged to it, and when."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        hub.worker()
        self.boss = Orchestrator(hub.url, hub.token("boss", "orchestrator"), keep=True)
        self.ada, self.bob = Plain(hub, "ada"), Plain(hub, "bob")
        self._forge = {id: self._add(id, protocol="forge", role=role) for id, role in FORGE.items()}
        self.bond = Contracted(hub, "una").shake(Contracted(hub, "vic").serves(PROVISION))
        self.acknowledged: dict[str, dict[str, float]] = {}
        self.files: dict[str, tuple[str, bytes]] = {}
        """By task: the file that is attached to it, and what is in it."""
        self._stop = threading.Event()
        self._senders: dict[str, Callable[[], Iterator[str]]] = {
            "chiffon": self._chiffon,
            "agentmsg": self._messages,
            "forge": self._forge_tasks,
            "a2acp": self._requests,
            "files": self._with_files,
        }

    def _add(self, id: str, **fields: str) -> str:
        made = self.hub.admin.post("/api/v1/agents", {"agent_id": id, **fields})
        assert made.status == 201, made
        return str(made.json["token"])

    @property
    def count(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    @contextlib.contextmanager
    def sending(self, *names: str) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(name,)) for name in names or self._senders]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join(60)

    def _run(self, name: str) -> None:
        mine = self.acknowledged.setdefault(name, {})
        with contextlib.suppress(*GONE):
            for id in self._senders[name]():
                mine[id] = time.monotonic()
                if self._stop.is_set():
                    return

    def _chiffon(self) -> Iterator[str]:
        while True:
            request, answer = self.boss.submit()
            assert answer.status == 202
            yield task_of(request)

    def _messages(self) -> Iterator[str]:
        while True:
            yield self.ada.say("ERROR_REPORT", "bob", words.error("ada", None, message="?"))["id"]

    def _forge_tasks(self) -> Iterator[str]:
        boss = ForgeClient(self.hub.url, "planner", self._forge["planner"])
        while True:
            yield boss.ask("submit-task", JOB)["task"]["id"]

    def _requests(self) -> Iterator[str]:
        while True:
            request = self.bond.request()
            self.bond.source.say(request)
            yield request["payload"]["correlation_id"]

    def _with_files(self) -> Iterator[str]:
        admin = HttpClient(self.hub.url, self.hub.ready["admin_token"], keep=True)
        while True:
            data = os.urandom(5000)
            kept = admin.ask("POST", "/api/v1/files?name=x", data)
            assert kept.status == 201, kept
            wish = {"type": "build", "agent": "hand", "input": {}, "attachments": [kept.json["id"]]}
            made = admin.post("/api/v1/tasks", wish)
            assert made.status == 202, made
            self.files[made.json["id"]] = kept.json["id"], data
            yield made.json["id"]

    # -- after the cut, with the hub on the same data

    def lost(self, cut_at: float) -> dict[str, set[str]]:
        """By sender: what was acknowledged before the cut and is not there."""
        tasks = self.hub.tasks()
        there = {task["id"] for task in tasks}
        if "agentmsg" in self.acknowledged:
            there |= {message["id"] for message in self.bob.hear()}
        noted = {name: {id for id, at in ids.items() if at < cut_at} for name, ids in self.acknowledged.items()}
        asked = noted.pop("a2acp", set())
        lost = {name: ids - there for name, ids in noted.items()}
        if len(asked) > sum(task["protocol_in"] == "a2acp" for task in tasks):  # its tasks have names of their own
            lost["a2acp"] = asked
        for id in noted.get("files", set()) - lost.get("files", set()):
            file, data = self.files[id]
            found = self.hub.admin.get(f"/api/v1/tasks/{id}/files/{file}")
            if (found.status, found.body) != (200, data):
                lost["files"].add(f"{file} of {id}")
        return {name: ids for name, ids in lost.items() if ids}
