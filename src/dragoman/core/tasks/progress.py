"""What an agent reports about a task while it works on it; and the end of a task that used more than it may.

`budgets.usage` decides whether a task used too much; `stop` ends it.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.budgets import budget
from dragoman.core.budgets.budget import used
from dragoman.core.budgets.usage import excess, noted
from dragoman.core.commands import Finish, ReportProgress, Span, WriteLog
from dragoman.core.delivery.direct_messages import rank_of
from dragoman.core.delivery.outbox import offer, withdraw
from dragoman.core.ids import HUB, AgentId, Instant
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import HELD, EventKind, Priority, Status, Task, Waiting
from dragoman.core.policy.replay import other_words
from dragoman.core.routing.dispatch import fill
from dragoman.core.tasks.outcome import end, end_children, note_answer
from dragoman.core.tasks.output import PIECE, hold_piece, is_ahead, next_piece, take_files, take_output, text_in
from dragoman.core.tasks.questions import call_back, put_question, stood_still_for, unasked
from dragoman.core.tasks.results import finish, has_other_content, owned
from dragoman.core.work import Work
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.tasks import Ask, Failure, LogLines, read_progress, read_result

URGENT = frozenset({Priority.HIGH, Priority.CRITICAL})
"""Progress with these priorities reaches the caller at least once, also if the caller converses (agentmsg-D4)."""


def report_progress(work: Work, command: ReportProgress) -> Task:
    task = owned(work, command.task_id, command.principal, command.request_id)
    if _is_repeated(task, command):
        return task  # its receipt got lost
    if task.final:
        raise refuse(
            Kind.CONFLICT,
            f"the task is already {task.status.value}",
            next="stop working on it",
            field="task_id",
            task_id=task.id,
        )
    withdraw(work, task, command.principal)  # the first sign of life acknowledges the work order (chiffon-D5)
    if command.span is not None and is_ahead(task, command.stream, command.span):
        task = hold_piece(work, task, command, command.stream, command.span)
        task = runs(work, work.sign_of_life(_remembered(work, task, command)))
        work.put(task)
        return task
    task = take_files(work, take_output(work, task, command.stream, command.output, command.span), command.files)
    task = work.record(
        task,
        EventKind.PAUSED if command.paused else EventKind.PROGRESS,
        command.content,
        agent=command.principal,
        protocol=command.protocol,
        raw=command.raw,
    )
    reported = task.seq
    task = _remembered(work, task, command)
    task = work.sign_of_life(
        task,
        output=replace(
            task.output,
            progress=task.output.progress if command.percent is None else command.percent,
            # stores encrypt the step in the event of a personal task, not in its row
            step=None if task.agreement.personal else command.step or task.output.step,
        ),
    )
    if command.paused:
        task = paused(work, task, command.ask)
    else:
        task = runs(work, task)
    usage = command.content.usage or {}
    task = noted(task, used(usage))
    work.put(task)
    urgent = command.priority in URGENT
    rank = rank_of(work, command.priority) if urgent else None
    offer(work, task, task.origin.principal, MessageKind.PROGRESS, reported, kept=urgent, rank=rank)
    if usage and (fault := excess(work, task)) is not None:
        return stop(work, task, fault, usage)
    if command.ask is not None:  # its turn is over: its seat is free for another task
        fill(work, command.principal)
    if task.origin.principal == HUB:  # progress is enough of an answer to a health check
        note_answer(work, command.principal, probe=True)
    return task if command.span is None else gap_closed(work, task, command)


def runs(work: Work, task: Task) -> Task:
    """The running task (not yet put). A task that a person paused stays paused until they resume it."""
    if task.waiting is Waiting.HELD:
        return task
    wake_at = (
        min(task.timing.deadline, Instant(work.now + task.timing.idle_limit)) if task.wake_at is None else task.wake_at
    )
    return move(unasked(work, task), Status.RUNNING, work.now, waiting=None, queue=None, wake_at=wake_at)


def gap_closed(work: Work, task: Task, command: ReportProgress) -> Task:
    """A missing piece came: the pieces behind it become visible as if they came now, and a result that waited ends the
    task."""
    found = next_piece(work, task, command.stream)
    if found is None:
        return task
    task, piece, event = found
    work.put(task)
    span = Span(piece.start, piece.end, piece.total)
    if piece.ends is None:
        held = replace(
            command, paused=False, ask=None, files=(), message_id=None, digest="", content=read_progress(event.body),
            raw=event.raw, output=text_in(event), span=span,
        )  # fmt: skip
        return report_progress(work, held)
    end = Finish(
        principal=command.principal, protocol=command.protocol, task_id=command.task_id, digest=piece.ends,
        content=read_result(event.body), raw=event.raw, output=text_in(event), span=span, fault=piece.fault,
    )  # fmt: skip
    return finish(work, end)


def _remembered(work: Work, task: Task, command: ReportProgress) -> Task:
    """The task, with the message among its recent ones (not yet put)."""
    if command.message_id is None:
        return task
    return replace(
        task,
        output=replace(task.output, recent=(*task.output.recent, _mark(command))[-work.rules.recent_messages :]),
    )


def _mark(command: ReportProgress) -> str:
    """The entry for a message in the task's `recent`."""
    mark = f"{command.message_id} {command.digest}" if command.digest else command.message_id or ""
    return mark if command.span is None else PIECE + mark


