"""The work in hand, for a handler that is a plain function in a thread: each word waits until it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from msgspec import UNSET, UnsetType

from dragoman.sdk.errors import Reject
from dragoman.sdk.peers import Handoff, HandoffReason, Help, HelpKind, Urgency
from dragoman.sdk.work.facts import Facts
from dragoman.sdk.work.running_task import RunningTask
from dragoman.sdk.work.task import HANDOFF_DEADLINE, Task

T = TypeVar("T")


class SyncTask(Facts):
    """The task of a plain function: the same words, and each waits until it is done."""

    def __init__(self, task: Task, running: RunningTask, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(running)
        self._task = task
        self._loop = loop

    def progress(self, percent: float, step: str | None = None, output: str | None = None) -> None:
        self._wait(self._task.progress(percent, step, output))

    def log(self, text: str) -> None:
        self._wait(self._task.log(text))

    def text(self, chunk: str) -> None:
        self._wait(self._task.text(chunk))

    def think(self, text: str) -> None:
        self._wait(self._task.think(text))

    def tool_use(self, name: str, input: Any = None, *, id: str | None = None) -> str:
        return self._wait(self._task.tool_use(name, input, id=id))

    def tool_result(self, id: str, output: Any, *, is_error: bool = False) -> None:
        self._wait(self._task.tool_result(id, output, is_error=is_error))

    def send_file(self, name: str, data: bytes, mime_type: str = "application/octet-stream") -> None:
        self._wait(self._task.send_file(name, data, mime_type))

    def ask(
        self,
        question: str,
        *,
        options: Sequence[Any] = (),
        timeout: float | None = None,
        default: Any | UnsetType = UNSET,
    ) -> Any:
        return self._wait(self._task.ask(question, options=options, timeout=timeout, default=default))

    def help(
        self,
        question: str,
        *,
        help_type: HelpKind = "TECHNICAL_GUIDANCE",
        to: str | None = None,
        urgency: Urgency = "medium",
        deadline: datetime | timedelta | float | None = None,
        attempted: Sequence[str] = (),
        error: BaseException | str | None = None,
    ) -> Help:
        asking = self._task.help(
            question, help_type=help_type, to=to, urgency=urgency, deadline=deadline, attempted=attempted, error=error
        )
        return self._wait(asking)

    def handoff(
        self,
        to: str | None = None,
        reason: HandoffReason = "LOAD_BALANCING",
        *,
        context: dict[str, Any] | None = None,
        capabilities: Sequence[str] = (),
        deadline: datetime | timedelta | float = HANDOFF_DEADLINE,
        error: BaseException | str | None = None,
    ) -> Handoff:
        handing = self._task.handoff(
            to, reason, context=context, capabilities=capabilities, deadline=deadline, error=error
        )
        return self._wait(handing)

    def used(self, *, tokens: float = 0, cost_usd: float = 0) -> None:
        self._task.used(tokens=tokens, cost_usd=cost_usd)

    def checkpoint(self) -> None:
        self._wait(self._task.checkpoint())

    def reject(self, reason: str) -> Reject:
        return self._task.reject(reason)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.cancelled:
            coroutine.close()
            raise Reject("the task was cancelled")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
