"""What every store shares: its unit of work, the cursors of its lists (the same text on every store), and the words by
which tasks are found. And the statuses of a task, as SQL lists them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from dragoman.core.ids import Instant, TaskId
from dragoman.core.lookups import Lookup
from dragoman.core.model.tasks import FINAL, Status, Task
from dragoman.core.ports import Changes

Answer = Callable[[Lookup[Any]], Sequence[Any]]


def one_of(statuses: Iterable[Status]) -> str:
    return f"IN ({', '.join(repr(status.value) for status in statuses)})"


UNFINISHED = [status for status in Status if status not in FINAL]
IN_UNFINISHED = one_of(UNFINISHED)


class StoreUnit:
    """`core.ports.Unit`: `answer` answers lookups, `write` commits the changes, once. `immediate`: a lookup is answered
    without waiting."""

    def __init__(self, answer: Answer, write: Callable[[Changes], Awaitable[None]], *, immediate: bool = True) -> None:
        self.peek = answer if immediate else None
        self.complete = immediate
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


_WORD = re.compile(r"[^\W_]+")


def search_words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def search_text(task: Task) -> str:
    """What can be found of a task: the same as `stores.sqlite.text_index.TEXT`."""
    shown: list[str | None] = [task.id, task.id[-6:], task.type]
    if not task.agreement.personal:
        fault = task.outcome.fault
        shown += [task.name, task.description, None if fault is None else fault.message]
    return " ".join(text for text in shown if text)


def has_words(task: Task, wanted: Sequence[str]) -> bool:
    """Whether each of the wanted words is the beginning of a word of the task."""
    words = search_words(search_text(task))
    return all(any(word.startswith(one) for word in words) for one in wanted)


def cursor_at(place: tuple[int, int]) -> str:
    """Where a page that people looked for goes on: after the task that was created then and has this number."""
    return f"{place[0]}.{place[1]}"


def place_cursor(text: str) -> tuple[int, int]:
    """The place that such a cursor names; `ValueError` for text that is none."""
    at, dot, number = text.partition(".")
    if not (dot and at.isascii() and at.isdigit() and number.isascii() and number.isdigit() and len(text) < 40):
        raise ValueError("a cursor is what an earlier page of tasks ended with")
    return int(at), int(number)


def cursor_of(task: Task) -> str:
    """The cursor of the page after one that ends with this task."""
    return f"{task.created_at}.{task.id}"


def task_cursor(text: str) -> tuple[Instant, TaskId]:
    """The place that a cursor names; raises `ValueError` for any other text."""
    at, dot, id = text.partition(".")
    if not dot:
        raise ValueError("a cursor is what an earlier page of tasks ended with")
    return Instant(int(at)), TaskId(id)
