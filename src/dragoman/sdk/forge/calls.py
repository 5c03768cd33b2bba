"""One call in forge, and what has been heard of it: values only, no link.

A call is taken when the hub has told the task's id, and done when its end was told, or seen. An output too long for
one message comes in pieces before it, named after it: `D/1`, `D/2`, then `D` itself. Parts of the last word say in
`_meta.part` which bytes they are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.protocols.forge import mapping
from dragoman.protocols.forge.types import Failure, Message, Response, Stamp, SubmitTask, TaskUpdated
from dragoman.sdk.calling.calls import PendingCall
from dragoman.sdk.events import FINAL, value_of
from dragoman.sdk.failures import failed


class Call(PendingCall):
    def __init__(self, said: SubmitTask, stamp: Stamp, traceparent: str | None) -> None:
        super().__init__("", stamp.id)
        self.said = said
        self.stamp = stamp
        self.traceparent = traceparent
        self.tries = 1
        self._heard: set[str] = set()
        self._pieces: dict[str, str] = {}
        self._parts: dict[int, str] = {}
        self._output: list[str] = []

    def hear(self, notice: Message, said: TaskUpdated) -> None:
        """The hub tells how it goes, or how it ended."""
        if notice.id in self._heard or self.done.done():
            return  # told again
        self._heard.add(notice.id)
        part = notice.meta.get("part")
        if isinstance(part, list) and part and isinstance(part[0], int):
            if part[0] == 0:  # whoever tried before, if anybody, broke off in the middle
                self._parts.clear()
            self._parts[part[0]] = said.output or ""
            if not said.final:
                return
            said = msgspec.structs.replace(said, output="".join(text for _, text in sorted(self._parts.items())))
        whole, slash, _ = notice.id.partition("/")
        if slash:
            self._pieces[whole] = self._pieces.get(whole, "") + (said.output or "")
            return
        output = self._pieces.pop(whole, "") + (said.output or "")
        at = notice.timestamp.isoformat()
        if said.final:
            result = None if said.result is msgspec.UNSET else said.result
            self._end(said.status, at, result, output, said.error or {})
            return
        self._output.append(output)
        self.tell("progress", _data(said, output), at=at)

    def look(self, response: Response) -> None:
        """The task as it is now; what it has put out so far was or will be told."""
        if isinstance(response, Failure) or self.done.done():
            return
        task = response.payload.get("task")
        if not isinstance(task, dict) or task.get("status") not in FINAL:
            return
        self._output.clear()
        error = task.get("error")
        self._end(
            task["status"],
            str(task.get("updatedAt") or ""),
            task.get("result"),
            str(task.get("output") or ""),
            error if isinstance(error, dict) else {},
        )

    def _end(self, status: str, at: str, result: Any, output: str, error: dict[str, Any]) -> None:
        output = output or "".join(self._output)
        if status == "completed":
            self.tell(status, {"output": output, "result": result}, at=at)
            self.finish(value_of(result, output))
            return
        details = error.get("details")
        facts = {**(details if isinstance(details, dict) else {}), "code": error.get("code")}
        fault = facts.pop("fault", None)
        fault = fault if isinstance(fault, dict) else {}
        message = str(fault.get("message") or error.get("message") or "no reason given")
        self.tell(status, {"output": output, "fault": {**facts, "message": message}}, at=at)
        kind = fault.get("kind") or facts.get("reason")
        ended = failed(
            message,
            task_id=self.task_id,
            status=status,
            kind=kind if isinstance(kind, str) else None,
            exit_code=facts.get("exit_code"),
            output=output,
            facts=facts,
        )
        self.fail(ended)


def _data(said: TaskUpdated, output: str) -> dict[str, Any]:
    """In the hub's form."""
    report = msgspec.structs.replace(mapping.update_in(said), output=output or None)
    data: dict[str, Any] = msgspec.to_builtins(report)
    if said.file is not None:
        data["file"] = said.file
    return data
