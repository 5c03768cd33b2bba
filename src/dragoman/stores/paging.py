"""Cursors: where a list of tasks, newest first, goes on. The same text on every store."""

from __future__ import annotations

from dragoman.core.ids import Instant, TaskId
from dragoman.core.model.tasks import Task


def cursor_of(task: Task) -> str:
    """Where a page that ends with this task goes on."""
    return f"{task.created_at}.{task.id}"


def task_cursor(text: str) -> tuple[Instant, TaskId]:
    """The place a cursor names; `ValueError` for text that is none."""
    at, dot, id = text.partition(".")
    if not dot:
        raise ValueError("a cursor is what an earlier page of tasks ended with")
    return Instant(int(at)), TaskId(id)
