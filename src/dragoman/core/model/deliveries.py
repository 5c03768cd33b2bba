"""Deliveries: messages on their way to a receiver.

A `Delivery` is one row of the outbox: it exists from the commit that caused it until it is acknowledged or becomes a
dead letter. It has no content of its own: `event` refers to it, and the outbound side of the receiver's protocol
encodes that when the delivery leaves.

A *lane* is (task, receiver). Its deliveries leave in the order of their `seq`, and only its head may leave, unless the
link keeps order (a WebSocket, a stream): then those behind it may be on the same link.

How long the hub waits for an acknowledgment, and how often it attempts a delivery (agentmsg-D7):

    set by                waits of                              attempts at
    --------------------  ------------------------------------  -------------------------------------------------
    the sender            its direct message                    the same (`DirectMessage.attempts`, always there)
    a task's caller       its work orders                       its work orders (`Task.retry`)
    the policy            everything for agents that converse   work orders and notices
    the hub's settings    the same                              the same

For each field, the first of them that sets it counts. `SHORTEST` and `LONGEST` limit senders and the policy: the hub
has others to serve between attempts, and a lane waits behind its head. After `OWN` attempts a direct message waits as
all others do.
"""

from __future__ import annotations

import enum
import math
from typing import Any
from zlib import crc32

import msgspec

from dragoman.core.ids import HOUR, MILLISECOND, AgentId, DeliveryId, Instant, QuestionId, SessionId, TaskId
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault


class MessageKind(enum.StrEnum):
    """What a delivery carries to its receiver."""

    WORK = "work"  # do this
    PROGRESS = "progress"  # how far it is
    RESULT = "result"
    FAILURE = "failure"
    CANCEL = "cancel"  # stop doing this
    PAUSE = "pause"
    RESUME = "resume"
    ANSWER = "answer"  # a person's answer, or that there is none
    DIRECT_MESSAGE = "letter"  # a message of another agent, word for word
    HANDOFF = "yours"  # a task that was taken over, with its history
    UNDELIVERED = "undelivered"  # a direct message of the receiver did not arrive
    PROPOSAL = "proposal"  # do you agree to a contract?
    CONTRACT = "contract"  # a contract came into force, changed, or ended


UNKNOWN_TASK = "~"
"""Begins the lane of direct messages about a task that the hub does not know: the agents' own name follows."""


class DeliveryState(enum.StrEnum):
    WAITING = "waiting"
    LEASED = "leased"


