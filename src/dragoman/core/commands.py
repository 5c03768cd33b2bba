"""What can be asked of the hub: a closed list of values.

Bindings make them from wire messages, the API from HTTP requests, the engine from clocks and broken links. Each is
answered by exactly one decision (`core.hub` has the table) with an outcome or a refusal. `principal` is who asks, as
their credential says; no field of a message can change it (all-D1).

`action` is the verb in the audit record; commands without one are the hub's own housekeeping.
"""

from __future__ import annotations

import enum
from typing import Any, ClassVar

import msgspec

from dragoman.core.agents.model import Agent, Offer
from dragoman.core.contracts.model import Contract, Secret
from dragoman.core.delivery.model import DeadLetter, Letter
from dragoman.core.errors import Fault
from dragoman.core.files import FileRef
from dragoman.core.ids import ADMIN, HUB, AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.lookups import (
    PAGE,
    Claims,
    DeadLetterById,
    DeliveryById,
    Inbox,
    LeasedTo,
    Lookup,
    QuestionById,
    TaskById,
)
from dragoman.core.state.model import Entity, Operation, Registry
from dragoman.core.tasks.model import Priority, Question, Task


class Command(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    action: ClassVar[str | None] = None
    principal: AgentId
    protocol: str | None = None
    seen: str | None = None
    """The id of the message that asks it, where that counts once and is refused when it comes again."""
    sealed_by: str | None = None
    """The key and nonce under which it was sealed, where the hub opened it: they count once, whatever message has
    them."""

    def wants(self) -> tuple[Lookup[Any], ...]:
        """What the decision will surely look up: loaded for the whole unit in one go."""
        return ()

    @property
    def subject(self) -> str | None:
        """What it is about, for the audit record."""
        return None

    @property
    def recorded(self) -> bool:
        """Whether it is in the audit record when it was accepted. Refusals always are."""
        return self.action is not None


# -- agents -----------------------------------------------------------------------------------------------------


class AddAgent(Command, frozen=True, gc=False, kw_only=True):
    """A person lets an agent in. Outcome: the agent. Refused with CONFLICT if the id is taken."""

    action: ClassVar = "agent.add"
    agent: Agent

    @property
    def subject(self) -> str:
        return self.agent.id


class RemoveAgent(Command, frozen=True, gc=False, kw_only=True):
    """Its unfinished work goes back to the queue; its links are closed."""

    action: ClassVar = "agent.remove"
    agent: AgentId

    @property
    def subject(self) -> str:
        return self.agent


class RotateToken(Command, frozen=True, gc=False, kw_only=True):
    """A new credential; links made with the old one are closed."""

    action: ClassVar = "agent.token"
    agent: AgentId
    token_hash: str

    @property
    def subject(self) -> str:
        return self.agent


class RegisterAgent(Command, frozen=True, gc=False, kw_only=True):
    """An agent says what it is and can do. Outcome: the agent."""

    action: ClassVar = "agent.register"
    kind: str | None = None
    name: str | None = None
    work_types: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    max_concurrent: int | None = None
    role: str | None = None
    version: str | None = None
    protocol_version: str | None = None
    callback_url: str | None = None
    details: dict[str, Any] = {}
    offers: tuple[Offer, ...] | None = None
    domain: str | None = None

    @property
    def subject(self) -> str:
        return self.principal


class AdmitGuest(Command, frozen=True, gc=False, kw_only=True):
    """An agent comes without a token, where that is allowed. Outcome: the agent, new or known.

    Refused with UNAUTHENTICATED if that agent has a token, with FORBIDDEN if it speaks another protocol.
    """

    action: ClassVar = "agent.admit"
    protocol: str
    name: str | None = None

    @property
    def subject(self) -> str:
        return self.principal


# -- links ------------------------------------------------------------------------------------------------------


class OpenLink(Command, frozen=True, gc=False, kw_only=True):
    """An agent can be reached: over a link that keeps order, or by one poll that takes up to `credit` parcels.

    What waits for it leaves after the commit, through the link. A second ordered link of the same agent replaces
    the first. Outcome: the number of parcels under way at once (a poll with none is parked).

    `fresh`: the agent starts with an empty head, so what it held over an earlier link is lost. `vouches`: while this
    link stands, the agent is alive, however silent it works.
    """

    session: SessionId
    ordered: bool
    credit: int = 0
    acknowledges: bool = False
    fresh: bool = False
    vouches: bool = False

    def wants(self) -> tuple[Lookup[Any], ...]:
        inbox = Inbox(self.principal, PAGE if self.ordered else max(1, min(self.credit, PAGE)))
        return (inbox, LeasedTo(self.principal, PAGE)) if self.ordered else (inbox,)


class CloseLink(Command, frozen=True, gc=False, kw_only=True):
    """The link is gone. A poll that was answered or given up is closed too."""

    session: SessionId
    lost: bool = True
    """False for a poll that simply ended: nothing was lost with it."""
    fault: Fault | None = None
    """The agent itself is gone, for this reason: what it held over the link fails at once, without a grace time."""


class RefillLink(Command, frozen=True, gc=False, kw_only=True):
    """An ordered link has room again: more of what waits may leave."""

    session: SessionId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Inbox(self.principal, PAGE),)


