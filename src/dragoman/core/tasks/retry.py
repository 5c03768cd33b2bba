"""Work that ended and is done once more: as a new round, by a person, or as it was, when its request comes again."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from dragoman.core.agreements.terms import check_again
from dragoman.core.ids import Instant
from dragoman.core.lookups import DeadLettersOf
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.lifecycle import move
from dragoman.core.model.tasks import EventKind, Status, Task
from dragoman.core.tasks.dependencies import begin_or_wait
from dragoman.core.work import Work
from dragoman.messages.tasks import read_request


def retry_from_start(work: Work, task: Task, edited: bytes | None) -> Task:
    """A new round, which has another request id: an agent that remembers its result does the work all the same."""
    check_again(work, task, edited)
    task = retried(work, task, edited)
    again = task.attempt.round + 1
    return set_back(
        work,
        replace(task, attempt=replace(task.attempt, round=again, retried_round=again, source=task.seq)),
    )


def redo(work: Work, task: Task) -> Task:
    """A request that ended in an error comes again: the same work, under the same id, with fresh attempts."""
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
    """A task as if nobody had begun it."""
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
    work.put(task)  # the seat that it had is free, for itself before anybody else
    return begin_or_wait(work, task)
