"""Work: asked for, given, reported on, ended."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from dragoman.core.commands.base import Command
from dragoman.core.ids import AgentId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.lookups import (
    Claims,
    Lookup,
    QuestionById,
    TaskById,
)
from dragoman.core.model.deliveries import Backoff
from dragoman.core.model.tasks import Priority, QuestionDetails
from dragoman.messages.faults import Fault
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask, Failure, LogEntry, Progress, Request, Result


class Routing(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Which agents may be given a task."""

    kind: str | None = None
    pinned: AgentId | None = None
    """The one agent that the caller names."""
    required_capabilities: tuple[str, ...] = ()
    required_role: str | None = None
    kept_for_anybody: bool = False
    """A task that names no agent is queued even while no known agent could do it: one may come."""


class Timing(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """By when, and how long."""

    deadline: Instant | None = None
    firm: bool = False
    """The caller named that moment itself: it holds also while the task waits for an answer."""
    idle_seconds: float | None = None
    total_seconds: float | None = None
    """These two raise the hub's own limits (chiffon-D6)."""
    retry: Backoff | None = None
    """How often its work order is sent to an agent that converses, where the policy shall not decide."""
    expires_at: Instant | None = None
    """No agent is given the task after this, unless one had it before."""


class Lineage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Which other tasks it belongs to or waits for."""

    parent: TaskId | None = None
    thread: str | None = None
    trace_id: str | None = None
    dependencies: tuple[TaskId, ...] = ()
    called_dependencies: tuple[str, ...] = ()
    """What the caller calls its dependencies, where its protocol allows any name."""
    own_dependencies: bool = False
    """The caller may see the tasks that it asked for or has, and no other: it cannot depend on one either."""


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How the caller hears of the outcome."""

    follows: bool = False
    """The caller reads the task's events itself: nothing is delivered to it."""
    awaited: SessionId | None = None
    """The request waits for the outcome over this link, which is attached already and takes that one outgoing message.
    Close it when nobody waits any more: the outcome then takes the usual way. A request that came before is not waited
    for."""
    forgets_errors: bool = False
    """Asked again after an error, it is done again: only results are remembered (all-D5)."""


class Agreement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """On which terms it is asked."""

    contract: str | None = None
    """It goes to the contract's target, and both sides are held to its schemas."""
    sealed: bool = False
    """The input is a ciphertext that the hub cannot read: nothing is validated."""
    personal: bool = False
    """It is about something personal, whatever type of work it is."""


class Submit(Command, frozen=True, gc=False, kw_only=True):
    """Do this. Outcome: the task (the first one again, if the request id was seen with the same content).

    `content` is the first event. `digest` identifies what was asked.
    """

    action: ClassVar = "task.submit"
    request_id: str
    digest: str
    type: str
    content: Request
    task_id: TaskId | None = None
    raw: bytes | None = None
    protocol_version: str | None = None
    name: str | None = None
    description: str | None = None
    called: str | None = None
    """What the caller calls the task, where its protocol allows any name."""
    priority: Priority = Priority.NORMAL
    own_priority: int | None = None
    """The caller's own number for it, where its protocol tells more of them apart than the hub does."""
    constraints: dict[str, Any] = {}
    files: tuple[FileRef, ...] = ()
    answer: bytes | None = None
    """What the caller answers, if `task_id` is a task of its own that waits for it (B3): then nothing new is begun."""
    routing: Routing = Routing()
    timing: Timing = Timing()
    lineage: Lineage = Lineage()
    reply: Reply = Reply()
    agreement: Agreement = Agreement()

    def wants(self) -> tuple[Lookup[Any], ...]:
        lineage = self.lineage
        ids = (*lineage.dependencies, *((lineage.parent,) if lineage.parent else ()))
        return (Claims(self.principal, self.request_id, self.task_id), *(TaskById(id) for id in ids))

    @property
    def subject(self) -> str | None:
        return self.task_id


class Span(msgspec.Struct, frozen=True, gc=False):
    """Which bytes of a longer text a piece of output is. END exclusive."""

    start: int
    end: int
    total: int | None = None


class AboutTask(Command, frozen=True, gc=False, kw_only=True):
    task_id: TaskId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),)

    @property
    def subject(self) -> str:
        return self.task_id


