"""Agentmsg's handler: who sends, what a message means, and how a refusal is encoded.

HTTP and WebSocket share it, so that the same message is understood, refused and recorded in the same way over both.

    what came                           becomes
    ----------------------------------  --------------------------------------------------------------------------------
    a message for the first time        its commands; with `once` decided, ACK (if it is kept), WELCOME, or the version
    one that came before                the same answer again; of what is still being decided, its one answer follows
    REGISTER, STATE_QUERY again         answered anew: whoever asked asks again
    an ACK                              acknowledged deliveries
    STATE_QUERY                         a look at the shared state
    a message that outlived itself      TIMEOUT for its sender, where it was promised more (D6)
    anything else                       an ERROR_REPORT, never about an ERROR_REPORT or an ACK
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from dragoman.core.commands import Beat, ReportProgress
from dragoman.core.ids import ADMIN, EPOCH, AgentId, DeliveryId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.model.state import Entity
from dragoman.core.ports import Files, Intake, Store
from dragoman.core.queries.state import StateView
from dragoman.messages.brevity import CUT, in_short
from dragoman.messages.faults import Fault, Refused
from dragoman.protocols.agentmsg import codec, routing
from dragoman.protocols.agentmsg.connection import (
    Acknowledged,
    Connection,
    Inbox,
    Invalid,
    Outlived,
    Received,
    Repeated,
)
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.types import ANYONE, HUB, Message, MessageType
from dragoman.server import authentication, session
from dragoman.server.agentmsg import binding as agentmsg
from dragoman.server.agentmsg.memory import MOST_HEARD, MOST_HELD, Handed
from dragoman.server.agentmsg.names import PROTOCOL, derived_v4
from dragoman.server.asgi import Scope
from dragoman.server.files import file_id_in, with_file
from dragoman.server.handler import HttpHandler
from dragoman.server.limits import Limits
from dragoman.server.outgoing import read_account
from dragoman.server.session import Answered, CommandFrame, Ignored, LookUp, Request
from dragoman.wire.errors import RemoteProtocolError
from dragoman.wire.role import Role

MOST_AGENTS = 10_000
"""Agents whose last messages are remembered; the store knows the others' too."""
MOST_VERSIONS = 10_000

NOBODY = frozenset({HUB, ANYONE})
ASKED_AGAIN = frozenset({MessageType.REGISTER, MessageType.STATE_QUERY, MessageType.TASK_ASSIGNMENT})

_encode = msgspec.json.Encoder().encode

BARE = "bare"
"""Of a refusal: the request came without a message around it, and its fields are named so."""

Look = Callable[[Agent, Message], Awaitable[Sequence[bytes]]]

Whole = CommandFrame | LookUp | session.Invalid | session.Acknowledged | Answered | Ignored
"""Agentmsg has no batches."""


class About(msgspec.Struct, frozen=True):
    """What an answer answers. `asks`: whether its sender is told when it is refused."""

    id: str | None
    asks: bool = True
    message: Message | None = None

    @property
    def type(self) -> MessageType | None:
        return None if self.message is None else self.message.type

    @property
    def task(self) -> str | None:
        return None if self.message is None else routing.task(self.message)


class Line(msgspec.Struct, frozen=True):
    """One agent, over all its links and requests."""

    connection: Connection
    handed: Handed


