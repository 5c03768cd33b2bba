"""Tasks and their events; questions to people and to agents."""

from __future__ import annotations

from typing import ClassVar

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups.base import Lookup
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task


class TaskById(Lookup[Task], frozen=True, gc=False):
    row: ClassVar = Task
    single: ClassVar = True
    id: TaskId

    def matches(self, row: Task) -> bool:
        return row.id == self.id


class Claims(Lookup[Task], frozen=True, gc=False):
    """The tasks that a new request collides with: the one that its principal asked for under the same request id (the
    idempotency key, all-D5), which comes first, and the one that has its id. It is one lookup, since every request
    needs it."""

    row: ClassVar = Task
    principal: AgentId
    request_id: str
    task: TaskId | None = None

    def asked(self, row: Task) -> bool:
        return row.origin.request_id == self.request_id and row.origin.principal == self.principal

    def matches(self, row: Task) -> bool:
        return row.id == self.task or self.asked(row)

    def order(self, row: Task) -> bool:
        return not self.asked(row)


class Ready(Lookup[Task], frozen=True, gc=False):
    """The tasks in a queue, best first."""

    row: ClassVar = Task
    queue: str
    limit: int

    def matches(self, row: Task) -> bool:
        return row.queue == self.queue

    def order(self, row: Task) -> tuple[int, str]:
        return (row.rank, row.id)


class Children(Lookup[Task], frozen=True, gc=False):
    """The unfinished subtasks of a task."""

    row: ClassVar = Task
    parent: TaskId

    def matches(self, row: Task) -> bool:
        return row.lineage.parent == self.parent and not row.final

    def order(self, row: Task) -> str:
        return row.id


class AllChildren(Lookup[Task], frozen=True, gc=False):
    """The subtasks of a task, finished ones included."""

    row: ClassVar = Task
    parent: TaskId

    def matches(self, row: Task) -> bool:
        return row.lineage.parent == self.parent

    def order(self, row: Task) -> str:
        return row.id


class Dependents(Lookup[Task], frozen=True, gc=False):
    """The unfinished tasks that still wait for a task."""

    row: ClassVar = Task
    dependency: TaskId

    def matches(self, row: Task) -> bool:
        return self.dependency in row.lineage.blocked_by and not row.final

    def order(self, row: Task) -> str:
        return row.id


class Relying(Lookup[Task], frozen=True, gc=False):
    """The unfinished tasks that depend on a task, also those that need not wait for it any more."""

    row: ClassVar = Task
    dependency: TaskId
    limit: int

    def matches(self, row: Task) -> bool:
        return self.dependency in row.lineage.dependencies and not row.final

    def order(self, row: Task) -> str:
        return row.id


class Finished(Lookup[Task], frozen=True, gc=False):
    """Finished tasks that came before a time, the oldest first, from behind a place on: when the last one came, and its
    id. There is no index on the end of a task, because every task would have to pay for it."""

    row: ClassVar = Task
    since: Instant
    after: TaskId
    before: Instant
    limit: int

    def matches(self, row: Task) -> bool:
        return row.final and (self.since, self.after) < (row.created_at, row.id) and row.created_at < self.before

    def order(self, row: Task) -> tuple[int, str]:
        return (row.created_at, row.id)


class Under(Lookup[Task], frozen=True, gc=False):
    """The tasks under a contract, finished or not."""

    row: ClassVar = Task
    contract: str
    limit: int

    def matches(self, row: Task) -> bool:
        return row.agreement.contract == self.contract

    def order(self, row: Task) -> str:
        return row.id


class EventOf(Lookup[Event], frozen=True, gc=False):
    row: ClassVar = Event
    single: ClassVar = True
    task: TaskId
    seq: int

    def matches(self, row: Event) -> bool:
        return row.task == self.task and row.seq == self.seq


class EventsOf(Lookup[Event], frozen=True, gc=False):
    """The last events of a task, the newest first."""

    row: ClassVar = Event
    task: TaskId
    limit: int

    def matches(self, row: Event) -> bool:
        return row.task == self.task

    def order(self, row: Event) -> int:
        return -row.seq


class QuestionById(Lookup[Question], frozen=True, gc=False):
    row: ClassVar = Question
    single: ClassVar = True
    id: QuestionId

    def matches(self, row: Question) -> bool:
        return row.id == self.id


class Loose(Lookup[Question], frozen=True, gc=False):
    """Questions of before a time that belong to no task and are not open any more, the oldest first, from behind a
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
    """The open questions of a task, to people and to agents."""

    row: ClassVar = Question
    task: TaskId

    def matches(self, row: Question) -> bool:
        return row.task == self.task and row.status in (QuestionStatus.OPEN, QuestionStatus.WITH_AGENT)

    def order(self, row: Question) -> str:
        return row.id


class AskedBy(Lookup[Question], frozen=True, gc=False):
    """The open questions of an agent to people."""

    row: ClassVar = Question
    agent: AgentId

    def matches(self, row: Question) -> bool:
        return row.agent == self.agent and row.status is QuestionStatus.OPEN

    def order(self, row: Question) -> str:
        return row.id


class PutTo(Lookup[Question], frozen=True, gc=False):
    """The open questions to an agent."""

    row: ClassVar = Question
    agent: AgentId

    def matches(self, row: Question) -> bool:
        return row.asked_of == self.agent and row.status is QuestionStatus.WITH_AGENT

    def order(self, row: Question) -> str:
        return row.id


class QuestionsOf(Lookup[Question], frozen=True, gc=False):
    """All questions of a task, open or not."""

    row: ClassVar = Question
    task: TaskId
    limit: int

    def matches(self, row: Question) -> bool:
        return row.task == self.task

    def order(self, row: Question) -> tuple[str, str]:
        return (row.status, row.id)
