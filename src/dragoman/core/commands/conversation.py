"""What agents say to each other: direct messages, help, handovers, and changes of the shared state."""

from __future__ import annotations

import enum
from typing import Any, ClassVar

from dragoman.core.commands.base import Command
from dragoman.core.commands.tasks import AboutTask
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import (
    Lookup,
    TaskById,
)
from dragoman.core.model.deliveries import DirectMessage
from dragoman.core.model.state import Operation, Registry
from dragoman.core.model.tasks import Priority, QuestionDetails
from dragoman.messages.faults import Fault
from dragoman.messages.tasks import Handoff, Json


class Tell(Command, frozen=True, gc=False, kw_only=True):
    """Carry a message to another agent, word for word. Outcome: none.

    The same message again is carried once; other content under the same id is refused with MISMATCH. What is promised
    at least once is committed before this is answered. What is promised at most once is only noted if its receiver
    can be reached now, and waits in the store if not. `lane`: messages of one lane to one receiver keep their order.
    """

    action: ClassVar = "letter.send"
    direct_message: DirectMessage
    to: AgentId
    priority: Priority = Priority.NORMAL
    lane: TaskId | None = None
    reports: bool = False
    """It tells how a task goes. About one of the hub's, only those who have to do with it may."""
    progress: bool = False
    """It tells how far a task is. Whoever asked the hub for that hears it only from whoever has it."""

    @property
    def recorded(self) -> bool:
        return not self.direct_message.once  # a record of it would cost more than it does

    @property
    def subject(self) -> str:
        return self.direct_message.message_id


class AskHelp(Command, frozen=True, gc=False, kw_only=True):
    """An agent asks another one for help, or whoever can, or in the end a person. Outcome: the question.

    Its task, if the hub knows it and it is the asker's, waits until help came. `topic` is what somebody must be able to
    do who helps; `direct_message` is carried to one that speaks the same protocol, others get a task.
    """

    action: ClassVar = "help.ask"
    direct_message: DirectMessage
    question: str
    topic: str
    to: AgentId | None = None
    task_id: TaskId | None = None
    priority: Priority = Priority.HIGH
    deadline: Instant | None = None
    details: QuestionDetails = QuestionDetails()

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


class HelpVerdict(enum.StrEnum):
    ANSWERED = "answered"
    ESCALATED = "escalated"  # another agent should, or a person
    UNABLE = "unable"


class GiveHelp(Command, frozen=True, gc=False, kw_only=True):
    """Whoever was asked for help answers. `request_id` is the message that asked. Outcome: the question.

    `direct_message` is carried to the asker; `more`: another answer will follow, for the same request.
    """

    action: ClassVar = "help.give"
    request_id: str
    direct_message: DirectMessage
    verdict: HelpVerdict
    answer: Any = None
    more: bool = False

    @property
    def subject(self) -> str:
        return self.request_id


class Handing(enum.StrEnum):
    """Why a task is handed over. Each leads to somebody else (`core.tasks.handover`)."""

    CAPABILITY_LIMIT = "capability_limit"
    RATE_LIMIT = "rate_limit"
    ERROR_RECOVERY = "error_recovery"
    ESCALATION = "escalation"
    LOAD_BALANCING = "load_balancing"


class HandOver(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner wants somebody else to go on with a task; until they accept it stays where it is. Outcome: a question.

    `direct_message` is carried to whoever is asked. `known` is all that the owner tells about it: `metadata`,
    `history`, `dependencies`, `constraints`, the `error` and the recovery attempts; it moves with the task, beside what
    the hub knows itself. A task that the hub has never heard of is taken down first, as the asker's own: `type`,
    `trace_id`.
    """

    action: ClassVar = "task.hand_over"
    direct_message: DirectMessage
    reason: Handing
    deadline: Instant
    to: AgentId | None = None
    required_capabilities: tuple[str, ...] = ()
    type: str = "task"
    called: str | None = None
    trace_id: str | None = None
    known: Handoff = Handoff()
    fault: Fault | None = None
    priority: Priority = Priority.NORMAL


class AnswerHandover(Command, frozen=True, gc=False, kw_only=True):
    """Whoever was asked to take a task over says yes or no. Outcome: the question that `request_id`, a message, put.

    With a yes, the task is theirs in the same commit, and they are told all that is known of it.
    """

    action: ClassVar = "task.take_over"
    request_id: str
    direct_message: DirectMessage
    accepted: bool
    error: str | None = None
    """Why the agent says no."""
    terms: Json = {}
    """The other fields of its answer. They are JSON of the agents: the hub keeps them with the question, as they came,
    and does not read them."""

    @property
    def answer(self) -> Json:
        """What the question keeps of it, beside yes or no."""
        return self.terms if self.error is None else {**self.terms, "error": self.error}

    @property
    def subject(self) -> str:
        return self.request_id


class ChangeState(Command, frozen=True, gc=False, kw_only=True):
    """Write a shared entity. Outcome: the entity. `version` is what the writer read, 0 for one that is new.

    `changes` is a JSON merge patch. Refused with CONFLICT and the current version if somebody was faster, with
    FORBIDDEN if the table of who may write what says so. `task` is the id that a task of the hub has, where its
    writer calls it otherwise. `message_id` and `digest` are those of the message that asks it, if one does: the same
    one again has the first outcome.
    """

    action: ClassVar = "state.change"
    operation: Operation
    entity: Registry
    entity_id: str
    changes: dict[str, Any]
    version: int
    task: TaskId | None = None
    message_id: str | None = None
    digest: str = ""

    @property
    def subject(self) -> str:
        return f"{self.entity.value}/{self.entity_id}"
