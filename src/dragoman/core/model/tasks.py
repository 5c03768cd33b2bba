"""A task: one thing in the hub whatever protocol it came in by (all-D8).

The row is the small, changing head. What was said about a task, word for word, lies beside it in its events,
which are only ever appended: the request is the first one, the result or failure the last. So a large input or
output is written once, and a change of state rewrites a few hundred bytes.
"""

from __future__ import annotations

import enum
import re
from typing import Any
from uuid import UUID, uuid5

import msgspec

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
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
    """Who asked, in which protocol, under which idempotency key, and what they exactly asked.

    `follows`: they read the task's events themselves, so nothing is delivered to them. `awaited`: the link over which
    the request that asked waits for the outcome. While it stands the outcome goes there; when it is gone (and none
    outlives the hub) it is delivered like any other. `called`: their own name for the task, where it is not its id.
    `priority`: their own number for how urgent it is, where the hub's says less.
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


class Ahead(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A piece of output that came before the ones it follows: where it belongs, and which event keeps it. `ends`: it
    is the end of a result, by its digest, and `fault` why the work failed, if it did."""

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
    """What a task used, by what was reported of it: in the attempts before, and in this one so far."""

    before: dict[str, float] = {}
    now: dict[str, float] = {}

    def total(self, kind: str) -> float:
        return round(self.before.get(kind, 0) + self.now.get(kind, 0), 9)

    def attempt_over(self) -> Spent:
        return Spent(before={kind: self.total(kind) for kind in {**self.before, **self.now}})


class SubtaskOwner(msgspec.Struct, frozen=True, gc=False):
    """Who has a task now, and since when, that whoever asked for a part of it gave away."""

    agent: AgentId
    since: Instant


class Task(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    rename={"subtask_owner": "heir", "retried_round": "anew"},
):
    """The head of a task.

    `queue` names the queue it stands in, or None; `rank` is its place there (smaller first). `wake_at` is when
    the hub must look at it again: idle clock, total deadline, retry due, whichever comes first. `seq` is the
    number of its newest event. `recent` holds the last message ids heard about it, so that a repeated one is
    recognised. `delivery` is the work order now out for it, `order` the newest one, arrived or not: agents may call the
    task by it. `round` counts the times the work was begun anew on purpose (an answer came, a person retried): attempts
    of one round share a request id towards the agent; `retried_round` is the last one that somebody retried, and what
    is said of earlier ones does not count. `source` is the event that says what to do: the request, or what replaced
    it; `outcome` the one that says how it ended.
    `prefers` is who shall try again, if there: an agent that was lost may have done the work, and remember it.
    `asks` counts the questions of this attempt: an agent that begins anew asks the same ones in the same order.
    `version` counts what others can see of it change (the shared state). `handed` is through whose hands it went: pairs
    of from and to. `helps` is the request for help that it answers. `reserved` is what is set aside for it now, and
    `metadata` what agents wrote into its context since it came. `approved`: a person let it be done, at its risk.
    `contract` is the terms it is done on. `personal`: what is said in it is nobody's business, and encrypted at rest;
    of the head itself that is what people and agents wrote there, which a store keeps in `shut` and nobody else sees.
    `firm`: its caller said by when it must be done, and no wait for anybody moves that. `limited`: somebody said how
    long it may take, so that its deadline is not only the hub's own.
    `unreached` are those of its `attempts` that found no agent connected; they are given back to the agent that comes.
    `answered`: the hub told its agent an answer that it stood still for, and has heard nothing of it since.
    `called_dependencies` is what its caller calls those it depends on. `sandbox` is the level that the newest attempt
    was given at, whatever its agent runs in today. `subtask_owner`: who hears how it ended and may steer it, as its
    caller does.
    """

    id: TaskId
    type: str
    status: Status
    origin: Origin
    created_at: Instant
    updated_at: Instant
    route: str
    deadline: Instant
    idle_limit: int
    rank: int
    trace_id: str
    total_limit: int | None = None
    name: str | None = None
    description: str | None = None
    priority: Priority = Priority.NORMAL
    kind: str | None = None
    pinned: AgentId | None = None
    required_capabilities: tuple[str, ...] = ()
    required_role: str | None = None
    waiting: Waiting | None = None
    question: QuestionId | None = None
    queue: str | None = None
    wake_at: Instant | None = None
    owner: AgentId | None = None
    prefers: AgentId | None = None
    session: SessionId | None = None
    delivery: DeliveryId | None = None
    order: DeliveryId | None = None
    round: int = 0
    retried_round: int = 0
    source: int = 1
    attempts: int = 0
    unreached: int = 0
    attempted_at: Instant | None = None
    last_sign_at: Instant | None = None
    lost_at: Instant | None = None
    progress: int | None = None
    step: str | None = None
    parent: TaskId | None = None
    subtask_owner: SubtaskOwner | None = None
    thread: str | None = None
    hops: int = 0
    dependencies: tuple[TaskId, ...] = ()
    blocked_by: tuple[TaskId, ...] = ()
    has_dependents: bool = False
    has_children: bool = False
    fault: Fault | None = None
    result_digest: str | None = None
    outcome: int | None = None
    asked: bool = False
    asks: int = 0
    answered: bool = False
    finished_at: Instant | None = None
    output: tuple[OutputCursor, ...] = ()
    output_bytes: int = 0
    request_bytes: int = 0
    """What was asked, in bytes as it came: part of what its caller has lying here (`model.holdings`)."""
    files: tuple[FileRef, ...] = ()
    files_before: int = 0
    """How many of them were there when the work was begun once more: what is measured is what came since."""
    recent: tuple[str, ...] = ()
    seq: int = 0
    constraints: dict[str, Any] = {}
    version: int = 1
    handed: tuple[tuple[AgentId, AgentId], ...] = ()
    helps: QuestionId | None = None
    contract: str | None = None
    personal: bool = False
    shut: bytes | None = None
    reserved: Reserved | None = None
    spent: Spent | None = None
    metadata: dict[str, Any] | None = None
    approved: bool = False
    called_dependencies: tuple[str, ...] = ()
    sandbox: str | None = None
    firm: bool = False
    limited: bool = False
    retry: Backoff | None = None
    """What its caller says of how its work order is put before an agent, again and again."""
    expires_at: Instant | None = None
    """Until when somebody must have been given it. None once an agent is known to have it."""

    @property
    def last_attempt(self) -> Instant:
        """When an agent was last given it; before that, when it came."""
        return self.attempted_at or self.created_at

    @property
    def final(self) -> bool:
        return self.status in FINAL

    def due(self, now: Instant) -> Instant:
        """Its deadline as it is now: where it stands still, that has moved since the last word on it."""
        if self.firm or self.status is not Status.WAITING:
            return self.deadline
        return Instant(self.deadline + now - (self.last_sign_at or self.created_at))

    def outlived(self, now: Instant) -> bool:
        """Whether nobody is to be given it any more (agentmsg-D6)."""
        return self.expires_at is not None and self.expires_at <= now

    @property
    def stands_still(self) -> bool:
        """Whether its agent does nothing of it but wait, as far as the hub knows: if the agent goes, the attempt was
        not to blame."""
        return self.status is Status.WAITING or self.answered

    @property
    def holder(self) -> AgentId | None:
        """The agent that it keeps busy. One whose turn ended with a question is free: the answer will be new work."""
        if self.status not in HELD or (self.waiting is Waiting.PERSON and self.session is None):
            return None
        return self.owner

    @property
    def request_id(self) -> str:
        """The request id towards the agent, the same in every attempt of a round.

        In the first round it is the caller's own, if that is a UUID; later rounds are other requests, since an agent
        that remembers the first would answer from its memory. Derived, so nothing has to be kept.
        """
        given = self.origin.request_id
        return given if self.round == 0 and _is_uuid(given) else str(uuid5(ROUNDS, f"{self.id}/{self.round}"))


FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
HELD = frozenset({Status.ASSIGNED, Status.RUNNING, Status.WAITING})
"""In these an agent that owns the task is busy with it, save for a question that ended its turn (`Task.holder`)."""


class EventKind(enum.StrEnum):
    SUBMITTED = "submitted"
    ASSIGNED = "assigned"
    PROGRESS = "progress"
    PAUSED = "paused"
    RESUMED = "resumed"
    LOG = "log"  # what an agent wrote beside its work
    HELD_PIECE = "held_piece"  # output that came before what it follows; told when the gap closes
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

    `body` is the JSON of its content (`messages.tasks`); `raw` is what the wire said, word for word, in `protocol`,
    where a message caused it. Stores keep both encrypted where they are `personal`.
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
        """What it says. Read anew each time: of most events nobody looks at more than the kind."""
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


class Question(
    msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename={"direct_message": "letter"}
):
    """A question to a person, asked by an agent, mostly in the course of a task. Answered exactly once.

    `request_id` is there where the agent goes on while it waits, and is told the answer under that id; `blocking` says
    whether it stands still for it. Without one the question ended the agent's turn, and the answer is its next work.

    Other agents are asked for help, and to take a task over, in the same form: `about` says which, `asked_of` who is
    asked now (nobody: a person), `asked_before` who could not, `direct_message` the words that reach them.
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
    request_id: str | None = None
    blocking: bool = True
    details: dict[str, Any] = {}
    about: Asking = Asking.ANSWER
    asked_of: AgentId | None = None
    asked_before: tuple[AgentId, ...] = ()
    direct_message: DirectMessage | None = None
    personal: bool = False
    """It is about a task with personal data, so what it says may be, too: encrypted at rest."""

    @property
    def escalations(self) -> tuple[Escalation, ...]:
        """What the agents said that were asked for help and passed the request on, in that order."""
        return msgspec.convert(self.details.get("escalations", ()), tuple[Escalation, ...])
