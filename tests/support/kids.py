"""The children of a hub, as people see them by the API."""

from __future__ import annotations

from typing import Any

from tests.support.children import children_of, command_of
from tests.support.hubproc import HubProcess, until


class Kids:
    """The children of one hub, by the API."""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub

    def run(self, id: str, *command: str, **more: Any) -> str:
        wish = {"agent_id": id, "protocol": "forge", "kind": id, "command": command, "restart": "never", **more}
        made = self.hub.admin.post("/api/v1/agents", wish)
        assert made.status == 201, made
        return id

    def look(self, id: str) -> dict[str, Any]:
        answer = self.hub.admin.get(f"/api/v1/agents/{id}")
        assert answer.status == 200, answer
        return dict(answer.json)

    def child(self, id: str) -> dict[str, Any]:
        return dict(self.look(id)["child"])

    def state(self, id: str) -> str:
        return str(self.child(id)["state"])

    def pid(self, id: str) -> int:
        return int(until(lambda: self.child(id)["pid"], f"{id} runs"))

    def log(self, id: str, **query: Any) -> list[dict[str, Any]]:
        asked = "&".join(f"{key}={value}" for key, value in {"tail": 500, **query}.items())
        return list(self.hub.admin.get(f"/api/v1/agents/{id}/logs?{asked}").json["logs"])

    def printed(self, id: str) -> list[str]:
        return [line["text"] for line in self.log(id) if line["stream"] != "hub"]

    def submit(self, agent: str, **input: Any) -> str:
        made = self.hub.admin.post("/api/v1/tasks", {"type": "work", "agent": agent, "input": input})
        assert made.status == 202, made
        return str(made.json["id"])

    def done(self, task: str) -> dict[str, Any]:
        until(lambda: self.hub.status(task) in ("completed", "failed", "cancelled"), "the task ends")
        return self.hub.task(task)

    def works(self, agent: str, times: int = 5) -> None:
        """Others are served."""
        for number in range(times):
            assert self.done(self.submit(agent, n=number))["result"] == {"echo": {"n": number}, "attempt": 1}

    def spawner(self) -> int:
        """The hub's child whose command line says so."""
        for pid in children_of(self.hub.pid):
            if b"spawner.py" in command_of(pid):
                return pid
        raise AssertionError("no spawner")
