"""Work that ended and is done once more: as a new round, by a person, or as it was, when its request comes again."""

from __future__ import annotations

import msgspec

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
    again = task.round + 1
    return set_back(work, msgspec.structs.replace(task, round=again, retried_round=again, source=task.seq))


def redo(work: Work, task: Task) -> Task:
    """A request that ended in an error comes again: the same work, under the same id, with fresh attempts."""
    drop_dead_letters_of_work(work, task)
    return set_back(work, retried(work, task))


def retried(work: Work, task: Task, edited: bytes | None = None) -> Task:
    source = read_request(work.event(task.id, task.source).body)
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
        attempts=0,
        unreached=0,
        owner=None,
        session=None,
        fault=None,
        outcome=None,
        result_digest=None,
        finished_at=None,
        progress=None,
        step=None,
        recent=(),
        handed=(),
        spent=None,
        output=(),
        output_bytes=0,
        files_before=len(task.files),
        deadline=Instant(work.now + max(work.rules.total_limit, task.total_limit or 0)),
        firm=False,
        limited=task.limited and not task.firm,
    )
    work.put(task)  # the seat that it had is free, for itself before anybody else
    return begin_or_wait(work, task)
