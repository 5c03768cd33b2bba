"""One end of an agentmsg link, in either role: one JSON object a frame, messages in both directions.

The connection knows who is at the agent's end, so it can tell what may be said by whom:

    said by     must have                                               else
    ----------  ------------------------------------------------------  --------------------------------------------
    an agent    `from` its own id (all-D1)                              AUTHENTICATION_ERROR
    an agent    `to: "hub"` on REGISTER, STATE_UPDATE and STATE_QUERY   VALIDATION_ERROR
    the hub     `to` the agent's id, or `*`                             VALIDATION_ERROR
    the hub     `from: "hub"` on WELCOME, STATE_UPDATE and STATE_QUERY  VALIDATION_ERROR

It recognises what came twice (`state.Inbox`), and, where it is given an outbox, sends again what was not acknowledged.
Time comes as a value: `now` is an aware datetime.

ACKs belong to the link, not to the conversation: the receiver of a message acknowledges it to the other end of the
link it came by, when it cannot be lost any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.events import Acknowledged, Event, Invalid, Late, Outlived, Received, Repeated
from dragoman.protocols.agentmsg.records import ErrorType, Record
from dragoman.protocols.agentmsg.state import Heard, Inbox, Outbox, outlived
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

#: Who may say it, where not everybody may.
ONLY: dict[type[Record], Role] = {Register: Role.AGENT, Welcome: Role.HUB, StateAnswer: Role.HUB}
#: What is only ever said between an agent and the hub itself.
WITH_THE_HUB = frozenset({MessageType.REGISTER, MessageType.WELCOME, MessageType.STATE_UPDATE, MessageType.STATE_QUERY})
#: A broken one of these is not answered: the answer would be one of them again.
UNANSWERED = frozenset({MessageType.ERROR_REPORT.value, MessageType.ACK.value})


class Connection:
    """An agentmsg link as seen from one end; `agent_id` is who is at the agent's end."""

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
            return [self._hear(codec.interpret(tree), tree, data, now)]
        except AgentmsgError as error:
            return [Invalid.of(error, asks=str(tree.get("type")) not in UNANSWERED)]

    def _hear(self, message: Message, tree: dict[str, Any], data: bytes, now: datetime | None) -> Event:
        fault = _misspoken(message, self.role.peer, self.agent_id)
        if fault is not None:
            field, what, error_type = fault
            raise AgentmsgError(what, stage=Stage.MEANING, field=field, about=message.id, error_type=error_type)
        if message.type is MessageType.ACK:
            return Acknowledged(message, self._settle(message))
        content = codec.fingerprint(tree)
        key = self._key(message)
        memo = self.inbox.find(key)
        if memo is not None:
            if memo.fingerprint != content:
                what = "already used for other content; choose a new one"
                raise AgentmsgError(what, stage=Stage.ORDER, field="id", about=message.id)
            return Repeated(message, memo.state is Heard.DONE and routing.is_kept(message))
        if now is not None and routing.is_expired(message, now):
            return Outlived(message, outlived(message))
        wants_ack = routing.is_kept(message)
        if wants_ack and self.inbox.full:
            what = f"more than {self.inbox.most} messages are held"
            kind = ErrorType.RESOURCE_EXHAUSTED
            raise AgentmsgError(what, stage=Stage.ORDER, about=message.id, error_type=kind)
        self.inbox.take(key, content, held=wants_ack)
        return Received(message, tree, data, wants_ack, content)

    def _settle(self, ack: Message) -> tuple[str, ...]:
        """The messages of ours which an ACK says have arrived; without an outbox, all it names."""
        correlation = ack.metadata.correlation_id
        named = dict.fromkeys(map(codec.lowered, (*([correlation] if correlation else ()), *ack.payload.message_ids)))
        return tuple(name for name in named if self.outbox is None or self.outbox.acknowledged(name))

    def _key(self, message: Message) -> str:
        """Ids are unique for each sender only (all-D5); an agent hears many of them over one link."""
        return f"{message.sender}\n{message.id}"

    # --- to the peer ---

    def send(
        self, message: Message, now: datetime | None = None, *, chance: float = 0.5, data: bytes | None = None
    ) -> bytes:
        """The frame for `message`; `data` is its bytes when another agent wrote it (see `codec.reissue`).

        With an outbox, what is promised at least once waits for its ACK from `now` on.
        """
        fault = _misspoken(message, self.role, self.agent_id)
        if fault is not None:
            raise LocalProtocolError(fault[1], field=fault[0])
        frame = codec.encode(message) if data is None else data
        if len(frame) > self._limits.bytes:
            raise LocalProtocolError(f"a message of {len(frame)} bytes exceeds the limit of {self._limits.bytes}")
        if self.outbox is not None and routing.is_kept(message):
            self.outbox.sent(message, frame, message.timestamp if now is None else now, chance)
        return frame

    def say(
        self, payload: Record, stamp: Stamp, *, to: str | None = None, chance: float = 0.5, **metadata: Any
    ) -> bytes:
        """A payload as a message of this end: to the other end, or to the receiver that an agent names."""
        message = codec.message(payload, stamp, sender=self.me, to=to or self.peer, **metadata)
        return self.send(message, stamp.timestamp, chance=chance)

    def acknowledge(self, messages: Sequence[Message], stamp: Stamp, *, version: int | None = None) -> bytes:
        """One ACK for messages that cannot be lost any more."""
        for message in messages:
            if not self.inbox.acknowledge(self._key(message)):
                raise LocalProtocolError(f"no message {message.id} to acknowledge", field="metadata.correlation_id")
        first, *rest = [message.id for message in messages]
        payload = Ack(message_ids=(first, *rest) if rest else (), version=version)
        return self.say(payload, stamp, correlation_id=first)

    def release(self, messages: Iterable[Message]) -> None:
        """These could not be taken; when they come again they count as new."""
        for message in messages:
            self.inbox.release(self._key(message))

    def refuse(self, event: Invalid | Outlived, stamp: Stamp) -> bytes | None:
        """The ERROR_REPORT about a message that was broken or too old, or None where nobody is to be told."""
        if event.refusal is None or (isinstance(event, Invalid) and not event.asks):
            return None
        about = event.about if isinstance(event, Invalid) else event.message.id
        return self.say(event.refusal.report(stamp.id, self.me), stamp, correlation_id=about)

    # --- time ---

    def late(self, now: datetime, chance: float = 0.5) -> list[Late]:
        """What was not acknowledged in time: to be sent again, dead, or outlived."""
        return [] if self.outbox is None else self.outbox.late(now, chance)

    @property
    def next_due(self) -> datetime | None:
        return None if self.outbox is None else self.outbox.next_due


def _misspoken(message: Message, speaker: Role, agent_id: str) -> tuple[str, str, ErrorType] | None:
    """Why `speaker` may not say this on a link with `agent_id`: the field, the reason, the kind of error."""
    if speaker is Role.AGENT and message.sender != agent_id:
        what = f"this token belongs to agent {agent_id!r}, not to {message.sender!r}"
        return "from", what, ErrorType.AUTHENTICATION_ERROR
    if speaker is Role.HUB and message.to not in (agent_id, ANYONE):
        what = f"this token belongs to agent {message.to!r}, not to {agent_id!r}"
        return "to", what, ErrorType.VALIDATION_ERROR
    if ONLY.get(type(message.payload), speaker) is not speaker:
        return "type", f"the {speaker.value} does not say {message.type.value}", ErrorType.VALIDATION_ERROR
    if message.type in WITH_THE_HUB:
        field, party = ("to", message.to) if speaker is Role.AGENT else ("from", message.sender)
        if party != HUB:
            what = f"{message.type.value} is only between an agent and the hub"
            return field, what, ErrorType.VALIDATION_ERROR
    return None
