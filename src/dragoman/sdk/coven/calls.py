"""One call in coven, from the caller's side: values only, no gRPC.

A task's events have numbers (`cursor`), so that a caller whose stream broke resumes after the last complete one. One
event of the task may come as several responses. Only the last of them advances the cursor; the others are held back
until it comes, so the caller gets an event once and complete. Responses that were held back when a stream broke come
again over the next.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.protocols.coven import mapping
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    MessageResponse,
    Thinking,
)
from dragoman.sdk.events import Event, event_of, value_of
from dragoman.sdk.failures import failed


class CallEvents:
    """The events of a task, from event `after` on."""

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

    def add(self, response: MessageResponse) -> Event | None:
        """Add a response; gives the event that it completes, if any."""
        data = data_of(response)
        if not response.last and response.cursor <= self.cursor:
            # A hub may number a part like the event before it: then the caller has the first part already, as an event.
            if not (self._is_resumed and not self._parts and data == self._last):
                self._parts.append(data)
            return None
        parts, self._parts = [*self._parts, data], []
        self._is_resumed, self._last = False, data
        self.cursor = max(self.cursor, response.cursor)
        kind = kind_of(response)
        if kind == "attempt_failed":
            self._pieces.clear()  # the next attempt begins its answer from the start
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
        """The result; raises the exception of any other end."""
        assert self._end is not None
        event, fault, output = self._end.event, self._end.fault, "".join(self._pieces)
        if isinstance(event, Done):
            text = event.full_response or output
            return value_of(mapping.result_in(event, text).value, text)
        assert isinstance(event, Error)
        kind = fault.kind if fault is not None else "work_failed"
        facts = mapping.fault_in(self._end).facts
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
    event, fault = response.event, response.fault
    if isinstance(event, Done):
        done = mapping.result_in(event, event.full_response)
        return {"output": event.full_response, "result": done.value}
    data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(response))
    if response.progress is None:
        del data["status"]
    if isinstance(event, Thinking) and fault is not None:
        data.pop("thinking", None)
        data["message"] = event.text
    elif isinstance(event, FileData):
        size = len(event.data)
        data["file"] = {"name": event.filename, "mime_type": event.mime_type, "size": size, "data": event.data}
    if fault is not None or isinstance(event, Error):
        read = mapping.fault_in(response)
        data["fault"] = {
            "kind": read.kind.value if fault is None else fault.kind,
            "message": read.message if fault is None else fault.message,
            "retryable": read.retryable,
            "facts": read.facts,
        }
    return data
