"""Agentmsg's handler: decodes and encodes the same way for HTTP and WebSocket.

    the agent sends                     it becomes
    ----------------------------------  --------------------------------------------------------------------------------
    a message for the first time        its commands; after the commit, an ACK (if it is kept), WELCOME, or the version
    one that came before                the same answer again; none while the first one is being decided
    REGISTER, STATE_QUERY again         answered again
    an ACK                              acknowledged deliveries
    STATE_QUERY                         a look at the shared state
    a message that is too old           a TIMEOUT, where its sender was promised more (D6)
    anything else                       an ERROR_REPORT, never about an ERROR_REPORT or an ACK

What the handler remembers of each agent is bounded and only in memory. After a restart the store still recognises what
the hub accepted, and offers again what was not acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.core.commands import Beat, ReportProgress
from dragoman.core.ids import ADMIN, AgentId, DeliveryId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.state import Entity
from dragoman.core.ports import Files, Intake, Store
from dragoman.core.queries.state import StateView
from dragoman.messages.brevity import CUT, in_short
from dragoman.messages.faults import Fault, Refused
from dragoman.protocols.agentmsg import codec, connection, routing
from dragoman.protocols.agentmsg.connection import Connection, Inbox
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.types import Message, MessageType
from dragoman.server.agentmsg import answers, inbound, outbound, views
from dragoman.server.agentmsg.ids import agent_named, delivery_of, derived_v4
from dragoman.server.agentmsg.inbound.message import Inbound, moment, outlived
from dragoman.server.asgi import Scope
from dragoman.server.files import file_id_in, with_file
from dragoman.server.handler import HttpHandler
from dragoman.server.limits import Limits
from dragoman.server.session import (
    Acknowledged,
    Answered,
    CommandFrame,
    Ignored,
    Invalid,
    LookUp,
    Request,
    read_account,
)
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.role import Role

MOST_AGENTS = 10_000
"""Agents whose last messages are remembered; the store knows the others', too."""
MOST_VERSIONS = 10_000
MOST_RECOGNISED = 1024
"""Messages of one agent that are recognised without asking the store."""
MOST_UNDECIDED = 10_000
"""Messages of one agent that are being decided, over all its connections and requests."""
MOST_DELIVERED = 4096

ANSWERED_AGAIN = frozenset({MessageType.REGISTER, MessageType.STATE_QUERY, MessageType.TASK_ASSIGNMENT})

_encode = msgspec.json.Encoder().encode

BARE = "bare"
"""Context of a refusal: the request came without a message around it, and its fields are named so."""

Look = Callable[[Agent, Message], Awaitable[Sequence[bytes]]]
"""Answers a STATE_QUERY."""

Decoded = CommandFrame | LookUp | Invalid | Acknowledged | Answered | Ignored
"""Agentmsg has no batches and no pieces."""


class About(msgspec.Struct, frozen=True):
    """What an answer answers. `asks`: whether the sender gets a refusal."""

    id: str | None
    asks: bool = True
    message: Message | None = None

    @property
    def type(self) -> MessageType | None:
        return None if self.message is None else self.message.type

    @property
    def task(self) -> str | None:
        return None if self.message is None else routing.task(self.message)


class Delivered:
    """The messages that one agent was given and has not acknowledged: an ACK names messages, the hub needs deliveries.

    a message of the hub     its id is the delivery's, with another version number
    a message of an agent    is remembered here; of two with the same id, the older one is acknowledged first
    """

    def __init__(self) -> None:
        self._deliveries: dict[str, deque[DeliveryId]] = {}

    def __len__(self) -> int:
        return len(self._deliveries)

    def add(self, message_id: str, delivery: DeliveryId) -> None:
        if delivery_of(message_id) == delivery:
            return
        same = self._deliveries.setdefault(message_id, deque(maxlen=16))
        if delivery not in same:
            same.append(delivery)
        if len(self._deliveries) > MOST_DELIVERED:
            del self._deliveries[next(iter(self._deliveries))]

    def acknowledged(self, message_ids: Iterable[str]) -> tuple[DeliveryId, ...]:
        found = []
        for id in message_ids:
            same = self._deliveries.get(id)
            if same is None:
                found.append(delivery_of(id))
                continue
            found.append(same.popleft())
            if not same:
                del self._deliveries[id]
        return tuple(found)


class Peer(msgspec.Struct, frozen=True):
    """One agent, over all its connections and requests."""

    connection: Connection
    delivered: Delivered


