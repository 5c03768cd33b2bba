"""An outgoing message becomes the forge messages that tell of it.

    kind      says                                                     to
    ---------  -------------------------------------------------------  ---------------
    work       notify:task-assigned, with the task if it is small       the agent
    progress   notify:task-updated                                      who submitted it
    result     notify:task-updated, final                               who submitted it
    failure    notify:task-updated, final, with the error               who submitted it
    cancel     notify:task-cancelled                                    the agent
    pause      notify:task-paused                                       the agent
    resume     notify:task-resumed                                      the agent
    answer     response:success or :error to the ask-user that waits,   the agent that asked
               else notify:question-answered

A message has the delivery's id as its own: offered twice, it is recognisably the same. A final output too long for
one message is told in parts, the last of them with the outcome; `_meta.part` says of each which bytes it has, as
[first, end, total]. Without it, an output is a piece told on the way, or, in a final message, all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from dragoman.core.ids import EPOCH, Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.model.tasks import Event, EventKind, Question, QuestionStatus, Task
from dragoman.messages.faults import Kind
from dragoman.messages.tasks import read_result
from dragoman.protocols.forge import codec, mapping
from dragoman.protocols.forge.errors import Code
from dragoman.protocols.forge.types import (
    Anything,
    ErrorBody,
    Payload,
    QuestionAnswered,
    Stamp,
    TaskAssigned,
    TaskCancelled,
    TaskPaused,
    TaskResumed,
    TaskUpdated,
)
from dragoman.server.content import reported_fault, reported_progress, reported_question
from dragoman.server.forge.failures import error_of
from dragoman.server.forge.views import file_view, order_view
from dragoman.server.forge.vocabulary import ASSIGNED_MESSAGE, PROTOCOL, status_of

LONGEST_PIECE = 150_000
"""Characters of output in one message: JSON may write each of them as six bytes, and a line has a mebibyte."""

RESULT_STREAM = "result"
"""The stream of a final output that its agent sent in pieces."""

_ENDINGS = frozenset({MessageKind.RESULT, MessageKind.FAILURE})
_write = msgspec.json.Encoder().encode


SMALL_TASK = 4096
"""Bytes of a task that travels with its assignment."""


def messages_of(
    outgoing: Outgoing, receiver: Agent, now: Instant, whole: str | None = None, *, whole_tasks: bool = False
) -> tuple[Anything, ...]:
    """The messages of an outgoing message, in order; nearly always one. `whole` is the output of one that is
    `in_pieces`. With `whole_tasks`, a task goes along with its assignment however large it is."""
    if whole_tasks and outgoing.delivery.kind is MessageKind.WORK:
        return _work(outgoing, now, None)
    return _WORDS[outgoing.delivery.kind](outgoing, now) if whole is None else _result(outgoing, now, whole)


def in_pieces(outgoing: Outgoing) -> bool:
    """Whether an ending that has only the last piece of its output is told once more: the first time each piece was
    told as it came, in the commit of its event, and whoever asks again has perhaps none of them."""
    delivery, event = outgoing.delivery, outgoing.event
    if delivery.kind not in _ENDINGS or delivery.created_at == event.at or b'"chunk"' not in bytes(event.body):
        return False
    place = read_result(event.body).chunk
    return place is not None and place[0] > 0


def stamp(id: str, now: Instant) -> Stamp:
    return Stamp(id, EPOCH + timedelta(microseconds=now))


def _work(outgoing: Outgoing, now: Instant, most: int | None = SMALL_TASK) -> tuple[Anything, ...]:
    """The task goes along if it is small; else the agent asks for it with get-task (D14)."""
    view = order_view(outgoing.task, outgoing.event)
    is_small = most is None or len(_write(view)) <= most
    said = TaskAssigned(task_id=outgoing.task.id, message=ASSIGNED_MESSAGE, task=view if is_small else None)
    return (_say(said, outgoing, now),)


def _progress(outgoing: Outgoing, now: Instant) -> tuple[Anything, ...]:
    task: Task = outgoing.task
    report, asked = reported_progress(outgoing.event), reported_question(outgoing.event)
    waits = None if asked is None else f"Waiting for an answer: {asked.question}"
    status = "running" if outgoing.event.kind is EventKind.PROGRESS else status_of(task)
    file = None if report.file is None else file_view(report.file)
    said = mapping.update_out(task.id, status, report, message=waits, file=file)
    place = report.chunk if report.stream == RESULT_STREAM else None
    return _with_output(said, report.output or "", outgoing, now, place)


def _result(outgoing: Outgoing, now: Instant, whole: str | None = None) -> tuple[Anything, ...]:
    task: Task = outgoing.task
    event: Event = outgoing.event
    done = read_result(event.body)
    failed = event.kind is not EventKind.COMPLETED
    said = TaskUpdated(
        task_id=task.id,
        status="cancelled" if event.kind is EventKind.CANCELLED else "failed" if failed else "completed",
        final=True,
        progress=None if failed else 1.0,
        result=done.result,
        error=msgspec.to_builtins(error_of(reported_fault(task, event))) if failed else None,
    )
    output, place = done.output or "", done.chunk
    if whole is not None:
        output, place = whole, None
    if place is None and len(output) > LONGEST_PIECE:
        size = len(output.encode())
        place = (0, size, size)
    return _with_output(said, output, outgoing, now, place)


def _with_output(
    said: TaskUpdated, output: str, outgoing: Outgoing, now: Instant, place: Sequence[int | None] | None
) -> tuple[Anything, ...]:
    """`said` with an output of any length: what does not fit goes before it, in pieces.

    `place` (first byte, end, total) is where `output` stands in the final one, if it is a part of that: pieces that an
    agent told on the way and parts of its last word would look the same without it.
    """
    pieces = [output[start : start + LONGEST_PIECE] for start in range(0, len(output), LONGEST_PIECE)] or [""]
    part = TaskUpdated(task_id=said.task_id, status="running", final=False)
    told = []
    start, total = (place[0] or 0, place[2]) if place is not None else (0, None)
    for index, piece in enumerate(pieces, 1):
        last = index == len(pieces)
        meta: dict[str, Any] = {}
        if place is not None:
            end = start + len(piece.encode())
            start, meta["part"] = end, [start, end, total]
        words = msgspec.structs.replace(said if last else part, output=piece or None)
        told.append(_say(words, outgoing, now, 0 if last else index, **meta))
    return tuple(told)


def _cancel(outgoing: Outgoing, now: Instant) -> tuple[Anything, ...]:
    fault = reported_fault(outgoing.task, outgoing.event)
    return (_say(TaskCancelled(task_id=outgoing.task.id, reason=fault.message), outgoing, now),)


def _pause(outgoing: Outgoing, now: Instant) -> tuple[Anything, ...]:
    return (_say(TaskPaused(task_id=outgoing.task.id, reason="paused by a person"), outgoing, now),)


def _resume(outgoing: Outgoing, now: Instant) -> tuple[Anything, ...]:
    return (_say(TaskResumed(task_id=outgoing.task.id), outgoing, now),)


def _answer(outgoing: Outgoing, now: Instant) -> tuple[Anything, ...]:
    question: Question = outgoing.event
    if question.status is QuestionStatus.OPEN:
        return ()  # its task had ended, and was begun anew: it is asked again, and this is about the first time
    answered = question.status is QuestionStatus.ANSWERED or question.has_default
    at = None if question.answered_at is None else rfc3339(question.answered_at)
    mark = stamp(outgoing.delivery.id, now)
    if question.blocking:
        request_id = question.request_id or question.id
        if question.status is QuestionStatus.WITHDRAWN:
            message = "The task ended before anybody answered; stop working on it."
            details = {"questionId": question.id, "reason": Kind.CANCELLED.value, "retryable": False}
            error = ErrorBody(code=Code.INVALID_REQUEST, message=message, details=details)
            return (codec.failure(request_id, error, mark),)
        if not answered:
            message = "Nobody answered the question in time. Ask again, or give a default."
            details = {"questionId": question.id, "reason": Kind.TIMEOUT.value, "retryable": True}
            error = ErrorBody(code=Code.TIMEOUT, message=message, details=details)
            return (codec.failure(request_id, error, mark),)
        metadata: dict[str, Any] = {"answeredAt": at, "questionId": question.id}
        if question.status is QuestionStatus.EXPIRED:
            metadata["default"] = True
        return (codec.success(request_id, {"answer": question.answer, "metadata": metadata}, mark),)
    said = QuestionAnswered(
        question_id=question.request_id or question.id,
        question=question.question,
        answer=question.answer if answered else msgspec.UNSET,
        task_id=question.task,
        answered_at=at if answered else None,
        timed_out=not answered,
    )
    return (codec.message(said, mark),)


_WORDS: dict[MessageKind, Callable[[Outgoing, Instant], tuple[Anything, ...]]] = {
    MessageKind.WORK: _work,
    MessageKind.HANDOFF: _work,
    MessageKind.PROGRESS: _progress,
    MessageKind.RESULT: _result,
    MessageKind.FAILURE: _result,
    MessageKind.CANCEL: _cancel,
    MessageKind.PAUSE: _pause,
    MessageKind.RESUME: _resume,
    MessageKind.ANSWER: _answer,
}


def _say(said: Payload, outgoing: Outgoing, now: Instant, index: int = 0, **meta: Any) -> Anything:
    delivery = outgoing.delivery
    id = delivery.id if not index else f"{delivery.id}/{index}"
    trace = f"00-{outgoing.task.trace_id}-{delivery.id.replace('-', '')[16:]}-01"
    return codec.message(said, stamp(id, now), meta={"traceparent": trace, **meta})


__all__ = ["PROTOCOL", "messages_of", "stamp"]
