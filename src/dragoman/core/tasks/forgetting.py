"""Tasks that ended long ago are forgotten, as soon as nothing needs them.

A finished task is kept for `Rules.keep_finished`, and longer as long as one of these is true:

    something about it is on its way            whoever asked has not been told how it ended, or an answer waits
    a dead letter tells of it                   a person decides what becomes of that
    a child of it is unfinished                 who cancels the parent means the child
    an unfinished task depends on it            its result may be wanted
    a question in it is open
    something is set aside for it

With it go its events, its questions, its claim on the request id (the same request is new work from then on) and its
hold on files; all in one commit. The audit record is never touched. One unit looks at a page of tasks; the next page is
asked for afterwards, until there is none, and what was kept is looked at again in the next round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman.core.commands import Forget
from dragoman.core.ids import HUB, Instant, rfc3339
from dragoman.core.lookups import (
    Children,
    DeadLettersOf,
    Finished,
    Lookup,
    OpenQuestions,
    QuestionsOf,
    Relying,
    Underway,
)
from dragoman.core.tasks.model import Task
from dragoman.core.tasks.questions import ASKED
from dragoman.core.work import Work

PAGE = 16
"""Tasks that one unit looks at: two milliseconds of the hub's time."""

QUESTIONS = 64
"""Questions of a task that one unit removes. One with more of them goes when they are gone."""


def forget(work: Work, command: Forget) -> int:
    if not work.rules.keep_finished:
        return 0
    before = Instant(work.now - work.rules.keep_finished)
    page = work.find(Finished(command.since, command.after, before, PAGE))
    due = [task for task in page if (task.finished_at or task.updated_at) < before and task.reserved is None]
    work.together([lookup for task in due for lookup in (*needs(task), QuestionsOf(task.id, QUESTIONS))])
    forgotten = 0
    rest = Forget(since=page[-1].created_at, after=page[-1].id) if len(page) == PAGE else None
    for task in due:
        if any(map(work.find, needs(task))):
            continue
        asked = work.find(QuestionsOf(task.id, QUESTIONS))
        if any(question.status in ASKED for question in asked):
            continue
        more = len(asked) == QUESTIONS
        if more and work.find(OpenQuestions(task.id)):
            continue
        for question in asked:
            work.remove(question)
        if more:
            rest = Forget(since=task.created_at)  # once more from here
            break
        work.remove(task)
        forgotten += 1
    if forgotten:
        reason = f"{forgotten} that ended before {rfc3339(before)}"
        work.audit(principal=HUB, action="task.forget", reason=reason)
    if rest is not None:
        work.ask_afterwards(rest)
    return forgotten


def needs(task: Task) -> Iterator[Lookup[Any]]:
    """Whatever one of these finds needs the task, and so does an open question."""
    yield Underway(task.id, 1)
    yield DeadLettersOf(task.id)
    yield Relying(task.id, 1)
    if task.has_children:
        yield Children(task.id)
