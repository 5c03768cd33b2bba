"""Tasks that wait for other tasks.

The tasks that a task depends on end before it begins, in every round, also when it is retried. Its deadline moves by
the time it waited, unless its caller named a deadline.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import EventKind, Status, Task, Waiting
from dragoman.core.routing.dispatch import place
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, refuse


def release(work: Work, dependent: Task, done: Task) -> None:
    """One dependency of a task is done."""
    blocked_by = tuple(id for id in dependent.lineage.blocked_by if id != done.id)
    dependent = replace(dependent, updated_at=work.now, lineage=replace(dependent.lineage, blocked_by=blocked_by))
    if blocked_by:
        work.put(dependent)
        return
    dependent = replace(dependent, timing=replace(dependent.timing, deadline=dependent.due(work.now)))
    place(work, work.record(dependent, EventKind.RELEASED))


def begin_or_wait(work: Work, task: Task) -> Task:
    """A retried task: placed in a queue, or waiting for its dependencies. A dependency that the hub has forgotten does
    not count."""
    blocking = [] if not task.lineage.dependencies else _undone(work.tasks(task.lineage.dependencies))
    failed = next((one for one in blocking if one.final), None)
    if failed is not None:
        raise refuse(
            Kind.CONFLICT,
            f"it depends on task {failed.id}, which {how_it_ended(failed)}",
            next="retry that one first",
            task_id=failed.id,
            status=failed.status.value,
        )
    task = replace(task, lineage=replace(task.lineage, blocked_by=tuple(one.id for one in blocking)))
    if not blocking:
        return place(work, task)
    task = move(
        task,
        Status.WAITING,
        work.now,
        waiting=Waiting.DEPENDENCY,
        timing=replace(task.timing, last_sign_at=work.now),
    )
    work.put(task)
    be_waited_for(work, blocking)
    return task


def be_waited_for(work: Work, blocking: Iterable[Task]) -> None:
    """Mark these tasks: they release others when they end."""
    for dependency in blocking:
        if not dependency.lineage.has_dependents:
            lineage = replace(dependency.lineage, has_dependents=True)
            work.put(replace(dependency, lineage=lineage))


def _undone(tasks: Iterable[Task]) -> list[Task]:
    return [task for task in tasks if task.status is not Status.COMPLETED]


def how_it_ended(ended: Task) -> str:
    return "was cancelled" if ended.status is Status.CANCELLED else "failed"
