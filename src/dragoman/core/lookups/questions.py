"""What agents ask, of people and of each other."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups.base import Lookup
from dragoman.core.model.tasks import Question, QuestionStatus


class QuestionById(Lookup[Question], frozen=True, gc=False):
    row: ClassVar = Question
    single: ClassVar = True
    id: QuestionId

    def matches(self, row: Question) -> bool:
        return row.id == self.id


class Loose(Lookup[Question], frozen=True, gc=False):
    """Questions of before a time that belong to no task and are not asked any more, the oldest first, from behind a
    place on."""

    row: ClassVar = Question
    since: Instant
    after: str
    before: Instant
    limit: int

    def matches(self, row: Question) -> bool:
        if row.task is not None or row.status in (QuestionStatus.OPEN, QuestionStatus.WITH_AGENT):
            return False
        return (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Question) -> tuple[int, str]:
        return (row.created_at, row.id)


class OpenQuestions(Lookup[Question], frozen=True, gc=False):
    """What is asked in the course of a task and not answered, of people and of agents."""

    row: ClassVar = Question
    task: TaskId

    def matches(self, row: Question) -> bool:
        return row.task == self.task and row.status in (QuestionStatus.OPEN, QuestionStatus.WITH_AGENT)

    def order(self, row: Question) -> str:
        return row.id


class AskedBy(Lookup[Question], frozen=True, gc=False):
    """What an agent asks people and has no answer to."""

    row: ClassVar = Question
    agent: AgentId

    def matches(self, row: Question) -> bool:
        return row.agent == self.agent and row.status is QuestionStatus.OPEN

    def order(self, row: Question) -> str:
        return row.id


class PutTo(Lookup[Question], frozen=True, gc=False):
    """What an agent is asked by others and has not answered."""

    row: ClassVar = Question
    agent: AgentId

    def matches(self, row: Question) -> bool:
        return row.asked_of == self.agent and row.status is QuestionStatus.WITH_AGENT

    def order(self, row: Question) -> str:
        return row.id


class QuestionsOf(Lookup[Question], frozen=True, gc=False):
    """What was asked in the course of a task, whatever became of it."""

    row: ClassVar = Question
    task: TaskId
    limit: int

    def matches(self, row: Question) -> bool:
        return row.task == self.task

    def order(self, row: Question) -> tuple[str, str]:
        return (row.status, row.id)
