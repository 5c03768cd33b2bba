"""What happens to a task when its wake time comes.

Two timers run while an agent works: *idle* (no sign of life) and *total* (the deadline). A broken link shortens the
idle timer to the grace time (`model.silence` has the rules). If an agent was connected when the hub stopped, and is
silent about its work until `Rules.idle_limit` after the start, the hub takes it for dead, too, whatever process came
back under its name. Until then no deadline ends that work: it may have been done in time. A queued task has a timer,
too: if no agent that could do it can be reached, waiting is a failed attempt. `wake_at` may be early, never late: what
is not due yet is set again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dragoman.core.agents.registry import probe
from dragoman.core.agreements.terms import still_agreed
from dragoman.core.commands import AwaitReturn
from dragoman.core.contracts.handshake import part
from dragoman.core.delivery.redelivery import tell_sender
from dragoman.core.directory import Directory
from dragoman.core.ids import HUB, Instant, rfc3339
from dragoman.core.lookups import DeliveryById
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import DeliveryState, DirectMessage
from dragoman.core.model.silence import Silence, Watched, back_by, lost_by, rule_of
from dragoman.core.model.tasks import HELD, EventKind, Status, Task
from dragoman.core.routing.dispatch import fill, place
from dragoman.core.routing.routes import addressed, fails_soon, is_here, last_seen, present, route_of, serves
from dragoman.core.tasks.outcome import end, end_children, fail_attempt, failed, give_up, still_held
from dragoman.core.tasks.questions import call_back, stood_still_for
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import AttemptFailed


def task_woke(work: Work, task: Task) -> None:
    if task.final or task.wake_at is None or task.wake_at > work.now:
        return
    if task.origin.principal == HUB and task.last_attempt < work.serving_since:
        check_health_again(work, task)
    elif task.status is Status.QUEUED and task.outlived(work.now):
        expire(work, task)
    elif task.status is Status.QUEUED and not still_agreed(work, task):
        part(work, task)
    elif work.now >= task.timing.deadline:
        if (late := seen_until(work, task)) is not None and work.now < late:
            work.put(replace(task, wake_at=late))
        else:
            deadline_passed(work, task, blame=late is None)
    elif task.status is Status.QUEUED:
        if task.queue is None:
            place(work, task, prefer=task.attempt.prefers)  # its retry is due
        else:
            still_queued(work, task)
    elif task.status in (Status.ASSIGNED, Status.RUNNING):
        still_at_work(work, task)
    else:
        work.put(replace(task, wake_at=task.timing.deadline if task.timing.firm else None))


def check_health_again(work: Work, task: Task) -> None:
    """If the hub stopped before the answer to a health check came, the check says nothing about the agent."""
    owner = task.owner
    end(work, task, Status.FAILED, fault=Fault(kind=Kind.UNAVAILABLE, message="the hub was restarted in between"))
    if owner is not None and work.agent(owner) is not None:
        probe(work, owner)


def expire(work: Work, task: Task) -> None:
    """No agent got the task in its time to live (agentmsg-D6): it fails, that is recorded, and its caller gets two
    notices, one about its message and one about its task."""
    fault = Fault(
        kind=Kind.TIMEOUT,
        message=f"{task.type!r} reached nobody in its time",
        facts={"message_id": task.origin.request_id, "attempted_retries": max(0, task.attempt.count - 1)},
    )
    origin = task.origin
    work.audit(
        principal=origin.principal, action="task.expire", protocol=origin.protocol, subject=task.id, reason=str(fault)
    )
    unanswered = DirectMessage(
        sender=origin.principal, message_id=origin.request_id, kind="", digest=origin.digest,
        raw=msgspec.Raw(b"null"), protocol=origin.protocol,
    )  # fmt: skip
    tell_sender(work, unanswered, fault, task.rank)
    end(work, task, Status.FAILED, fault=fault)


def seen_until(work: Work, task: Task) -> Instant | None:
    """Until when an agent may report on work whose deadline passed while it could not reach the hub; None if it
    could."""
    late = Instant(work.serving_since + work.rules.idle_limit)
    kept_from_us = task.status in (Status.ASSIGNED, Status.RUNNING) and task.last_attempt < work.serving_since
    return late if kept_from_us and task.timing.deadline < late else None


def deadline_passed(work: Work, task: Task, *, blame: bool) -> None:
    owner, held, at_work = task.owner, task.status in HELD, task.status in (Status.ASSIGNED, Status.RUNNING)
    fault = Fault(
        kind=Kind.TIMEOUT,
        message=f"not done by its deadline, {rfc3339(task.timing.deadline)}",
        retryable=True,
        facts={"attempted_retries": max(0, task.attempt.count - 1), "last_attempt": rfc3339(task.last_attempt)},
    )
    waited_for = stood_still_for(work, task)
    task = give_up(work, task, fault)
    end_children(work, task, "timed out")
    if owner is not None and held:
        call_back(work, task, owner, waited_for)
        if blame and at_work:
            failed(work, owner)
        fill(work, owner)


def still_queued(work: Work, task: Task) -> None:
    """No agent took the task. If one is connected but busy, wait on; if none is connected, an attempt failed."""
    route = route_of(task.routing.route)
    could = [agent for agent in addressed(work, route) if serves(agent, route)]
    hasty = fails_soon(work, task, could)
    if any(present(work, agent.id) for agent in could):
        bound = None  # the caller's limit for the whole, where no agent is surely present (chiffon-D6)
        if hasty and task.timing.total_limit is not None and not any(is_here(work, agent) for agent in could):
            bound = Instant(task.created_at + task.timing.total_limit)
        if bound is not None and work.now >= bound:
            give_up(work, task, nobody_connected(work, task, could))
            return
        wait = max(task.timing.idle_limit, work.now - task.created_at)
        wake_at = min(
            task.timing.deadline,
            Instant(work.now + wait),
            task.timing.expires_at or task.timing.deadline,
            bound or task.timing.deadline,
        )
        attempts = task.attempt.count - task.attempt.unreached
        work.put(replace(task, wake_at=wake_at, attempt=replace(task.attempt, count=attempts, unreached=0)))
        for agent in could:  # no task should wait beside a free seat; if one does, not for long
            fill(work, agent.id)
        return
    rested = Instant(work.serving_since + work.rules.idle_limit)
    if not hasty and work.now < rested:  # no agent could connect while the hub was down: let them come back first
        wake_at = min(task.timing.deadline, rested, task.timing.expires_at or task.timing.deadline)
        work.put(replace(task, wake_at=wake_at))
        return
    fault = nobody_connected(work, task, could)
    if hasty:
        no_agent_found(work, task, fault)
        return
    attempts, unreached = task.attempt.count + 1, task.attempt.unreached + 1
    waited = replace(task, owner=None, queue=None, attempt=replace(task.attempt, count=attempts, unreached=unreached))
    fail_attempt(work, waited, fault)


def nobody_connected(work: Work, task: Task, could: Sequence[Agent]) -> Fault:
    route = route_of(task.routing.route)
    last = max((at for agent in could if (at := last_seen(work, agent)) is not None), default=None)
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"no agent that could do {task.type!r} is connected",
        retryable=True,
        facts={
            "agent_id": route.pinned or (could[0].id if len(could) == 1 else route.kind or ""),
            "last_heartbeat": None if last is None else rfc3339(last),
        },
    )


def no_agent_found(work: Work, task: Task, fault: Fault) -> None:
    """One more attempt found no agent connected: the next one follows soon, and the task stays in its queue for an
    agent that comes in between. The caller's limit for the whole bounds this, too (chiffon-D6)."""
    delays = work.rules.unreachable_delays
    tries = max(1, task.attempt.unreached) + 1  # the first attempt was its placement
    task = replace(task, owner=None, attempt=replace(task.attempt, count=tries, unreached=tries))
    left = (task.timing.total_limit or work.rules.total_limit) - sum(delays[:tries])
    if tries >= len(delays) or left <= 0:
        give_up(
            work,
            replace(task, attempt=replace(task.attempt, count=min(tries, len(delays)))),
            fault,
        )
        return
    retry_at = Instant(work.now + min(delays[tries], left))
    event = AttemptFailed(fault=fault, attempt=tries, retry_at=rfc3339(retry_at))
    task = work.record(task, EventKind.ATTEMPT_FAILED, event)
    work.put(
        replace(
            task,
            wake_at=min(task.timing.deadline, retry_at),
            outcome=replace(task.outcome, fault=fault),
        )
    )


