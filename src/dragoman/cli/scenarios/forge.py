"""Forge over WebSocket: `caller` submits, `worker` works."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.cli.scenarios.fake_agents import PATIENCE, FakeAgent, FakeAgents, now
from dragoman.cli.scenarios.steps import Checks, Unmet, expect

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

checks: Checks[Scenario] = Checks()


class Connection:
    """One WebSocket, and what came over it.

    It has a loop of its own, which runs while a step waits. The library's client without one reads in a second
    thread, and Python's TLS loses what is written meanwhile: one handshake in hundreds was lost.
    """

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        self._received: list[dict[str, Any]] = []
        self._loop = asyncio.Runner()
        self._socket = self._loop.run(self._open())

    async def _open(self) -> ClientConnection:
        from websockets.asyncio.client import connect

        hub = self.agent.hub
        return await connect(
            f"ws{hub.url.removeprefix('http')}/forge/ws",
            ssl=hub.tls(),
            subprotocols=["forge.v1.json"],  # type: ignore[list-item]
            additional_headers={"Authorization": f"Bearer {self.agent.token}"},
            open_timeout=PATIENCE,
        )

    def send(self, kind: str, payload: Any, id: str | None = None) -> str:
        id = id or str(uuid.uuid4())
        self.text(json.dumps({"type": kind, "id": id, "timestamp": now(), "payload": payload}))
        return id

    def text(self, line: str) -> None:
        self._loop.run(self._socket.send(line))

    def receive(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            for place, one in enumerate(self._received):
                if wanted(one):
                    return self._received.pop(place)
            try:
                content = json.loads(self._loop.run(self._next(end - time.monotonic())))
            except TimeoutError:
                raise Unmet(f"{what} did not come within {PATIENCE:g} s") from None
            self._received += content if isinstance(content, list) else [content]

    async def _next(self, seconds: float) -> str | bytes:
        async with asyncio.timeout(seconds):
            return await self._socket.recv()

    def ask(self, kind: str, payload: Any) -> dict[str, Any]:
        """The response to a request."""
        id = self.send(kind, payload)
        return self.receive(lambda one: one.get("correlationId") == id, f"the response to {kind}")

    def close(self) -> None:
        self._loop.run(self._socket.close())
        self._loop.close()


class Scenario:
    def __init__(self, fakes: FakeAgents) -> None:
        self.caller, self.worker = (Connection(fakes.admit("forge", part)) for part in ("caller", "worker"))
        self.task = ""

    def close(self) -> None:
        self.caller.close()
        self.worker.close()


def good(answer: dict[str, Any]) -> dict[str, Any]:
    expect(answer["type"] == "response:success", f"the response is {str(answer)[:200]}")
    payload: dict[str, Any] = answer["payload"]
    return payload


def code(answer: dict[str, Any]) -> str:
    expect(answer["type"] == "response:error", f"the response is {str(answer)[:200]}")
    content = answer.get("error") or answer["payload"].get("error") or answer["payload"]
    return str(content["code"])


@checks("forge-D3", "An unknown request is INVALID_MESSAGE_TYPE; what is no message is a log line.")
def unknown_request(scenario: Scenario) -> None:
    scenario.worker.text("just words")
    expect(code(scenario.worker.ask("request:dance", {})) == "INVALID_MESSAGE_TYPE", "another code")


@checks("FG-MSG-1", "A message that does not fit its schema is refused, and the field named.")
def misfit(scenario: Scenario) -> None:
    answer = scenario.caller.ask("request:submit-task", {"name": "without a type"})
    expect(code(answer) != "", "no code")
    expect("type" in json.dumps(answer), "the refusal does not name the field")


@checks("FG-QAG-2", "An agent has id, role, status, capabilities and currentTask.")
def agents_are_listed(scenario: Scenario) -> None:
    listed = good(scenario.caller.ask("request:query-agents", {}))["agents"]
    mine = [one for one in listed if one["id"] == scenario.worker.agent.id]
    expect(mine, "an agent that is connected is not among them")
    missing = {"id", "role", "status", "capabilities"} - mine[0].keys()
    expect(not missing, f"{', '.join(sorted(missing))} is missing")


@checks("FG-SUB-2", "The response holds the task, with its id; and the agent gets a notification.")
def submitted(scenario: Scenario) -> None:
    request = {"type": "conformance", "name": "check", "payload": {"n": 1}, "agent": scenario.worker.agent.id}
    task = good(scenario.caller.ask("request:submit-task", request))["task"]
    scenario.task = str(task["id"])
    notice = scenario.worker.receive(lambda one: one["type"] == "notify:task-assigned", "notify:task-assigned")
    expect(notice["payload"]["taskId"] == scenario.task, "it is another task")


@checks("FG-EVT-2", "Progress is the task's progress, and its end the task's end.")
def done(scenario: Scenario) -> None:
    expect(scenario.task, "there is no task")
    scenario.worker.send("event:progress", {"taskId": scenario.task, "progress": 0.5, "message": "half"})
    good(
        scenario.worker.ask(
            "request:update-task", {"taskId": scenario.task, "status": "completed", "result": {"ok": True}}
        )
    )
    last = scenario.caller.receive(
        lambda one: one["type"] == "notify:task-updated" and one["payload"].get("final"), "the end of the task"
    )
    expect(last["payload"]["status"] == "completed", f"it ended as {last['payload']['status']}")


@checks("FG-GET-1", "The response holds the task, with its result once it has one.")
def task_is_shown(scenario: Scenario) -> None:
    expect(scenario.task, "there is no task")
    task = good(scenario.caller.ask("request:get-task", {"taskId": scenario.task}))["task"]
    expect((task["status"], task.get("result")) == ("completed", {"ok": True}), f"it is {str(task)[:200]}")


@checks("FG-SEC-2", "An agent sees only the tasks that concern it.")
def others_tasks(scenario: Scenario) -> None:
    answer = scenario.worker.ask("request:get-task", {"taskId": str(uuid.uuid4())})
    expect(code(answer) in ("NOT_FOUND", "UNAUTHORIZED"), f"the code is {code(answer)}")


@checks("FG-NOT-2", "The agent gets a notification that a task was cancelled.")
def cancelled(scenario: Scenario) -> None:
    request = {"type": "conformance", "name": "check", "payload": {}, "agent": scenario.worker.agent.id}
    task = good(scenario.caller.ask("request:submit-task", request))["task"]["id"]
    scenario.worker.receive(lambda one: one["payload"].get("taskId") == task, "notify:task-assigned")
    good(scenario.caller.ask("request:cancel-task", {"taskId": task, "reason": "checked"}))
    scenario.worker.receive(lambda one: one["type"] == "notify:task-cancelled", "notify:task-cancelled")
