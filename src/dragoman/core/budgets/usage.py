"""What a task has used of what it may use, by the reports about it: a report above the limit ends the task
(agentmsg-D10).

    reported by                                counts for the task
    -----------------------------------------  ------------------------------------------------------------------
    `usage` of a progress report               as what this attempt has used so far
    `usage` of a failure                       as what the attempt used; the next attempt may use the rest
    a status report with the agent's total     by how much that grew since its last report, if the agent has one task
                                               and had it at that report, too: then this task used it
    `usage` of a result                        no more: the work is done, and its cost is booked

A task that has used more than it may fails: the hub tells its agent to stop, and its caller why. It is not
retried; if a person retries it, it begins with nothing used. What was used is booked in any case (`budget`).
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.ids import HUB
from dragoman.core.model.tasks import Spent, Task
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, new_fault


def noted(task: Task, amounts: budget.Amounts) -> Task:
    """The task with what its attempt has used so far (not yet put). A lower figure than before does not count."""
    if not amounts:
        return task
    spent = task.spending.spent or Spent()
    now = {**spent.now, **{kind: max(amount, spent.now.get(kind, 0)) for kind, amount in amounts.items()}}
    return replace(task, spending=replace(task.spending, spent=Spent(before=spent.before, now=now)))


def excess(work: Work, task: Task) -> Fault | None:
    """The fault if a task has used more than it may."""
    spent = task.spending.spent
    if spent is None or task.origin.principal == HUB:
        return None
    allowed = budget.set_aside(task.agreement.constraints, work.policy.per_task)
    for kind in budget.USED_UP:
        used, most = spent.total(kind), allowed.get(kind)
        if most is not None and used > most:
            unit = budget.UNITS[kind]
            message = f"it has used {used:.15g} {unit}, and may use {most:.15g}"
            facts = {"resource": kind, "whose": "a task", "consumed": used, "limit": most, "remaining": 0}
            return new_fault(Kind.RESOURCES, message, next="give it more, or let it do less", facts=facts)
    return None
