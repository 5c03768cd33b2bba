"""One call in forge, and what has been heard of it: values only, no link.

A call is *taken* when the hub has told the task's id, and *done* when its end was told, or seen. An output too long for
one message comes in pieces before it, named after it: `D/1`, `D/2`, then `D` itself. Parts of the last word say in
`_meta.part` which bytes they are.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from dragoman.protocols.forge.types import Failure, Message, Response, Stamp, SubmitTask, TaskUpdated
from dragoman.sdk.errors import TaskCancelled, TaskFailed
from dragoman.sdk.events import FINAL, Event, value_of


class Call:
    """A task on its way, at work, or done."""

    def __init__(self, said: SubmitTask, stamp: Stamp, traceparent: str | None) -> None:
        loop = asyncio.get_running_loop()
        self.said = said
        self.stamp = stamp
        self.traceparent = traceparent
        self.tries = 1
        self.task_id = ""
        self.taken: asyncio.Future[str] = loop.create_future()
        self.done: asyncio.Future[Any] = loop.create_future()
        self.events: list[Event] = []
        self.news = asyncio.Event()
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
        self._tell("progress", at, _data(said, output))

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
            self._tell(status, at, {"output": output, "result": result})
            self._finish(value_of(result, output), None)
            return
        details = error.get("details")
        facts = {**(details if isinstance(details, dict) else {}), "code": error.get("code")}
        message = str(error.get("message") or "no reason given")
        self._tell(status, at, {"output": output, "fault": {**facts, "message": message}})
        kind = facts.get("reason")
        failed = (TaskCancelled if status == "cancelled" else TaskFailed)(
            message,
            task_id=self.task_id,
            status=status,
            kind=kind if isinstance(kind, str) else None,
            exit_code=facts.get("exit_code") if isinstance(facts.get("exit_code"), int) else None,
            output=output,
            facts=facts,
        )
        self._finish(None, failed)

    def _tell(self, kind: str, at: str, data: dict[str, Any]) -> None:
        self.events.append(Event(task_id=self.task_id, seq=len(self.events) + 1, kind=kind, at=at, data=data))
        self.news.set()

    def _finish(self, value: Any, error: Exception | None) -> None:
        if not self.done.done():
            if error is None:
                self.done.set_result(value)
            else:
                self.done.set_exception(error)
                self.done.exception()  # seen: nobody has to ask how it ended
        self.news.set()

    def fail(self, error: Exception) -> None:
        """Nobody will tell any more."""
        if not self.taken.done():
            self.taken.set_exception(error)
        self._finish(None, error)

    def abandon(self) -> None:
        """Nobody waits any more."""
        for future in (self.taken, self.done):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()


def _data(said: TaskUpdated, output: str) -> dict[str, Any]:
    """In the hub's form."""
    data: dict[str, Any] = {"status": said.status}
    if said.progress is not None:
        data["percent"] = round(said.progress * 100)
    if output:
        data["output"] = output
    for name in ("message", "thinking", "file"):
        if getattr(said, name) is not None:
            data[name] = getattr(said, name)
    for name in ("step", "tool_use", "tool_result"):
        if getattr(said, name) is not None:
            data[name] = msgspec.structs.asdict(getattr(said, name))
    return data
