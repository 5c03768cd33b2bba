"""A submitted task, as its caller holds it.

handle = await hub.submit("write", {"topic": "tides"}, returns=Report)
async for event in handle.events(): ...
report = await handle.result()          # a Report
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar, cast

import msgspec

from dragoman.sdk.calling.backend import Backend
from dragoman.sdk.errors import BadResult, StillRunning
from dragoman.sdk.events import Event, TaskInfo
from dragoman.sdk.work import type_hints

T = TypeVar("T")


class TaskHandle(Generic[T]):
    """Follows, waits for and cancels one task. The client that made it must be open. Where an older program expects the
    task's id, `str(handle)` is the id, and a handle equals it."""

    __slots__ = ("_backend", "_returns", "id")

    def __init__(self, backend: Backend, id: str, returns: Any = Any) -> None:
        self._backend = backend
        self._returns = returns
        self.id = id

    async def result(self, *, timeout: float | None = None) -> T:
        """Wait for the task's end and return its result; raises `TaskFailed` with the facts if it failed.

        After `timeout` seconds it raises `StillRunning`: the task goes on, and its result can be asked for again.
        """
        waiting = asyncio.timeout(timeout)
        try:
            async with waiting:
                value = await self._backend.result(self.id)
        except TimeoutError:
            if timeout is None or not waiting.expired():
                raise
            raise StillRunning(self.id, timeout) from None
        return self._typed(value)

    async def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Every event of the task until the last, from number `after` on: none missed and none twice."""
        async for event in self._backend.events(self.id, after):
            yield event

    async def cancel(self, reason: str | None = None) -> None:
        """Stop the task and everything it asked others to do."""
        await self._backend.cancel(self.id, reason)

    async def info(self) -> TaskInfo:
        """The task as it is now."""
        return await self._backend.task(self.id)

    def _typed(self, value: Any) -> T:
        if self._returns is Any:
            return cast(T, value)
        try:
            return cast(T, msgspec.convert(value, self._returns, dec_hook=type_hints.made))
        except msgspec.ValidationError as error:
            raise BadResult(self.id, str(error), value) from None

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TaskHandle):
            return self.id == other.id
        return self.id == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


def id_of(task: object) -> str:
    """The id of a task that is named by a handle or by its id."""
    return str(task)
