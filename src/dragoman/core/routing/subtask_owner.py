"""Subtasks follow their task when it changes its owner.

    a subtask                       its outcome goes to                      who may read and control it
    ------------------------------  ---------------------------------------  -------------------------------
    of a former owner               its caller and the task's owner          the same two
    of any other caller             its caller                               its caller
    that is a request for help      its caller                               its caller
    under a contract, or personal   its caller: the two agreed on that       its caller

The caller still waits for an answer, and the request id is the caller's: so the subtask stays the caller's, and gets a
subtask owner beside it. That is the last agent that was given the task, by a handover or by a later attempt. It gets
the outcomes so far at the beginning. Only agents that converse can be told of a task that they did not ask for. Others
find the subtasks named in their work order.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.delivery.outbox import OUTCOME_KINDS, OUTCOMES, offer
from dragoman.core.ids import AgentId
from dragoman.core.lookups import AllChildren, Lane
from dragoman.core.model.agents import Agent
from dragoman.core.model.shared_tasks import shared_name, shown_agent
from dragoman.core.model.tasks import SubtaskOwner, Task
from dragoman.core.work import Work

NAMED = 200
"""A work order names at most so many subtasks: it must fit into a message."""


def parts_of(work: Work, task: Task, *owners: AgentId) -> list[Task]:
    """The subtasks of a task's former owners that pass on with it."""
    if not task.lineage.has_children:
        return []
    former = {*owners, *(giver for giver, _ in task.lineage.handed)}
    return [
        part
        for part in work.find(AllChildren(task.id))
        if part.origin.principal in former
        and part.lineage.helps is None
        and part.agreement.contract is None
        and not part.agreement.personal
    ]


def named(parts: list[Task]) -> list[dict[str, Any]]:
    """The subtasks as the work order of the new owner names them: unfinished ones first."""
    return [
        {
            "task_id": part.id,
            "called": shared_name(part),
            "type": part.type,
            "status": part.status.value,
            "from": part.origin.principal,
            "agent": shown_agent(part),
        }
        for part in sorted(parts, key=lambda part: part.final)[:NAMED]
    ]


def inherit(work: Work, task: Task, agent: Agent) -> None:
    """An agent was given a task that had other owners before."""
    for part in parts_of(work, task):
        theirs = part.origin.principal == agent.id
        part = replace(
            part,
            lineage=replace(part.lineage, subtask_owner=None if theirs else SubtaskOwner(agent.id, work.now)),
        )
        work.put(part)
        if part.final:
            tell(work, part)


def tell(work: Work, part: Task) -> None:
    """A subtask is over: notify its subtask owner, unless that notice is under way."""
    agent = None if part.lineage.subtask_owner is None else work.agent(part.lineage.subtask_owner.agent)
    if agent is None or not agent.converses:
        return
    if not any(row.kind in OUTCOMES for row in work.find(Lane(part.id, agent.id))):
        offer(work, part, agent.id, OUTCOME_KINDS[part.status], part.outcome.event or part.seq)