class AgentmsgHandler(HttpHandler):
    """One for all of agentmsg's endpoints."""

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
        self.state = state.in_words(agentmsg.error_of, agentmsg.recounted)
        self._heartbeat = heartbeat_seconds
        self._lines: dict[AgentId, Line] = {}
        self._versions: dict[tuple[AgentId, str], int] = {}

    # -- who

    def reader(self, scope: Scope) -> AgentId:
        """Whoever may use the shared state: an agent of this protocol, or the admin."""
        return ADMIN if authentication.is_admin(scope, self._admin_hash) else self.agent(scope).id

    def alive(self, agent: AgentId) -> None:
        """It said something that asks nothing of the hub (D12)."""
        if agent != ADMIN:
            self.hub.enqueue_and_forget(Beat(principal=agent, protocol=PROTOCOL))

    def line(self, agent: AgentId) -> Line:
        line = self._lines.get(agent)
        if line is None:
            inbox = Inbox(MOST_HEARD, most_held=MOST_HELD, holds_all=True)
            connection = Connection(Role.HUB, agent, limits=self.guard, inbox=inbox)
            line = self._lines[agent] = Line(connection, Handed())
            if len(self._lines) > MOST_AGENTS:
                del self._lines[next(iter(self._lines))]
        return line

    def message_id(self) -> str:
        """For a message of the hub's own."""
        return derived_v4(self.hub.mint())

    def time(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.hub.now())

    # -- what

    def decode(
        self, agent: Agent, data: bytes, look: Look, *, traceparent: str | None = None, waits: bool = False
    ) -> Whole:
        """A message as what it means, or the fault to answer with. Never raises.

        `look` answers a STATE_QUERY. `waits`: somebody waits for the answer to this very request, so a message that is
        still being decided is handed in again; the store recognises it.
        """
        line = self.line(agent.id)
        now = self.time() if b"ttl_ms" in data else None  # nothing else expires
        event = line.connection.receive(data, now)[0]
        match event:
            case Received(message=message, tree=tree, wants_ack=kept, content=content):
                return self._received(
                    agent, message, tree, data, look, kept=kept, traceparent=traceparent, content=content
                )
            case Acknowledged(message=message, message_ids=named):
                return session.Acknowledged(self._settled(line, message, named), message.id)
            case Repeated(message=message, acknowledged=done):
                return self._again(agent, message, data, look, done=done, traceparent=traceparent, waits=waits)
            case Outlived(message=message):
                fault = agentmsg.outlived(message.type.value, message.id, message.metadata.ttl_ms or 0)
                return session.Invalid(fault, message.id, About(message.id, routing.is_kept(message)))
            case Invalid(error=error, asks=asks):
                return session.Invalid(agentmsg.fault_of(error), error.about, About(error.about, asks))

    def _received(
        self,
        agent: Agent,
        message: Message,
        tree: dict[str, Any],
        data: bytes,
        look: Look,
        *,
        kept: bool,
        traceparent: str | None,
        content: bytes | None = None,
    ) -> Whole:
        about = About(message.id, message=message)
        if message.type is MessageType.STATE_QUERY:
            self.alive(agent.id)
            return LookUp(partial(look, agent, message), Request(message.id, about), after_commits=True)
        try:
            commands = agentmsg.commands_of(
                agent,
                message,
                tree,
                data,
                traceparent=traceparent,
                now=self.hub.now(),
                holds=partial(self.hub.holds, agent.id),
                content=content,
            )
        except Refused as refused:
            return session.Invalid(refused.fault, message.id, about)
        carried = message.to not in NOBODY and message.type in agentmsg.CARRIED
        versioned = message.type is MessageType.STATE_UPDATE  # its ACK says more
        first = commands[0]
        request = Request(
            message.id,
            about,
            also=commands[1:],
            otherwise=partial(agentmsg.otherwise, agent, message, tree, data) if carried else None,
            receipt=kept and not versioned,
            lane=about.task,
        )
        if isinstance(first, ReportProgress) and (file := file_id_in(tree.get("payload"))) is not None:
            return LookUp(partial(with_file, first, self.files, file), request)
        return CommandFrame(first, request)

    def _again(
        self,
        agent: Agent,
        message: Message,
        data: bytes,
        look: Look,
        *,
        done: bool,
        traceparent: str | None,
        waits: bool,
    ) -> Whole:
        self.alive(agent.id)
        if done and message.type is not MessageType.TASK_ASSIGNMENT:  # its outcome is told again, too
            version = self._versions.get((agent.id, message.id))
            return Answered((self.encode_receipt((message.id,), agent.id, version),), message.id)
        kept = routing.is_kept(message)
        if message.type in ASKED_AGAIN or (waits and kept):
            tree = codec.parse(data, self.guard)
            return self._received(agent, message, tree, data, look, kept=kept, traceparent=traceparent)
        return Ignored(message.id)

    def _settled(self, line: Line, ack: Message, named: Sequence[str]) -> tuple[DeliveryId, ...]:
        exact, about = ack.metadata.delivery_id, ack.metadata.correlation_id
        if exact is None:
            return line.handed.take(named)
        return (DeliveryId(exact.lower()), *line.handed.take(id for id in named if id != about))

    # -- what it came to

    def encode_answer(self, agent: Agent, about: About, outcome: Any) -> Sequence[bytes]:
        """All of a message's commands are committed: what it is answered with beside the ACK, if anything."""
        message = about.message
        if message is None:
            return ()
        self.line(agent.id).connection.accept(message)
        match message.type, outcome:
            case MessageType.REGISTER, Agent():
                return (
                    agentmsg.welcome(
                        outcome,
                        now=self.hub.now(),
                        message_id=self.message_id(),
                        about=message.id,
                        heartbeat_seconds=self._heartbeat,
                    ),
                )
            case MessageType.STATE_UPDATE, Entity(version=version):
                self._versions[agent.id, message.id] = version
                if len(self._versions) > MOST_VERSIONS:
                    del self._versions[next(iter(self._versions))]
                return (self.encode_receipt((message.id,), agent.id, version),)
        return ()

    def undone(self, agent: AgentId, about: About) -> None:
        """It was refused: when it comes again, it counts as new."""
        if about.message is not None:
            self.line(agent).connection.release((about.message,))

    # -- what the hub sends

    def encode_receipt(self, message_ids: Sequence[str], to: AgentId, version: int | None = None) -> bytes:
        """One ACK for messages that cannot be lost any more."""
        return agentmsg.acknowledgment(
            message_ids, to=to, now=self.hub.now(), message_id=self.message_id(), version=version
        )

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        output = await self.read_output(outgoing) if in_pieces(outgoing) else None
        return (self.encode_with(outgoing, agent, now, output),)

    def encode_with(self, outgoing: Outgoing, agent: Agent, now: Instant, whole: str | None = None) -> bytes:
        """An outgoing message as its message; what must be acknowledged is remembered. `whole` is the output of one
        that is `in_pieces`."""
        frame, message_id = agentmsg.wire_of(outgoing, agent, now, whole=whole)
        delivery = outgoing.delivery
        if not delivery.leaves_once:
            self.line(agent.id).handed.give(message_id, delivery.id)
        return frame

    async def read_output(self, outgoing: Outgoing) -> str:
        """The output of a task that came in pieces."""
        most = self.limits.message_bytes // 2
        told = await read_account(self.store, outgoing.delivery.task, outgoing.event.seq, most)
        short = in_short(told.output, most)
        return short + CUT if told.truncated and short == told.output else short

    # -- refusals

    def encode_error_report(self, fault: Fault, about: About | None, to: AgentId) -> bytes:
        """The ERROR_REPORT about a refused message; empty where nobody is to be told."""
        if about is not None:
            self.undone(to, about)
            if not about.asks:
                return b""
        return agentmsg.refusal(
            fault,
            to=to,
            now=self.hub.now(),
            message_id=self.message_id(),
            about=None if about is None else about.id,
            task_id=None if about is None else about.task,
            said=None if about is None else about.type,
        )

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        """The report alone, as the body of an HTTP answer. `BARE`: the fields it names are not those of a message."""
        about = context if isinstance(context, About) else None
        told = agentmsg.report(
            fault,
            error_id=self.message_id(),
            task_id=None if about is None else about.task,
            said=None if about is None else about.type,
        )
        if context == BARE and fault.field is not None:
            told["context"]["details"]["field"] = fault.field.removeprefix("payload.")
        return _encode(told)

    def status_of(self, fault: Fault) -> int:
        return agentmsg.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        return agentmsg.fault_of(error) if isinstance(error, AgentmsgError) else super().fault_of(error)

    def json(self, data: bytes) -> dict[str, Any]:
        """A body of ours; raises `Refused`."""
        try:
            return codec.parse(data, self.guard)
        except AgentmsgError as error:
            raise Refused(agentmsg.fault_of(error)) from None


def in_pieces(outgoing: Outgoing) -> bool:
    """Whether a result must be put together first."""
    return outgoing.delivery.kind is MessageKind.RESULT and agentmsg.ends_in_pieces(outgoing.event)
