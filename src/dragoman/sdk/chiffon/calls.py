"""One call in chiffon, and what has been heard of it: values only, no link."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.protocols.chiffon import chunks, codec, errors, mapping
from dragoman.protocols.chiffon.types import Envelope, ErrorPayload, Payload, WorkRequest, WorkResult, WorkStatus
from dragoman.sdk.calling.calls import PendingCall
from dragoman.sdk.errors import TaskFailed
from dragoman.sdk.events import value_of
from dragoman.sdk.failures import failed


def fault_in(message: Envelope[Payload]) -> dict[str, Any]:
    """What the hub tells of a failure beside the document's fields: `kind`, `message` without advice, `exit_code`."""
    fault = message.x_custom_fields.get("fault")
    return fault if isinstance(fault, dict) else {}


class Call(PendingCall):
    def __init__(self, request: Envelope[WorkRequest]) -> None:
        super().__init__(request.payload.task_id, request.message_id)
        self.request = request
        self.frame = codec.encode(request)
        self.tries = 1
        self.is_pinned = "agent_id" in request.x_custom_fields
        self._blocks = chunks.Reassembly()
        self._heard: set[str] = set()

    def send_as(self, request: Envelope[WorkRequest]) -> None:
        """Ask in other words."""
        self.id, self.request, self.frame = request.message_id, request, codec.encode(request)

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
            custom = message.x_custom_fields
            data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(payload, custom))
            data.pop("chunk", None)
            data.pop("stream", None)
            if payload.step is not None:
                data["output"] = payload.step.output
            if custom.get("file") is not None:
                data["file"] = custom["file"]
            self._tell("paused" if payload.status == "paused" else "progress", message, data)

    def _ended(self, message: Envelope[Payload], result: WorkResult) -> None:
        output = result.output
        if result.output_chunk is not None:
            try:
                place = chunks.parse(result.output_chunk)
                if place.start == 0:  # whoever tried before, if anybody, broke off in the middle
                    self._blocks = chunks.Reassembly()
                self._blocks = self._blocks.feed(chunks.Block(place, result.output))
                if not chunks.is_last(result):
                    return
                output = self._blocks.finish()
            except chunks.ChunkError as error:
                self._blocks = chunks.Reassembly()
                if chunks.is_last(result):
                    self.fail(TaskFailed(f"its output came broken: {error}", task_id=self.task_id))
                return
        done = mapping.result_in(result, message.x_custom_fields)
        structured = done.value
        data = {"output": output, "exit_code": result.exit_code, "result": structured}
        if done.usage:
            data["usage"] = done.usage
        if result.exit_code == 0:
            self._tell("completed", message, data)
            self.finish(value_of(structured, output or self.heard))
            return
        self._tell("failed", message, data)
        fault = fault_in(message)
        ended = failed(
            fault.get("message") or output.rstrip().rpartition("\n")[2] or f"exit code {result.exit_code}",
            task_id=self.task_id,
            kind=fault.get("kind") or "work_failed",
            exit_code=result.exit_code,
            output=output,
            facts={"agent": message.x_custom_fields.get("agent_id")},
        )
        self.fail(ended)

    def _failed(self, message: Envelope[Payload], payload: ErrorPayload) -> None:
        status = "cancelled" if payload.error_code == errors.TASK_CANCELLED else "failed"
        fault = fault_in(message)
        facts = {"code": payload.error_code, "message": payload.error_message, **payload.error_context}
        words = fault.get("message") or payload.error_message
        self._tell(status, message, {"fault": facts, "message": words})
        error = failed(
            words,
            task_id=self.task_id,
            status=status,
            kind=fault.get("kind") or errors.KINDS.get(payload.error_code),
            code=payload.error_code,
            exit_code=fault.get("exit_code"),
            facts=facts,
        )
        self.fail(error)

    def _tell(self, kind: str, message: Envelope[Payload], data: dict[str, Any]) -> None:
        agent = message.x_custom_fields.get("agent_id")
        self.tell(kind, data, at=message.timestamp.isoformat(), agent=agent if isinstance(agent, str) else None)