class TellAgain(Command, frozen=True, gc=False, kw_only=True):
    """Whoever asked under this id has not seen the answer: it is delivered anew, if it is there, or offered at once, if
    it waits for an acknowledgment that will not come. Refused with NOT_FOUND if they never asked so."""

    request_id: str

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (Claims(self.principal, self.request_id),)


class Acknowledge(Command, frozen=True, gc=False, kw_only=True):
    """The receiver has these. Unknown ids are ignored: they were acknowledged before. Outcome: how many were known.

    On an ordered link (`session` given) an acknowledgment covers what went before it in the same lane.
    """

    deliveries: tuple[DeliveryId, ...]
    session: SessionId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return tuple(DeliveryById(id) for id in self.deliveries)


# -- tasks ------------------------------------------------------------------------------------------------------


class Submit(Command, frozen=True, gc=False, kw_only=True):
    """Do this. Outcome: the task (the first one again, if the request id was seen with the same content).

    `body` is the first event, in the hub's form: `{"input": …, "hints": …}`. `digest` identifies the content.
    `idle_seconds`/`total_seconds` raise the limits (chiffon-D6).
    """

    action: ClassVar = "task.submit"
    request_id: str
    digest: str
    type: str
    body: bytes
    task_id: TaskId | None = None
    raw: bytes | None = None
    protocol_version: str | None = None
    name: str | None = None
    description: str | None = None
    kind: str | None = None
    pinned: AgentId | None = None
    required_capabilities: tuple[str, ...] = ()
    required_role: str | None = None
    priority: Priority = Priority.NORMAL
    dependencies: tuple[TaskId, ...] = ()
    deadline: Instant | None = None
    idle_seconds: float | None = None
    total_seconds: float | None = None
    trace_id: str | None = None
    parent: TaskId | None = None
    thread: str | None = None
    constraints: dict[str, Any] = {}
    files: tuple[FileRef, ...] = ()
    follows: bool = False
    """The caller reads the task's events itself: nothing is delivered to it."""
    awaited: SessionId | None = None
    """The request waits for the outcome over this link, which is attached already and takes that one parcel. Close it
    when nobody waits any more: the outcome then takes the usual way. A request that came before is not waited for."""
    called: str | None = None
    """What the caller calls the task, where its protocol allows any name; and what it calls its dependencies."""
    called_dependencies: tuple[str, ...] = ()
    contract: str | None = None
    """The terms it is asked on. It goes to the contract's target, and both sides are held to its schemas."""
    sealed: bool = False
    """The input is a ciphertext that the hub cannot read: nothing is validated."""

    def wants(self) -> tuple[Lookup[Any], ...]:
        ids = (*self.dependencies, *((self.parent,) if self.parent else ()))
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


