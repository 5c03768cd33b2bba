"""Dispatch: ready tasks are given to agents.

`place` runs when a task becomes ready, `fill` when an agent may take more. A ready task without a free agent waits in
the queue of its route; an agent that becomes free takes the best task of the queues that it can serve. Both happen in
the unit of work that made them possible, so the work order leaves with that commit.
"""

from __future__ import annotations

from msgspec.structs import replace

from dragoman.core.agreements.terms import still_agreed
from dragoman.core.budgets import admission
from dragoman.core.budgets.admission import hold, must_be_approved
from dragoman.core.budgets.budget import check_task, fits, may_take, needed, needs, reserve
from dragoman.core.commands import Claim, RefillLink
from dragoman.core.delivery.outbox import lease, put_on_its_way
from dragoman.core.ids import HUB, AgentId, DeliveryId, Instant
from dragoman.core.lookups import PAGE, Lane, Ready
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import EventKind, Status, Task
from dragoman.core.routing.routes import (
    addressed,
    choose,
    could_claim,
    has_resources,
    patience,
    queues_for,
    ready,
    route_of,
    serves,
)
from dragoman.core.routing.subtask_owner import inherit
from dragoman.core.work import Work
from dragoman.messages.faults import Kind, Refused, refuse
from dragoman.messages.tasks import Assigned


def place(work: Work, task: Task, *, prefer: AgentId | None = None) -> Task:
    """A task is ready: assign it, or put it into its queue."""
    chosen = None
    if task.agreement.constraints and (kept := kept_back(work, task)) is not None:
        return kept
    asked = needed(work, task)
    if prefer is not None:
        agent = work.agent(prefer)
        link = None if agent is None else ready(work, agent)
        if agent is not None and not (
            may_take(work, agent.id, asked) and has_resources(work, agent, route_of(task.routing.route))
        ):
            link = None
        chosen = (agent, link) if agent is not None and link is not None else None
    if chosen is None and work.backlog(task.routing.route) == 0:  # no task is before it
        chosen = choose(work, route_of(task.routing.route), asked)
    if chosen is not None:
        return assign(work, task, *chosen)
    queued = move(
        task,
        Status.QUEUED,
        work.now,
        queue=task.routing.route,
        waiting=None,
        wake_at=min(
            task.timing.deadline,
            Instant(work.now + patience(work, task)),
            task.timing.expires_at or task.timing.deadline,
        ),
    )
    work.put(queued)
    free = choose(work, route_of(task.routing.route), asked) if work.backlog(task.routing.route) > 1 else None
    if free is not None:  # there is a seat for the first task of the queue
        fill(work, free[0].id)
        return work.known_task(task.id)
    return queued


def kept_back(work: Work, task: Task) -> Task | None:
    """The task, waiting for a person or failed, where the policy in force does not let it begin; else None."""
    try:
        admit(work, task)
    except Refused as refusal:
        return work.reactions.not_admitted(work, task, refusal.fault)
    return hold(work, task) if must_be_approved(work, task) else None


def admit(work: Work, task: Task) -> None:
    """Refuse what the policy does not allow any more: it may have changed since the task was submitted."""
    admission.check(work, task.agreement.constraints)
    check_task(work, needs(task.agreement.constraints))


