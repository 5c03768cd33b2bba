"""What was asked for in the course of a task follows it when it changes hands.

    a part of the task              is told how it ended                     may read and steer it
    ------------------------------  ---------------------------------------  -------------------------------
    asked for by a former owner     whoever asked, and whoever has the task  the same two
    asked for by anybody else       whoever asked                            whoever asked
    help                            whoever asked for help                   whoever asked for help
    under a contract, or personal   whoever asked: the two agreed on that    whoever asked

Whoever asked still waits for an answer, and the request id is theirs: so the part stays theirs, and gets an subtask
owner beside them. That is whoever was given the task last, by a handover or by a later attempt; both begin with what
the parts came to so far. Only agents that converse have a word for the end of something that they did not ask for.
Others find in the work order which parts there are.
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
"""So many parts a work order names: it must fit into a message."""


def parts_of(work: Work, task: Task, *owners: AgentId) -> list[Task]:
    """What the former owners of a task asked for in its course, and passes on with it."""
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
    """The parts, as the work order of whoever takes the task over names them: those first that are under way."""
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
    """Somebody was given a task that had other owners before."""
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
    """A part is over: its subtask owner hears that, unless it is being told."""
    agent = None if part.lineage.subtask_owner is None else work.agent(part.lineage.subtask_owner.agent)
    if agent is None or not agent.converses:
        return
    if not any(row.kind in OUTCOMES for row in work.find(Lane(part.id, agent.id))):
        offer(work, part, agent.id, OUTCOME_KINDS[part.status], part.outcome.event or part.seq)
