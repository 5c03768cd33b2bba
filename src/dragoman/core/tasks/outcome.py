"""How attempts and tasks end: failures, retries, dead letters, and what an ending means for other tasks.

Above: the other task decisions, first of all `results`. Below: delivery, routing, budgets and terms. What must happen
in a higher layer when a task ends goes through `Work.reactions`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.budgets.wake_times import breaker_limits, with_wake_time
from dragoman.core.delivery.outbox import OUTCOME_KINDS, offer, withdraw
from dragoman.core.ids import DAY, HUB, SECOND, AgentId, DeliveryId, Instant, rfc3339
from dragoman.core.lookups import PAGE, Children, Claims, Dependents, OpenQuestions, Ready
from dragoman.core.model import breaker
from dragoman.core.model.deliveries import DeadLetter, MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import HELD, Asking, EventKind, Question, QuestionStatus, Status, Task, Waiting
from dragoman.core.routing import subtask_owner
from dragoman.core.routing.dispatch import fill, make_room
from dragoman.core.routing.routes import addressed, last_seen, route_of, serves
from dragoman.core.tasks.dependencies import how_it_ended, release
from dragoman.core.tasks.output import (
    forget_output,
)
from dragoman.core.tasks.questions import (
    call_back,
    order_of,
    stood_still_for,
    take_back,
)
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, new_fault
from dragoman.messages.tasks import AttemptFailed, DeadLettered, Failure, Result


def fail_attempt(
    work: Work, task: Task, fault: Fault, *, counts: bool = True, lost: bool = False, spent: bool = True
) -> Task:
    """An attempt failed: retry later if that may help, else give the task up.

    `lost`: the link to the agent broke. The agent may have done the work and know the result, so the hub asks it first.
    An agent that took the task over comes before the one that gave it away. Not `spent`: the hub cut the attempt short,
    or it had not begun; so it does not count. A task that a person paused stays paused.
    """
    owner = task.owner
    if owner is not None:
        fault = dated(work, owner, fault)
        withdraw(work, task, owner)
        if counts and fault.kind in work.rules.breaking:
            failed(work, owner)
    if task.lineage.has_questions:
        let_go(work, task)
    if task.spending.reserved is not None:
        task = budget.release(work, task)
        make_room(work)
    if task.spending.spent is not None:
        task = replace(task, spending=replace(task.spending, spent=task.spending.spent.attempt_over()))
    paused = task.waiting is Waiting.HELD
    task = replace(task, timing=replace(task.timing, deadline=task.due(work.now), last_sign_at=work.now))
    attempts = task.attempt.count if spent else task.attempt.count - 1
    delays = work.rules.retry_delays
    retry_at = Instant(work.now + max(delays[min(attempts, len(delays) - 1)], rest(fault)))
    if task.origin.principal == HUB:
        return end(work, task, Status.FAILED, fault=fault)
    if fault.kind not in work.rules.retried or attempts >= len(delays) or retry_at >= task.timing.deadline:
        return give_up(work, task, fault)
    event = AttemptFailed(fault=fault, attempt=task.attempt.count, retry_at=rfc3339(retry_at))
    task = move(
        work.record(forget_output(task), EventKind.ATTEMPT_FAILED, event, agent=owner),
        Status.WAITING if paused else Status.QUEUED,
        work.now,
        queue=None,
        waiting=Waiting.HELD if paused else None,
        owner=None if paused else owner,
        wake_at=None if paused else retry_at,
        attempt=replace(
            task.attempt, delivery=None, count=attempts, prefers=owner if lost or task.lineage.handed else None
        ),
        timing=replace(task.timing, lost_at=None),
        outcome=replace(task.outcome, fault=fault_for_row(task, fault)),
    )
    work.put(task)
    return task


def rest(fault: Fault) -> int:
    """For how long a failed agent wants no work, if it says so."""
    seconds: Any = fault.facts.get("retry_after")
    return int(min(seconds * SECOND, DAY)) if type(seconds) in (int, float) and seconds > 0 else 0


def still_held(work: Work, tasks: Iterable[Task]) -> Iterator[Task]:
    """Each of an agent's tasks as it is when its turn comes: failing one may end another, which was help with it."""
    for task in tasks:
        now = work.known_task(task.id)
        if now.status in HELD and now.owner == task.owner:
            yield now


