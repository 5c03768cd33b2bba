"""What people and callers do to tasks: cancel, pause, resume and retry them, give them to another agent, and send or
discard dead letters."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dragoman.core.agreements.terms import check_again
from dragoman.core.budgets import budget
from dragoman.core.commands import Cancel, Discard, Pause, Reassign, Redrive, Resume, Retry
from dragoman.core.delivery.direct_messages import carry_again
from dragoman.core.delivery.outbox import offer, withdraw
from dragoman.core.delivery.redelivery import order_goes_on
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, Instant, TaskId
from dragoman.core.lookups import DeadLetterById, DeadLettersOf, EventsOf, OpenQuestions
from dragoman.core.model.authorization import governs
from dragoman.core.model.deliveries import DeadLetter, MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.shared_tasks import MOST_EVENTS, in_short
from dragoman.core.model.tasks import EventKind, Status, Task, Waiting
from dragoman.core.policy.replay import note, receipt
from dragoman.core.routing.dispatch import fill, make_room, place
from dragoman.core.routing.routes import route_of
from dragoman.core.tasks.dependencies import begin_or_wait
from dragoman.core.tasks.handoff_candidates import can_go_on, check_domain
from dragoman.core.tasks.outcome import call_off, end_children, end_with_children
from dragoman.core.tasks.questions import call_back, resume_with, stood_still_for, unasked, waits_for
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.messages.tasks import AttemptFailed, Handoff, Progress, read_request


def governed(work: Work, task_id: TaskId, principal: AgentId) -> Task:
    """The task, if this principal may control it: a person, or its caller."""
    task = work.task(task_id)
    if task is None or not (principal in (ADMIN, HUB) or governs(work.agent(principal), principal, task)):
        raise refuse(Kind.NOT_FOUND, "no such task", field="task_id", task_id=task_id)
    return task


def unfinished(work: Work, task_id: TaskId, principal: AgentId) -> Task:
    task = governed(work, task_id, principal)
    if task.final:
        raise refuse(
            Kind.CONFLICT, f"the task is already {task.status.value}", task_id=task.id, status=task.status.value
        )
    return task


def cancel(work: Work, command: Cancel) -> Task:
    if command.message_id is not None:
        if receipt(work, command.principal, command.message_id, command.digest) is not None:
            return governed(work, command.task_id, command.principal)
        note(work, command.principal, command.message_id, command.digest)
    task = unfinished(work, command.task_id, command.principal)
    return end_with_children(work, task, Fault(kind=Kind.CANCELLED, message=command.reason))


def pause(work: Work, command: Pause) -> Task:
    """Pause a task. A queued one leaves its queue; the agent of a running one is asked to wait. Its timers stand
    still."""
    task = unfinished(work, command.task_id, command.principal)
    if task.waiting is Waiting.HELD:
        return task
    if task.status is Status.WAITING:
        raise refuse(
            Kind.CONFLICT, f"the task already waits for {task.waiting and task.waiting.value}", task_id=task.id
        )
    at_work = task.status in (Status.ASSIGNED, Status.RUNNING)
    if not at_work:
        task = replace(task, owner=None)
    task = move(
        work.record(task, EventKind.PAUSED, Progress(status="paused")),
        Status.WAITING,
        work.now,
        waiting=Waiting.HELD,
        queue=None,
        wake_at=None,
        timing=replace(task.timing, last_sign_at=work.now),
    )
    work.put(task)
    if at_work and task.owner is not None:
        offer(work, task, task.owner, MessageKind.PAUSE, task.seq)
    return task


def resume(work: Work, command: Resume) -> Task:
    """Resume a paused task, with an answer for the agent if there is one."""
    task = unfinished(work, command.task_id, command.principal)
    if task.waiting not in (Waiting.HELD, Waiting.AGENT):
        why, next = f"the task is {task.status.value}, not paused", ""
        if task.waiting is Waiting.PERSON:
            why, next = "the task waits for an answer", "answer its question instead"
        raise refuse(Kind.CONFLICT, why, next=next, task_id=task.id, status=task.status.value)
    if command.has_answer:
        return resume_with(work, task, command.answer)
    task = work.record(unasked(work, task), EventKind.RESUMED)
    task = replace(task, timing=replace(task.timing, deadline=task.due(work.now), last_sign_at=work.now))
    owner, lost = task.owner, task.timing.lost_at is not None
    if owner is None:
        return place(work, task, prefer=task.attempt.prefers)
    patience = (
        work.rules.grace if lost else task.timing.idle_limit
    )  # an agent that was lost before has the grace time from now on
    wake_at = min(task.timing.deadline, Instant(work.now + patience))
    lost_at = work.now if lost else None
    waiting = None if lost else waits_for(work, task)
    if waiting is not None:  # its agent asked meanwhile, and waits for the answer
        task = move(task, Status.WAITING, work.now, waiting=waiting, wake_at=None)
    else:
        task = move(
            task,
            Status.RUNNING,
            work.now,
            waiting=None,
            wake_at=wake_at,
            timing=replace(task.timing, lost_at=lost_at),
        )
    work.put(task)
    task = order_goes_on(work, task)
    offer(work, task, owner, MessageKind.RESUME, task.seq)
    return task


WITH_AN_AGENT = frozenset({Waiting.PERSON, Waiting.HELP, Waiting.AGENT})
"""What a task may wait for while an agent owns it."""

NOT_RETRIED = {
    Waiting.HELD: ("a person paused the task", "resume it instead"),
    Waiting.DEPENDENCY: ("the task waits for what it depends on, and begins by itself once that is done", ""),
    Waiting.PERSON: ("a person must approve the task before an agent begins it", "answer its question instead"),
    Status.QUEUED: ("the task is queued: the next agent that can do it begins it", ""),
    Status.COMPLETED: ("the task is completed, and its result cannot change", "submit a new one"),
}
"""Why a task cannot be retried, and what can be done instead."""


def retry(work: Work, command: Retry) -> Task:
    """A failed or cancelled task begins a new round, with new attempts and a new deadline. So does a task that an agent
    has: the hub takes it from the agent and tells it to stop. What the agent still sends about the old round is refused
    where its protocol names the round."""
    task = governed(work, command.task_id, command.principal)
    has_agent = task.owner is not None and (
        task.status in (Status.ASSIGNED, Status.RUNNING) or task.waiting in WITH_AN_AGENT
    )
    owner = task.owner if has_agent else None
    if has_agent:
        task = taken_from_agent(work, task)
    elif task.status not in (Status.FAILED, Status.CANCELLED):
        why, next = NOT_RETRIED[task.waiting or task.status]
        raise refuse(Kind.CONFLICT, why, next=next, task_id=task.id, status=task.status.value)
    drop_dead_letters_of_work(work, task)
    task = retry_from_start(work, task, command.input)
    if owner is not None:
        fill(work, owner)
    return work.known_task(task.id)


NOT_REASSIGNED = {
    Waiting.HELD: ("a person paused the task", "resume it first"),
    Waiting.DEPENDENCY: ("the task waits for what it depends on", "give it to another agent when it has begun"),
    Waiting.PERSON: ("a person must approve the task before an agent begins it", "answer its question first"),
}
"""Why a task that no agent has cannot be given to one, and what can be done instead."""


def reassign(work: Work, command: Reassign) -> Task:
    """A person gives a task to another agent, which is not asked. It is a new round with new attempts. The hub
    tells the agent that had the task to stop, as in a retry; the new one gets the history so far. From now on the task
    is for the new agent alone: it waits for that agent if it is busy or away."""
    task = unfinished(work, command.task_id, command.principal)
    agent = work.agent(command.agent)
    if agent is None:
        raise refuse(
            Kind.NOT_FOUND, f"there is no agent {command.agent!r}", next="see `dragoman agent ls`", field="agent"
        )
    has_agent = task.owner is not None and (
        task.status in (Status.ASSIGNED, Status.RUNNING) or task.waiting in WITH_AN_AGENT
    )
    owner = task.owner if has_agent else None
    if agent.id in (owner, task.origin.principal):
        why = "has the task already" if agent.id == owner else "asked for the task itself"
        raise refuse(Kind.CONFLICT, f"{agent.id} {why}", next="name another agent", task_id=task.id)
    if not has_agent and task.waiting is not None:
        why, next = NOT_REASSIGNED[task.waiting]
        raise refuse(Kind.CONFLICT, why, next=next, task_id=task.id, status=task.status.value)
    if task.agreement.contract is not None:
        raise refuse(
            Kind.CONFLICT,
            "the task is under a contract between its caller and its agent",
            next="cancel it, and ask the other agent",
            task_id=task.id,
        )
    if not can_go_on(work, task, agent):
        message = f"{agent.id} does not do {task.type!r}, or not on the terms of this task"
        raise refuse(Kind.UNSUPPORTED_WORK, message, field="agent", task_id=task.id)
    check_domain(work, task, agent)
    if owner is not None:
        task = taken_from_agent(work, task, f"a person gave the task to {agent.id}")
    source = read_request(work.event(task.id, task.attempt.source).body)
    known = Handoff(
        source=owner,
        to=agent.id,
        reason="a person decided it",
        hub_history=in_short(reversed(work.find(EventsOf(task.id, MOST_EVENTS)))),
    )
    task = work.record(task, EventKind.HANDED_OVER, source.next_round(handover=known), agent=agent.id)
    route = replace(
        route_of(task.routing.route), kind=None, pinned=agent.id, besides=None, unfit=(), granted=(), domains=()
    )
    again = task.attempt.round + 1
    task = move(
        task,
        Status.QUEUED,
        work.now,
        owner=None,
        queue=None,
        routing=replace(task.routing, route=route.queue, pinned=agent.id),
        attempt=replace(task.attempt, round=again, source=task.seq, count=0, unreached=0, session=None),
        timing=replace(task.timing, deadline=task.due(work.now), last_sign_at=work.now),
    )
    work.put(task)
    place(work, task, prefer=agent.id)
    if owner is not None:
        fill(work, owner)
    return work.known_task(task.id)


def taken_from_agent(work: Work, task: Task, why: str = "a person started the task again") -> Task:
    """The task without an owner (not yet put): the hub tells its agent to stop, and withdraws its questions."""
    owner = task.owner
    assert owner is not None
    waited_for = stood_still_for(work, task)
    withdraw(work, task, owner)
    for question in work.find(OpenQuestions(task.id)) if task.lineage.has_questions else ():
        call_off(work, question)
    end_children(work, task, "was started again")
    if task.spending.reserved is not None:
        task = budget.release(work, task)
        make_room(work)
    fault = Fault(kind=Kind.CANCELLED, message=why)
    event = AttemptFailed(fault=fault, attempt=task.attempt.count)
    task = work.record(task, EventKind.ATTEMPT_FAILED, event, agent=owner)
    call_back(work, task, owner, waited_for)
    return replace(
        task,
        question=None,
        waiting=None,
        attempt=replace(task.attempt, delivery=None, answered=False, asks=0, prefers=None),
        timing=replace(task.timing, lost_at=None),
    )


def dead_letter_of(work: Work, id: DeliveryId, principal: AgentId) -> DeadLetter:
    dead_letter = work.one(DeadLetterById(id))
    if dead_letter is None or principal != ADMIN:
        raise Refused(Fault(kind=Kind.NOT_FOUND, message="no such dead letter", facts={"dead_letter": id}))
    return dead_letter


def redrive(work: Work, command: Redrive) -> Task | DeadLetter:
    """Send a dead letter again: work restarts, a notice is offered to its receiver, a direct message is carried once
    more."""
    dead_letter = dead_letter_of(work, command.dead_letter, command.principal)
    if dead_letter.direct_message is not None:
        carry_again(work, dead_letter)
        work.remove(dead_letter)
        return dead_letter
    task = work.known_task(dead_letter.task)
    work.remove(dead_letter)
    if dead_letter.kind is not MessageKind.WORK:
        if command.input is not None:
            raise refuse(Kind.INVALID, "only the input of work can be edited, not a notice", field="input")
        if dead_letter.kind is MessageKind.ANSWER:
            next, facts = "discard the dead letter, and the agent asks again", {"dead_letter": dead_letter.id}
            raise Refused(new_fault(Kind.CONFLICT, "an answer cannot be sent again", next=next, facts=facts))
        assert dead_letter.receiver is not None
        offer(work, task, dead_letter.receiver, dead_letter.kind, dead_letter.event, kept=True)
        return task
    if task.status not in (Status.FAILED, Status.CANCELLED):
        raise refuse(
            Kind.CONFLICT, f"its task is {task.status.value}", next="discard the dead letter instead", task_id=task.id
        )
    return retry_from_start(work, task, command.input)


def discard(work: Work, command: Discard) -> DeadLetter:
    dead_letter = dead_letter_of(work, command.dead_letter, command.principal)
    work.remove(dead_letter)
    return dead_letter


# -- retrying ----------------------------------------------------------------------------------------------------------


def retry_from_start(work: Work, task: Task, edited: bytes | None) -> Task:
    """A new round with another request id, so that an agent that remembers its result does the work again."""
    check_again(work, task, edited)
    task = retried(work, task, edited)
    again = task.attempt.round + 1
    return set_back(
        work,
        replace(task, attempt=replace(task.attempt, round=again, retried_round=again, source=task.seq)),
    )


def redo(work: Work, task: Task) -> Task:
    """A request that ended in an error comes again: the same task, under the same id, with new attempts."""
    drop_dead_letters_of_work(work, task)
    return set_back(work, retried(work, task))


def retried(work: Work, task: Task, edited: bytes | None = None) -> Task:
    source = read_request(work.event(task.id, task.attempt.source).body)
    given = source.given if edited is None else msgspec.json.decode(edited)
    return work.record(task, EventKind.RETRIED, source.next_round(input=given))


def drop_dead_letters_of_work(work: Work, task: Task) -> None:
    for dead_letter in work.find(DeadLettersOf(task.id)):
        if dead_letter.kind is MessageKind.WORK:
            work.remove(dead_letter)


def set_back(work: Work, task: Task) -> Task:
    """A task as before its first attempt."""
    task = move(
        task,
        Status.QUEUED,
        work.now,
        owner=None,
        finished_at=None,
        attempt=replace(task.attempt, count=0, unreached=0, session=None),
        outcome=replace(task.outcome, fault=None, event=None, digest=None),
        output=replace(
            task.output, progress=None, step=None, recent=(), streams=(), bytes=0, files_before=len(task.output.files)
        ),
        lineage=replace(task.lineage, handed=()),
        spending=replace(task.spending, spent=None),
        timing=replace(
            task.timing,
            deadline=Instant(work.now + max(work.rules.total_limit, task.timing.total_limit or 0)),
            firm=False,
            limited=task.timing.limited and not task.timing.firm,
        ),
    )
    work.put(task)  # its seat is free, and this task takes it first
    return begin_or_wait(work, task)
