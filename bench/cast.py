"""Who takes part, made through the management API before the load starts."""

from __future__ import annotations

import http.client
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.hub import uuid4


class Office:
    """The management API of a hub, one request after the other."""

    def __init__(self, ready: dict[str, Any]) -> None:
        place = urlsplit(ready["http"])
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._headers = {"authorization": f"Bearer {ready['admin_token']}", "content-type": "application/json"}

    def ask(self, method: str, path: str, body: object = None) -> Any:
        told = None if body is None else msgspec.json.encode(body)
        self._connection.request(method, path, told, self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {said[:300]!r}")
        return msgspec.json.decode(said) if said else None

    def callers(self, count: int) -> list[str]:
        """Tokens of chiffon orchestrators."""
        return [
            self._add({"agent_id": f"orchestrator-{uuid4()[:8]}", "protocol": "chiffon", "kind": "orchestrator"})
            for _ in range(count)
        ]

    def coven(self, count: int, kind: str = "infra") -> list[tuple[str, str]]:
        """Ids and tokens of coven agents."""
        ids = [f"{kind}-{uuid4()[:8]}" for _ in range(count)]
        return [(id, self._add({"agent_id": id, "protocol": "coven", "kind": kind})) for id in ids]

    def agentmsg(self, count: int) -> list[list[str]]:
        """Ids and tokens of agentmsg agents."""
        ids = [f"writer-{uuid4()[:8]}" for _ in range(count)]
        return [[id, self._add({"agent_id": id, "protocol": "agentmsg"})] for id in ids]

    def children(self, count: int, command: list[str], kind: str = "infra") -> list[str]:
        """Ids of forge agents that the hub runs as child processes, all of them up."""
        ids = [f"{kind}-{uuid4()[:8]}" for _ in range(count)]
        for id in ids:
            self.ask("POST", "/api/v1/agents", {"agent_id": id, "protocol": "forge", "kind": kind, "command": command})
        for id in ids:
            self._await_up(id)
        return ids

    def _add(self, body: dict[str, Any]) -> str:
        token: str = self.ask("POST", "/api/v1/agents", body)["token"]
        return token

    def await_running(self, task: str) -> None:
        deadline = time.monotonic() + 20
        while (status := self.ask("GET", f"/api/v1/tasks/{task}")["status"]) not in ("assigned", "running"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{task} is still {status}")
            time.sleep(0.05)

    def _await_up(self, id: str) -> None:
        deadline = time.monotonic() + 60
        while (status := self.ask("GET", f"/api/v1/agents/{id}")["status"]) not in ("idle", "busy"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{id} is still {status}")
            time.sleep(0.05)
