"""What a task has used of what it may, by what is reported of it: a report above that ends its spending (agentmsg-D10).

    reported by                                counts for the task
    -----------------------------------------  ------------------------------------------------------------------
    `usage` of a progress report               as what this attempt has used so far
    `usage` of a failure                       as what the attempt used; the next attempt may use the rest
    a status report of the agent's own sum     by how much that grew since its last report, where the agent has one task
                                               and had it at that report, too: then it was this task's
    `usage` of a result                        no more: the work is done, and what it cost is on the books

A task that has used more than it may has failed: its agent hears that it is to stop, its caller why. It is not tried
again; a person who retries it lets it begin with nothing used. What was used is on the books in any case (`budget`).
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.ids import HUB
from dragoman.core.model.tasks import Spent, Task
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind


def noted(task: Task, amounts: budget.Amounts) -> Task:
    """The task with what its attempt has used so far (not yet put). A figure that falls counts for nothing."""
    if not amounts:
        return task
    spent = task.spending.spent or Spent()
    now = {**spent.now, **{kind: max(amount, spent.now.get(kind, 0)) for kind, amount in amounts.items()}}
    return replace(task, spending=replace(task.spending, spent=Spent(before=spent.before, now=now)))


def excess(work: Work, task: Task) -> Fault | None:
    """That a task has used more than it may, if it has."""
    spent = task.spending.spent
    if spent is None or task.origin.principal == HUB:
        return None
    allowed = budget.set_aside(task.agreement.constraints, work.policy.per_task)
    for kind in budget.USED_UP:
        used, most = spent.total(kind), allowed.get(kind)
        if most is not None and used > most:
            unit = budget.UNITS[kind]
            message = f"it has used {used:.15g} {unit}, and may use {most:.15g}; give it more, or let it do less"
            facts = {"resource": kind, "whose": "a task", "consumed": used, "limit": most, "remaining": 0}
            return Fault(kind=Kind.RESOURCES, message=message, facts=facts)
    return None
