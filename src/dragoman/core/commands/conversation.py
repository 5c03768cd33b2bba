"""Between agents: direct messages, help, handovers, and changes of the shared state."""

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

    A repeated message is carried once; another content under the same id is refused with MISMATCH. A message that is
    promised at least once is committed before this is answered. One that is promised at most once is only noted if its
    receiver can be reached now, and waits in the store if not. `lane`: messages of one lane to one receiver keep their
    order.
    """

    action: ClassVar = "letter.send"
    direct_message: DirectMessage
    to: AgentId
    priority: Priority = Priority.NORMAL
    lane: TaskId | None = None
    reports: bool = False
    """It reports on a task. About a task of the hub, only its caller and its owner may."""
    progress: bool = False
    """It reports the progress of a task. The caller of a task of the hub gets it only from the owner."""

    @property
    def recorded(self) -> bool:
        return not self.direct_message.once  # a record would cost more than the message

    @property
    def subject(self) -> str:
        return self.direct_message.message_id


class AskHelp(Command, frozen=True, gc=False, kw_only=True):
    """An agent asks another one for help, or any that can, or in the end a person. Outcome: the question.

    If the hub knows the task and the asker owns it, the task waits for the help. `topic` is what the helper must be
    able to do; `direct_message` is carried to a helper that converses, others get a task.
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
    ESCALATED = "escalated"  # another agent should help, or a person
    UNABLE = "unable"


class GiveHelp(Command, frozen=True, gc=False, kw_only=True):
    """The agent that was asked for help answers. `request_id` is the message that asked. Outcome: the question.

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
    """Why a task is handed over. Each reason leads to other candidates (`core.tasks.handoff_candidates`)."""

    CAPABILITY_LIMIT = "capability_limit"
    RATE_LIMIT = "rate_limit"
    ERROR_RECOVERY = "error_recovery"
    ESCALATION = "escalation"
    LOAD_BALANCING = "load_balancing"


class HandOver(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner wants another agent to go on with a task; it keeps the task until one accepts. Outcome: a question.

    `direct_message` is carried to the agent that is asked. `known` is what the owner knows of the task: `metadata`,
    `history`, `dependencies`, `constraints`, the `error` and the recovery attempts; it moves with the task, beside what
    the hub knows itself. A task that the hub does not know yet is created first, as the asker's own: `type`,
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
    """The agent that was asked to take a task over says yes or no. Outcome: the question of the message `request_id`.

    After a yes it owns the task in the same commit, and gets all that is known of it.
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
    """Write a shared entity. Outcome: the entity. `version` is what the writer read, 0 for a new one.

    `changes` is a JSON merge patch. Refused with CONFLICT and the current version if another writer was faster, with
    FORBIDDEN if the writer may not (`core.state.changes`). `task` is the id of a task of the hub, where its writer uses
    another name. `message_id` and `digest` are those of the message, if there is one: a repeated message gets the first
    outcome.
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
