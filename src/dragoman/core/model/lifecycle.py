"""The lifecycle of a task, as a table.

    queued → assigned → running ⇄ waiting → completed | failed | cancelled

A failed attempt that is retried goes back to `queued`; a person may send a failed or cancelled task back there, too.
Every change of a status goes through `move`, so no other change is possible.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.ids import Instant
from dragoman.core.model.tasks import FINAL, Attempt, Status, Task, TaskTiming
from dragoman.messages.faults import Kind, refuse

Q, A, R, W = Status.QUEUED, Status.ASSIGNED, Status.RUNNING, Status.WAITING
DONE, FAILED, CANCELLED = Status.COMPLETED, Status.FAILED, Status.CANCELLED

TRANSITIONS: dict[Status, frozenset[Status]] = {
    # Q → Q re-queues a failed attempt; Q → DONE is a result that came while its retry was waiting.
    Q: frozenset({Q, A, W, DONE, FAILED, CANCELLED}),
    # A → A and R → A: another agent gets the task.
    A: frozenset({Q, A, R, W, DONE, FAILED, CANCELLED}),
    R: frozenset({R, Q, A, W, DONE, FAILED, CANCELLED}),
    W: frozenset({W, Q, A, R, DONE, FAILED, CANCELLED}),
    DONE: frozenset(),
    FAILED: frozenset({Q, W}),
    CANCELLED: frozenset({Q, W}),
}


def move(task: Task, status: Status, now: Instant, **changes: Any) -> Task:
    """The task in its new status, with other changes."""
    if status not in TRANSITIONS[task.status]:
        raise refuse(
            Kind.CONFLICT,
            f"the task is {task.status.value} and cannot become {status.value}",
            task_id=task.id,
            status=task.status.value,
        )
    if status is W and task.timing.firm:
        timing: TaskTiming = changes.get("timing", task.timing)
        changes["wake_at"] = timing.deadline
    if status in FINAL:
        changes = {"queue": None, "wake_at": None, "waiting": None, "finished_at": now} | changes
        attempt: Attempt = changes.get("attempt", task.attempt)
        if attempt.delivery is not None:
            changes["attempt"] = replace(attempt, delivery=None)
    return replace(task, status=status, updated_at=now, **changes)