def dated(work: Work, owner: AgentId, fault: Fault) -> Fault:
    """The fault with the time of the agent's last sign of life: an endpoint that finds the agent gone does not know it.
    An agent's own fault with a code stays as it is."""
    facts = fault.facts
    if facts.get("last_heartbeat", "") is not None or facts.get("agent_id") != owner or "code" in facts:
        return fault
    agent = work.agent(owner)
    last = None if agent is None else last_seen(work, agent)
    if last is None:
        return fault
    return replace(fault, facts=facts | {"last_heartbeat": rfc3339(last)})


def let_go(work: Work, task: Task) -> None:
    """Withdraw the owner's requests for help and for a handover: it has the task no more. Questions to people stay,
    since the next attempt asks them again."""
    for question in work.find(OpenQuestions(task.id)):
        if question.about is not Asking.ANSWER:
            call_off(work, question)


OURS = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.DEPENDENCY, Kind.CONTRACT})
"""Kinds of faults whose text is usually the hub's own."""


def fault_for_row(task: Task, fault: Fault | None) -> Fault | None:
    """A fault as a task's row shows it. Agents' texts about personal work are only in its events, which are
    encrypted."""
    if fault is None or not task.agreement.personal or fault.kind in OURS:
        return fault and fault.in_short()
    return without_text(fault)


def as_reported(task: Task, fault: Fault) -> Fault:
    """A fault that an agent reported, without its text where `fault_for_row` would show that: the kind is usually the
    hub's own."""
    if task.agreement.personal and fault.kind in OURS:
        return without_text(fault)
    return replace(fault, reported=True)


def without_text(fault: Fault) -> Fault:
    """The fault without its text."""
    who = "it was cancelled" if fault.kind is Kind.CANCELLED else f"its agent gave it up ({fault.kind.value})"
    short = new_fault(fault.kind, who, next="why is personal", field=fault.field, retryable=fault.retryable)
    return replace(short, named=fault.named)


def give_up(work: Work, task: Task, fault: Fault) -> Task:
    """The last attempt failed: write a dead letter, in the same commit."""
    if fault.kind is Kind.TIMEOUT:
        facts = {
            "attempted_retries": max(0, task.attempt.count - 1),
            "last_attempt": rfc3339(task.last_attempt),
        } | fault.facts
        fault = replace(fault, facts=facts)
    task = end(work, task, Status.FAILED, fault=fault)
    dead_letter = DeadLetter(
        id=DeliveryId(work.mint()),
        task=task.id,
        receiver=task.owner,
        kind=MessageKind.WORK,
        event=task.attempt.source,
        attempts=task.attempt.count,
        at=work.now,
        reason=fault_for_row(task, fault) or fault,
    )
    work.put(dead_letter)
    event = DeadLettered(fault=fault, dead_letter=dead_letter.id, message_kind=dead_letter.kind)
    task = work.record(task, EventKind.DEAD_LETTERED, event)
    work.put(task)
    return task


PAGES = 8
"""How many pages of a queue one unit searches for hopeless tasks."""

END_EVENTS = {
    Status.COMPLETED: EventKind.COMPLETED,
    Status.FAILED: EventKind.FAILED,
    Status.CANCELLED: EventKind.CANCELLED,
}


def end(
    work: Work,
    task: Task,
    status: Status,
    *,
    fault: Fault | None = None,
    kind: MessageKind | None = None,
    result_digest: str | None = None,
    agent: AgentId | None = None,
    content: Result | None = None,
    protocol: str | None = None,
    raw: bytes | None = None,
    settles: bool = True,
    booked: bool = False,
) -> Task:
    """End a task: store the outcome, tell its caller, release everything that belongs to it. `settles`: also settle the
    tasks that depend on it. `booked`: its `usage` was counted before."""
    if task.owner is not None:
        withdraw(work, task, task.owner)
    if content is None:
        content = Failure(fault=fault)
    freed = task.spending.reserved is not None
    spent = not booked and budget.spend(work, agent or task.owner, content.usage or {})
    task = budget.release(work, task)
    task = work.record(task, END_EVENTS[status], content, agent=agent, protocol=protocol, raw=raw)
    task = move(
        task,
        status,
        work.now,
        question=None,
        outcome=replace(task.outcome, fault=fault_for_row(task, fault), digest=result_digest, event=task.seq),
        output=replace(task.output, streams=(), progress=100 if status is Status.COMPLETED else task.output.progress),
        timing=replace(task.timing, expires_at=None),
    )
    work.put(task)
    offer(work, task, task.origin.principal, kind or OUTCOME_KINDS[status], task.seq)
    if task.lineage.subtask_owner is not None:
        subtask_owner.tell(work, task)
    if task.lineage.has_questions:
        for question in work.find(OpenQuestions(task.id)):
            call_off(work, question)
    if task.lineage.helps is not None:
        work.reactions.task_ended(work, task)
    if settles:
        settle_dependents(work, task)
    if freed or spent:
        refuse_hopeless(work)
        make_room(work)
    return task