def watched(work: Work, task: Task) -> Watched:
    agent = None if task.owner is None else work.agent(task.owner)
    return Watched(
        rules=work.rules,
        serving_since=work.serving_since,
        agent=agent,
        link=None if task.attempt.session is None else work.link(task.attempt.session),
        is_linked=agent is not None and bool(work.links_to(agent.id)),
        seen_at=None if agent is None else work.directory.seen_at.get(agent.id),
    )


def still_at_work(work: Work, task: Task) -> None:
    assert task.owner is not None
    owner, facts = task.owner, watched(work, task)
    rule = rule_of(task, facts, work.now)
    if rule.silence is Silence.VOUCHED or work.now < rule.at:
        look = Instant(work.now + task.timing.idle_limit) if rule.silence is Silence.VOUCHED else rule.at
        work.put(replace(task, wake_at=min(task.timing.deadline, look)))
        return
    if task.status is Status.ASSIGNED and task.attempt.session is None and still_unfetched(work, task, rule.last_sign):
        return
    if rule.silence is Silence.LINK_LOST:
        lost_for_good(work, task, rule.last_sign)
        return
    missed = rule.silence is Silence.HUB_STOPPED
    if missed:
        fault = Fault(
            kind=Kind.UNAVAILABLE,
            message=f"{owner} {'said nothing of it' if facts.is_linked else 'did not come back'} "
            "after the hub was started again",
            retryable=True,
            facts={"agent_id": owner, "last_heartbeat": rfc3339(task.timing.last_sign_at or task.created_at)},
        )
    else:
        fault = Fault(
            kind=Kind.TIMEOUT,
            message=f"no sign of life from {owner} for {task.timing.idle_limit / 1e6:g} s",
            retryable=True,
            facts={"attempted_retries": max(0, task.attempt.count - 1), "last_attempt": rfc3339(task.last_attempt)},
        )
    blamed, lost = not missed and not task.attempt.answered, missed or lost_by(task, facts) is not None
    fail_attempt(work, task, fault, counts=blamed, lost=lost, spent=not task.attempt.answered)
    fill(work, owner)


