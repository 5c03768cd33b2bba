"""A2acp on the wire: requests under contracts, and what the document lacks in events of ours."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.bridge.players.a2acp_link import OURS, A2acpParty, Message, Refusal, agent
from tests.bridge.players.neutral import (
    CANCELLED,
    Caller,
    Handle,
    Job,
    Order,
    Piece,
    Player,
    Worker,
    WorkFailure,
    only,
    said,
    soon,
    trace_in,
    traceparent_of,
    upload,
)

INTENTS = (
    "examine", "demolish", "build", "another", "after", "held", "paid for", "next",
    "low", "normal", "high", "critical", "first", "second", "third", "fourth",
    "technical_guidance",
)  # fmt: skip
"""All that is asked for in these tests: an a2acp agent does what it said it would, and nothing else."""
TOLD = ("percent", "message", "step", "output", "thinking", "tool_use", "tool_result")
BESIDE = ("answer", "handover", "attachments")
"""What the hub puts beside the input."""


class A2acpCaller(A2acpParty, Caller):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._told: defaultdict[str, asyncio.Queue[Message]] = defaultdict(asyncio.Queue)
        self._sent: dict[str, Message] = {}
        self._tasks: set[str] = set()
        self.contracts: dict[tuple[str, str], str] = {}

    async def submit(self, order: Order) -> Handle:
        order.cannot("priority", "description", "thread", "attachments", "deadline", "dependencies", "parent", "budget")
        order.cannot("needs", "limit", "context")
        if order.request_id not in self._sent:
            self._sent[order.request_id] = await self._request(order)
        await self.post(message := self._sent[order.request_id], later=True)
        return Handle(task_id=await self._newest(), native=message)

    async def _request(self, order: Order) -> Message:
        trace = traceparent_of(order.trace) if order.trace else None
        contract = await self.contract(order.to, order.type)
        around = {"contract_id": contract, "correlation_id": order.request_id, "traceparent": trace}
        return await self.message(
            "request", agent(order.to), order.type, {**order.input, **around}, id=order.request_id
        )

    async def contract(self, to: str, intent: str) -> str:
        """What we agreed on with this agent, now or before."""
        if (to, intent) not in self.contracts:
            self.contracts[to, intent] = str((await self.shake_hands(to, intent))["contract_id"])
        return self.contracts[to, intent]

    async def _newest(self) -> str:
        """What the hub calls the task that it took last: its caller knows it by its own correlation id."""
        listed = (await self.stage.get("tasks", principal=self.id))["tasks"]
        [id] = {task["id"] for task in listed} - self._tasks
        self._tasks.add(id)
        return str(id)

    async def cancel(self, handle: Handle, reason: str) -> None:
        request = handle.native
        about = {name: request["payload"][name] for name in ("contract_id", "correlation_id")}
        event = await self.message("event", request["target_agent"], "cancel", {**about, "reason": reason})
        await self.post(event)

    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None:
        self._told[payload["correlation_id"]].put_nowait(message)

    async def piece(self, handle: Handle) -> Piece:
        message = await self._told[handle.native["payload"]["correlation_id"]].get()
        payload = message["payload"]
        trace = said(trace=trace_in(payload.get("traceparent")))
        match message["message_type"]:
            case "event":
                return await self._progress(payload) | trace
            case "response":
                result = {name: value for name, value in payload.items() if name not in OURS}
                usage = message.get("usage")
                return said(final="completed", result=result, text=result.get("output"), usage=usage) | trace
            case "error":
                return self._failed(payload["error"]) | said(usage=message.get("usage")) | trace
        raise AssertionError(message)

    async def _progress(self, payload: Mapping[str, Any]) -> Piece:
        told = {name: payload[name] for name in TOLD if name in payload}
        if "file" in payload:
            told["file"] = await self.fetch(payload["file"])
        return told

    def _failed(self, error: Mapping[str, Any]) -> Piece:
        details = error["details"]
        final = CANCELLED if details.get("kind") == CANCELLED else "failed"
        return said(final=final, error=error["message"], code=error["code"], exit_code=details.get("exit_code"))


class A2acpWorker(A2acpParty, Worker):
    fails_with_usage = False

    offers: tuple[Mapping[str, Any], ...] = ()
    _answers: asyncio.Queue[Mapping[str, Any]]
    _letters: asyncio.Queue[Mapping[str, Any]]
    able: tuple[str, ...] = ()

    async def connect(self) -> None:
        self._answers = asyncio.Queue()
        self._letters = asyncio.Queue()
        await self.register()
        await super().connect()

    async def register(self) -> None:
        offered = {offer["intent"]: offer for offer in self.offers}
        anything = {intent: {"intent": intent, "input_schema": True} for intent in (*INTENTS, *self.able)}
        declared = {**agent(self.id), "capabilities": list((anything | offered).values())}
        answer = await self.stage.http.post("/a2acp/agents", json=declared, headers=self.bearer)
        assert answer.status_code == 200, answer.text

    def die(self) -> None:
        self.socket.cut()

    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None:
        match message["message_type"], message.get("intent"):
            case "request", _:
                self.jobs.put_nowait(await self._job(message, payload))
            case "event", "cancel":
                self._cancelled[message["task"]["id"]].set()
            case "event", "pause" | "resume" as word:
                self.told.put_nowait("paused" if word == "pause" else "running")
            case "event", "answer":
                self._answers.put_nowait(payload)
            case "event", _:
                self._letters.put_nowait(payload)
            case "error", _:
                self.refused.append(str(payload))

    async def _job(self, message: Message, payload: Mapping[str, Any]) -> Job:
        task = message["task"]
        return Job(
            id=task["id"],
            type=message["intent"],
            input={name: value for name, value in payload.items() if name not in OURS and name not in BESIDE},
            native=message,
            description=task.get("description"),
            thread=task.get("thread"),
            attachments=tuple([await self.fetch(ref) for ref in payload.get("attachments", ())]),
            answer=payload.get("answer"),
            attempt=task.get("attempt", 1),
            trace=trace_in(payload.get("traceparent")),
            limit=only(task.get("limits")),
            context=task.get("context"),
            handover=payload.get("handover"),
        )

    async def _reply(self, job: Job, kind: str, intent: str, payload: Mapping[str, Any], **beside: Any) -> None:
        asked = job.native
        about = {name: asked["payload"].get(name) for name in ("contract_id", "correlation_id")}
        message = await self.message(kind, asked["source_agent"], intent, {**payload, **about})
        await self.tell({**message, **beside})

    async def say(self, job: Job, **features: Any) -> None:
        if "file" in features:
            features["file"] = await upload(self, features["file"])
        await self._reply(job, "event", "progress", features)

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        await self._reply(job, "event", "question", {"question": question, "options": list(options)})

    async def answered(self, job: Job) -> Job:
        return replace(job, answer=(await soon(self._answers.get()))["answer"])

    async def write(self, to: str, words: str) -> None:
        contract = (await self.shake_hands(to, "examine"))["contract_id"]
        await self.post(await self.message("event", agent(to), "noticed", {"message": words, "contract_id": contract}))

    async def reads(self) -> str:
        return str((await soon(self._letters.get()))["message"])

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        payload = {**(result or {}), **said(output=text)}
        await self._reply(job, "response", job.type, payload, **said(usage=usage))

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        code = "RATE_LIMIT_EXCEEDED" if failure.retryable else "INTERNAL_ERROR"
        await self.err(job, code, failure.message, said(exit_code=failure.exit_code))

    async def err(self, job: Job, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        """Answer with one of the document's codes."""
        after = 1 if code in ("TIMEOUT", "INTERNAL_ERROR", "RATE_LIMIT_EXCEEDED") else 0
        error = {"code": code, "message": message, "details": details or {}, "retry_after": after}
        await self._reply(job, "error", job.type, {"error": error})


A2acp = Player(A2acpCaller, A2acpWorker)
__all__ = ["A2acp", "A2acpCaller", "A2acpWorker", "Refusal"]
