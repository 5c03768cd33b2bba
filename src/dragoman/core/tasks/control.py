"""What people and callers do to tasks: cancel, pause, resume, retry."""

from __future__ import annotations

import msgspec

from dragoman.core.commands import Cancel, Pause, Resume, Retry
from dragoman.core.delivery.model import Cargo
from dragoman.core.delivery.outbox import offer, order_goes_on
from dragoman.core.delivery.receipts import note, receipt
from dragoman.core.errors import Fault, Kind, refuse
from dragoman.core.ids import ADMIN, HUB, AgentId, Instant, TaskId
from dragoman.core.routing.dispatch import place
from dragoman.core.tasks.anew import begin_anew, drop_work_letters
from dragoman.core.tasks.lifecycle import move
from dragoman.core.tasks.model import EventKind, Status, Task, Waiting
from dragoman.core.tasks.outcome import end_with_children
from dragoman.core.tasks.parts import governs
from dragoman.core.tasks.questions import resume_with, unasked, waits_for
from dragoman.core.work import Work


def governed(work: Work, task_id: TaskId, principal: AgentId) -> Task:
    """The task, if this principal may steer it: a person, or whoever it is done for."""
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
    """Hold a task: a queued one is nobody's and not given out, one that an agent has is asked to wait, and no clock
    runs."""
    task = unfinished(work, command.task_id, command.principal)
    if task.waiting is Waiting.HELD:
        return task
    if task.status is Status.WAITING:
        raise refuse(
            Kind.CONFLICT, f"the task already waits for {task.waiting and task.waiting.value}", task_id=task.id
        )
    at_work = task.status in (Status.ASSIGNED, Status.RUNNING)
    if not at_work:
        task = msgspec.structs.replace(task, owner=None)
    task = move(
        work.record(task, EventKind.PAUSED, body=msgspec.Raw(b'{"status":"paused"}')),
        Status.WAITING,
        work.now,
        waiting=Waiting.HELD,
        queue=None,
        wake_at=None,
        last_sign_at=work.now,
    )
    work.put(task)
    if at_work and task.owner is not None:
        offer(work, task, task.owner, Cargo.PAUSE, task.seq)
    return task


def resume(work: Work, command: Resume) -> Task:
    """Let a paused task go on, with an answer for the agent if there is one."""
    task = unfinished(work, command.task_id, command.principal)
    if task.waiting not in (Waiting.HELD, Waiting.AGENT):
        raise refuse(
            Kind.CONFLICT,
            "the task waits for an answer; answer its question instead"
            if task.waiting is Waiting.PERSON
            else f"the task is {task.status.value}, not paused",
            task_id=task.id,
            status=task.status.value,
        )
    if command.has_answer:
        return resume_with(work, task, command.answer)
    task = work.record(unasked(work, task), EventKind.RESUMED)
    task = msgspec.structs.replace(task, deadline=task.due(work.now), last_sign_at=work.now)
    owner, lost = task.owner, task.lost_at is not None
    if owner is None:
        return place(work, task, prefer=task.prefers)
    patience = work.rules.grace if lost else task.idle_limit  # who was lost before has the grace time from now on
    wake_at = min(task.deadline, Instant(work.now + patience))
    lost_at = work.now if lost else None
    waiting = None if lost else waits_for(work, task)
    if waiting is not None:  # its agent asked meanwhile, and stands still until it hears the answer
        task = move(task, Status.WAITING, work.now, waiting=waiting, wake_at=None)
    else:
        task = move(task, Status.RUNNING, work.now, waiting=None, wake_at=wake_at, lost_at=lost_at)
    work.put(task)
    task = order_goes_on(work, task)
    offer(work, task, owner, Cargo.RESUME, task.seq)
    return task


def retry(work: Work, command: Retry) -> Task:
    """A failed or cancelled task begins anew, as a new round, with fresh attempts and a fresh deadline."""
    task = governed(work, command.task_id, command.principal)
    if task.status not in (Status.FAILED, Status.CANCELLED):
        raise refuse(
            Kind.CONFLICT,
            f"the task is {task.status.value}; only failed and cancelled ones can be retried",
            task_id=task.id,
            status=task.status.value,
        )
    drop_work_letters(work, task)
    return begin_anew(work, task, command.input)
