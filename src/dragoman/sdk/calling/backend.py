"""The port between `Client` and each way of calling: the management API and the clients of the five protocols."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

from dragoman.sdk.events import Event, Question, TaskInfo


class Backend(Protocol):
    """What every way of calling can do; it raises `NotSupported` for what its protocol cannot."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns the task's id when the hub has it, durably."""
        ...

    async def result(self, task_id: str) -> Any: ...

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo: ...

    def events(self, task_id: str, after: int) -> AsyncIterator[Event]: ...

    async def cancel(self, task_id: str, reason: str | None) -> None: ...

    async def questions(self, status: str | None) -> list[Question]: ...

    async def answer(self, question_id: str, answer: Any) -> None: ...
