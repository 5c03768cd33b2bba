"""One end of an agentmsg connection, in either role: one JSON object a frame, messages in both directions.

The connection knows the agent at its other end, or at its own, and so what either side may send:

    sender      must have                                               else
    ----------  ------------------------------------------------------  --------------------------------------------
    an agent    `from` its own id (all-D1)                              AUTHENTICATION_ERROR
    an agent    `to: "hub"` on REGISTER, STATE_UPDATE and STATE_QUERY   VALIDATION_ERROR
    the hub     `to` the agent's id, or `*`                             VALIDATION_ERROR
    the hub     `from: "hub"` on WELCOME, STATE_UPDATE and STATE_QUERY  VALIDATION_ERROR

At the receiver, the inbox recognises a message that comes twice (D4):

    unknown --message--> held --accept--> done         held, done --message--> unchanged: a repetition
                         held --release--> unknown     it was refused: the next one counts as the first

A message that is not acknowledged (normal, low) is done at once, and so is never delivered twice. At the sender, the
outbox keeps a message of critical or high priority until it is acknowledged:

    UNSENT --send--> WAITING --send--> WAITING --ack--> ACKNOWLEDGED
                     WAITING --expire--> OUTLIVED (D6)      WAITING --give up--> DEAD (D7)

An ACK belongs to the connection, not to the exchange: the receiver of a message acknowledges it to the other end of the
connection that it came by. Inbox and outbox are bounded, and the next connection of the same agent goes on with them.
They are not durable: the hub keeps its messages in its store, so its connections have no outbox. Time comes as a value:
`now` is an aware datetime.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct

from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.errors import AgentmsgError, new_report
from dragoman.protocols.agentmsg.records import DEFAULT_RETRIES, ErrorType, Record, RetryConfig
from dragoman.protocols.agentmsg.types import (
    ANYONE,
    HUB,
    Ack,
    Message,
    MessageType,
    Register,
    Stamp,
    StateAnswer,
    Welcome,
)
from dragoman.wire.errors import LocalProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

ONLY: dict[type[Record], Role] = {Register: Role.AGENT, Welcome: Role.HUB, StateAnswer: Role.HUB}
"""Payloads that only one of the two ends sends."""
WITH_THE_HUB = frozenset({MessageType.REGISTER, MessageType.WELCOME, MessageType.STATE_UPDATE, MessageType.STATE_QUERY})
"""Messages between an agent and the hub itself."""
UNANSWERED = frozenset({MessageType.ERROR_REPORT.value, MessageType.ACK.value})
"""An invalid one of these is not answered: the answer would be one of them again."""


# -- what a connection reports -------------------------------------------------------------------------------------


class Received(Struct, frozen=True):
    """A message came for the first time. If `wants_ack`, acknowledge it once it cannot be lost any more. `tree` is its
    JSON object with all fields, `raw` its bytes, `content` its `codec.fingerprint`."""

    message: Message
    tree: dict[str, Any]
    raw: bytes
    wants_ack: bool
    content: bytes


class Repeated(Struct, frozen=True):
    """A message came again and is not acted on again. `acknowledged`: it was before, and is to be once more."""

    received: Received
    acknowledged: bool

    @property
    def message(self) -> Message:
        return self.received.message


class Acknowledged(Struct, frozen=True):
    """The peer has these messages of ours. `message_ids` holds only those that the outbox kept."""

    message: Message
    message_ids: tuple[str, ...]


class Outlived(Struct, frozen=True):
    """A message was dropped because its time to live is over (D6)."""

    message: Message


class Invalid(Struct, frozen=True):
    """The peer broke the protocol. If `asks`, it gets an ERROR_REPORT."""

    error: AgentmsgError
    asks: bool = True


Event: TypeAlias = Received | Repeated | Acknowledged | Outlived | Invalid


class SendAgain(Struct, frozen=True):
    """A message was not acknowledged in time: send these bytes once more."""

    message_id: str
    data: bytes


class DeadLetter(Struct, frozen=True):
    """A message was sent as often as it may be, and never acknowledged (D7)."""

    message: Message


Late: TypeAlias = SendAgain | DeadLetter | Outlived


# -- what an end remembers ---------------------------------------------------------------------------------------


class Memo(Struct):
    """What the inbox remembers of a message. `done`: it is accepted; until then it is held."""

    fingerprint: bytes
    done: bool


class Inbox:
    """The last `most` messages that are done, and up to `most_held` that are held. With `holds_all`, messages that are
    not acknowledged are held, too, until the owner accepts or releases them."""

    def __init__(self, most: int = 100_000, *, most_held: int | None = None, holds_all: bool = False) -> None:
        self.most = most
        self.most_held = most if most_held is None else most_held
        self._holds_all = holds_all
        self._held: dict[str, Memo] = {}
        self._done: OrderedDict[str, Memo] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held) + len(self._done)

    @property
    def full(self) -> bool:
        return len(self._held) >= self.most_held

    def find(self, key: str) -> Memo | None:
        return self._held.get(key) or self._done.get(key)

    def add(self, key: str, fingerprint: bytes, *, held: bool) -> None:
        if held or self._holds_all:
            self._held[key] = Memo(fingerprint, False)
        else:
            self._finish(key, Memo(fingerprint, True))

    def accept(self, key: str) -> bool:
        """Whether the message is known."""
        memo = self._held.pop(key, None)
        if memo is not None:
            memo.done = True
            self._finish(key, memo)
        return memo is not None or key in self._done

    def release(self, key: str) -> None:
        self._held.pop(key, None)

    def _finish(self, key: str, memo: Memo) -> None:
        self._done[key] = memo
        if len(self._done) > self.most:
            self._done.popitem(last=False)


class Sent(StrEnum):
    """Where a message is at its sender."""

    UNSENT = "unsent"
    WAITING = "waiting"
    ACKNOWLEDGED = "acknowledged"
    OUTLIVED = "outlived"
    DEAD = "dead"


class Waiting(Struct):
    """A message of ours that is not acknowledged yet, and was sent `attempt` times."""

    message: Message
    data: bytes
    attempt: int
    due: datetime


class Outbox:
    """The messages that wait for their ACK, at most `most` of them, and how the last `most` others ended."""

    def __init__(self, policy: RetryConfig = DEFAULT_RETRIES, most: int = 10_000) -> None:
        self.policy = policy
        self.most = most
        self._waiting: dict[str, Waiting] = {}
        self._over: dict[str, Sent] = {}
        self._queue: list[tuple[datetime, str]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """What waits, oldest first: a new connection sends it again in this order."""
        return iter(tuple(self._waiting.values()))

    def state(self, message_id: str) -> Sent:
        """Where a message is; UNSENT if it is unknown or forgotten."""
        return Sent.WAITING if message_id in self._waiting else self._over.get(message_id, Sent.UNSENT)

    def sent(self, message: Message, data: bytes, now: datetime, chance: float) -> None:
        """Wait for its ACK from now on."""
        if message.id in self._over:
            raise LocalProtocolError(f"message {message.id} is {self._over[message.id]}", field="id")
        known = self._waiting.get(message.id)
        if known is None and len(self._waiting) >= self.most:
            raise LocalProtocolError(f"more than {self.most} messages wait for their ACK")
        attempt = 1 if known is None else known.attempt + 1
        self._waiting[message.id] = Waiting(message, data, attempt, now)
        self._schedule(self._waiting[message.id], now, chance)

    def acknowledged(self, message_id: str) -> bool:
        """Whether the message waited for its ACK."""
        if message_id not in self._waiting:
            return False
        self._end(message_id, Sent.ACKNOWLEDGED)
        return True

    def late(self, now: datetime, chance: float) -> list[Late]:
        """What is to be done about the messages that have waited long enough."""
        found: list[Late] = []
        while self._queue and self._queue[0][0] <= now:
            due, message_id = heapq.heappop(self._queue)
            entry = self._waiting.get(message_id)
            if entry is None or entry.due != due:  # acknowledged, or sent again since
                continue
            if routing.is_expired(entry.message, now):
                self._end(message_id, Sent.OUTLIVED)
                found.append(Outlived(entry.message))
            elif entry.attempt >= routing.retries(entry.message.metadata, self.policy).max_attempts:
                self._end(message_id, Sent.DEAD)
                found.append(DeadLetter(entry.message))
            else:
                entry.data = codec.reissue(entry.data, {}, {"retry_count": entry.attempt})
                entry.attempt += 1
                self._schedule(entry, now, (chance + len(found) * 0.6180339887498949) % 1)  # one draw, spread evenly
                found.append(SendAgain(message_id, entry.data))
        return found

    @property
    def next_due(self) -> datetime | None:
        """When `late` has something to do, at the earliest."""
        while self._queue:
            due, message_id = self._queue[0]
            entry = self._waiting.get(message_id)
            if entry is not None and entry.due == due:
                return due
            heapq.heappop(self._queue)
        return None

    def _schedule(self, entry: Waiting, now: datetime, chance: float) -> None:
        config = routing.retries(entry.message.metadata, self.policy)
        due = now + timedelta(milliseconds=routing.delay(config, entry.attempt, chance))
        end = routing.expires_at(entry.message)
        entry.due = due if end is None else min(due, max(end, now))
        heapq.heappush(self._queue, (entry.due, entry.message.id))

    def _end(self, message_id: str, state: Sent) -> None:
        del self._waiting[message_id]
        self._over[message_id] = state
        if len(self._over) > self.most:
            del self._over[next(iter(self._over))]


# -- the connection ----------------------------------------------------------------------------------------------


class Connection:
    """One end; `agent_id` is the agent at the agent's end."""

    def __init__(
        self,
        role: Role,
        agent_id: str,
        *,
        limits: Limits = codec.LIMITS,
        inbox: Inbox | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self.role = role
        self.agent_id = agent_id
        self.inbox = Inbox() if inbox is None else inbox
        self.outbox = outbox
        self._limits = limits

    @property
    def me(self) -> str:
        return HUB if self.role is Role.HUB else self.agent_id

    @property
    def peer(self) -> str:
        return self.agent_id if self.role is Role.HUB else HUB

    # --- from the peer ---

    def receive(self, data: bytes, now: datetime | None = None) -> list[Event]:
        """One frame from the peer. Never raises for what the peer did. Without `now` nothing expires."""
        tree: dict[str, Any] = {}
        try:
            tree = codec.parse(data, self._limits)
            return [self._received(codec.interpret(tree), tree, data, now)]
        except AgentmsgError as error:
            return [Invalid(error, asks=str(tree.get("type")) not in UNANSWERED)]

    def _received(self, message: Message, tree: dict[str, Any], data: bytes, now: datetime | None) -> Event:
        wrong = _not_allowed(message, self.role.peer, self.agent_id)
        if wrong is not None:
            field, what, error_type = wrong
            raise AgentmsgError(what, stage=Stage.MEANING, field=field, about=message.id, error_type=error_type)
        if message.type is MessageType.ACK:
            return Acknowledged(message, self._acknowledged(message))
        content, wants_ack = codec.fingerprint(tree), routing.is_kept(message)
        received = Received(message, tree, data, wants_ack, content)
        key = _key(message)
        memo = self.inbox.find(key)
        if memo is not None:
            if memo.fingerprint != content:
                what, next = "already used for other content", "choose a new one"
                raise AgentmsgError(what, stage=Stage.ORDER, field="id", about=message.id, next=next)
            return Repeated(received, memo.done and wants_ack)
        if now is not None and routing.is_expired(message, now):
            return Outlived(message)
        if wants_ack and self.inbox.full:
            what = f"more than {self.inbox.most_held} messages are held"
            kind = ErrorType.RESOURCE_EXHAUSTED
            raise AgentmsgError(what, stage=Stage.ORDER, about=message.id, error_type=kind)
        self.inbox.add(key, content, held=wants_ack)
        return received

    def _acknowledged(self, ack: Message) -> tuple[str, ...]:
        """The messages of ours which an ACK says have arrived; without an outbox, all that it names."""
        correlation = ack.metadata.correlation_id
        named = dict.fromkeys(map(codec.lowered, (*([correlation] if correlation else ()), *ack.payload.message_ids)))
        return tuple(name for name in named if self.outbox is None or self.outbox.acknowledged(name))

    def accept(self, message: Message) -> bool:
        """The message cannot be lost any more. Whether it is known."""
        return self.inbox.accept(_key(message))

    def release(self, messages: Iterable[Message]) -> None:
        """These were refused; when they come again they count as new."""
        for message in messages:
            self.inbox.release(_key(message))

    # --- to the peer ---

    def send(
        self, message: Message, now: datetime | None = None, *, chance: float = 0.5, data: bytes | None = None
    ) -> bytes:
        """The frame for `message`; `data` is its bytes where they hold more than the message. With an outbox, what is
        promised at least once waits for its ACK from `now` on."""
        wrong = _not_allowed(message, self.role, self.agent_id)
        if wrong is not None:
            raise LocalProtocolError(wrong[1], field=wrong[0])
        frame = codec.encode(message) if data is None else data
        if len(frame) > self._limits.bytes:
            raise LocalProtocolError(f"a message of {len(frame)} bytes exceeds the limit of {self._limits.bytes}")
        if self.outbox is not None and routing.is_kept(message):
            self.outbox.sent(message, frame, message.timestamp if now is None else now, chance)
        return frame

    def send_payload(
        self, payload: Record, stamp: Stamp, *, to: str | None = None, chance: float = 0.5, **metadata: Any
    ) -> bytes:
        """A payload as a message of this end: to the other end, or to the receiver that an agent names."""
        message = codec.message(payload, stamp, sender=self.me, to=to or self.peer, **metadata)
        return self.send(message, stamp.timestamp, chance=chance)

    def acknowledge(self, messages: Sequence[Message], stamp: Stamp, *, version: int | None = None) -> bytes:
        """One ACK for messages that cannot be lost any more."""
        for message in messages:
            if not self.accept(message):
                raise LocalProtocolError(f"no message {message.id} to acknowledge", field="metadata.correlation_id")
        first, *rest = [message.id for message in messages]
        payload = Ack(message_ids=(first, *rest) if rest else (), version=version)
        return self.send_payload(payload, stamp, correlation_id=first)

    def refuse(self, event: Invalid | Outlived, stamp: Stamp) -> bytes | None:
        """The ERROR_REPORT about a message that was invalid or too old; None where its sender gets none."""
        match event:
            case Invalid(error=error, asks=True):
                return self.send_payload(error.report(stamp.id, self.me), stamp, correlation_id=error.about)
            case Outlived(message=message) if routing.is_kept(message):  # else its sender was promised nothing (D6)
                report = new_report(
                    ErrorType.TIMEOUT,
                    f"{message.type} {message.id} was not delivered within its {message.metadata.ttl_ms} ms",
                    error_id=stamp.id,
                    agent_id=self.me,
                    task_id=routing.task(message),
                    details={"message_id": message.id, "ttl_ms": message.metadata.ttl_ms},
                )
                return self.send_payload(report, stamp, correlation_id=message.id)
        return None

    # --- time ---

    def late(self, now: datetime, chance: float = 0.5) -> list[Late]:
        """What was not acknowledged in time: to be sent again, dead, or outlived."""
        return [] if self.outbox is None else self.outbox.late(now, chance)

    @property
    def next_due(self) -> datetime | None:
        return None if self.outbox is None else self.outbox.next_due


def _key(message: Message) -> str:
    """Ids are unique for each sender only (all-D5), and an agent receives messages of many over one connection."""
    return f"{message.sender}\n{message.id}"


def _not_allowed(message: Message, sender: Role, agent_id: str) -> tuple[str, str, ErrorType] | None:
    """Why `sender` may not send this on a connection of `agent_id`: the field, the reason, the kind of error."""
    if sender is Role.AGENT and message.sender != agent_id:
        what = f"this token belongs to agent {agent_id!r}, not to {message.sender!r}"
        return "from", what, ErrorType.AUTHENTICATION_ERROR
    if sender is Role.HUB and message.to not in (agent_id, ANYONE):
        what = f"this token belongs to agent {message.to!r}, not to {agent_id!r}"
        return "to", what, ErrorType.VALIDATION_ERROR
    if ONLY.get(type(message.payload), sender) is not sender:
        return "type", f"the {sender.value} does not say {message.type.value}", ErrorType.VALIDATION_ERROR
    if message.type in WITH_THE_HUB:
        field, party = ("to", message.to) if sender is Role.AGENT else ("from", message.sender)
        if party != HUB:
            what = f"{message.type.value} is only between an agent and the hub"
            return field, what, ErrorType.VALIDATION_ERROR
    return None
