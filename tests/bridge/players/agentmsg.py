"""Agentmsg on the wire: tasks and what agents ask of each other, in messages; files by the address they are told by."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tests.bridge.players.agentmsg_link import AgentmsgParty, Message, Refusal, time
from tests.bridge.players.neutral import (
    Caller,
    Handle,
    Job,
    Order,
    Piece,
    Player,
    Worker,
    WorkFailure,
    said,
    soon,
    trace_in,
    traceparent_of,
    upload,
)

ASIDES = ("step", "thinking", "tool_use", "tool_result")
WAITING = "Waiting for an answer"


class AgentmsgCaller(AgentmsgParty, Caller):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._told: defaultdict[str, asyncio.Queue[Message]] = defaultdict(asyncio.Queue)
        self._sent: dict[str, Message] = {}

    async def submit(self, order: Order) -> Handle:
        order.cannot("attachments")
        message = self._sent.setdefault(order.request_id, self._assignment(order))
        await self.deliver(message)
        return Handle(task_id=message["payload"]["task"]["task_id"], native=message)

    def name_of(self, order: Order) -> str:
        """What the task is called: its id, if it is a UUID."""
        return str(uuid.uuid5(uuid.NAMESPACE_OID, order.request_id))

    def _assignment(self, order: Order) -> Message:
        task_id = self.name_of(order)
        task: dict[str, Any] = {
            "task_id": task_id,
            "task_type": order.type,
            "description": order.description or "",
            "input": order.input,
            "context": {
                "task_id": task_id,
                "task_type": order.type,
                "priority": order.priority or "normal",
                "metadata": said(thread=order.thread, parent_task_id=order.parent),
                "dependencies": order.dependencies,
                "history": [],
            },
            "constraints": {"required_capabilities": order.needs},
        }
        if order.deadline is not None:
            task["constraints"]["deadline"] = time(order.deadline)
        if order.budget is not None:
            task["constraints"]["budget_usd"] = order.budget
        if order.limit is not None:
            task["constraints"]["quality_threshold"] = order.limit
        if order.context is not None:
            task["context"]["metadata"] |= order.context["metadata"]
            task["context"]["history"] = order.context["history"]
        trace = {"traceparent": traceparent_of(order.trace)} if order.trace else {}
        return self.message("TASK_ASSIGNMENT", {"task": task}, to=order.to, id=order.request_id, **trace)

    async def cancel(self, handle: Handle, reason: str) -> None:
        payload = {"task_id": handle.task_id, "status": "cancelled", "message": reason}
        await self.deliver(self.message("TASK_UPDATE", payload, priority="high"))

    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None:
        self._told[payload["task_id"]].put_nowait(message)

    async def piece(self, handle: Handle) -> Piece:
        message = await self._told[handle.task_id].get()
        payload = message["payload"]
        trace = said(trace=trace_in(message["metadata"].get("traceparent")))
        match message["type"]:
            case "TASK_UPDATE":
                return await self._update(payload) | trace
            case "TASK_COMPLETE":
                return self._complete(payload) | trace
            case "TASK_FAILED":
                return self._failed(payload) | trace
        raise AssertionError(message)

    async def _update(self, payload: Mapping[str, Any]) -> Piece:
        told = said(message=payload.get("message"), **{name: payload.get(name) for name in ASIDES})
        if "progress" in payload:
            told["percent"] = payload["progress"]
        if "chunk" not in payload:  # else a part of what the result has whole
            told |= said(output=payload.get("output"))
        if "file" in payload:
            told["file"] = await self.fetch(payload["file"])
        if payload.get("message", "").startswith(WAITING):
            told["question"] = payload["message"]
        return told

    def _complete(self, payload: Mapping[str, Any]) -> Piece:
        result = payload["result"]
        text = payload.get("output", result if isinstance(result, str) else None)
        return said(final="completed", result=result, text=text, usage=payload.get("usage"))

    def _failed(self, payload: Mapping[str, Any]) -> Piece:
        error = payload["error"]
        code = error["context"].get("details", {}).get("exit_code")
        usage = payload.get("usage")
        return said(final=payload.get("status", "failed"), error=error["message"], exit_code=code, usage=usage)


class AgentmsgWorker(AgentmsgParty, Worker):
    def die(self) -> None:
        self.socket.cut()

    async def hear(self, message: Message, payload: Mapping[str, Any]) -> None:
        match message["type"], payload.get("status"):
            case "TASK_ASSIGNMENT", _:
                self.jobs.put_nowait(await self._job(message, payload["task"]))
            case "TASK_UPDATE", "cancelled":
                self._cancelled[payload["task_id"]].set()
            case "TASK_UPDATE", None:
                self.told.put_nowait(payload["message"])
            case "TASK_UPDATE", status:
                self.told.put_nowait("running" if status == "in_progress" else str(status))

    async def _job(self, message: Message, task: Mapping[str, Any]) -> Job:
        context = task["context"]
        return Job(
            id=task["task_id"],
            type=task["task_type"],
            input=task["input"],
            native=message,
            priority=context["priority"],
            description=task["description"],
            thread=context["metadata"].get("thread"),
            attachments=tuple([await self.fetch(ref) for ref in task.get("attachments", ())]),
            answer=task.get("answer"),
            attempt=task["attempt"],
            trace=trace_in(message["metadata"].get("traceparent")),
            deadline=datetime.fromisoformat(task["constraints"]["deadline"]),
            budget=task["constraints"].get("budget_usd"),
            limit=task["constraints"].get("quality_threshold", task["constraints"].get("max_memory_mb")),
            context={name: context[name] for name in ("metadata", "history")},
            handover={**context, **task["handover"]} if "handover" in task else None,
        )

    async def say(self, job: Job, **features: Any) -> None:
        if "file" in features:
            features["file"] = await upload(self, features["file"])
        payload = {"task_id": job.id, "status": "in_progress", **features}
        if "percent" in payload:
            payload["progress"] = payload.pop("percent")
        await self.socket.send(self.message("TASK_UPDATE", payload))

    async def ask(self, job: Job, question: str, options: tuple[Any, ...] = ()) -> None:
        asked = self.help_request(job, question, "TECHNICAL_GUIDANCE") | {"ask": "person", "options": options}
        job.native = self.message("HELP_REQUEST", asked)
        await self.deliver(job.native)

    async def answered(self, job: Job) -> Job:
        payload = (await self.answer(job.native["id"]))["payload"]
        job.answer = payload.get("answer", payload["content"])
        return job

    def help_request(self, job: Job, question: str, topic: str) -> dict[str, Any]:
        return {
            "requester_id": self.id,
            "task_id": job.id,
            "help_type": topic,
            "description": question,
            "context": {"current_state": "stuck", "attempted_solutions": ["waiting"]},
            "urgency": "medium",
        }

    # -- with other agents

    async def hand_over(
        self,
        job: Job,
        to: str,
        metadata: Mapping[str, Any],
        reason: str = "ESCALATION",
        needs: tuple[str, ...] = (),
    ) -> str:
        event = {"timestamp": time(), "event_type": "looked", "details": {"at": "the piers"}, "agent_id": self.id}
        payload = {
            "task_id": job.id,
            "from_agent": self.id,
            "to_agent": to,
            "reason": reason,
            "context": {
                "task_id": job.id,
                "task_type": job.type,
                "priority": job.priority,
                "metadata": metadata,
                "dependencies": [],
                "history": [event],
            },
            "constraints": {"required_capabilities": needs},
            "deadline": time(ahead=60),
        }
        request = self.message("TASK_HANDOFF", payload, to=to)
        await self.deliver(request)
        return str(request["id"])

    async def take_over(self) -> Job:
        await self._answer_handover(
            accepted=True,
            estimated_completion=time(ahead=60),
            requirements=[],
            constraints={"required_capabilities": []},
        )
        return await self.take()

    async def decline(self, why: str) -> None:
        await self._answer_handover(accepted=False, error=why)

    async def _answer_handover(self, **terms: Any) -> None:
        request = await soon(self.direct_messages.get())
        assert (request["type"], request["payload"]["to_agent"]) == ("TASK_HANDOFF", self.id)
        payload = {"agent_id": self.id, **terms}
        await self.deliver(self.message("TASK_HANDOFF", payload, to=request["from"], correlation_id=request["id"]))

    async def ask_for_help(self, job: Job, question: str, to: str, topic: str = "TECHNICAL_GUIDANCE") -> str:
        request = self.message("HELP_REQUEST", self.help_request(job, question, topic), to=to)
        await self.deliver(request)
        return str(request["id"])

    async def help(self, text: str, response_type: str = "DIRECT_ANSWER") -> str:
        return str((await self._respond(text, response_type))["description"])

    async def _respond(self, text: str, response_type: str, **more: Any) -> dict[str, Any]:
        request = await soon(self.direct_messages.get())
        assert request["type"] == "HELP_REQUEST"
        payload = {
            "responder_id": self.id,
            "request_id": request["id"],
            "response_type": response_type,
            "content": text,
            "follow_up_required": False,
            "estimated_effort": 1,
            **more,
        }
        await self.deliver(self.message("HELP_RESPONSE", payload, to=request["from"]))
        return dict(request["payload"])

    async def refuse_to_help(self, text: str) -> None:
        await self.help(text, response_type="UNABLE_TO_HELP")

    async def escalate(self, text: str, resources: list[dict[str, str]]) -> list[dict[str, Any]]:
        asked = await self._respond(text, "ESCALATION", resources=resources)
        return [{"agent": one.pop("responder_id"), **one} for one in asked.get("escalations", ())]

    async def write(self, to: str, words: str) -> None:
        payload = {"task_id": "of-our-own", "message": words}
        await self.deliver(self.message("TASK_UPDATE", payload, to=to, priority="high"))

    async def reads(self) -> str:
        return await self.hears()

    # -- the end of it

    async def finish(
        self, job: Job, *, result: Any = None, text: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        payload: dict[str, Any] = {"task_id": job.id, "result": text if result is None else result}
        if result is not None and text is not None:
            payload["output"] = text
        if usage is not None:
            payload["usage"] = usage
        await self._end("TASK_COMPLETE", payload)

    async def end_in(self, job: Job, failure: WorkFailure) -> None:
        details = {} if failure.exit_code is None else {"exit_code": failure.exit_code}
        error = self.report(job, failure.message, failure.retryable, details)
        await self._end("TASK_FAILED", {"task_id": job.id, "error": error, **said(usage=failure.usage)})

    def report(self, job: Job, message: str, retryable: bool, details: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "error_id": str(uuid.uuid4()),
            "agent_id": self.id,
            "task_id": job.id,
            "error_type": "RESOURCE_EXHAUSTED" if retryable else "EXTERNAL_SERVICE_ERROR",
            "severity": "medium",
            "message": message,
            "context": {"details": details},
            "recovery_attempts": [],
            "suggested_actions": [],
        }

    async def _end(self, type: str, payload: Mapping[str, Any]) -> None:
        try:
            await self.deliver(self.message(type, payload))
        except Refusal as refusal:
            self.refused.append(str(refusal))


Agentmsg = Player(AgentmsgCaller, AgentmsgWorker)
