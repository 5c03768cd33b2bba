"""Chiffon on the wire: envelopes over a WebSocket, files over HTTP, and what the document lacks in x_custom_fields."""

from __future__ import annotations

import asyncio
import re
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
    Worker,
    WorkFailure,
    said,
    trace_in,
    upload,
)
from tests.bridge.players.sockets import JsonSocket

STOP = 5900
WORK_FAILED = 1
NO_RESOURCES = 5005
BLOCK = 262_144
WHOLE = 1024 * 1024
_label = re.compile(r"bytes (\d+)-(\d+) of (\d+)").fullmatch


def blocks(text: str) -> list[tuple[str, str | None]]:
    """A text in blocks with their labels, as long outputs must be sent; cut between characters."""
    data = text.encode()
    if len(data) <= WHOLE:
        return [(text, None)]
    found: list[tuple[str, str | None]] = []
    start = 0
    while start < len(data):
        end = min(start + BLOCK, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        found.append((data[start:end].decode(), f"bytes {start}-{end} of {len(data)}"))
        start = end
    return found


def trace_of(message: dict[str, Any]) -> str:
    """The trace of a message: it says it twice, and both must be the same (all-D7)."""
    trace: str = message["trace_id"].replace("-", "")
    parent = trace_in(message.get("x_custom_fields", {}).get("traceparent"))
    assert parent in (None, trace), f"{message['trace_id']} and {parent}"
    return trace


def last_block(label: str | None) -> bool:
    if label is None:
        return True
    place = _label(label)
    assert place is not None, label
    return place[2] == place[3]


class ChiffonParty(Party):
    protocol = "chiffon"
    socket: JsonSocket

    async def connect(self) -> None:
        url = f"{self.stage.ws}/api/agent/ws"
        self.socket = await JsonSocket.open(url, self._heard, subprotocol="chiffon.v1", headers=self.bearer)

    async def leave(self) -> None:
        await self.socket.close()

    async def _heard(self, message: dict[str, Any]) -> None:
        custom = message["x_custom_fields"]
        if "delivery_id" in custom:
            await self.socket.send({"ack": [custom["delivery_id"]]})
            await self.hear(message, message["payload"], custom)
        else:
            self.refused.append(str(message["payload"]))

    @abstractmethod
    async def hear(self, message: dict[str, Any], payload: dict[str, Any], custom: dict[str, Any]) -> None: ...

    def envelope(self, type: str, payload: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
        return {
            "protocol_version": "1.0",
            "message_id": str(uuid.uuid4()),
            "from_agent": self.id,
            "to_agent": "orchestrator",
            "timestamp": datetime.now(UTC).isoformat(),
            "trace_id": str(uuid.uuid4()),
            "request_id": str(uuid.uuid4()),
            "type": type,
            "payload": payload,
            "x_custom_fields": {},
        } | fields

    async def fetch(self, ref: Mapping[str, Any], task_id: str) -> File:
        path = f"/api/agent/files/{ref['id']}"
        answer = await self.stage.http.get(path, params={"task_id": task_id}, headers=self.bearer)
        assert answer.status_code == 200, answer.text
        return File(ref["name"], answer.content)


class ChiffonCaller(ChiffonParty, Caller):
    async def connect(self) -> None:
        self._told: defaultdict[str, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)
        self._blocks: defaultdict[str, list[str]] = defaultdict(list)
        await super().connect()

    async def submit(self, order: Order) -> Handle:
        order.cannot("description", "thread", "budget", "context")
        task_id = str(uuid.uuid5(uuid.NAMESPACE_OID, order.request_id))
        payload: dict[str, Any] = {"task_id": task_id, "work_type": order.type, "parameters": order.input}
        if order.deadline is not None:
            payload["hints"] = {"max_duration_seconds": order.deadline}
        if order.limit is not None:
            payload["hints"] = {**payload.get("hints", {}), "max_memory_mb": order.limit}
        custom: dict[str, Any] = {"agent_id": order.to}
        if order.priority is not None:
            custom["priority"] = order.priority
        if order.dependencies:
            custom["dependencies"] = order.dependencies
        if order.parent is not None:
            custom["parent_task_id"] = order.parent
        if order.attachments:
            custom["files"] = [await upload(self, file) for file in order.attachments]
        fields = {"request_id": order.request_id, "to_agent": order.to, "x_custom_fields": custom}
        if order.trace is not None:
            fields["trace_id"] = str(uuid.UUID(order.trace))
        message = self.envelope("work_request", payload, **fields)
        answer = await self.stage.http.post("/api/agent/message", json=message, headers=self.bearer)
        assert answer.status_code == 202, answer.text
        return Handle(task_id=task_id, native=message)

    async def cancel(self, handle: Handle, reason: str) -> None:
        await self._steer(handle, "cancel", {"reason": reason})

    async def pause(self, handle: Handle) -> None:
        await self._steer(handle, "pause", {})

    async def resume(self, handle: Handle) -> None:
        await self._steer(handle, "resume", {})

    async def _steer(self, handle: Handle, verb: str, said: Mapping[str, Any]) -> None:
        path = f"/api/tasks/{handle.task_id}/{verb}"
        answer = await self.stage.http.post(path, json=said, headers=self.bearer)
        assert answer.status_code == 200, answer.text

    async def hear(self, message: dict[str, Any], payload: dict[str, Any], custom: dict[str, Any]) -> None:
        self._told[payload.get("task_id") or custom["task_id"]].put_nowait(message)

    async def piece(self, handle: Handle) -> Piece:
        message = await self._told[handle.task_id].get()
        assert message["request_id"] == handle.native["request_id"]
        payload, custom = message["payload"], message["x_custom_fields"]
        trace = {"trace": trace_of(message)}
        match message["type"]:
            case "work_status":
                return await self._status(payload, custom) | trace
            case "work_result":
                return self._result(handle.task_id, payload, custom) | trace
            case "error":
                final = CANCELLED if payload["error_code"] == STOP else "failed"
                return said(final=final, error=payload["error_message"]) | trace
        raise AssertionError(message)

    async def _status(self, payload: Mapping[str, Any], custom: Mapping[str, Any]) -> Piece:
        step = dict(payload.get("step") or {})
        output = step.pop("output", "")
        step.pop("output_chunk", None)
        asides = {name: custom[name] for name in ("message", "thinking", "tool_use", "tool_result") if name in custom}
        told = said(percent=payload["progress_percent"], output=output, **asides)
        if step and step["number"]:  # without a number it repeats in a word what stands beside it
            told["step"] = step
        if "file" in custom:
            told["file"] = await self.fetch(custom["file"], payload["task_id"])
        if payload["status"] == "paused":
            words = custom.get("question") or custom.get("message") or "paused"
            told["question"] = words["question"] if isinstance(words, dict) else words
        return told

    def _result(self, task_id: str, payload: Mapping[str, Any], custom: Mapping[str, Any]) -> Piece:
        self._blocks[task_id].append(payload["output"])
        if not last_block(payload.get("output_chunk")):
            return {}
        told = said(
            text="".join(self._blocks.pop(task_id)),
            result=custom.get("result"),
            exit_code=payload["exit_code"],
            usage=custom.get("usage") or payload.get("resources_used"),
        )
        if payload["status"] == "success":
            return told | {"final": "completed"}
        return told | {"final": "failed", "error": told["text"]}


class ChiffonWorker(ChiffonParty, Worker):
    def die(self) -> None:
        self.socket.cut()

    async def hear(self, message: dict[str, Any], payload: dict[str, Any], custom: dict[str, Any]) -> None:
        if message["type"] == "work_request":
            self.jobs.put_nowait(await self._job(message, payload, custom))
        elif message["type"] == "error" and payload["error_code"] == STOP:
            self._cancelled[custom["task_id"]].set()
        elif message["type"] == "work_status":
            self.told.put_nowait(payload["status"])

    async def _job(self, message: dict[str, Any], payload: dict[str, Any], custom: dict[str, Any]) -> Job:
        parameters = dict(payload["parameters"])
        return Job(
            id=payload["task_id"],
            type=payload["work_type"],
            answer=parameters.pop("answer", None),
            handover=parameters.pop("handover", None),
            input=parameters,
            native=message,
            description=custom.get("description"),
            thread=custom.get("thread"),
            attachments=tuple([await self.fetch(ref, payload["task_id"]) for ref in custom.get("attachments", ())]),
            attempt=custom.get("attempt", 1),
            trace=trace_of(message),
            seconds=payload.get("hints", {}).get("max_duration_seconds"),
            limit=payload.get("hints", {}).get("max_memory_mb", custom.get("quality_threshold")),
            context=custom.get("context"),
        )

    async def _reply(self, job: Job, type: str, payload: Mapping[str, Any], **custom: Any) -> None:
        ids = {name: job.native[name] for name in ("request_id", "trace_id")}
        await self.socket.send(self.envelope(type, payload, **ids, x_custom_fields=custom))

    async def say(self, job: Job, **features: Any) -> None:
        job.percent = features.pop("percent", job.percent)
        payload: dict[str, Any] = {"task_id": job.id, "status": "running", "progress_percent": job.percent}
        output = features.pop("output", "")
        if "step" in features or output:
            payload["step"] = {"number": 1, "name": job.type, "output": output, **features.pop("step", {})}
        if "file" in features:
            features["file"] = await upload(self, features["file"])
        await self._reply(job, "work_status", payload, **features)

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        payload = {"task_id": job.id, "status": "paused", "progress_percent": job.percent}
        await self._reply(job, "work_status", payload, question={"question": question, "options": options})

    async def answered(self, job: Job) -> Job:
        again = await self.take()
        assert again.id == job.id
        return again

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        custom = {} if result is None else {"result": result}
        await self._end(job, text or "", 0, usage, **custom)

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        if failure.retryable:
            payload = {"error_code": NO_RESOURCES, "error_message": failure.message, "error_context": {}}
            await self._reply(job, "error", payload, task_id=job.id)
        else:
            await self._end(job, failure.message, failure.exit_code or WORK_FAILED, failure.usage)

    async def _end(self, job: Job, text: str, code: int, usage: Mapping[str, Any] | None, **custom: Any) -> None:
        payload: dict[str, Any] = {"task_id": job.id, "status": "failed" if code else "success", "exit_code": code}
        if usage is not None:
            payload["resources_used"] = usage
        for block, label in blocks(text):
            more = {"output": block} if label is None else {"output": block, "output_chunk": label}
            await self._reply(job, "work_result", payload | more, **(custom if last_block(label) else {}))


Chiffon = Player(ChiffonCaller, ChiffonWorker)
