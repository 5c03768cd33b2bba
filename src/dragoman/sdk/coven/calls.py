"""One call in coven, as it is heard of: values only, no gRPC.

A task's events come by number (`cursor`), so that who was cut off goes on from the last whole one. One event of the
task may come as several responses. Only the last of them moves the cursor on; the others are held back until it is
there, and an event is told once and whole. What was held back when a stream breaks is told by the next one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.protocols.coven import once
from dragoman.protocols.coven.types import (
    Done,
    Error,
    Fault,
    FileData,
    MessageResponse,
    Progress,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from dragoman.sdk.events import Event, event_of, value_of
from dragoman.sdk.failures import failed


class Hearing:
    """What has been heard of a task, from event `after` on."""

    def __init__(self, task_id: str, after: int = 0) -> None:
        self.task_id = task_id
        self.cursor = after
        self._parts: list[dict[str, Any]] = []
        self._last: dict[str, Any] | None = None
        self._is_resumed = False
        self._pieces: list[str] = []
        self._end: MessageResponse | None = None

    def resume(self) -> None:
        """The stream broke: the next one begins after `cursor`."""
        self._parts = []
        self._is_resumed = True

    def hear(self, response: MessageResponse) -> Event | None:
        """The event that is whole with this."""
        data = data_of(response)
        if not response.last and response.cursor <= self.cursor:
            # A hub may number a part like the event before it: then the first part has been told already, as an event.
            if not (self._is_resumed and not self._parts and data == self._last):
                self._parts.append(data)
            return None
        parts, self._parts = [*self._parts, data], []
        self._is_resumed, self._last = False, data
        self.cursor = max(self.cursor, response.cursor)
        kind = kind_of(response)
        if kind == "attempt_failed":
            self._pieces.clear()  # the next attempt begins its answer anew
        whole: dict[str, Any] = {}
        for part in parts:
            if "output" in part and "output" in whole:
                part = {**part, "output": whole["output"] + part["output"]}
            whole |= part
        if kind == "progress":
            self._pieces.append(whole.get("output", ""))
        if response.last:
            self._end = response
        return event_of(self.task_id, self.cursor, kind, whole)

    @property
    def is_over(self) -> bool:
        return self._end is not None

    def outcome(self) -> Any:
        """The result; raises what the end means."""
        assert self._end is not None
        event, fault, output = self._end.event, self._end.fault, "".join(self._pieces)
        if isinstance(event, Done):
            text = event.full_response or output
            return value_of(_json(once.result_json(event, text)), text)
        assert isinstance(event, Error)
        kind = fault.kind if fault is not None else "work_failed"
        facts = _facts(fault)
        raise failed(
            (fault.message if fault is not None else "") or event.message or "no reason given",
            task_id=self.task_id,
            status="cancelled" if kind == "cancelled" else "failed",
            kind=kind,
            exit_code=facts.get("exit_code"),
            output=output,
            facts=facts,
        )


def kind_of(response: MessageResponse) -> str:
    if isinstance(response.event, Done):
        return "completed"
    if isinstance(response.event, Error):
        return "cancelled" if response.fault is not None and response.fault.kind == "cancelled" else "failed"
    return "attempt_failed" if response.fault is not None else "progress"


def data_of(response: MessageResponse) -> dict[str, Any]:
    """A response in the hub's form; a file has its `data` with it."""
    data: dict[str, Any] = {}
    event = response.event
    match event:
        case Text():
            data["output"] = event.text
        case Thinking() if response.progress is None and response.fault is None:
            data["thinking"] = event.text
        case Thinking() if response.fault is not None:
            data["message"] = event.text
        case ToolUse():
            data["tool_use"] = {"id": event.id, "name": event.name, "input": _json(event.input_json)}
        case ToolResult():
            data["tool_result"] = {"id": event.id, "output": event.output, "is_error": event.is_error}
        case FileData():
            size = len(event.data)
            data["file"] = {"name": event.filename, "mime_type": event.mime_type, "size": size, "data": event.data}
        case Done():
            result = _json(once.result_json(event, event.full_response))
            data |= {"output": event.full_response, "result": result}
    if response.progress is not None:
        data |= _figures(response.progress)
    if response.fault is not None:
        fault = response.fault
        facts = {"message": fault.message, "retryable": fault.retryable, "facts": _facts(fault)}
        data["fault"] = {"kind": fault.kind, **facts}
    elif isinstance(event, Error):
        data["fault"] = {"kind": "work_failed", "message": event.message, "retryable": False, "facts": {}}
    return data


def _figures(progress: Progress) -> dict[str, Any]:
    data: dict[str, Any] = {"status": "running"}
    if progress.percent is not None:
        data["percent"] = progress.percent
    if progress.step or progress.number:
        data["step"] = {"number": progress.number, "name": progress.step}
        if progress.total:
            data["step"]["total"] = progress.total
    if progress.message:
        data["message"] = progress.message
    return data


def _facts(fault: Fault | None) -> dict[str, Any]:
    facts = _json(fault.facts_json) if fault is not None else None
    return facts if isinstance(facts, dict) else {}


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except msgspec.DecodeError:
        return text
