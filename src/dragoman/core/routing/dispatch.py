"""Work meets agent.

`place` is called when a task is ready, `fill` when an agent may take more. A ready task that finds nobody stands in
the queue of its route; an agent that becomes free takes the best of the queues it can serve. Both happen inside the
unit of work that made them possible, so the work order leaves with that very commit.
"""

from __future__ import annotations

import msgspec

from dragoman.core.agents.floor import Link
from dragoman.core.agents.model import Agent
from dragoman.core.commands import Claim
from dragoman.core.delivery.model import Cargo, Delivery
from dragoman.core.delivery.outbox import lease
from dragoman.core.errors import Kind, refuse
from dragoman.core.ids import AgentId, DeliveryId, Instant
from dragoman.core.routing.routes import choose, queues_for, route_of, seat, serves
from dragoman.core.tasks.lifecycle import move
from dragoman.core.tasks.model import EventKind, Status, Task
from dragoman.core.work import Work


def place(work: Work, task: Task, *, prefer: AgentId | None = None) -> Task:
    """A task is ready: give it to somebody, or let it stand in its queue."""
    chosen = None
    if prefer is not None:
        agent = work.agent(prefer)
        link = None if agent is None else seat(work, agent)
        chosen = (agent, link) if agent is not None and link is not None else None
    if chosen is None and work.backlog(task.route) == 0:  # nobody stands before it
        chosen = choose(work, route_of(task.route))
    if chosen is not None:
        return assign(work, task, *chosen)
    queued = move(
        task,
        Status.QUEUED,
        work.now,
        queue=task.route,
        waiting=None,
        wake_at=min(task.deadline, Instant(work.now + task.idle_limit)),
    )
    work.put(queued)
    somebody = choose(work, route_of(task.route)) if work.backlog(task.route) > 1 else None
    if somebody is not None:  # there is a seat for whoever stands first
        fill(work, somebody[0].id)
        return work.known_task(task.id)
    return queued


def assign(work: Work, task: Task, agent: Agent, link: Link) -> Task:
    """Give a task to an agent over a link: the next attempt begins."""
    attempt = task.attempts + 1
    deadline = task.deadline
    if task.attempts == 0 and task.total_limit is not None:
        deadline = min(deadline, Instant(work.now + task.total_limit))
    body = b'{"agent":%b,"attempt":%d}' % (msgspec.json.encode(agent.id), attempt)
    delivery_id = DeliveryId(work.mint())
    task = move(
        work.record(task, EventKind.ASSIGNED, agent=agent.id, body=msgspec.Raw(body)),
        Status.ASSIGNED,
        work.now,
        queue=None,
        waiting=None,
        owner=agent.id,
        prefers=None,
        session=link.session,
        delivery=delivery_id,
        attempts=attempt,
        asks=0,
        last_sign_at=work.now,
        lost_at=None,
        deadline=deadline,
        wake_at=min(deadline, Instant(work.now + task.idle_limit)),
    )
    work.put(task)
    order = Delivery(
        id=delivery_id,
        task=task.id,
        receiver=agent.id,
        seq=task.seq,
        cargo=Cargo.WORK,
        event=task.source,
        rank=task.rank,
        created_at=work.now,
    )
    lease(work, order, link, task)
    return task


def claim(work: Work, command: Claim) -> Task:
    """An agent takes a queued task by name. What it could not do is not there for it."""
    agent, task = work.agent(command.principal), work.task(command.task_id)
    if agent is None or task is None or task.queue is None or not serves(agent, route_of(task.route)):
        raise refuse(Kind.NOT_FOUND, "no such task in the queue", field="task_id", task_id=command.task_id)
    link = seat(work, agent)
    if link is None:
        raise refuse(Kind.CONFLICT, f"{agent.id} has its hands full; finish something first", task_id=task.id)
    return assign(work, task, agent, link)


def fill(work: Work, agent_id: AgentId) -> int:
    """Give an agent as much of what waits as it has seats for; returns how much."""
    given = 0
    agent = work.agent(agent_id) if work.anybody_queues else None
    if agent is None:
        return 0
    while (link := seat(work, agent)) is not None:
        waiting = [task for queue in queues_for(work, agent) if (task := work.first_in(queue)) is not None]
        if not waiting:
            break
        assign(work, min(waiting, key=lambda task: (task.rank, task.id)), agent, link)
        given += 1
    return given