class Escalation(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How an agent passed a request for help on to a better helper (agentmsg-D6a)."""

    agent: AgentId
    content: str
    resources: tuple[Any, ...] = ()


ESCALATED = "help.escalated"
"""The kind of a direct message that the hub writes in its own form (`protocol` is `HUB`): an agent whose protocol has
no help responses escalated a request. Its content is an `Escalation`, with the `request_id` beside it."""


class DirectMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename={"raw": "body"}):
    """A message between agents, which the hub carries word for word (`raw`). `message_id` is unique for its sender.

    `once`: at most once; it is gone when it leaves. Otherwise it is kept until it is acknowledged and leaves again
    after growing waits, at most `attempts` times; `retry` is the sender's choice of the waits. After `expires_at` it is
    not delivered any more. `asks`: it puts a question; if it does not arrive, the hub asks another agent. Stores
    encrypt `raw` where it is `personal`. `contract`: the contract that it is under. `escalations` are added when it
    leaves and never stored: those of the agents that were asked before.
    """

    sender: AgentId
    message_id: str
    kind: str
    digest: str
    raw: msgspec.Raw
    protocol: str
    once: bool = False
    attempts: int = 4
    expires_at: Instant | None = None
    asks: QuestionId | None = None
    personal: bool = False
    retry: Backoff | None = None
    contract: str | None = None
    escalations: tuple[Escalation, ...] = ()


class Delivery(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    rename={"kind": "cargo", "direct_message": "letter"},
):
    """`head`: nothing of its lane is before it.

    `session` holds the lease: over a link without order (a poll) it ends at `wake_at`, over an `ordered` one it ends
    with the link. The lease of a work order that a poll took ends with its task's timers, too.

    An answer or a proposal refers to a `question` instead of an event, a notice of a contract to a `contract`. A
    question without a task is a lane by its id, and so is a contract. A `direct_message` is its own content; its lane
    is the task that it is about, which the hub need not know, or its own (`task` is its id).
    """

    id: DeliveryId
    task: TaskId
    receiver: AgentId
    seq: int
    kind: MessageKind
    event: int
    rank: int
    created_at: Instant
    state: DeliveryState = DeliveryState.WAITING
    head: bool = True
    attempt: int = 0
    session: SessionId | None = None
    ordered: bool = False
    wake_at: Instant | None = None
    question: QuestionId | None = None
    direct_message: DirectMessage | None = None
    reason: Fault | None = None
    contract: str | None = None
    size: int = 0
    """Bytes of a direct message."""
    kept: bool = False
    """Progress that its agent called urgent: it is delivered at least once, also to an agent that converses."""

    @property
    def leaves_once(self) -> bool:
        """Whether an agent that converses gets it at most once (agentmsg-D4)."""
        if self.direct_message is not None:
            return self.direct_message.once
        return self.kind is MessageKind.PROGRESS and not self.kept

    @property
    def alone(self) -> bool:
        """Whether it belongs to no task of the hub."""
        if self.direct_message is not None or self.contract is not None:
            return True
        return self.question is not None and str(self.question) == self.task


class SeenMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An accepted direct message, to recognise it when it comes again. `id` follows from its sender and id.

    Other things that the hub remembers for a while are here, too: nonces, and the versions of deleted entities.
    """

    id: str
    digest: str
    at: Instant


class DeadLetter(
    msgspec.Struct,
    frozen=True,
    gc=False,
    kw_only=True,
    omit_defaults=True,
    rename={"kind": "cargo", "direct_message": "letter"},
):
    """A delivery or a task that the hub gave up on. `event` refers to its content, `task` is the lane it was in."""

    id: DeliveryId
    task: TaskId
    receiver: AgentId | None
    kind: MessageKind
    event: int
    attempts: int
    at: Instant
    reason: Fault
    direct_message: DirectMessage | None = None

    @property
    def task_of_hub(self) -> TaskId | None:
        """The task that it is about; None where its lane is none of the hub's tasks."""
        if self.kind in (MessageKind.PROPOSAL, MessageKind.CONTRACT):
            return None
        if self.direct_message is not None and (self.task == TaskId(self.id) or self.task.startswith(UNKNOWN_TASK)):
            return None
        return self.task


SHORTEST = 100 * MILLISECOND


LONGEST = HOUR


OWN = 100


class Backoff(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Waits between attempts, as a sender or the policy sets them; None: not set. They are not whole microseconds: a
    first wait below one grows, too."""

    base: float | None = None
    most: float | None = None
    factor: float | None = None
    jitter: bool | None = None
    attempts: int | None = None


def wait_of(rules: Rules, id: str, attempt: int, policy: Backoff | None = None, own: Backoff | None = None) -> int:
    """How long the hub waits for an acknowledgment of this attempt. The jitter follows from the id: the same decision
    gives the same wait, and direct messages that left together do not come back together."""
    base, most, factor = rules.direct_message_waits
    if policy is None and own is None:
        whole: float = min(base * factor ** min(attempt - 1, 40), most)
        return int(whole * _share(id, attempt)) if rules.direct_message_jitter else int(whole)
    configured = [backoff for backoff in (own if attempt <= OWN else None, policy) if backoff is not None]
    jitter = _first([backoff.jitter for backoff in configured], rules.direct_message_jitter)
    whole = grown(
        _first([backoff.base for backoff in configured], base),
        _first([backoff.most for backoff in configured], most),
        _first([backoff.factor for backoff in configured], factor),
        attempt,
    )
    return max(SHORTEST, min(int(whole * _share(id, attempt) if jitter else whole), LONGEST))


def grown(base: float, most: float, factor: float, attempt: int) -> float:
    """The wait after an attempt, counted from 1, without jitter."""
    if not base or base >= most or factor <= 1:
        return min(base, most)
    # A power overflows long before the retries end.
    steps = math.log(most / base) / math.log(factor)
    return most if attempt - 1 >= steps else min(base * factor ** (attempt - 1), most)


def _first(values: list[Any], otherwise: Any) -> Any:
    return next((value for value in values if value is not None), otherwise)


def _share(id: str, attempt: int) -> float:
    """A factor from a half to one."""
    return (1 + crc32(f"{id}{attempt}".encode()) / 0x1_0000_0000) / 2
