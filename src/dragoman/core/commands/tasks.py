"""Tasks: submitted, claimed, reported on, ended."""

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
    """A task that names no agent is queued even if no known agent could do it: one may come."""


class Timing(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """By when, and how long."""

    deadline: Instant | None = None
    firm: bool = False
    """The caller named the deadline itself: it does not move while the task waits for an answer."""
    idle_seconds: float | None = None
    total_seconds: float | None = None
    """These two raise the hub's own limits (chiffon-D6)."""
    retry: Backoff | None = None
    """How often its work order is sent to an agent that converses, in place of the policy's number."""
    expires_at: Instant | None = None
    """After this the task is assigned to no agent, unless one had it before."""


class Lineage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Which other tasks it belongs to or waits for."""

    parent: TaskId | None = None
    thread: str | None = None
    trace_id: str | None = None
    dependencies: tuple[TaskId, ...] = ()
    called_dependencies: tuple[str, ...] = ()
    """The caller's own names of its dependencies, where its protocol allows any name."""
    own_dependencies: bool = False
    """The caller sees only the tasks that it asked for or owns, so it can depend on no other."""


class Reply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """How the caller gets the outcome."""

    follows: bool = False
    """The caller reads the task's events itself: nothing is delivered to it."""
    awaited: SessionId | None = None
    """The request waits for the outcome over this link, which is attached already and takes that one outgoing message.
    Close the link when the request waits no longer: the outcome then goes the usual way. A repeated request does not
    wait."""
    forgets_errors: bool = False
    """The same request after an error starts the task again: only results are remembered (all-D5)."""


class Agreement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The terms of the request."""

    contract: str | None = None
    """It goes to the contract's target, and both sides must fit its schemas."""
    sealed: bool = False
    """The input is a ciphertext that the hub cannot read: it is not validated."""
    personal: bool = False
    """It is about personal data, whatever type of work it is."""


class Submit(Command, frozen=True, gc=False, kw_only=True):
    """Do this. Outcome: the task (the first one again, if the request id came before with the same content).

    `content` is the first event. `digest` identifies the request.
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
    """The caller's own name of the task, where its protocol allows any name."""
    priority: Priority = Priority.NORMAL
    own_priority: int | None = None
    """The caller's own number for the priority, where its protocol has more of them than the hub."""
    constraints: dict[str, Any] = {}
    files: tuple[FileRef, ...] = ()
    answer: bytes | None = None
    """The caller's answer, if `task_id` is its own task that waits for one (B3): then no new task begins."""
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
    """The owner reports progress. Outcome: the task.

    `message_id` is that of the message: a repeated one changes nothing, and is refused with another content where its
    `digest` is given, too. `stream` and `span` place a piece of a longer output. `paused` makes the task wait; `ask`
    puts a question.
    """

    action: ClassVar = "task.progress"
    message_id: str | None = None
    request_id: str | None = None
    """The request that it answers, where the agent's protocol names it."""
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
    """The sender's priority, where its protocol has one: urgent progress reaches the task's caller at least once
    (agentmsg-D3, D4)."""


class WriteLog(AboutTask, frozen=True, gc=False, kw_only=True):
    """Keep log lines of the owner with the task: one event for many lines, delivered to no receiver. Outcome: the
    task."""

    lines: tuple[LogEntry, ...]


class Claim(AboutTask, frozen=True, gc=False, kw_only=True):
    """An agent takes a queued task that it could do, and gets the work order as if the hub had chosen it. Outcome: the
    task."""

    action: ClassVar = "task.claim"


class Finish(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner is done: `fault` None means success. Outcome: the task.

    A repeated result is accepted and ignored; another one is refused.
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
    """An agent answers a request with an error: found by task id, or by the request id that it was given.

    Retryable faults are retried, others end the task (chiffon-D11). Outcome: the task, or None if the hub knows neither
    id. With a `digest`, a repeated message ends no other attempt.
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
    """Stop a task and its subtasks. A finished task is refused with CONFLICT. Outcome: the task.

    `message_id` and `digest` are those of the message, if there is one: a repeated message is no conflict.
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
    """Do a failed or cancelled task again, from the start, with new attempts; or one that an agent has: the hub takes
    it from the agent. Outcome: the task."""

    action: ClassVar = "task.retry"
    input: bytes | None = None
    """JSON of an edited input, or None for the old one."""


class Reassign(AboutTask, frozen=True, gc=False, kw_only=True):
    """A person gives an unfinished task to another agent: from the queue, or from the agent that has it. Outcome: the
    task."""

    action: ClassVar = "task.handover"
    agent: AgentId


class AskPerson(Command, frozen=True, gc=False, kw_only=True):
    """An agent asks a person and works on, or waits; it gets the answer by a delivery. Outcome: the question.

    It belongs to the task that is named, or to the only one of the agent, or to none. If it is `blocking`, the task
    waits meanwhile. An agent that starts a task again and asks the same at the same place asks the same question: it
    gets the answer if there is one.
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

    `note` is why they answer so. It stays with the question, for people; the agent does not get it.
    """

    action: ClassVar = "question.answer"
    question: QuestionId
    answer: Any
    note: str | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)

    @property
    def subject(self) -> str:
        return self.question