def refuse_hopeless(work: Work) -> None:
    """A budget has less left: fail the queued tasks that will never find room in it.

    This looks at the first tasks of each queue. The others come up when these are gone, or when their wake time comes.
    """
    if not work.anybody_queues:
        return
    for queue in work.queues():
        if not route_of(queue).budgeted:
            continue
        for _ in range(PAGES):
            if not sum(is_hopeless(work, waiting) for waiting in work.find(Ready(queue, PAGE))):
                break


def is_hopeless(work: Work, task: Task) -> bool:
    """Whether a queued task will never find room in a budget; if so, it fails."""
    if task.queue is None or not (route := route_of(task.routing.route)).budgeted:
        return False
    could = (agent for agent in addressed(work, route) if serves(agent, route))
    try:
        budget.check(work, budget.needed(work, task), could, named=budget.names_usd(task.agreement.constraints))
    except Refused as refusal:
        end(work, task, Status.FAILED, fault=refusal.fault)
        return True
    return False


def end_with_children(work: Work, task: Task, fault: Fault, *, tell_owner: bool = True) -> Task:
    """Cancel a task and its subtasks."""
    owner, busy = task.owner, task.status in (Status.ASSIGNED, Status.RUNNING, Status.WAITING)
    waited_for = stood_still_for(work, task)
    task = end(work, task, Status.CANCELLED, fault=fault)
    if tell_owner and busy and owner is not None:
        call_back(work, task, owner, waited_for)
    end_children(work, task, "was cancelled")
    if owner is not None:
        fill(work, owner)
    return task


def end_children(work: Work, task: Task, how: str) -> None:
    """End the subtasks of an ended task, each as it is when its turn comes: one may have ended with another that it
    depends on."""
    fault = Fault(kind=Kind.CANCELLED, message=f"its parent {task.id} {how}", facts={"task_id": task.id})
    for child in work.find(Children(task.id)) if task.lineage.has_children else ():
        now = work.known_task(child.id)
        if not now.final:
            end_with_children(work, now, fault)


def failed(work: Work, agent_id: AgentId) -> None:
    """Count one more failure in a row of this agent."""
    agent = work.agent(agent_id)
    if agent is not None:
        now = breaker.failed(agent.breaker, work.now, *breaker_limits(work, agent))
        work.put(with_wake_time(work, replace(agent, breaker=now)))


def note_answer(work: Work, agent_id: AgentId, *, probe: bool = False) -> None:
    """The agent answered: forget its failures."""
    agent = work.agent(agent_id)
    if agent is None or agent.breaker == breaker.CLOSED:
        return
    now = breaker.answered(agent.breaker, probe=probe)
    if now != agent.breaker:
        work.put(with_wake_time(work, replace(agent, breaker=now)))
        fill(work, agent_id)


def call_off(work: Work, question: Question) -> None:
    """Withdraw a question."""
    work.put(replace(question, status=QuestionStatus.WITHDRAWN, wake_at=None))
    take_back(work, question)
    if question.about is Asking.HELP and question.asked_of is not None:
        for task in work.find(Claims(question.agent, order_of(question))):
            if not task.final:
                fault = Fault(kind=Kind.CANCELLED, message=f"{question.agent} needs no help any more")
                end_with_children(work, task, fault)


def settle_dependents(work: Work, task: Task) -> None:
    """A task ended: the tasks that wait for it begin, or fail, and so do those that wait for these. This is a loop,
    because a chain may be longer than calls can be nested."""
    ended = deque((task,))
    while ended:
        one = ended.popleft()
        for dependent in work.find(Dependents(one.id)) if one.lineage.has_dependents else ():
            if one.status is Status.COMPLETED:
                release(work, dependent, one)
            else:
                ended.append(fail_for(work, dependent, one))


def fail_for(work: Work, dependent: Task, failed: Task) -> Task:
    """Fail a task whose dependency failed. The caller of this function settles its dependents."""
    fault = Fault(
        kind=Kind.DEPENDENCY,
        message=f"it depends on task {failed.id}, which {how_it_ended(failed)}",
        facts={"dependency": failed.id},
    )
    return end(
        work,
        replace(dependent, lineage=replace(dependent.lineage, blocked_by=())),
        Status.FAILED,
        fault=fault,
        settles=False,
    )
