"""One call in agentmsg, and what has been heard of it: values only, no link.

A call is *taken* when the hub has it, and *done* when its result or failure has come. What was heard in between are
its events.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.protocols.agentmsg.types import HUB, Message, TaskAssignment, TaskComplete, TaskFailed, TaskUpdate
from dragoman.sdk.errors import TaskCancelled
from dragoman.sdk.errors import TaskFailed as Failed
from dragoman.sdk.events import Event, value_of

ASIDES = ("thinking", "tool_use", "tool_result", "file", "step")
"""More fields of an update, which the hub's form has, too."""


class Call:
    """A request on its way, at work, or done."""

    def __init__(self, id: str, at: Any, to: str, assignment: TaskAssignment, **metadata: Any) -> None:
        loop = asyncio.get_running_loop()
        self.id = id
        self.at = at
        self.to = to
        self.assignment = assignment
        self.metadata = metadata
        self.tries = 1
        self.taken: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[Any] = loop.create_future()
        self.events: list[Event] = []
        self.news = asyncio.Event()
        self._output: list[str] = []

    @property
    def task_id(self) -> str:
        return self.assignment.task.task_id

    def hear(self, message: Message, tree: dict[str, Any]) -> None:
        """The hub tells how it goes, or how it ended."""
        payload = message.payload
        if isinstance(payload, TaskComplete):
            result, said = payload.result, tree["payload"].get("output")
            output = said if isinstance(said, str) else result if isinstance(result, str) else "".join(self._output)
            self._tell("completed", message, {"result": result, "output": output})
            self.finish(value_of(result, output), None)
        elif isinstance(payload, TaskFailed):
            self._failed(message, payload.error, is_cancel=tree["payload"].get("status") == "cancelled")
        elif isinstance(payload, TaskUpdate) and payload.status == "cancelled":
            facts = {"message": payload.message or "cancelled"}
            self._tell("cancelled", message, {"fault": facts})
            self.finish(None, TaskCancelled(facts["message"], task_id=self.task_id, status="cancelled", facts=facts))
        elif isinstance(payload, TaskUpdate):
            self._progress(message, payload, tree["payload"])

    def _progress(self, message: Message, update: TaskUpdate, tree: dict[str, Any]) -> None:
        if update.output:
            self._output.append(update.output)
        data: dict[str, Any] = {"status": update.status or "in_progress"}
        if update.progress is not None:
            data["percent"] = round(update.progress)
        if update.message:
            data |= {"step": {"name": update.message}, "message": update.message}
        if update.output:
            data["output"] = update.output
        data.update((name, tree[name]) for name in ASIDES if name in tree)
        self._tell("paused" if update.status == "paused" else "progress", message, data, tree.get("agent_id"))

    def _failed(self, message: Message, report: ErrorReport, *, is_cancel: bool) -> None:
        details = report.context.details
        status = "cancelled" if is_cancel else "failed"
        facts = {**msgspec.to_builtins(report), **details}
        self._tell(status, message, {"fault": facts})
        exit_code = details.get("exit_code")
        error = (TaskCancelled if is_cancel else Failed)(
            report.message,
            task_id=self.task_id,
            status=status,
            kind=str(details.get("kind") or report.error_type.value),
            exit_code=exit_code if type(exit_code) is int else None,
            output="".join(self._output),
            facts=facts,
        )
        self.finish(None, error)

    def _tell(self, kind: str, message: Message, data: dict[str, Any], agent: Any = None) -> None:
        agent = str(agent) if agent else message.sender if message.sender != HUB else None
        at = message.timestamp.isoformat()
        event = Event(task_id=self.task_id, seq=len(self.events) + 1, kind=kind, at=at, agent=agent, data=data)
        self.events.append(event)
        self.news.set()

    def finish(self, value: Any, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(value)
            else:
                self.done.set_exception(error)
                self.done.exception()  # seen: nobody has to ask how it ended
        self.news.set()
