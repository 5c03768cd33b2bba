"""One call in chiffon, and what has been heard of it: values only, no link.

A call is *taken* when the hub has it, and *done* when its result or failure has come. What was heard in between are
its events.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman.protocols.chiffon import chunks, codec
from dragoman.protocols.chiffon.types import Envelope, ErrorPayload, Payload, WorkRequest, WorkResult, WorkStatus
from dragoman.sdk.errors import TaskCancelled, TaskFailed
from dragoman.sdk.events import Event, value_of
from dragoman.sdk.words_chiffon import CANCELLED

ASIDES = ("message", "thinking", "tool_use", "tool_result", "file")
"""Custom fields that the hub's form has, too."""
KINDS = {
    5001: "timeout",
    5002: "unavailable",
    5003: "invalid",
    5004: "forbidden",
    5005: "resources",
    5006: "unsupported_work",
    CANCELLED: "cancelled",
    5901: "dependency",
    5902: "work_failed",
}
"""Codes → the hub's own words, so that a caller finds the same ones whatever it speaks."""


class Call:
    """A request on its way, at work, or done."""

    def __init__(self, request: Envelope[WorkRequest], loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.frame = codec.encode(request)
        self.tries = 1
        self.is_pinned = "agent_id" in request.x_custom_fields
        self.taken: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[Any] = loop.create_future()
        self.events: list[Event] = []
        self.news = asyncio.Event()
        self._blocks = chunks.Reassembly()
        self._heard: set[str] = set()

    @property
    def task_id(self) -> str:
        return self.request.payload.task_id

    def send_as(self, request: Envelope[WorkRequest]) -> None:
        """Ask in other words."""
        self.request, self.frame = request, codec.encode(request)

    def hear(self, message: Envelope[Payload]) -> None:
        """The hub tells how it goes, or how it ended."""
        if message.message_id in self._heard:
            return  # delivered again: our acknowledgment got lost
        self._heard.add(message.message_id)
        payload = message.payload
        if isinstance(payload, ErrorPayload):
            self._failed(message, payload)
        elif isinstance(payload, WorkResult):
            self._ended(message, payload)
        elif isinstance(payload, WorkStatus):
            data: dict[str, Any] = {"status": payload.status, "percent": payload.progress_percent}
            if payload.step is not None:
                data["step"] = {"number": payload.step.number, "name": payload.step.name}
                data["output"] = payload.step.output
            data.update((name, said) for name in ASIDES if (said := message.x_custom_fields.get(name)) is not None)
            self._tell("paused" if payload.status == "paused" else "progress", message, data)

    def _ended(self, message: Envelope[Payload], result: WorkResult) -> None:
        output = result.output
        if result.output_chunk is not None:
            try:
                self._blocks = self._blocks.feed(chunks.Block(chunks.parse(result.output_chunk), result.output))
                if not chunks.is_last(result):
                    return
                output = self._blocks.finish()
            except chunks.ChunkError as error:
                self._blocks = chunks.Reassembly()
                if chunks.is_last(result):
                    self.finish(None, TaskFailed(f"its output came broken: {error}", task_id=self.task_id))
                return
        structured = message.x_custom_fields.get("result")
        data = {"output": output, "exit_code": result.exit_code, "result": structured}
        if result.exit_code == 0:
            self._tell("completed", message, data)
            self.finish(value_of(structured, output), None)
            return
        self._tell("failed", message, data)
        failed = TaskFailed(
            output.rstrip().rpartition("\n")[2] or f"exit code {result.exit_code}",
            task_id=self.task_id,
            kind="work_failed",
            exit_code=result.exit_code,
            output=output,
            facts={"agent": message.x_custom_fields.get("agent_id")},
        )
        self.finish(None, failed)

    def _failed(self, message: Envelope[Payload], payload: ErrorPayload) -> None:
        is_cancel = payload.error_code == CANCELLED
        status = "cancelled" if is_cancel else "failed"
        facts = {"code": payload.error_code, "message": payload.error_message, **payload.error_context}
        self._tell(status, message, {"fault": facts})
        error = (TaskCancelled if is_cancel else TaskFailed)(
            payload.error_message,
            task_id=self.task_id,
            status=status,
            kind=KINDS.get(payload.error_code),
            code=payload.error_code,
            facts=facts,
        )
        self.finish(None, error)

    def _tell(self, kind: str, message: Envelope[Payload], data: dict[str, Any]) -> None:
        agent = message.x_custom_fields.get("agent_id")
        self.events.append(
            Event(
                task_id=self.task_id,
                seq=len(self.events) + 1,
                kind=kind,
                at=message.timestamp.isoformat(),
                agent=agent if isinstance(agent, str) else None,
                data=data,
            )
        )
        self.news.set()

    def finish(self, value: Any, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(value)
            else:
                self.done.set_exception(error)
                self.done.exception()  # seen: nobody has to ask how it ended
        self.news.set()
