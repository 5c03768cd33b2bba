"""The hub deletes finished rows, some time after nothing needs them any more.

It keeps a row for `Rules.keep_finished`, and longer while one of these is true:

    a finished task
        a delivery about it waits               its caller does not know the outcome yet, or an answer waits
        a dead letter is about it               a person decides what becomes of it
        a subtask of it is unfinished           a person who cancels the task means the subtask, too
        an unfinished task depends on it        which may need its result
        a question in it is open
        a budget holds something for it
    a question without a task                   (a handshake, a request for help) that is answered or given up
        a delivery about it waits
        a dead letter is about it
    a contract that is over
        a delivery about it waits
        a dead letter is about it
        a task under it is kept                 it is shown with the terms, and they hold if it is retried
        its handshake is kept                   whose asker may ask for the outcome
        it is the newest of several             an older one of the collaboration must not replace it

With a task go its events, its questions, its claim on the request id (the same request is a new task from then on) and
its claims on files, all in one commit. The audit record is never touched. One unit looks at one page and enqueues the
next, first of tasks, then of questions, then of contracts. The next round looks again at what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dragoman.core.commands import Forget, Past
from dragoman.core.ids import HUB, Instant, TaskId, rfc3339
from dragoman.core.lookups import (
    Agreed,
    Children,
    DeadLettersOf,
    Finished,
    Lookup,
    Loose,
    OpenQuestions,
    QuestionById,
    QuestionsOf,
    Relying,
    Terms,
    Under,
    Underway,
)
from dragoman.core.model.contracts import Contract
from dragoman.core.model.tasks import Question, Task
from dragoman.core.tasks.questions import ASKED
from dragoman.core.work import Work

PAGE = 16
"""Rows per unit: about two milliseconds."""

QUESTIONS = 64
"""Questions of a task that one unit removes. The task itself goes after its last question."""


def forget(work: Work, command: Forget) -> int:
    if not work.rules.keep_finished:
        return 0
    before = Instant(work.now - work.rules.keep_finished)
    forgotten, rest = LOOKS[command.what](work, command, before)
    if forgotten:
        reason = f"{forgotten} that ended before {rfc3339(before)}"
        work.audit(principal=HUB, action=f"{command.what.value.removesuffix('s')}.forget", reason=reason)
    rest = rest or next_kind(command.what)
    if rest is not None:
        work.ask_afterwards(rest)
    return forgotten


def next_kind(what: Past) -> Forget | None:
    later = [*Past][[*Past].index(what) + 1 :]
    return Forget(what=later[0]) if later else None


def next_page(what: Past, page: Sequence[Task] | Sequence[Question] | Sequence[Contract]) -> Forget | None:
    return Forget(what=what, since=page[-1].created_at, after=page[-1].id) if len(page) == PAGE else None


def tasks(work: Work, command: Forget, before: Instant) -> tuple[int, Forget | None]:
    page = work.find(Finished(command.since, TaskId(command.after), before, PAGE))
    due = [task for task in page if (task.finished_at or task.updated_at) < before and task.spending.reserved is None]
    work.together([lookup for task in due for lookup in (*needs(task), QuestionsOf(task.id, QUESTIONS))])
    forgotten = 0
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
            return forgotten, Forget(since=task.created_at)  # continue here
        work.remove(task)
        forgotten += 1
    return forgotten, next_page(command.what, page)


def needs(task: Task) -> Iterator[Lookup[Any]]:
    """If one of these lookups finds a row, the hub keeps the task; also while a question is open."""
    yield from tells_of(task.id)
    yield Relying(task.id, 1)
    if task.lineage.has_children:
        yield Children(task.id)


def tells_of(id: str) -> Iterator[Lookup[Any]]:
    """Deliveries and dead letters about a task, or about another row that is a lane by its id."""
    yield Underway(TaskId(id), 1)
    yield DeadLettersOf(TaskId(id))


def questions(work: Work, command: Forget, before: Instant) -> tuple[int, Forget | None]:
    page = work.find(Loose(command.since, command.after, before, PAGE))
    due = [question for question in page if (question.answered_at or question.created_at) < before]
    work.together([lookup for question in due for lookup in tells_of(question.id)])
    gone = [question for question in due if not any(map(work.find, tells_of(question.id)))]
    for question in gone:
        work.remove(question)
    return len(gone), next_page(command.what, page)


def contracts(work: Work, command: Forget, before: Instant) -> tuple[int, Forget | None]:
    page = work.find(Agreed(command.since, command.after, before, PAGE))
    due = [contract for contract in page if contract.over_at < before]
    work.together([lookup for contract in due for lookup in (*grounds(contract), Terms(contract.collaboration, 2))])
    forgotten = 0
    for contract in due:
        newest, *older = work.find(Terms(contract.collaboration, 2))
        if any(map(work.find, grounds(contract))) or (older and newest.id == contract.id):
            continue
        work.remove(contract)
        forgotten += 1
    return forgotten, next_page(command.what, page)


def grounds(contract: Contract) -> Iterator[Lookup[Any]]:
    """If one of these lookups finds a row, the hub keeps the contract."""
    yield from tells_of(contract.id)
    yield Under(contract.id, 1)
    if contract.handshake is not None:
        yield QuestionById(contract.handshake)


LOOKS: dict[Past, Callable[[Work, Forget, Instant], tuple[int, Forget | None]]] = {
    Past.TASKS: tasks,
    Past.QUESTIONS: questions,
    Past.CONTRACTS: contracts,
}
"""How to look at a page of each: how many rows were forgotten, and where to continue."""
