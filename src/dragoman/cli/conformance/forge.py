"""Forge over WebSocket: `boss` submits, `hand` works."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragoman.cli.conformance.cast import PATIENCE, Cast, Player, now
from dragoman.cli.conformance.checklist import Checklist, Unmet, expect

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

checks: Checklist[Scene] = Checklist("forge")


class Link:
    """One WebSocket, and what came over it.

    It has a loop of its own, which runs while somebody waits. The library's client without one reads in a second
    thread, and Python's TLS loses what is written meanwhile: one handshake in hundreds was never heard.
    """

    def __init__(self, player: Player) -> None:
        self.player = player
        self._heard: list[dict[str, Any]] = []
        self._loop = asyncio.Runner()
        self._socket = self._loop.run(self._open())

    async def _open(self) -> ClientConnection:
        from websockets.asyncio.client import connect

        hub = self.player.hub
        return await connect(
            f"ws{hub.url.removeprefix('http')}/forge/ws",
            ssl=hub.tls(),
            subprotocols=["forge.v1.json"],  # type: ignore[list-item]
            additional_headers={"Authorization": f"Bearer {self.player.token}"},
            open_timeout=PATIENCE,
        )

    def say(self, kind: str, payload: Any, id: str | None = None) -> str:
        id = id or str(uuid.uuid4())
        self.text(json.dumps({"type": kind, "id": id, "timestamp": now(), "payload": payload}))
        return id

    def text(self, line: str) -> None:
        self._loop.run(self._socket.send(line))

    def hear(self, wanted: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            for place, one in enumerate(self._heard):
                if wanted(one):
                    return self._heard.pop(place)
            try:
                said = json.loads(self._loop.run(self._next(end - time.monotonic())))
            except TimeoutError:
                raise Unmet(f"{what} did not come within {PATIENCE:g} s") from None
            self._heard += said if isinstance(said, list) else [said]

    async def _next(self, seconds: float) -> str | bytes:
        async with asyncio.timeout(seconds):
            return await self._socket.recv()

    def ask(self, kind: str, payload: Any) -> dict[str, Any]:
        """The response to a request."""
        id = self.say(kind, payload)
        return self.hear(lambda one: one.get("correlationId") == id, f"the response to {kind}")

    def close(self) -> None:
        self._loop.run(self._socket.close())
        self._loop.close()


class Scene:
    def __init__(self, cast: Cast) -> None:
        self.boss, self.hand = (Link(cast.admit("forge", part)) for part in ("boss", "hand"))
        self.task = ""

    def close(self) -> None:
        self.boss.close()
        self.hand.close()


def good(answer: dict[str, Any]) -> dict[str, Any]:
    expect(answer["type"] == "response:success", f"the response is {str(answer)[:200]}")
    payload: dict[str, Any] = answer["payload"]
    return payload


def code(answer: dict[str, Any]) -> str:
    expect(answer["type"] == "response:error", f"the response is {str(answer)[:200]}")
    said = answer.get("error") or answer["payload"].get("error") or answer["payload"]
    return str(said["code"])


@checks("forge-D3", "An unknown request is INVALID_MESSAGE_TYPE; what is no message is a log line.")
def unknown_request(scene: Scene) -> None:
    scene.hand.text("just words")
    expect(code(scene.hand.ask("request:dance", {})) == "INVALID_MESSAGE_TYPE", "another code")


@checks("FG-MSG-1", "A message that does not fit its schema is refused, and the field named.")
def misfit(scene: Scene) -> None:
    answer = scene.boss.ask("request:submit-task", {"name": "without a type"})
    expect(code(answer) != "", "no code")
    expect("type" in json.dumps(answer), "the refusal does not name the field")


@checks("FG-QAG-2", "An agent has id, role, status, capabilities and currentTask.")
def agents_are_told(scene: Scene) -> None:
    told = good(scene.boss.ask("request:query-agents", {}))["agents"]
    mine = [one for one in told if one["id"] == scene.hand.player.id]
    expect(mine, "an agent that is connected is not among them")
    missing = {"id", "role", "status", "capabilities"} - mine[0].keys()
    expect(not missing, f"{', '.join(sorted(missing))} is missing")


@checks("FG-SUB-2", "The response holds the task, with its id; and the agent is told of it.")
def submitted(scene: Scene) -> None:
    wish = {"type": "conformance", "name": "check", "payload": {"n": 1}, "agent": scene.hand.player.id}
    task = good(scene.boss.ask("request:submit-task", wish))["task"]
    scene.task = str(task["id"])
    told = scene.hand.hear(lambda one: one["type"] == "notify:task-assigned", "notify:task-assigned")
    expect(told["payload"]["taskId"] == scene.task, "it is another task")


@checks("FG-EVT-2", "Progress is the task's progress, and its end the task's end.")
def done(scene: Scene) -> None:
    expect(scene.task, "there is no task")
    scene.hand.say("event:progress", {"taskId": scene.task, "progress": 0.5, "message": "half"})
    good(scene.hand.ask("request:update-task", {"taskId": scene.task, "status": "completed", "result": {"ok": True}}))
    last = scene.boss.hear(
        lambda one: one["type"] == "notify:task-updated" and one["payload"].get("final"), "the end of the task"
    )
    expect(last["payload"]["status"] == "completed", f"it ended as {last['payload']['status']}")


@checks("FG-GET-1", "The response holds the task, with its result once it has one.")
def task_is_told(scene: Scene) -> None:
    expect(scene.task, "there is no task")
    task = good(scene.boss.ask("request:get-task", {"taskId": scene.task}))["task"]
    expect((task["status"], task.get("result")) == ("completed", {"ok": True}), f"it is {str(task)[:200]}")


@checks("FG-SEC-2", "An agent sees only the tasks that concern it.")
def others_tasks(scene: Scene) -> None:
    answer = scene.hand.ask("request:get-task", {"taskId": str(uuid.uuid4())})
    expect(code(answer) in ("NOT_FOUND", "UNAUTHORIZED"), f"the code is {code(answer)}")


@checks("FG-NOT-2", "An agent is told that a task was cancelled.")
def cancelled(scene: Scene) -> None:
    wish = {"type": "conformance", "name": "check", "payload": {}, "agent": scene.hand.player.id}
    task = good(scene.boss.ask("request:submit-task", wish))["task"]["id"]
    scene.hand.hear(lambda one: one["payload"].get("taskId") == task, "notify:task-assigned")
    good(scene.boss.ask("request:cancel-task", {"taskId": task, "reason": "checked"}))
    scene.hand.hear(lambda one: one["type"] == "notify:task-cancelled", "notify:task-cancelled")