class AgentmsgHandler(HttpHandler):
    protocol = PROTOCOL

    def __init__(
        self,
        hub: Intake,
        store: Store,
        state: StateView,
        *,
        limits: Limits,
        admin_hash: str | None = None,
        heartbeat_seconds: float = 10.0,
        files: Files | None = None,
    ) -> None:
        super().__init__(hub, store, limits=limits, admin_hash=admin_hash, files=files)
        self.state = state.in_words(views.task_error, views.task_history)
        self._heartbeat = heartbeat_seconds
        self._peers: dict[AgentId, Peer] = {}
        self._versions: dict[tuple[AgentId, str], int] = {}

    # -- agents

    def reader(self, scope: Scope) -> AgentId:
        """The agent of this protocol, or the admin, that asks for the shared state; raises `Refused`."""
        return ADMIN if self.is_admin(scope) else self.agent(scope).id

    def alive(self, agent: AgentId) -> None:
        """The agent sent something that becomes no command (D12)."""
        if agent != ADMIN:
            self.hub.enqueue_and_forget(Beat(principal=agent, protocol=PROTOCOL))

    def peer(self, agent: AgentId) -> Peer:
        peer = self._peers.get(agent)
        if peer is None:
            inbox = Inbox(MOST_RECOGNISED, most_held=MOST_UNDECIDED, holds_all=True)
            peer = Peer(Connection(Role.HUB, agent, limits=self.guard, inbox=inbox), Delivered())
            self._peers[agent] = peer
            if len(self._peers) > MOST_AGENTS:
                del self._peers[next(iter(self._peers))]
        return peer

    def message_id(self) -> str:
        """For a message of the hub."""
        return derived_v4(self.hub.mint())

    # -- in

    def decode(
        self, agent: Agent, data: bytes, look: Look, *, traceparent: str | None = None, waits: bool = False
    ) -> Decoded:
        """Never raises. `waits`: the request waits for its answer, so a message that is still being decided becomes its
        commands again; the store recognises it."""
        peer = self.peer(agent.id)
        now = moment(self.hub.now()) if b"ttl_ms" in data else None  # nothing else expires
        match peer.connection.receive(data, now)[0]:
            case connection.Received() as received:
                return self._received(agent, received, look, traceparent)
            case connection.Acknowledged(message=message, message_ids=named):
                return Acknowledged(self._acknowledged(peer, message, named), message.id)
            case connection.Repeated() as repeated:
                return self._repeated(agent, repeated, look, traceparent, waits=waits)
            case connection.Outlived(message=message):
                about = About(message.id, routing.is_kept(message))
                return Invalid(outlived(message), message.id, about)
            case connection.Invalid(error=error, asks=asks):
                return Invalid(error.fault, error.about, About(error.about, asks))

    def _received(self, agent: Agent, received: connection.Received, look: Look, traceparent: str | None) -> Decoded:
        message, tree = received.message, received.tree
        about = About(message.id, message=message)
        if message.type is MessageType.STATE_QUERY:
            self.alive(agent.id)
            return LookUp(partial(look, agent, message), Request(message.id, about), after_commits=True)
        known = Inbound(
            agent,
            message,
            tree,
            received.raw,
            now=self.hub.now(),
            traceparent=traceparent,
            content=received.content,
            holds=partial(self.hub.holds, agent.id),
        )
        try:
            first, *also = inbound.commands_of(known)
        except Refused as refused:
            return Invalid(refused.fault, message.id, about)
        otherwise = None
        if message.type in inbound.FORWARDED and agent_named(message.to) is not None:
            otherwise = partial(inbound.forward_instead, known)
        versioned = message.type is MessageType.STATE_UPDATE  # its ACK has the version
        request = Request(
            message.id,
            about,
            also=tuple(also),
            otherwise=otherwise,
            receipt=received.wants_ack and not versioned,
            lane=about.task,
        )
        if isinstance(first, ReportProgress) and (file := file_id_in(tree["payload"])) is not None:
            return LookUp(partial(with_file, first, self.files, file), request)
        return CommandFrame(first, request)

    def _repeated(
        self, agent: Agent, repeated: connection.Repeated, look: Look, traceparent: str | None, *, waits: bool
    ) -> Decoded:
        received = repeated.received
        message = received.message
        self.alive(agent.id)
        if repeated.acknowledged and message.type is not MessageType.TASK_ASSIGNMENT:  # its outcome is sent again, too
            version = self._versions.get((agent.id, message.id))
            return Answered((self.encode_receipt((message.id,), agent.id, version),), message.id)
        if message.type in ANSWERED_AGAIN or (waits and received.wants_ack):
            return self._received(agent, received, look, traceparent)
        return Ignored(message.id)

    def _acknowledged(self, peer: Peer, ack: Message, named: Sequence[str]) -> tuple[DeliveryId, ...]:
        exact, about = ack.metadata.delivery_id, ack.metadata.correlation_id
        if exact is None:
            return peer.delivered.acknowledged(named)
        return (DeliveryId(exact.lower()), *peer.delivered.acknowledged(id for id in named if id != about))

    # -- out

    def encode_answer(self, agent: Agent, about: About, outcome: Any) -> Sequence[bytes]:
        """All commands of a message are committed: what answers it beside the ACK, if anything."""
        message = about.message
        if message is None:
            return ()
        self.peer(agent.id).connection.accept(message)
        match message.type, outcome:
            case MessageType.REGISTER, Agent():
                payload = answers.welcome(outcome, self._heartbeat)
                return (self.frame(MessageType.WELCOME, payload, agent.id, message.id),)
            case MessageType.STATE_UPDATE, Entity(version=version):
                self._versions[agent.id, message.id] = version
                if len(self._versions) > MOST_VERSIONS:
                    del self._versions[next(iter(self._versions))]
                return (self.encode_receipt((message.id,), agent.id, version),)
        return ()

    def encode_receipt(self, message_ids: Sequence[str], to: AgentId, version: int | None = None) -> bytes:
        """One ACK for messages that cannot be lost any more."""
        return self.frame(MessageType.ACK, answers.acknowledgment(message_ids, version), to, message_ids[0])

    def frame(self, kind: MessageType, payload: Mapping[str, Any], to: AgentId, about: str | None) -> bytes:
        """A message of the hub that is no delivery; `about` is the id of the message that it answers."""
        return answers.frame(kind, payload, to=to, now=self.hub.now(), message_id=self.message_id(), about=about)

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        output = await self._read_output(outgoing) if ends_in_pieces(outgoing) else None
        return (self.encode_with(outgoing, agent, now, output),)

    def encode_with(self, outgoing: Outgoing, agent: Agent, now: Instant, whole: str | None = None) -> bytes:
        """The frame of an outgoing message. `whole` is the output of one that `ends_in_pieces`."""
        frame, message_id = outbound.wire_of(outgoing, agent, now, whole=whole)
        delivery = outgoing.delivery
        if not delivery.leaves_once:
            self.peer(agent.id).delivered.add(message_id, delivery.id)
        return frame

    async def _read_output(self, outgoing: Outgoing) -> str:
        most = self.limits.message_bytes // 2
        account = await read_account(self.store, outgoing.delivery.task, outgoing.event.seq, most)
        short = in_short(account.output, most)
        return short + CUT if account.truncated and short == account.output else short

    # -- refusals

    def release(self, agent: AgentId, about: About) -> None:
        """The message was refused: when it comes again, it counts as new."""
        if about.message is not None:
            self.peer(agent).connection.release((about.message,))

    def encode_error_report(self, fault: Fault, about: About | None, to: AgentId) -> bytes:
        """The ERROR_REPORT about a refused message; empty where its sender gets none."""
        about = about or About(None)
        self.release(to, about)
        if not about.asks:
            return b""
        id, kind = self.message_id(), MessageType.ERROR_REPORT
        report = answers.error_report(fault, error_id=id, task=about.task, refused=about.type)
        return answers.frame(kind, report, to=to, now=self.hub.now(), message_id=id, about=about.id)

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The report alone, as the body of an HTTP answer."""
        about = context if isinstance(context, About) else About(None)
        report = answers.error_report(fault, error_id=self.message_id(), task=about.task, refused=about.type)
        if context == BARE and fault.field is not None:
            report["context"]["details"]["field"] = fault.field.removeprefix("payload.")
        return _encode(report)

    def status_of(self, fault: Fault) -> int:
        return answers.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        return error.fault if isinstance(error, AgentmsgError) else super().fault_of(error)

    def json(self, data: bytes) -> dict[str, Any]:
        """A body that is no message; raises `Refused`."""
        try:
            return codec.parse(data, self.guard)
        except AgentmsgError as error:
            raise Refused(error.fault) from None


def ends_in_pieces(outgoing: Outgoing) -> bool:
    """Whether the output of a result must be read first."""
    return outgoing.delivery.kind is MessageKind.RESULT and outbound.ends_in_pieces(outgoing.event)
