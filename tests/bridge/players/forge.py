"""Forge on the wire: its messages over a WebSocket, requests with responses, files by `request:get-file`."""

from __future__ import annotations

import asyncio
import base64
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.bridge.players.neutral import (
    CANCELLED,
    Caller,
    File,
    Handle,
    Job,
    Order,
    Party,
    Piece,
    Player,
    Unsayable,
    Worker,
    WorkFailure,
    only,
    said,
    soon,
    trace_in,
    traceparent_of,
)
from tests.bridge.players.sockets import JsonSocket

PRIORITIES = {"critical": 1, "high": 2, "normal": 3, "low": 4}
WORDS = {"tool_use": "toolUse", "tool_result": "toolResult"}


def named(said: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """The same fields under other names."""
    return {names.get(name, name): value for name, value in said.items()}


class ForgeParty(Party):
    protocol = "forge"
    socket: JsonSocket

    async def connect(self) -> None:
        self._responses: dict[str, asyncio.Future[dict[str, Any]]] = {}
        url = f"{self.stage.ws}/forge/ws"
        self.socket = await JsonSocket.open(url, self._heard, subprotocol="forge.v1.json", headers=self.bearer)

    async def leave(self) -> None:
        await self.socket.close()

    def _heard(self, message: dict[str, Any]) -> None:
        if message["type"].startswith("response:"):
            waiting = self._responses.pop(message["correlationId"])
            if message["type"] == "response:success":
                waiting.set_result(message["payload"])
            else:
                waiting.set_exception(AssertionError(message["error"]))
        else:
            self.hear(message, message["payload"])

    @abstractmethod
    def hear(self, message: dict[str, Any], payload: dict[str, Any]) -> None: ...

    async def tell(self, type: str, payload: Mapping[str, Any], *, id: str = "", **fields: Any) -> str:
        id = id or str(uuid.uuid4())
        at = datetime.now(UTC).isoformat()
        await self.socket.send({"type": type, "id": id, "timestamp": at, "payload": payload, **fields})
        return id

    def awaited(self, id: str) -> asyncio.Future[dict[str, Any]]:
        """The response to come; to be asked for before the request is sent."""
        self._responses[id] = asyncio.get_running_loop().create_future()
        return self._responses[id]

    async def request(self, type: str, payload: Mapping[str, Any], *, id: str = "", **fields: Any) -> dict[str, Any]:
        id = id or str(uuid.uuid4())
        response = self.awaited(id)
        await self.tell(f"request:{type}", payload, id=id, **fields)
        return await soon(response)

    async def fetch(self, ref: Mapping[str, Any], task_id: str) -> File:
        data = b""
        while len(data) < ref["size"]:
            asked = {"taskId": task_id, "fileId": ref["id"], "offset": len(data)}
            data += base64.b64decode((await self.request("get-file", asked))["data"])
        return File(ref["name"], data)


class ForgeCaller(ForgeParty, Caller):
    async def connect(self) -> None:
        self._told: defaultdict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self._parts: defaultdict[str, list[str]] = defaultdict(list)
        await super().connect()

    async def submit(self, order: Order) -> Handle:
        order.cannot("budget", "limit", "context")
        payload: dict[str, Any] = {"type": order.type, "payload": order.input, "agent": order.to}
        if order.description is not None:
            payload["description"] = order.description
        if order.priority is not None:
            payload["priority"] = PRIORITIES[order.priority]
        if order.thread is not None:
            payload["thread"] = order.thread
        if order.deadline is not None:
            payload["timeout"] = order.deadline * 1000
        if order.dependencies:
            payload["dependencies"] = order.dependencies
        if order.parent is not None:
            payload["parentId"] = order.parent
        if order.attachments:
            payload["attachments"] = [
                {"filename": file.name, "data": base64.b64encode(file.data).decode()} for file in order.attachments
            ]
        meta = {"_meta": {"traceparent": traceparent_of(order.trace)}} if order.trace else {}
        answer = await self.request("submit-task", payload, id=order.request_id, **meta)
        return Handle(task_id=answer["task"]["id"])

    async def cancel(self, handle: Handle, reason: str) -> None:
        answer = await self.request("cancel-task", {"taskId": handle.task_id, "reason": reason})
        assert answer["task"]["status"] == CANCELLED

    def hear(self, message: dict[str, Any], payload: dict[str, Any]) -> None:
        if message["type"] == "notify:task-updated":
            self._told[payload["taskId"]].put_nowait(message)

    async def piece(self, handle: Handle) -> Piece:
        message = await self._told[handle.task_id].get()
        payload = message["payload"]
        part = message.get("_meta", {}).get("part")
        if part is not None:
            assert part[0] == sum(len(text.encode()) for text in self._parts[handle.task_id])
            self._parts[handle.task_id].append(payload["output"])
        told = said(
            message=payload.get("message"),
            step=payload.get("step"),
            output=None if part else payload.get("output"),
            thinking=payload.get("thinking"),
            tool_use=payload.get("toolUse"),
            trace=trace_in(message.get("_meta", {}).get("traceparent")),
        )
        if "progress" in payload:
            told["percent"] = round(payload["progress"] * 100)
        if "toolResult" in payload:
            told["tool_result"] = {"is_error": False} | named(payload["toolResult"], isError="is_error")
        if "file" in payload:
            told["file"] = await self.fetch(payload["file"], handle.task_id)
        if "Waiting for an answer" in payload.get("message", ""):
            told["question"] = payload["message"]
        if payload["final"]:
            told |= self._end(payload, "".join(self._parts.pop(handle.task_id, [])))
        return told

    def _end(self, payload: Mapping[str, Any], parts: str) -> Piece:
        error = payload.get("error") or {}
        return said(
            final=payload["status"],
            text=parts or payload.get("output"),
            result=payload.get("result"),
            error=error.get("message"),
            exit_code=error.get("details", {}).get("exit_code"),
        )


class ForgeWorker(ForgeParty, Worker):
    fails_with_usage = False

    def die(self) -> None:
        self.socket.cut()

    def hear(self, message: dict[str, Any], payload: dict[str, Any]) -> None:
        match message["type"]:
            case "notify:task-assigned":
                self._jobs_coming = asyncio.create_task(self._take_on(message, payload["task"]))
            case "notify:task-cancelled":
                self._cancelled[payload["taskId"]].set()
            case "notify:task-paused":
                self.told.put_nowait("paused")
            case "notify:task-resumed":
                self.told.put_nowait("running")

    async def _take_on(self, message: dict[str, Any], task: dict[str, Any]) -> None:
        files = tuple([await self.fetch(ref, task["id"]) for ref in task.get("files", ())])
        self.jobs.put_nowait(
            Job(
                id=task["id"],
                type=task["type"],
                input=task["payload"],
                native=message,
                priority=next(name for name, number in PRIORITIES.items() if number == task["priority"]),
                description=task["description"],
                thread=task.get("thread"),
                attachments=files,
                answer=task.get("answer"),
                attempt=task["attempt"],
                trace=trace_in(message.get("_meta", {}).get("traceparent")),
                limit=only(task.get("limits")),
                context=task.get("context"),
                handover=task.get("handover"),
            )
        )

    async def say(self, job: Job, **features: Any) -> None:
        payload = {"taskId": job.id, **named(features, **WORDS)}
        if "file" in payload:
            file: File = payload["file"]
            payload["file"] = {"filename": file.name, "data": base64.b64encode(file.data).decode()}
        if "percent" in payload:
            payload["progress"] = payload.pop("percent") / 100
        if "toolResult" in payload:
            payload["toolResult"] = named(payload["toolResult"], is_error="isError")
        await self.tell("event:progress", payload)

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        id = str(uuid.uuid4())
        self._answer = self.awaited(id)
        await self.tell("request:ask-user", {"question": question, "options": options, "taskId": job.id}, id=id)

    async def answered(self, job: Job) -> Job:
        job.answer = (await soon(self._answer))["answer"]
        return job

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        if usage is not None:
            raise Unsayable("usage")
        await self._update(job, said(status="completed", result=result, output=text))

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        error = (
            failure.message
            if failure.exit_code is None
            else {"message": failure.message, "details": {"exit_code": failure.exit_code}}
        )
        await self._update(job, {"status": "failed", "error": error, "retryable": failure.retryable})

    async def _update(self, job: Job, payload: Mapping[str, Any]) -> None:
        """Only the refusal is of interest: whether anybody still waits for it, others say."""
        try:
            await self.request("update-task", {"taskId": job.id, **payload})
        except AssertionError as refusal:
            self.refused.append(str(refusal))


Forge = Player(ForgeCaller, ForgeWorker)
