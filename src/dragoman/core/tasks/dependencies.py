"""Tasks that wait for other tasks."""

from __future__ import annotations

import msgspec

from dragoman.core.errors import Fault, Kind
from dragoman.core.lookups import Dependents
from dragoman.core.routing.dispatch import place
from dragoman.core.tasks.model import EventKind, Status, Task
from dragoman.core.work import Work


def settle_dependents(work: Work, task: Task) -> None:
    """A task ended: those that waited for it may go on, or cannot."""
    if not task.has_dependents:
        return
    for dependent in work.find(Dependents(task.id)):
        if task.status is not Status.COMPLETED:
            fail_for(work, dependent, task)
            continue
        blocked_by = tuple(id for id in dependent.blocked_by if id != task.id)
        dependent = msgspec.structs.replace(dependent, blocked_by=blocked_by, updated_at=work.now)
        if blocked_by:
            work.put(dependent)
        else:
            place(work, work.record(dependent, EventKind.RELEASED))


def fail_for(work: Work, dependent: Task, failed: Task) -> Task:
    """What it waited for will never come."""
    from dragoman.core.tasks.outcome import end  # ending a task ends its dependents: the two call each other

    how = "was cancelled" if failed.status is Status.CANCELLED else "failed"
    fault = Fault(
        kind=Kind.DEPENDENCY,
        message=f"it depends on task {failed.id}, which {how}",
        facts={"task_id": failed.id},
    )
    return end(work, msgspec.structs.replace(dependent, blocked_by=()), Status.FAILED, fault=fault)