def _is_repeated(task: Task, command: ReportProgress) -> bool:
    """Whether this message came before. Another content under its id is refused (all-D5)."""
    if command.message_id is None:
        return False
    if _mark(command) in task.output.recent:
        return True
    if command.message_id in task.output.recent:
        return True  # an earlier version of the hub noted no content
    if has_other_content(task, command.message_id, command.digest):
        raise other_words()
    return False


def paused(work: Work, task: Task, ask: Ask | None) -> Task:
    """The waiting task (not yet put). If an agent pauses without a reason, the hub asks a person once; not if a person
    or a caller told it to pause, nor if it only reports that it is alive."""
    held, before = task.waiting is Waiting.HELD, task.question
    waiting = task.waiting if task.waiting in (Waiting.HELD, Waiting.PERSON) else Waiting.AGENT
    task = move(task, Status.WAITING, work.now, waiting=waiting, wake_at=None, queue=None)
    if ask is None or (ask.implied and (held or before is not None or task.origin.principal == HUB)):
        return task
    return put_question(work, unasked(work, task), ask)


def write_log(work: Work, command: WriteLog) -> Task:
    """Log lines of the owner. They are a sign of life."""
    task = owned(work, command.task_id, command.principal)
    if task.final:
        return task
    task = work.record(task, EventKind.LOG, LogLines(lines=command.lines), agent=command.principal)
    work.put(work.sign_of_life(task, acknowledged=False))
    return task


# -- spending ----------------------------------------------------------------------------------------------------------


def stop(work: Work, task: Task, fault: Fault, usage: dict[str, Any]) -> Task:
    """End a task that used too much, and tell its agent to stop. `usage` is booked with its end."""
    owner, held = task.owner, task.status in HELD
    waited_for = stood_still_for(work, task)
    task = end(work, task, Status.FAILED, fault=fault, content=Failure(fault=fault, usage=usage or None))
    if owner is not None and held:
        call_back(work, task, owner, waited_for)
    end_children(work, task, "used more than it may")
    if owner is not None:
        fill(work, owner)
    return task


def grew(work: Work, agent: AgentId, amounts: budget.Amounts, since: Instant | None) -> None:
    """An agent's own total of what it used has grown since its last report."""
    held = work.tasks_of(agent)
    task = work.known_task(held[0]) if len(held) == 1 else None
    if task is None or since is None or since < task.last_attempt:
        return
    so_far = {} if task.spending.spent is None else task.spending.spent.now
    task = noted(task, {kind: amount + so_far.get(kind, 0) for kind, amount in amounts.items()})
    fault = excess(work, task)
    if fault is None:
        work.put(task)
    else:
        stop(work, task, fault, {})  # it is booked already, by the agent's own total