class Ask(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A question to a person that came with a report."""

    question: str
    options: tuple[Any, ...] = ()
    timeout_seconds: float | None = None
    default: Any = None
    has_default: bool = False


class ReportProgress(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner tells how far it is. Outcome: the task.

    `stream` and `span` place a piece of a longer output. `paused` makes the task wait; `ask` puts a question.
    """

    action: ClassVar = "task.progress"
    message_id: str | None = None
    body: bytes = b"{}"
    raw: bytes | None = None
    percent: int | None = None
    step: str | None = None
    output: str = ""
    stream: str = ""
    span: Span | None = None
    paused: bool = False
    ask: Ask | None = None
    files: tuple[FileRef, ...] = ()


class LogEntry(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A line that an agent wrote beside its work."""

    at: Instant
    level: str
    message: str
    context: dict[str, Any] = {}


class WriteLog(AboutTask, frozen=True, gc=False, kw_only=True):
    """Keep what the owner wrote with the task: one event for many lines, delivered to nobody. Outcome: the task."""

    lines: tuple[LogEntry, ...]


class Claim(AboutTask, frozen=True, gc=False, kw_only=True):
    """An agent takes a queued task that it could do, and gets the work order as if chosen. Outcome: the task."""

    action: ClassVar = "task.claim"


class Finish(AboutTask, frozen=True, gc=False, kw_only=True):
    """The owner is done: `fault` None means success. Outcome: the task.

    `body` is the result in the hub's form: `{"result": …, "output": …}`. The same result again is accepted and
    ignored; another one is refused.
    """

    action: ClassVar = "task.finish"
    digest: str
    message_id: str | None = None
    body: bytes = b"{}"
    raw: bytes | None = None
    output: str = ""
    span: Span | None = None
    fault: Fault | None = None


class ReportFault(Command, frozen=True, gc=False, kw_only=True):
    """An agent answers a request with an error: found by task id, or by the request id it was given.

    Retryable faults are tried again, others end the task (chiffon-D11). Outcome: the task, or None if the fault
    was about nothing we know.
    """

    action: ClassVar = "task.fault"
    fault: Fault
    task_id: TaskId | None = None
    request_id: str | None = None
    message_id: str | None = None
    body: bytes = b"{}"
    raw: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


class Cancel(AboutTask, frozen=True, gc=False, kw_only=True):
    """Stop it and every child of it. A finished task is refused with CONFLICT. Outcome: the task."""

    action: ClassVar = "task.cancel"
    reason: str = "cancelled on request"


class Pause(AboutTask, frozen=True, gc=False, kw_only=True):
    action: ClassVar = "task.pause"


class Resume(AboutTask, frozen=True, gc=False, kw_only=True):
    action: ClassVar = "task.resume"
    answer: Any = None
    has_answer: bool = False


class Retry(AboutTask, frozen=True, gc=False, kw_only=True):
    """Do a failed or cancelled task again, from the start, with fresh attempts. Outcome: the task."""

    action: ClassVar = "task.retry"
    input: bytes | None = None
    """JSON of an edited input, or None for the old one."""


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
    details: dict[str, Any] = {}

    @property
    def subject(self) -> str | None:
        return self.task_id


class Answer(Command, frozen=True, gc=False, kw_only=True):
    """A person answers a question. The second answer is refused with CONFLICT. Outcome: the question."""

    action: ClassVar = "question.answer"
    question: QuestionId
    answer: Any

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)

    @property
    def subject(self) -> str:
        return self.question


# -- between agents ---------------------------------------------------------------------------------------------


class Tell(Command, frozen=True, gc=False, kw_only=True):
    """Carry a message to another agent, word for word. Outcome: none.

    The same message again is carried once; other content under the same id is refused with MISMATCH. What is promised
    at least once is committed before this is answered. What is promised at most once touches no disk if its receiver
    can be reached now, and waits in the store if not. `lane`: messages of one lane to one receiver keep their order.
    """

    action: ClassVar = "letter.send"
    letter: Letter
    to: AgentId
    priority: Priority = Priority.NORMAL
    lane: TaskId | None = None
    reports: bool = False
    """It tells how a task goes. About one of the hub's, only those who have to do with it may."""

    @property
    def recorded(self) -> bool:
        return not self.letter.once  # a record of it would cost more than it does

    @property
    def subject(self) -> str:
        return self.letter.message_id


class AskHelp(Command, frozen=True, gc=False, kw_only=True):
    """An agent asks another one for help, or whoever can, or in the end a person. Outcome: the question.

    Its task, if the hub knows it and it is the asker's, waits until help came. `topic` is what somebody must be able to
    do who helps; `letter` is carried to one that speaks the same protocol, others get a task.
    """

    action: ClassVar = "help.ask"
    letter: Letter
    question: str
    topic: str
    to: AgentId | None = None
    task_id: TaskId | None = None
    priority: Priority = Priority.HIGH
    deadline: Instant | None = None
    details: dict[str, Any] = {}

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


class HelpVerdict(enum.StrEnum):
    ANSWERED = "answered"
    ESCALATED = "escalated"  # somebody better should: a person
    UNABLE = "unable"


class GiveHelp(Command, frozen=True, gc=False, kw_only=True):
    """Whoever was asked for help answers. `request_id` is the message that asked. Outcome: the question.

    `letter` is carried to the asker; `more`: another answer will follow, for the same request.
    """

    action: ClassVar = "help.give"
    request_id: str
    letter: Letter
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

    `letter` is carried to whoever is asked. `known` is all that the owner tells about it: `metadata`, `history`,
    `dependencies`, `constraints`, the `error` and the recovery attempts; it moves with the task, beside what the hub
    knows itself. A task that the hub has never heard of is taken down first, as the asker's own: `type`, `trace_id`.
    """

    action: ClassVar = "task.hand_over"
    letter: Letter
    reason: Handing
    deadline: Instant
    to: AgentId | None = None
    required_capabilities: tuple[str, ...] = ()
    type: str = "task"
    called: str | None = None
    trace_id: str | None = None
    known: dict[str, Any] = {}
    fault: Fault | None = None
    priority: Priority = Priority.NORMAL


class AnswerHandover(Command, frozen=True, gc=False, kw_only=True):
    """Whoever was asked to take a task over says yes or no. Outcome: the question that `request_id`, a message, put.

    With a yes, the task is theirs in the same commit, and they are told all that is known of it.
    """

    action: ClassVar = "task.take_over"
    request_id: str
    letter: Letter
    accepted: bool
    terms: dict[str, Any] = {}

    @property
    def subject(self) -> str:
        return self.request_id


# -- what agents say of themselves ------------------------------------------------------------------------------


class Beat(Command, frozen=True, gc=False, kw_only=True):
    """An agent is alive. Nothing is committed for it."""

    state: str | None = None


class ReportStatus(Command, frozen=True, gc=False, kw_only=True):
    """How an agent is: its state, its health, what it has used. Outcome: the version of its entry in the registry.

    `status` has the fields of its registry entry; `usage`, `health` and `next_available` are kept beside it.
    """

    status: dict[str, Any]
    current_tasks: tuple[str, ...] = ()
    usage: dict[str, Any] = {}
    health: dict[str, Any] = {}
    next_available: Instant | None = None


class Severity(enum.StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class ReportError(Command, frozen=True, gc=False, kw_only=True):
    """Something went wrong at an agent, in the course of a task or not. Outcome: the task, or None.

    It is kept with the task and with the agent. A high or critical one counts against the agent; a critical one about
    a task that it owns ends the attempt. `report` is what it said, in the hub's form.
    """

    action: ClassVar = "agent.error"
    fault: Fault
    severity: Severity
    report: dict[str, Any]
    message_id: str | None = None
    task_id: TaskId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (TaskById(self.task_id),) if self.task_id else ()

    @property
    def subject(self) -> str | None:
        return self.task_id


# -- contracts --------------------------------------------------------------------------------------------------


class ShakeHands(Command, frozen=True, gc=False, kw_only=True):
    """An agent wants to ask another one for work of an intent, on agreed terms. Outcome: the question to the target.

    Its answer is the contract's id, or why there is none. `request_schema` is what the source will send and must be
    within what the target takes; `response_schema` what it can read. `granted` is what its credential lets it ask for.
    With `collaboration` the terms of that relation are renewed. `secret` is there where something is to be encrypted:
    whoever calls has made it. An agent whose protocol has no word for this agrees to what it declared.
    """

    action: ClassVar = "contract.propose"
    request_id: str
    digest: str
    target: AgentId
    intent: str
    domain: str
    version: str
    target_version: str | None = None
    request_schema: Any = None
    response_schema: Any = None
    granted: tuple[str, ...] = ()
    end_to_end: bool = False
    encrypt: bool = False
    secret: Secret | None = None
    collaboration: str | None = None
    details: dict[str, Any] = {}
    awaited: SessionId | None = None
    """As with `Submit`: how it ends goes to the request that waits for it."""

    @property
    def subject(self) -> str:
        return f"{self.target}/{self.intent}"


class AnswerHandshake(Command, frozen=True, gc=False, kw_only=True):
    """The target agrees or not. Outcome: the question. With a yes the contract stands in the same commit."""

    action: ClassVar = "contract.agree"
    question: QuestionId
    accepted: bool
    reason: str = ""
    public_key: str | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)

    @property
    def subject(self) -> str:
        return self.question


class EndContract(Command, frozen=True, gc=False, kw_only=True):
    """A party ends a collaboration; the other is told. Outcome: the contract."""

    action: ClassVar = "contract.end"
    collaboration: str
    reason: str = ""

    @property
    def subject(self) -> str:
        return self.collaboration


class RotateKey(Command, frozen=True, gc=False, kw_only=True):
    """A party wants a new key for a collaboration; both are told it. Outcome: the contract."""

    action: ClassVar = "contract.rotate"
    collaboration: str
    secret: Secret

    @property
    def subject(self) -> str:
        return self.collaboration


class SetDomainPolicy(Command, frozen=True, gc=False, kw_only=True):
    """A person says whether agents of one domain may ask those of another; `allow` None takes it back. Outcome: the
    policy."""

    action: ClassVar = "policy.domains"
    source: str
    target: str
    allow: bool | None = True
    intents: tuple[str, ...] = ()
    encrypt: bool = False

    @property
    def subject(self) -> str:
        return f"{self.source}/{self.target}"


# -- shared state -----------------------------------------------------------------------------------------------


class ChangeState(Command, frozen=True, gc=False, kw_only=True):
    """Write a shared entity. Outcome: the entity. `version` is what the writer read, 0 for one that is new.

    `changes` is a JSON merge patch. Refused with CONFLICT and the current version if somebody was faster, with
    FORBIDDEN if the table of who may write what says so.
    """

    action: ClassVar = "state.change"
    operation: Operation
    entity: Registry
    entity_id: str
    changes: dict[str, Any]
    version: int

    @property
    def subject(self) -> str:
        return f"{self.entity.value}/{self.entity_id}"


# -- dead letters -----------------------------------------------------------------------------------------------


class Redrive(Command, frozen=True, gc=False, kw_only=True):
    """Send a dead letter on its way again, with an edited input if one is given. Outcome: the task, or, where it was a
    letter between agents, the dead letter."""

    action: ClassVar = "deadletter.redrive"
    letter: DeliveryId
    input: bytes | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.letter),)

    @property
    def subject(self) -> str:
        return self.letter


class Discard(Command, frozen=True, gc=False, kw_only=True):
    """Forget a dead letter; its task stays as it is. Outcome: the dead letter."""

    action: ClassVar = "deadletter.discard"
    letter: DeliveryId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (DeadLetterById(self.letter),)

    @property
    def subject(self) -> str:
        return self.letter


# -- the hub's own ----------------------------------------------------------------------------------------------


class Wake(Command, frozen=True, gc=False, kw_only=True):
    """A `wake_at` has come: look at the row and do what its time is for."""

    principal: AgentId = HUB
    task: TaskId | None = None
    delivery: DeliveryId | None = None
    agent: AgentId | None = None
    question: QuestionId | None = None

    def wants(self) -> tuple[Lookup[Any], ...]:
        if self.task:
            return (TaskById(self.task),)
        if self.delivery:
            return (DeliveryById(self.delivery),)
        return (QuestionById(self.question),) if self.question else ()


class Unanswered(Command, frozen=True, gc=False, kw_only=True):
    """The letter that asked an agent something did not arrive."""

    principal: AgentId = HUB
    question: QuestionId
    agent: AgentId

    def wants(self) -> tuple[Lookup[Any], ...]:
        return (QuestionById(self.question),)


class ClearOut(Command, frozen=True, gc=False, kw_only=True):
    """Give up what was on its way to an agent that was removed. Outcome: how much that was."""

    principal: AgentId = HUB
    agent: AgentId


class Sweep(Command, frozen=True, gc=False, kw_only=True):
    """Forget what need not be remembered any more. Outcome: how much that was."""

    principal: AgentId = HUB


class Forget(Command, frozen=True, gc=False, kw_only=True):
    """Forget tasks that ended long ago and that nothing needs any more. `since` and `after` are the place of the last
    one looked at: when it came, and its id. Outcome: how many were forgotten."""

    principal: AgentId = HUB
    since: Instant = Instant(0)
    after: TaskId = TaskId("")


class NoteRead(Command, frozen=True, gc=False, kw_only=True):
    """An agent looked at something, where its protocol wants every request in the audit record."""

    what: str
    about: str | None = None


class NoteRefusal(Command, frozen=True, gc=False, kw_only=True):
    """Something was refused before it became a command (no credential, malformed): keep it in the audit record."""

    principal: AgentId = ADMIN
    what: str
    fault: Fault
    about: str | None = None


Outcome = Task | Agent | Question | DeadLetter | Entity | Contract | int | None
