"""One end of an A2ACP link, in either role: one JSON object a frame (or one HTTP body), messages in both directions.

The connection knows who is at the agent's end, so it can tell what may be said by whom:

    said by     must have                                                       else
    ----------  --------------------------------------------------------------  ----------------------
    an agent    `source_agent` itself (all-D1)                                  AUTH_FAILED
    an agent    the broker as `target_agent` of what is asked of the broker     SCHEMA_MISMATCH
    the broker  the agent as `target_agent`                                     SCHEMA_MISMATCH
    the broker  itself as `source_agent` of what only the broker says           SCHEMA_MISMATCH
    either      of the broker's intents only what is its own (`intents`)        SCHEMA_MISMATCH

With a replay memory, a message counts once and only in its time (D15). With `pending`, answers find their requests; a
hub keeps requests in its store and needs none. A broken message is an event that knows its answer, except a broken
error: the answer to that would be an error again.

Tokens, contracts, limits and policies are not the link's affair: their checks are pure functions beside this module,
and the hub applies them in its own order.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.errors import A2acpError, Code, Refusal
from dragoman.protocols.a2acp.events import Answered, Event, Invalid, Overdue, Received, Unexpected
from dragoman.protocols.a2acp.replay import Memory
from dragoman.protocols.a2acp.state import Pending
from dragoman.protocols.a2acp.types import ROUTING_SECONDS, Agent, Encryption, Message, MessageType, Stamp
from dragoman.protocols.a2acp.versions import TRANSLATIONS, Translations
from dragoman.wire.connection import Connection as BaseConnection
from dragoman.wire.errors import LocalProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

ANSWERS = (MessageType.RESPONSE, MessageType.ERROR)
#: Whom a refusal goes to when the sender cannot be read: somebody at the other end.
NOBODY = Agent(agent_id="unknown", domain="unknown", version="0.0.0")


class Connection(BaseConnection[Event, Message]):
    """An A2ACP link as seen from one end; `agent` is at the agent's end, `broker` at the other."""

    def __init__(
        self,
        role: Role,
        agent: Agent,
        broker: Agent,
        *,
        limits: Limits = codec.LIMITS,
        translations: Translations = TRANSLATIONS,
        memory: Memory | None = None,
        pending: Pending | None = None,
    ) -> None:
        super().__init__(role)
        self.agent = agent
        self.broker = broker
        self.memory = memory
        self.pending = Pending() if pending is None and role is Role.AGENT else pending
        self._limits = limits
        self._translations = translations

    @property
    def me(self) -> Agent:
        return self.broker if self.role is Role.HUB else self.agent

    @property
    def peer(self) -> Agent:
        return self.agent if self.role is Role.HUB else self.broker

    # --- from the peer ---

    def receive(self, data: bytes, now: datetime | None = None) -> list[Event]:
        """One frame from the peer. Never raises for what the peer did. Without `now` no timestamp is too old."""
        tree: dict[str, Any] = {}
        try:
            tree = codec.parse(data, self._limits)
            tree = codec.understood(tree, self._translations)
            return [self._hear(codec.interpret(tree), tree, data, now)]
        except A2acpError as error:
            asks = tree.get("message_type") != MessageType.ERROR.value
            return [Invalid.of(error, codec.sender(tree), asks=asks)]

    def _hear(self, message: Message, tree: dict[str, Any], data: bytes, now: datetime | None) -> Event:
        fault = self._misspoken(message, self.role.peer)
        if fault is not None:
            field, what, code = fault
            raise codec.refused(tree, what, stage=Stage.MEANING, field=field, code=code)
        if self.memory is not None and now is not None:
            self._once(self.memory, message, tree, now)
        body = None
        if intents.words(message) is not None:
            body = intents.read(message)
        if message.message_type in ANSWERS and self.pending is not None:
            request = self.pending.answered(message)
            if request is None:
                return Unexpected(message)
            error = codec.error(message) if message.message_type is MessageType.ERROR else None
            return Answered(message, request, tree, data, body, error)
        return Received(message, tree, data, body)

    def _once(self, memory: Memory, message: Message, tree: dict[str, Any], now: datetime) -> None:
        sender = message.source_agent.agent_id
        refusal = memory.judge(sender, message.message_id, message.timestamp, now)
        if refusal is not None:
            raise codec.refused(
                tree,
                refusal.message,
                stage=Stage.ORDER,
                field=refusal.details.get("field"),
                code=refusal.code,
                details=refusal.details,
            )
        memory.remember(sender, message.message_id, message.timestamp)

    # --- to the peer ---

    def send(
        self,
        message: Message,
        now: datetime | None = None,
        *,
        data: bytes | None = None,
        seconds: float = ROUTING_SECONDS,
    ) -> bytes:
        """The frame for `message`; `data` is its bytes when it is somebody else's (see `codec.reissue`).

        With `pending`, a request waits for its answer from `now` on, for so many seconds.
        """
        fault = self._misspoken(message, self.role)
        if fault is not None:
            raise LocalProtocolError(fault[1], field=fault[0])
        frame = codec.encode(message) if data is None else data
        if len(frame) > self._limits.bytes:
            raise LocalProtocolError(f"a message of {len(frame)} bytes exceeds the limit of {self._limits.bytes}")
        if self.pending is not None and message.message_type is MessageType.REQUEST:
            self.pending.asked(message, message.timestamp if now is None else now, seconds)
        return frame

    def ask(
        self,
        intent: str,
        payload: Mapping[str, Any],
        stamp: Stamp,
        *,
        to: Agent | None = None,
        encryption: Encryption = "none",
        correlation_id: str | None = None,
        seconds: float = ROUTING_SECONDS,
    ) -> bytes:
        """A request: to the other end, or, from an agent, to whoever it names."""
        made = codec.message(
            MessageType.REQUEST,
            stamp,
            source=self.me,
            target=to or self.peer,
            intent=intent,
            payload=payload,
            encryption=encryption,
            correlation_id=correlation_id,
        )
        return self.send(made, stamp.timestamp, seconds=seconds)

    def answer(
        self, asked: Message, payload: Mapping[str, Any], stamp: Stamp, *, encryption: Encryption = "none"
    ) -> bytes:
        """The response to a request that came over this link."""
        return self.send(codec.answer(asked, stamp, payload, source=self.me, encryption=encryption))

    def tell(
        self, intent: str | None, payload: Mapping[str, Any], stamp: Stamp, *, to: Agent | None = None, **more: Any
    ) -> bytes:
        """An event."""
        kind, target = MessageType.EVENT, to or self.peer
        return self.send(
            codec.message(kind, stamp, source=self.me, target=target, intent=intent, payload=payload, **more)
        )

    def fail(self, asked: Message, refusal: Refusal, stamp: Stamp) -> bytes:
        """The error about a message that was understood and is refused."""
        made = codec.complaint(
            refusal, stamp, source=self.me, target=asked.source_agent, thread=asked.thread, intent=asked.intent
        )
        return self.send(made)

    def refuse(self, event: Invalid, stamp: Stamp) -> bytes | None:
        """The error about a message that was broken, or None where nobody is to be told. It goes to who is connected,
        whatever the message said about its sender."""
        if not event.asks:
            return None
        target = self.agent if self.role is Role.HUB else event.sender or NOBODY
        return self.send(codec.complaint(event.refusal, stamp, source=self.me, target=target, thread=event.thread))

    # --- time ---

    def overdue(self, now: datetime) -> list[Overdue]:
        """The requests that nobody answered in time."""
        return [] if self.pending is None else self.pending.overdue(now)

    @property
    def next_due(self) -> datetime | None:
        return None if self.pending is None else self.pending.next_due

    def _misspoken(self, message: Message, speaker: Role) -> tuple[str, str, Code] | None:
        return misspoken(message, speaker, self.agent, self.broker)


def misspoken(message: Message, speaker: Role, agent: Agent, broker: Agent) -> tuple[str, str, Code] | None:
    """Why `speaker` may not say this on a link between these two: the field, the reason, the code."""
    source, target = message.source_agent, message.target_agent
    if speaker is Role.AGENT and (source.agent_id, source.domain) != (agent.agent_id, agent.domain):
        return "source_agent", "is not who is connected", Code.AUTH_FAILED
    if speaker is Role.HUB and target.agent_id != agent.agent_id:
        return "target_agent.agent_id", f"{target.agent_id!r} is not who is connected", Code.SCHEMA_MISMATCH
    found = intents.words(message)
    if found is None:
        return None
    if found[0] not in (None, speaker):
        what = f"{message.intent} as {message.message_type} is not said by the {speaker.value}"
        return "intent", what, Code.SCHEMA_MISMATCH
    field, party = ("target_agent", target) if speaker is Role.AGENT else ("source_agent", source)
    if found[0] is not None and party.agent_id != broker.agent_id:
        what = f"{message.intent} is only between an agent and the broker"
        return f"{field}.agent_id", what, Code.SCHEMA_MISMATCH
    return None
