"""A whole hub in a thread of its own: real endpoints on a real port of loopback, SQLite below, somebody of every
protocol.

Whoever tries it is synchronous, as hypothesis and schemathesis are.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from dragoman.app.endpoints import ENDPOINTS
from dragoman.app.settings import CovenSettings, Server, Settings
from dragoman.app.wiring import COVEN, hub
from dragoman.protocols.a2acp.types import BROKER_ID
from tests.conformance.a2acp.samples import CAPABILITY
from tests.fuzz import samples

PATIENCE = 60.0
NAMED = {"task_id": "tasks", "agent_id": "agents", "delivery_id": "deliveries", "file_id": "files"}


class Stage:
    """The hub as everybody sees it. `pool` are the ids that were seen, and some that never were."""

    def __init__(self, url: str, admin: str) -> None:
        self.url = url
        self.admin = admin
        self.http = httpx2.Client(base_url=url, timeout=PATIENCE, verify=False)
        self.tokens: dict[str, str] = {}
        self.speaker: dict[str, str] = {}
        self.pass_to_broker = ""
        """Who the a2acp agent is, and its token for messages to the broker."""
        self.pool: defaultdict[str, list[str]] = defaultdict(list)
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()

    def add(self, agent: str, protocol: str) -> None:
        wish = {"agent_id": agent, "protocol": protocol, "kind": "any", "domain": "lab", "version": "1.2.3"}
        answer = self.ask("POST", "/api/v1/agents", json=wish)
        assert answer.status_code == 201, answer.text
        self.tokens[protocol] = answer.json()["token"]

    def ask(self, method: str, path: str, token: str | None = None, **more: Any) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {token or self.admin}"}
        return self.http.request(method, path, headers=headers, **more)

    def know(self, told: Any, of: str) -> None:
        """Remember what looks like an id, by what it is of."""
        if isinstance(told, list):
            for one in told:
                self.know(one, of)
        if not isinstance(told, dict):
            return
        for name, value in told.items():
            kind = of if name == "id" else NAMED.get(name)
            if kind is None or not isinstance(value, str):
                self.know(value, of)
            elif value not in self.pool[kind]:
                self.pool[kind].append(value)
                del self.pool[kind][:-50]

    def settle_in(self) -> None:
        """Agents of every protocol; tasks that wait, one that was given to an agent, one that was cancelled."""
        self.add("other-agent", "agentmsg")
        for protocol in (*ENDPOINTS, COVEN):
            self.add(f"{protocol}-agent", protocol)
            self.pool["agents"].append(f"{protocol}-agent")
        for agent in ("chiffon-agent", "agentmsg-agent", "forge-agent", "chiffon-agent"):
            made = self.ask("POST", "/api/v1/tasks", json={"type": "review", "agent": agent})
            self.know(made.json(), "tasks")
        self.ask("POST", f"/api/v1/tasks/{self.pool['tasks'][-1]}/cancel")
        given = self.ask("GET", "/api/agent/messages?wait=0&max=5", self.tokens["chiffon"])
        self.know(given.json(), "chiffon")
        kept = self.ask("POST", "/api/v1/files?name=a.txt", content=b"hello")
        self.know(kept.json(), "files")
        told = {**samples.REGISTRATION, "agent_id": "chiffon-agent", "agent_type": "any", "work_types": ["review", "a"]}
        told.pop("callback_url")
        assert self.ask("POST", "/api/agent/register", self.tokens["chiffon"], json=told).status_code == 200
        capability = msgspec.to_builtins(CAPABILITY)
        declared = {"agent_id": "a2acp-agent", "capabilities": [{**capability, "required_capabilities": []}]}
        assert self.ask("POST", "/a2acp/agents", self.tokens["a2acp"], json=declared).status_code == 200
        self.renew({"agent_id": "a2acp-agent", "domain": "lab", "version": "1.2.3"})

    def renew(self, agent: dict[str, Any]) -> None:
        """The a2acp agent is known by these now, and needs another token."""
        self.speaker = {name: agent[name] for name in ("agent_id", "domain", "version")}
        wish = {"agent_id": "a2acp-agent", "target_agent_id": BROKER_ID}
        granted = self.ask("POST", "/auth/token", self.tokens["a2acp"], json=wish)
        assert granted.status_code == 200, granted.text
        self.pass_to_broker = granted.json()["token"]


@contextmanager
def stage(folder: Path) -> Iterator[Stage]:
    started: list[tuple[str, str]] = []
    ready, ended = threading.Event(), threading.Event()

    async def serve() -> None:
        settings = Settings(
            data=str(folder / "data"),
            server=Server(port=0, grpc_port=0, max_poll_seconds=0.02, drain_seconds=1, max_message_bytes=100_000),
            coven=CovenSettings(enabled=False),
        )
        async with hub(settings) as running:
            started.append((running.serving.url, running.admin_token))
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="hub", daemon=True)
    thread.start()
    assert ready.wait(PATIENCE), "the hub did not start"
    try:
        on_it = Stage(*started[0])
        on_it.settle_in()
        yield on_it
        on_it.http.close()
    finally:
        ended.set()
        thread.join(PATIENCE)