def assign(work: Work, task: Task, agent: Agent, link: Link | None) -> Task:
    """Assign a task to an agent over a link: the next attempt begins. A task whose time to live is over, or whose
    contract ended with one of its agents, wakes at once. Without a link, the agent finds the work order at its next
    poll (`clock.still_unfetched`)."""
    if task.outlived(work.now) or not still_agreed(work, task):
        task = move(task, Status.QUEUED, work.now, queue=None, waiting=None, wake_at=work.now)
        work.put(task)
        return task
    attempt = task.attempt.count - task.attempt.unreached + 1
    deadline = task.timing.deadline
    if task.agreement.constraints or work.policy.per_task:
        task = reserve(work, task, agent.id)
    idle = task.timing.idle_limit
    if agent.converses and idle == work.rules.idle_limit:  # the caller set no limit: the policy does
        idle = work.policy.breaker_timeout
    if attempt == 1 and task.timing.total_limit is not None:
        deadline = min(deadline, Instant(work.now + task.timing.total_limit))
    level = agent.sandbox
    event = Assigned(agent=agent.id, attempt=attempt, sandbox=level)
    delivery_id = DeliveryId(work.mint())
    task = move(
        work.record(task, EventKind.ASSIGNED, event, agent=agent.id),
        Status.ASSIGNED,
        work.now,
        queue=None,
        waiting=None,
        owner=agent.id,
        wake_at=min(deadline, Instant(work.now + idle)),
        attempt=replace(
            task.attempt,
            prefers=None,
            session=None if link is None else link.session,
            delivery=delivery_id,
            order=delivery_id,
            count=attempt,
            unreached=0,
            at=work.now,
            asks=0,
            answered=False,
            sandbox=level,
        ),
        timing=replace(task.timing, last_sign_at=work.now, lost_at=None, deadline=deadline, idle_limit=idle),
    )
    work.put(task)
    order = Delivery(
        id=delivery_id,
        task=task.id,
        receiver=agent.id,
        seq=task.seq,
        kind=MessageKind.WORK,
        event=task.attempt.source,
        rank=task.rank,
        created_at=work.now,
    )
    if link is not None:
        lease(work, order, link, task)
    else:
        put_on_its_way(work, order, work.find(Lane(task.id, agent.id)), task)
    if task.lineage.handed:
        inherit(work, task, agent)
    return task


def claim(work: Work, command: Claim) -> Task:
    """An agent claims a queued task by its id. Tasks that it could not do are refused as missing.

    It may claim a task that it submitted itself: the hub would not assign that, but the agent may change its mind.
    """
    agent, task = work.agent(command.principal), work.task(command.task_id)
    if agent is None or task is None or task.queue is None or not could_claim(agent, route_of(task.routing.route)):
        raise refuse(Kind.NOT_FOUND, "no such task in the queue", field="task_id", task_id=command.task_id)
    if task.agreement.constraints:
        admit(work, task)
        if must_be_approved(work, task):
            raise refuse(Kind.FORBIDDEN, "a person must approve the task first", field="task_id", task_id=task.id)
    link = ready(work, agent)
    room = may_take(work, agent.id, needed(work, task)) and has_resources(work, agent, route_of(task.routing.route))
    if link is not None and not room:
        raise refuse(Kind.RESOURCES, f"{agent.id} has no room for it in its allocations", task_id=task.id)
    if link is None:
        raise refuse(Kind.CONFLICT, f"{agent.id} has its hands full", next="finish something first", task_id=task.id)
    return assign(work, task, agent, link)


def fill(work: Work, agent_id: AgentId) -> int:
    """Assign waiting tasks to an agent, as many as it has seats for; returns how many."""
    given = 0
    agent = work.agent(agent_id) if work.anybody_queues else None
    if agent is None:
        return 0
    while (link := ready(work, agent)) is not None:
        waiting = [task for queue in queues_for(work, agent) if (task := next_for(work, agent, queue)) is not None]
        if not waiting:
            break
        best = min(waiting, key=lambda task: (task.rank, task.id))
        if best.agreement.constraints and kept_back(work, best) is not None:
            continue
        assign(work, best, agent, link)
        given += 1
    return given


def next_for(work: Work, agent: Agent, queue: str) -> Task | None:
    """The best task of a queue that this agent has room for.

    If the first task does not fit into the total budget, no other overtakes it: else it would wait for ever. If it is
    only too much for this agent, another agent will take it, and this one gets the next.
    """
    if not route_of(queue).budgeted and work.policy.per_task is None:
        return work.first_in(queue)
    for task in work.find(Ready(queue, PAGE)):
        asked = needed(work, task)
        if not fits(work, HUB, asked):
            return None
        if fits(work, agent.id, asked):
            return task
    return None


def make_room(work: Work, *, all_agents: bool = False) -> None:
    """Something was released: after the commit, offer work again to the agents that could do what waits for it.

    `all_agents`: also to agents with ordinary queues. A limit was changed.
    """
    if not work.anybody_queues:
        return
    asked: set[str] = set()
    for queue in work.queues():
        route = route_of(queue)
        if not (route.budgeted or all_agents):
            continue
        for agent in addressed(work, route):
            if agent.id not in asked and serves(agent, route) and (link := ready(work, agent)) is not None:
                asked.add(agent.id)
                work.ask_afterwards(RefillLink(principal=agent.id, session=link.session))
