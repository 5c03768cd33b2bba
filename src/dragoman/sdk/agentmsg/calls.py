"""One call in agentmsg, and what has been heard of it: values only, no link."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.protocols.agentmsg import errors, mapping
from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.protocols.agentmsg.types import HUB, Message, TaskAssignment, TaskComplete, TaskFailed, TaskUpdate
from dragoman.sdk.calling.calls import PendingCall
from dragoman.sdk.events import value_of
from dragoman.sdk.failures import failed


class Call(PendingCall):
    def __init__(self, id: str, at: Any, to: str, assignment: TaskAssignment, **metadata: Any) -> None:
        super().__init__(assignment.task.task_id, id)
        self.at = at
        self.to = to
        self.assignment = assignment
        self.metadata = metadata
        self.tries = 1
        self._output: list[str] = []

    def hear(self, message: Message, tree: dict[str, Any]) -> None:
        """The hub tells how it goes, or how it ended."""
        payload = message.payload
        if isinstance(payload, TaskComplete):
            done = mapping.result_in(payload, tree["payload"])
            output = done.output if done.output is not None else "".join(self._output)
            used = {} if done.usage is None else {"usage": done.usage}
            self._tell("completed", message, {"result": payload.result, "output": output, **used})
            self.finish(value_of(payload.result, output))
        elif isinstance(payload, TaskFailed):
            self._failed(message, payload.error, is_cancel=tree["payload"].get("status") == "cancelled")
        elif isinstance(payload, TaskUpdate) and payload.status == "cancelled":
            facts = {"message": payload.message or "cancelled"}
            self._tell("cancelled", message, {"fault": facts})
            self.fail(failed(facts["message"], task_id=self.task_id, kind="cancelled", status="cancelled", facts=facts))
        elif isinstance(payload, TaskUpdate):
            self._progress(message, payload, tree["payload"])

    def _progress(self, message: Message, update: TaskUpdate, tree: dict[str, Any]) -> None:
        if update.output:
            self._output.append(update.output)
        data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(update, tree))
        data["status"] = update.status or "in_progress"
        if update.message:
            data.setdefault("step", {"name": update.message})
        if not update.output:
            data.pop("output", None)
        if "file" in tree:
            data["file"] = tree["file"]
        self._tell("paused" if update.status == "paused" else "progress", message, data, tree.get("agent_id"))

    def _failed(self, message: Message, report: ErrorReport, *, is_cancel: bool) -> None:
        details = report.context.details
        status = "cancelled" if is_cancel else "failed"
        facts = {**msgspec.to_builtins(report), **details}
        self._tell(status, message, {"fault": facts})
        error = failed(
            report.message,
            task_id=self.task_id,
            status=status,
            kind=str(details.get("kind") or errors.name_of(report.error_type).value),
            exit_code=details.get("exit_code"),
            output="".join(self._output),
            facts=facts,
        )
        self.fail(error)

    def _tell(self, kind: str, message: Message, data: dict[str, Any], agent: Any = None) -> None:
        agent = str(agent) if agent else message.sender if message.sender != HUB else None
        self.tell(kind, data, at=message.timestamp.isoformat(), agent=agent)
