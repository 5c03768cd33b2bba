"""What every store shares: its unit of work, and the cursors of its lists (the same text on every store)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from dragoman.core.ids import Instant, TaskId
from dragoman.core.lookups import Lookup
from dragoman.core.model.tasks import Task
from dragoman.core.ports import Changes

Answer = Callable[[Lookup[Any]], Sequence[Any]]


class StoreUnit:
    """`core.ports.Unit`: `answer` answers lookups, `write` commits the changes, once. `immediate`: a lookup is answered
    without waiting."""

    def __init__(self, answer: Answer, write: Callable[[Changes], Awaitable[None]], *, immediate: bool = True) -> None:
        self.peek = answer if immediate else None
        self._answer = answer
        self._write = write
        self._committed = False

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        answer = self._answer
        return {lookup: answer(lookup) for lookup in lookups}

    async def commit(self, changes: Changes) -> None:
        if self._committed:
            raise RuntimeError("a unit of work commits once")
        self._committed = True
        await self._write(changes)


def cursor_of(task: Task) -> str:
    """The cursor of the page after one that ends with this task."""
    return f"{task.created_at}.{task.id}"


def task_cursor(text: str) -> tuple[Instant, TaskId]:
    """The place that a cursor names; raises `ValueError` for any other text."""
    at, dot, id = text.partition(".")
    if not dot:
        raise ValueError("a cursor is what an earlier page of tasks ended with")
    return Instant(int(at)), TaskId(id)
