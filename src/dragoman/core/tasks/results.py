"""What the owner of a task says of its end: a result, or a fault.

Above: progress, which may end a task, too. Below: `outcome`, which ends attempts and tasks whatever the reason.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.agreements.terms import kept, unwrapped
from dragoman.core.budgets import budget, usage
from dragoman.core.commands import (
    Finish,
    ReportFault,
)
from dragoman.core.delivery.outbox import withdraw
from dragoman.core.ids import HUB, AgentId
from dragoman.core.lookups import AskedBy, EventsOf
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.shared_tasks import MOST_EVENTS
from dragoman.core.model.tasks import EventKind, Status, Task
from dragoman.core.policy.replay import note, other_words, receipt
from dragoman.core.routing.dispatch import fill
from dragoman.core.tasks.outcome import as_reported, end, fail_attempt, give_up, note_answer, refuse_hopeless
from dragoman.core.tasks.output import (
    PIECE,
    RESULT,
    check_complete,
    hold_piece,
    is_ahead,
    take_output,
)
from dragoman.core.tasks.questions import (
    leave_unanswered,
    stood_still_for,
)
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.messages.tasks import Failure


def finish(work: Work, command: Finish) -> Task:
    """The owner reports the result of a task."""
    task = owned(work, command.task_id, command.principal, command.request_id)
    if task.final:
        if task.outcome.digest == command.digest:
            return task  # the receipt of the first one got lost: accept it again
        raise refuse(
            Kind.CONFLICT,
            f"the task is already {task.status.value}, and its result cannot change",
            next="assign a new task for another",
            field="task_id",
            task_id=task.id,
        )
    if command.message_id is not None and has_other_content(task, command.message_id, command.digest):
        raise other_words()
    if command.span is not None and is_ahead(task, RESULT, command.span):  # the rest of its output has not come yet
        withdraw(work, task, command.principal)
        task = hold_piece(work, task, command, RESULT, command.span, ends=command.digest)
        work.put(work.sign_of_life(task))
        return task
    task = take_output(work, task, RESULT, command.output, command.span)
    check_complete(work, task)
    result = command.content if command.fault is not None else kept(work, task, command.content)
    if isinstance(result, Fault):
        return break_contract(work, task, command.principal, result)
    result = unwrapped(result)
    work_failed = command.fault is not None
    waited_for = stood_still_for(work, task)
    task = end(
        work,
        task,
        Status.FAILED if work_failed else Status.COMPLETED,
        fault=command.fault,
        kind=MessageKind.RESULT,
        result_digest=command.digest,
        agent=command.principal,
        content=result,
        protocol=command.protocol,
        raw=command.raw,
    )
    leave_unanswered(work, waited_for)
    note_answer(work, command.principal, probe=task.origin.principal == HUB)
    fill(work, command.principal)
    return task


def break_contract(work: Work, task: Task, agent: AgentId, fault: Fault) -> Task:
    """The result breaks the terms: the caller does not get it; caller and agent get the fault."""
    task = end(work, task, Status.FAILED, fault=fault, agent=agent)
    fill(work, agent)
    raise Refused(fault, keep=True)


def report_fault(work: Work, command: ReportFault) -> Task | None:
    """An agent answers a work order with an error. A repeated message changes nothing, even if the agent has the next
    attempt by now."""
    if command.digest and command.message_id is not None:
        if receipt(work, command.principal, command.message_id, command.digest) is not None:
            return None if command.task_id is None else work.task(command.task_id)
        note(work, command.principal, command.message_id, command.digest)
    task = task_at_fault(work, command)
    if task is None or task.final:
        return task
    if command.protocol is not None:
        command = replace(command, fault=as_reported(task, command.fault))
    probe = task.origin.principal == HUB
    used = command.content.usage or {}
    over = None
    if not probe and budget.spend(work, command.principal, used):
        refuse_hopeless(work)
        task = usage.noted(work.known_task(task.id), budget.used(used))
        over = usage.excess(work, task)
    if over is not None and command.fault.kind in work.rules.retried:
        task = give_up(work, task, over)  # it may not begin again
    elif probe:  # an error is an answer, too, and a health check wants no more
        task = end(work, task, Status.COMPLETED, agent=command.principal, content=command.content)
    elif command.fault.kind in work.rules.retried:
        task = fail_attempt(work, task, command.fault)
    else:
        task = end(
            work,
            task,
            Status.CANCELLED if command.fault.kind is Kind.CANCELLED else Status.FAILED,
            fault=command.fault,
            agent=command.principal,
            content=Failure(fault=command.fault, usage=used or None),
            protocol=command.protocol,
            raw=command.raw,
            booked=True,
        )
    if probe or command.fault.kind not in work.rules.breaking:
        note_answer(work, command.principal, probe=probe)
    fill(work, command.principal)
    return task


def task_at_fault(work: Work, command: ReportFault) -> Task | None:
    if command.task_id is not None:
        return owned(work, command.task_id, command.principal)
    for task in work.tasks(work.tasks_of(command.principal)):
        if command.request_id in (task.request_id, task.origin.request_id):
            return None if is_of_earlier_round(task, command.request_id) else task
    if command.fault.kind in work.rules.retried:
        return None
    asked = {question.task for question in work.find(AskedBy(command.principal)) if question.task is not None}
    for waiting in work.tasks(sorted(asked)):  # its turn was over, and it gives up after all
        if command.request_id in (waiting.request_id, waiting.origin.request_id):
            return waiting if waiting.owner == command.principal else None
    return None


def has_other_content(task: Task, message_id: str, digest: str) -> bool:
    """Whether one of the recent messages about a task had this id and another content (all-D5)."""
    if not digest:
        return False
    marks = (mark.removeprefix(PIECE).partition(" ") for mark in task.output.recent)
    return any(id == message_id and bool(known) and known != digest for id, _, known in marks)


def owned(work: Work, task_id: Any, principal: AgentId, request_id: str | None = None) -> Task:
    """The task, if this agent owns it. A missing task and another agent's task get the same refusal. `request_id`: the
    request that the agent answers, where its protocol names it."""
    task = work.task(task_id)
    late = task is not None and request_id is not None and is_of_earlier_round(task, request_id)
    if task is None or (task.owner != principal and not (late and had(work, task, principal))):
        raise refuse(Kind.NOT_FOUND, "no such task, or not yours", field="task_id", task_id=task_id)
    if late:
        raise refuse(
            Kind.CONFLICT,
            "the task was started again since, under another request id",
            next="work on that one instead" if task.owner == principal else "stop the earlier work",
            field="request_id",
            task_id=task_id,
        )
    return task


def had(work: Work, task: Task, agent: AgentId) -> bool:
    """Whether the hub assigned the task to this agent before. The request id alone proves nothing: that of a later
    round follows from the task's id."""
    events = work.find(EventsOf(task.id, MOST_EVENTS))
    return any(event.kind is EventKind.ASSIGNED and event.agent == agent for event in events)


def is_of_earlier_round(task: Task, request_id: str | None) -> bool:
    """Whether an agent answers a round before a retry, perhaps with another input. Rounds that an answer or a handover
    began are one conversation: there, every message counts."""
    return any(
        request_id == replace(task, attempt=replace(task.attempt, round=n)).request_id
        for n in range(task.attempt.retried_round)
    )