def still_unfetched(work: Work, task: Task, sign: Instant) -> bool:
    """Whether a work order waits for its agent's next poll. As long as the agent polls, it may. Then an attempt failed;
    as with a task in a queue, this is no failure of the agent."""
    assert task.owner is not None
    order = None if task.attempt.delivery is None else work.one(DeliveryById(task.attempt.delivery))
    if order is None or order.state is not DeliveryState.WAITING:
        return False
    if present(work, task.owner) or work.now < sign + task.timing.idle_limit:
        work.put(replace(task, wake_at=min(task.timing.deadline, Instant(work.now + task.timing.idle_limit))))
        return True
    fault = Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{task.owner} did not poll for it",
        retryable=True,
        facts={"agent_id": task.owner, "last_heartbeat": rfc3339(sign)},
    )
    fail_attempt(work, task, fault, counts=False)
    return True


def lost_for_good(work: Work, task: Task, sign: Instant) -> None:
    """The agent was silent about the task since its link broke. One broken link is one failure, however many tasks were
    on it. It is none if the agent came back in time, or if the hub did not see the link break."""
    assert task.owner is not None
    owner, lost_at, facts = task.owner, task.timing.lost_at or 0, watched(work, task)
    fault = Fault(
        kind=Kind.UNAVAILABLE,
        message=f"the connection to {owner} was lost while it worked on the task",
        retryable=True,
        facts={"agent_id": owner, "last_heartbeat": rfc3339(sign)},
    )
    if lost_at >= work.serving_since and not task.stands_still:
        failed(work, owner)
    for other in still_held(work, work.tasks(work.tasks_of(owner))):
        if (
            other.status in (Status.ASSIGNED, Status.RUNNING)
            and other.timing.lost_at == lost_at
            and lost_by(other, facts)
        ):
            fail_attempt(work, other, fault, counts=False, lost=True, spent=not other.stands_still)
    fill(work, owner)


def after_a_stop(directory: Directory) -> list[AwaitReturn]:
    """What a hub enqueues when it starts: to look after the work of every agent that was connected."""
    connected = [id for id in directory.active if (agent := directory.agents.get(id)) is not None and agent.connected]
    return [AwaitReturn(agent=id) for id in sorted(connected)]


def await_return(work: Work, command: AwaitReturn) -> int:
    """Wake the tasks that an agent held at the time by which it must be back, where their own timers are later."""
    woken = 0
    for task in work.tasks(work.tasks_of(command.agent)):
        due = back_by(task, watched(work, task)) if task.status in (Status.ASSIGNED, Status.RUNNING) else None
        if due is not None and (task.wake_at is None or task.wake_at > due):
            work.put(replace(task, wake_at=due))
            woken += 1
    return woken