class ReportProgress(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner tells how far it is. Outcome: the task.

    `message_id` is that of the message which tells it: the same one again changes nothing, and is refused with other
    content where its `digest` is given, too. `stream` and `span` place a piece of a longer output. `paused` makes the
    task wait; `ask` puts a question.
    """

    action: ClassVar = "task.progress"
    message_id: str | None = None
    request_id: str | None = None
    """Which request it answers, where the agent's protocol says so."""
    digest: str = ""
    content: Progress = Progress()
    raw: bytes | None = None
    percent: int | None = None
    step: str | None = None
    output: str = ""
    stream: str = ""
    span: Span | None = None
    paused: bool = False
    ask: Ask | None = None
    files: tuple[FileRef, ...] = ()
    priority: Priority = Priority.NORMAL
    """How urgent its sender calls it, where its protocol can say so: what is urgent is told to the task's caller at
    least once (agentmsg-D3, D4)."""


class WriteLog(AboutTask, frozen=True, gc=False, kw_only=True):
    """Keep what the owner wrote with the task: one event for many lines, delivered to nobody. Outcome: the task."""

    lines: tuple[LogEntry, ...]


class Claim(AboutTask, frozen=True, gc=False, kw_only=True):
    """An agent takes a queued task that it could do, and gets the work order as if chosen. Outcome: the task."""

    action: ClassVar = "task.claim"


class Finish(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner is done: `fault` None means success. Outcome: the task.

    The same result again is accepted and ignored; another one is refused.
    """

    action: ClassVar = "task.finish"
    digest: str
    message_id: str | None = None
    request_id: str | None = None
    content: Result = Result()
    raw: bytes | None = None
    output: str = ""
    span: Span | None = None
    fault: Fault | None = None


class ReportFault(Command, frozen=True, gc=False, kw_only=True):
    """An agent answers a request with an error: found by task id, or by the request id it was given.

    Retryable faults are tried again, others end the task (chiffon-D11). Outcome: the task, or None if the fault
    was about nothing we know. With a `digest`, the same message again ends no other attempt.
    """

    action: ClassVar = "task.fault"
    fault: Fault
    task_id: TaskId | None = None
    request_id: str | None = None
    message_id: str | None = None
    digest: str = ""
    content: Failure = Failure()
    raw: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


class Cancel(AboutTask, frozen=True, gc=False, kw_only=True):
    """Stop it and every child of it. A finished task is refused with CONFLICT. Outcome: the task.

    `message_id` and `digest` are those of the message that asks it, if one does: the same one again is no conflict.
    """

    action: ClassVar = "task.cancel"
    reason: str = "cancelled on request"
    message_id: str | None = None
    digest: str = ""


class Pause(AboutTask, frozen=True, gc=False, kw_only=True):
    action: ClassVar = "task.pause"


class Resume(AboutTask, frozen=True, gc=False, kw_only=True):
    action: ClassVar = "task.resume"
    answer: Any = None
    has_answer: bool = False


class Retry(AboutTask, frozen=True, gc=False, kw_only=True):
    """Do a failed or cancelled task again, from the start, with fresh attempts; or one that an agent has: it is taken
    from the agent. Outcome: the task."""

    action: ClassVar = "task.retry"
    input: bytes | None = None
    """JSON of an edited input, or None for the old one."""


class Reassign(AboutTask, frozen=True, gc=False, kw_only=True):
    """A person gives an unfinished task to another agent: from the queue, or from the agent that has it. Outcome: the
    task."""

    action: ClassVar = "task.handover"
    agent: AgentId


class AskPerson(Command, frozen=True, gc=False, kw_only=True):
    """An agent asks a person and goes on, or waits; it is told the answer by a delivery. Outcome: the question.

    It belongs to the task that is named, or to the only one that the agent holds, or to none. If it is `blocking`, the
    task waits meanwhile. An agent that has to start a task anew and asks the same at the same place is asking the same
    question: it gets the answer if there is one.
    """

    action: ClassVar = "question.ask"
    request_id: str
    ask: Ask
    task_id: TaskId | None = None
    blocking: bool = True
    details: QuestionDetails = QuestionDetails()

    @property
    def subject(self) -> str | None:
        return self.task_id


class Answer(Command, frozen=True, gc=False, kw_only=True):
    """A person answers a question. The second answer is refused with CONFLICT. Outcome: the question.

    `note` is why they answer so. It stays with the question, for people; the agent does not get it."""

    action: ClassVar = "question.answer"
    question: QuestionId
    answer: Any
    note: str | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)

    @property
    def subject(self) -> str:
        return self.question
