"""Echo on the wire, as a test's caller and worker speak it."""

from __future__ import annotations

import asyncio
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from tests.bridge.players.neutral import (
    Caller,
    Handle,
    Job,
    Order,
    Party,
    Piece,
    Player,
    Unsayable,
    Worker,
    WorkFailure,
    said,
)
from tests.bridge.players.sockets import JsonSocket

ASIDES = ("percent", "message", "output", "thinking", "step", "tool_use", "tool_result")


class EchoParty(Party):
    protocol = "echo"
    socket: JsonSocket

    async def connect(self) -> None:
        url = f"{self.stage.ws}/echo/ws"
        self.socket = await JsonSocket.open(url, self._receive, subprotocol="echo.v1", headers=self.bearer)

    async def leave(self) -> None:
        await self.socket.close()

    async def _receive(self, message: dict[str, Any]) -> None:
        if message["op"] == "refused":
            self.refused.append(str(message))
            return
        await self.socket.send({"op": "ack", "deliveries": [message["delivery"]]})
        self.receive(message)

    @abstractmethod
    def receive(self, message: dict[str, Any]) -> None: ...


class EchoCaller(EchoParty, Caller):
    async def connect(self) -> None:
        self._messages: defaultdict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        await super().connect()

    def receive(self, message: dict[str, Any]) -> None:
        self._messages[message["task"]].put_nowait(message)

    async def submit(self, order: Order) -> Handle:
        id = str(uuid.uuid4())
        await self.socket.send({"op": "request", "id": id, "to": order.to, "type": order.type, "input": order.input})
        return Handle(task_id=id)

    async def cancel(self, handle: Handle, reason: str) -> None:
        await self.socket.send({"op": "cancel", "task": handle.task_id, "reason": reason})

    async def piece(self, handle: Handle) -> Piece:
        message = await self._messages[handle.task_id].get()
        match message["op"]:
            case "progress":
                return said(**{name: message.get(name) for name in ASIDES})
            case "done":
                return said(final="completed", result=message.get("result"), text=message.get("text"))
            case "failed":
                final = "cancelled" if message.get("kind") == "cancelled" else "failed"
                return said(final=final, error=message.get("message", ""))
        raise AssertionError(message)


class EchoWorker(EchoParty, Worker):
    def die(self) -> None:
        self.socket.cut()

    def receive(self, message: dict[str, Any]) -> None:
        if message["op"] == "work":
            self.jobs.put_nowait(Job(id=message["task"], type=message["type"], input=message["input"], native=message))
        elif message["op"] == "cancel":
            self._cancelled[message["task"]].set()

    async def say(self, job: Job, **features: Any) -> None:
        await self.socket.send({"op": "progress", "task": job.id, **features})

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        raise Unsayable("question")

    async def answered(self, job: Job) -> Job:
        raise Unsayable("answer")

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        end = {"op": "done", "task": job.id} | ({} if result is None else {"result": result})
        await self.socket.send(end | ({} if text is None else {"text": text}))

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        kind = "resources" if failure.retryable else "work_failed"
        await self.socket.send({"op": "failed", "task": job.id, "kind": kind, "message": failure.message})


ECHO = Player(EchoCaller, EchoWorker)
