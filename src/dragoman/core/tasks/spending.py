"""The hub stops a task that used more than it may (`budgets.usage`)."""

from __future__ import annotations

from typing import Any

from dragoman.core.budgets import budget
from dragoman.core.budgets.usage import excess, noted
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.tasks import HELD, Status, Task
from dragoman.core.routing.dispatch import fill
from dragoman.core.tasks.outcome import end, end_children
from dragoman.core.tasks.questions import call_back, stood_still_for
from dragoman.core.work import Work
from dragoman.messages.faults import Fault
from dragoman.messages.tasks import Failure


def stop(work: Work, task: Task, fault: Fault, usage: dict[str, Any]) -> Task:
    """End a task that used too much, and tell its agent to stop. `usage` is what goes on the books with its end."""
    owner, held = task.owner, task.status in HELD
    waited_for = stood_still_for(work, task)
    task = end(work, task, Status.FAILED, fault=fault, content=Failure(fault=fault, usage=usage or None))
    if owner is not None and held:
        call_back(work, task, owner, waited_for)
    end_children(work, task, "used more than it may")
    if owner is not None:
        fill(work, owner)
    return task


def grew(work: Work, agent: AgentId, amounts: budget.Amounts, since: Instant | None) -> None:
    """An agent's own sum of what it used grew since its last report."""
    held = work.tasks_of(agent)
    task = work.known_task(held[0]) if len(held) == 1 else None
    if task is None or since is None or since < task.last_attempt:
        return
    so_far = {} if task.spending.spent is None else task.spending.spent.now
    task = noted(task, {kind: amount + so_far.get(kind, 0) for kind, amount in amounts.items()})
    fault = excess(work, task)
    if fault is None:
        work.put(task)
    else:
        stop(work, task, fault, {})  # it is on the books by the agent's own sum
