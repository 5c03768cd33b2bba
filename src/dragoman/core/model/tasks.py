"""A task: one row in the hub, whatever protocol it came by (all-D8).

The row is the small head that changes. The messages about a task are in its events, which are only appended: the
request is the first one, the result or failure the last. So a large input or output is written once, and a change of
state rewrites a few hundred bytes.
"""

from __future__ import annotations

import enum
import re
from typing import Any
from uuid import UUID, uuid5

import msgspec

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Backoff, DirectMessage, Escalation
from dragoman.messages.faults import Fault
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import READERS, Content

ROUNDS = UUID("6f1d2c80-5d0a-5c0b-9d53-64726167aaaa")
"""Namespace of the request ids that the hub makes itself."""

_is_uuid = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z").match


class Status(enum.StrEnum):
    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    WAITING = "waiting"  # for a person, for help, for a dependency
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Priority(enum.StrEnum):
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"


class Waiting(enum.StrEnum):
    """Why a task is `waiting`."""

    DEPENDENCY = "dependency"
    PERSON = "person"  # a question is open
    HELP = "help"  # another agent was asked for help
    AGENT = "agent"  # the agent said that it pauses
    HELD = "held"  # a person paused it


class Origin(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Who asked, in which protocol, under which idempotency key, and the digest of the request.

    `follows`: the caller reads the task's events itself, so the hub delivers nothing to it. `awaited`: the link over
    which the request waits for the outcome. While it is open the outcome goes there; when it is gone (and none outlives
    the hub) the outcome is delivered like any other. `called`: the caller's own name for the task, where it is not its
    id. `priority`: the caller's own number for the urgency, where the hub's is coarser. `bytes`: the size of the
    request as it came, which counts for the caller's quota (`model.holdings`).
    """

    principal: AgentId
    protocol: str
    request_id: str
    digest: str
    protocol_version: str | None = None
    follows: bool = False
    awaited: SessionId | None = None
    called: str | None = None
    priority: int | None = None
    bytes: int = 0


class Ahead(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A piece of output that came before the ones it follows: where it belongs, and which event keeps it. `ends`: the
    digest of the result that it ends, and `fault` why the work failed, if it did."""

    start: int
    end: int
    event: int
    total: int | None = None
    ends: str | None = None
    fault: Fault | None = None


class OutputCursor(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How much of one chunked output has come: `stream` names the step (or the result), `received` how much of it
    without a gap, and `ahead` what came beyond the gap."""

    stream: str
    received: int
    total: int | None = None
    ahead: tuple[Ahead, ...] = ()


class Reserved(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What is set aside for a task under way: from whose allocations, how much of which kind."""

    agent: AgentId
    amounts: dict[str, float]


class Spent(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a task used, by the reports about it: in earlier attempts, and in this one so far."""

    before: dict[str, float] = {}
    now: dict[str, float] = {}

    def total(self, kind: str) -> float:
        return round(self.before.get(kind, 0) + self.now.get(kind, 0), 9)

    def attempt_over(self) -> Spent:
        return Spent(before={kind: self.total(kind) for kind in {**self.before, **self.now}})


class SubtaskOwner(msgspec.Struct, frozen=True, gc=False):
    """The agent that a subtask belongs to now, and since when: its caller handed the parent task over."""

    agent: AgentId
    since: Instant


class TaskRouting(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which agents may be given a task. `route` names the queue for all of it (`core.routing.routes`)."""

    route: str
    kind: str | None = None
    pinned: AgentId | None = None
    required_capabilities: tuple[str, ...] = ()
    required_role: str | None = None


class TaskTiming(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """By when a task must be done, and the newest sign of life.

    `firm`: the caller named the deadline, so that no waiting time moves it. `limited`: the caller limited the time, so
    that the deadline is not only the hub's own. `retry`: the caller's own schedule for sending the work order.
    `expires_at`: the hub assigns the task to no agent after this; None as soon as an agent has it. `lost_at`: when the
    connection of its agent broke.
    """

    deadline: Instant
    idle_limit: int
    total_limit: int | None = None
    firm: bool = False
    limited: bool = False
    retry: Backoff | None = None
    expires_at: Instant | None = None
    last_sign_at: Instant | None = None
    lost_at: Instant | None = None


class Attempt(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The newest attempt at a task.

    `count` attempts were made in this round; `unreached` of them found no agent connected, and the next agent gets
    those back. `delivery` is the work order that no agent acknowledged yet, `order` the newest one, acknowledged or
    not: agents may name the task by it. `prefers` is the agent that shall try again if it is connected: it may have
    done the work and remember it. `sandbox` is the level that its agent ran at when the attempt began.

    `round` counts how often the work began again on purpose (an answer, a handoff, a retry by a person): all attempts
    of a round have the same request id towards the agent. `retried_round` is the last round that a person began:
    reports about earlier ones do not count. `source` is the event with the request of this round.

    `asks` counts the questions of this attempt: an agent that starts over asks the same ones in the same order.
    `answered`: the hub sent the answer that the agent waited for, and the agent has not reported since.
    """

    count: int = 0
    unreached: int = 0
    at: Instant | None = None
    session: SessionId | None = None
    delivery: DeliveryId | None = None
    order: DeliveryId | None = None
    prefers: AgentId | None = None
    sandbox: str | None = None
    round: int = 0
    retried_round: int = 0
    source: int = 1
    asks: int = 0
    answered: bool = False


class TaskOutput(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What the agent reported so far. `recent`: the ids of its last messages, to recognise a repeated one.
    `files_before`: how many of the files were there when the work began again; quotas count those that came since."""

    progress: int | None = None
    step: str | None = None
    recent: tuple[str, ...] = ()
    streams: tuple[OutputCursor, ...] = ()
    bytes: int = 0
    files: tuple[FileRef, ...] = ()
    files_before: int = 0


class TaskOutcome(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How the task, or its newest attempt, ended. `event` is the number of the event with the outcome."""

    fault: Fault | None = None
    digest: str | None = None
    event: int | None = None


class TaskLineage(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Which other tasks, agents and questions a task belongs to.

    `called_dependencies`: the caller's own names of the dependencies. `subtask_owner`: the agent that receives the
    outcome and may steer the task, as its caller may. `handed`: the handoffs so far, as pairs of agents. `helps`: the
    request for help that the task answers. The flags say whether the store has such rows at all.
    """

    trace_id: str
    parent: TaskId | None = None
    subtask_owner: SubtaskOwner | None = None
    thread: str | None = None
    hops: int = 0
    dependencies: tuple[TaskId, ...] = ()
    called_dependencies: tuple[str, ...] = ()
    blocked_by: tuple[TaskId, ...] = ()
    has_dependents: bool = False
    has_children: bool = False
    has_questions: bool = False
    handed: tuple[tuple[AgentId, AgentId], ...] = ()
    helps: QuestionId | None = None


class TaskAgreement(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """On which terms a task is done. `constraints` are the caller's limits, as it wrote them. `personal`: the task is
    about personal data, and stores encrypt its texts. `approved`: a person allowed it despite its risk."""

    constraints: dict[str, Any] = {}
    contract: str | None = None
    personal: bool = False
    approved: bool = False


class TaskSpending(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What a task uses of the budgets: reserved for this attempt, and spent."""

    reserved: Reserved | None = None
    spent: Spent | None = None


class Task(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The head of a task: the row that changes. What was asked and reported lies in its events.

    `queue` names the queue it stands in, `rank` is its place there (smaller first). `wake_at` is when the hub must look
    at it again: idle limit, deadline, retry due, whichever comes first. `seq` is the number of its newest event.
    `version` counts the changes that other agents can see (the shared state). `metadata` is what agents wrote into its
    context. `shut` holds the texts of a personal task, encrypted; only stores read and write it.
    """

    id: TaskId
    type: str
    status: Status
    origin: Origin
    created_at: Instant
    updated_at: Instant
    rank: int
    routing: TaskRouting
    timing: TaskTiming
    lineage: TaskLineage
    attempt: Attempt = Attempt()
    output: TaskOutput = TaskOutput()
    outcome: TaskOutcome = TaskOutcome()
    agreement: TaskAgreement = TaskAgreement()
    spending: TaskSpending = TaskSpending()
    name: str | None = None
    description: str | None = None
    priority: Priority = Priority.NORMAL
    waiting: Waiting | None = None
    question: QuestionId | None = None
    queue: str | None = None
    wake_at: Instant | None = None
    owner: AgentId | None = None
    finished_at: Instant | None = None
    seq: int = 0
    version: int = 1
    metadata: dict[str, Any] | None = None
    shut: bytes | None = None

    @property
    def last_attempt(self) -> Instant:
        """When the task was last assigned; before that, when it came."""
        return self.attempt.at or self.created_at

    @property
    def final(self) -> bool:
        return self.status in FINAL

    def due(self, now: Instant) -> Instant:
        """Its deadline at `now`: while the task waits, it moves."""
        if self.timing.firm or self.status is not Status.WAITING:
            return self.timing.deadline
        return Instant(self.timing.deadline + now - (self.timing.last_sign_at or self.created_at))

    def outlived(self, now: Instant) -> bool:
        """Whether its time to live is over, so that no agent may get it (agentmsg-D6)."""
        return self.timing.expires_at is not None and self.timing.expires_at <= now

    @property
    def stands_still(self) -> bool:
        """Whether its agent only waits, as far as the hub knows: if the agent goes, the attempt is not to blame."""
        return self.status is Status.WAITING or self.attempt.answered

    @property
    def holder(self) -> AgentId | None:
        """The agent that it keeps busy. An agent whose turn ended with a question is free: the answer will be new
        work."""
        if self.status not in HELD or (self.waiting is Waiting.PERSON and self.attempt.session is None):
            return None
        return self.owner

    @property
    def request_id(self) -> str:
        """The request id towards the agent, the same in every attempt of a round.

        In the first round it is the caller's own, if that is a UUID. Later rounds have others, since an agent that
        remembers the first would answer from its memory. It is derived, so it is not stored.
        """
        given, round = self.origin.request_id, self.attempt.round
        return given if round == 0 and _is_uuid(given) else str(uuid5(ROUNDS, f"{self.id}/{round}"))


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
HELD = frozenset({Status.ASSIGNED, Status.RUNNING, Status.WAITING})
"""In these states the owner is busy with the task, except after a question that ended its turn (`Task.holder`)."""


class EventKind(enum.StrEnum):
    SUBMITTED = "submitted"
    ASSIGNED = "assigned"
    PROGRESS = "progress"
    PAUSED = "paused"
    RESUMED = "resumed"
    LOG = "log"  # log lines of its agent
    HELD_PIECE = "held_piece"  # output that came before what it follows; published when the gap closes
    ERROR_REPORTED = "error_reported"
    HANDOVER_ASKED = "handover_asked"
    HANDED_OVER = "handed_over"
    ASKED = "asked"
    ANSWERED = "answered"
    ATTEMPT_FAILED = "attempt_failed"
    RELEASED = "released"  # what it depended on is done
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRIED = "retried"  # a person sent it again
    DEAD_LETTERED = "dead_lettered"


class Event(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Something that happened to a task.

    `body` is the JSON of its content (`messages.tasks`); `raw` is the wire message that caused it, word for word, in
    `protocol`. Stores encrypt both where they are `personal`.
    """

    task: TaskId
    seq: int
    at: Instant
    kind: EventKind
    agent: AgentId | None = None
    body: msgspec.Raw = msgspec.Raw(b"{}")
    protocol: str | None = None
    raw: bytes | None = None
    personal: bool = False

    @property
    def content(self) -> Content:
        """The decoded content. It is decoded each time: of most events only the kind is read."""
        return READERS[self.kind](self.body)


class QuestionStatus(enum.StrEnum):
    OPEN = "open"
    WITH_AGENT = "with_agent"  # an agent was asked, not a person
    ANSWERED = "answered"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"  # its task ended first


class Asking(enum.StrEnum):
    """What is asked for."""

    ANSWER = "answer"
    HELP = "help"
    TAKEOVER = "takeover"  # to go on with a task
    HANDSHAKE = "handshake"  # to agree on a contract


class QuestionDetails(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What belongs to a question beside its text. Which fields are set depends on what is asked for."""

    context: Any = None
    """What the agent sent along: JSON of its own, which people and helpers read."""
    approval: bool = False
    risk: Any = None
    """A person is asked to approve a task, which its caller called so risky."""

    help_type: str | None = None
    urgency: str | None = None
    task: str | None = None
    """A request for help as its protocol has it; `task` is the asker's own name of a task."""
    topic: str = ""
    task_id: TaskId | None = None
    escalations: tuple[Escalation, ...] = ()
    """The escalations of the agents that were asked for help, in order."""
    named: AgentId | None = None
    """The agent that the asker named. None: the hub chooses."""
    priority: Priority = Priority.NORMAL

    reason: str = ""
    capabilities: tuple[str, ...] = ()
    asked: int = 0
    """Why a task is handed over, what the agent that takes it must be able to do, and the event that asked for it."""

    digest: str | None = None
    contract: Contract | None = None
    former: str | None = None
    same_key: bool = False
    awaited: SessionId | None = None
    proposal: DeliveryId | None = None
    correlation_id: str | None = None
    """A handshake: the digest of the request, the draft, the contract that it renews and whether its key goes on, the
    link over which the asker waits, the delivery of the proposal, and the asker's own id for the exchange."""

    sealed: str | None = None
    """All texts of a personal question, encrypted; only stores read and write it."""


class Question(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename={"direct_message": "letter"}
):
    """A question of an agent to a person, mostly about a task. It is answered exactly once.

    With a `request_id` the agent gets the answer under that id; `blocking` says whether it stands still meanwhile.
    Without one, the question ended the agent's turn, and the answer is its next work.

    Other agents are asked for help, and to take a task over, in the same form: `about` says which, `asked_of` is the
    agent that is asked now (None: a person), `asked_before` those that could not, `direct_message` the message that
    asks them.
    """

    id: QuestionId
    task: TaskId | None
    agent: AgentId
    question: str
    created_at: Instant
    status: QuestionStatus = QuestionStatus.OPEN
    options: tuple[Any, ...] = ()
    default: Any = None
    has_default: bool = False
    wake_at: Instant | None = None
    answer: Any = None
    answered_at: Instant | None = None
    answered_by: AgentId | None = None
    person: str | None = None
    """Who answered for the administrator, where the hub knows them by name."""
    note: str | None = None
    """Why they answered so: for people, not for the agent."""
    request_id: str | None = None
    blocking: bool = True
    details: QuestionDetails = QuestionDetails()
    about: Asking = Asking.ANSWER
    asked_of: AgentId | None = None
    asked_before: tuple[AgentId, ...] = ()
    direct_message: DirectMessage | None = None
    personal: bool = False
    """It is about a task with personal data, so its texts are encrypted at rest."""
