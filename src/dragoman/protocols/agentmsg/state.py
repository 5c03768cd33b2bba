"""The life of one message, at its receiver and at its sender, and what each end remembers of many.

At the receiver, a message that comes twice is acted on once (D4):

    UNKNOWN --message--> HELD --ack--> DONE         HELD, DONE --message--> unchanged: a repetition
                         HELD --release--> UNKNOWN  it could not be taken after all: the next one counts as the first

A message that nobody acknowledges (normal, low) is DONE at once, and so is never delivered twice.

At the sender, a message of critical or high priority is kept until it is acknowledged:

    UNSENT --send--> WAITING --send--> WAITING --ack--> ACKNOWLEDGED
                     WAITING --expire--> OUTLIVED (D6)      WAITING --give_up--> DEAD (D7)

A late ACK is welcome in every state and changes nothing.

Both memories are bounded and outlive a link: the connection of the next link is given the same ones. They are not
durable. A hub keeps messages in its store, so its connections have no outbox.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from dragoman.protocols.agentmsg import codec, retry, routing
from dragoman.protocols.agentmsg.errors import Refusal
from dragoman.protocols.agentmsg.events import DeadLetter, Late, Outlived, SendAgain
from dragoman.protocols.agentmsg.records import ErrorType
from dragoman.protocols.agentmsg.types import Message
from dragoman.wire.errors import LocalProtocolError
from dragoman.wire.machine import Table


class Heard(StrEnum):
    """Where a message is at its receiver, once it came."""

    HELD = "held"
    DONE = "done"


class Sent(StrEnum):
    """Where a message is at its sender."""

    UNSENT = "unsent"
    WAITING = "waiting"
    ACKNOWLEDGED = "acknowledged"
    OUTLIVED = "outlived"
    DEAD = "dead"


class Sending(StrEnum):
    SEND = "send"
    ACK = "ack"
    EXPIRE = "expire"
    GIVE_UP = "give_up"


SENDING: Table[Sent, Sending] = Table(
    {
        Sent.UNSENT: {Sending.SEND: Sent.WAITING},
        Sent.WAITING: {
            Sending.SEND: Sent.WAITING,
            Sending.ACK: Sent.ACKNOWLEDGED,
            Sending.EXPIRE: Sent.OUTLIVED,
            Sending.GIVE_UP: Sent.DEAD,
        },
        Sent.ACKNOWLEDGED: {Sending.ACK: Sent.ACKNOWLEDGED},
        Sent.OUTLIVED: {Sending.ACK: Sent.OUTLIVED},
        Sent.DEAD: {Sending.ACK: Sent.DEAD},
    },
    start=Sent.UNSENT,
)


class Memo(Struct):
    """What is remembered of a message that came."""

    fingerprint: bytes
    state: Heard


class Inbox:
    """The last `most` messages that came, and all that are held."""

    def __init__(self, most: int = 100_000) -> None:
        self.most = most
        self._held: dict[str, Memo] = {}
        self._done: OrderedDict[str, Memo] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held) + len(self._done)

    @property
    def full(self) -> bool:
        return len(self._held) >= self.most

    def find(self, message_id: str) -> Memo | None:
        return self._held.get(message_id) or self._done.get(message_id)

    def take(self, message_id: str, fingerprint: bytes, *, held: bool) -> None:
        """Remember a new message, as held until it is acknowledged or as done."""
        memo = Memo(fingerprint, Heard.HELD if held else Heard.DONE)
        if held:
            self._held[message_id] = memo
        else:
            self._finish(message_id, memo)

    def acknowledge(self, message_id: str) -> bool:
        """Whether there is anything to acknowledge: the message came."""
        memo = self._held.pop(message_id, None)
        if memo is not None:
            self._finish(message_id, memo)
        return memo is not None or message_id in self._done

    def release(self, message_id: str) -> None:
        """It could not be taken: when it comes again it counts as new."""
        self._held.pop(message_id, None)

    def _finish(self, message_id: str, memo: Memo) -> None:
        memo.state = Heard.DONE
        self._done[message_id] = memo
        if len(self._done) > self.most:
            self._done.popitem(last=False)


class Waiting(Struct):
    """A message of ours that nobody has acknowledged yet. `attempt` counts how often it was sent."""

    message: Message
    data: bytes
    attempt: int
    due: datetime


class Outbox:
    """At most `most` messages that wait for their ACK, and the fate of as many that do not any more."""

    def __init__(self, policy: retry.RetryConfig = retry.DEFAULT, most: int = 10_000) -> None:
        self.policy = policy
        self.most = most
        self._waiting: dict[str, Waiting] = {}
        self._over: dict[str, Sent] = {}
        self._queue: list[tuple[datetime, str]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """What waits, oldest first: a new link says it again in this order."""
        return iter(tuple(self._waiting.values()))

    def state(self, message_id: str) -> Sent:
        """Where a message is; UNSENT if it is unknown or forgotten."""
        return Sent.WAITING if message_id in self._waiting else self._over.get(message_id, Sent.UNSENT)

    def sent(self, message: Message, data: bytes, now: datetime, chance: float) -> None:
        """Wait for its ACK from now on."""
        if SENDING.after(self.state(message.id), Sending.SEND) is None:
            raise LocalProtocolError(f"message {message.id} is {self.state(message.id)}", field="id")
        known = self._waiting.get(message.id)
        if known is None and len(self._waiting) >= self.most:
            raise LocalProtocolError(f"more than {self.most} messages wait for their ACK")
        attempt = 1 if known is None else known.attempt + 1
        self._waiting[message.id] = Waiting(message, data, attempt, now)
        self._schedule(self._waiting[message.id], now, chance)

    def acknowledged(self, message_id: str) -> bool:
        """Whether the ACK was waited for."""
        if message_id not in self._waiting:
            return False
        self._end(message_id, Sent.ACKNOWLEDGED)
        return True

    def late(self, now: datetime, chance: float) -> list[Late]:
        """What is to be done about everything that has waited long enough."""
        found: list[Late] = []
        while self._queue and self._queue[0][0] <= now:
            due, message_id = heapq.heappop(self._queue)
            entry = self._waiting.get(message_id)
            if entry is None or entry.due != due:  # acknowledged, or sent again since
                continue
            if routing.is_expired(entry.message, now):
                self._end(message_id, Sent.OUTLIVED)
                found.append(Outlived(entry.message, outlived(entry.message)))
            elif entry.attempt >= retry.configured(entry.message.metadata, self.policy).max_attempts:
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
        config = retry.configured(entry.message.metadata, self.policy)
        due = now + timedelta(milliseconds=retry.delay(config, entry.attempt, chance))
        end = routing.expires_at(entry.message)
        entry.due = due if end is None else min(due, max(end, now))
        heapq.heappush(self._queue, (entry.due, entry.message.id))

    def _end(self, message_id: str, state: Sent) -> None:
        del self._waiting[message_id]
        self._over[message_id] = state
        if len(self._over) > self.most:
            del self._over[next(iter(self._over))]


def outlived(message: Message) -> Refusal | None:
    """The refusal for the sender of an expired message: none, unless it was promised more (D6)."""
    if not routing.is_kept(message):
        return None
    ttl = message.metadata.ttl_ms
    what = f"{message.type} {message.id} was not delivered within its {ttl} ms"
    details = {"message_id": message.id, "ttl_ms": ttl}
    return Refusal(error_type=ErrorType.TIMEOUT, message=what, details=details, task_id=routing.task(message))
