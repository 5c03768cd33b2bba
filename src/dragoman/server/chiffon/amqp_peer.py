"""One agent's messages over AMQP, in order: a connection loop as that of a WebSocket, over which nothing is written.

The session says of each decision which of the broker's deliveries it is about; `amqp_inbox` does the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from dragoman.amqp import Arrival, Broker
from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, SessionId
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Fault
from dragoman.protocols.chiffon import amqp
from dragoman.protocols.chiffon.types import Correlation
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.chiffon.websocket import ChiffonSession
from dragoman.server.connection import ConnectionLoop
from dragoman.server.session import CommandFrame, Connection, Decoded, Invalid, LookUp, Request

HOLD_SECONDS = 1.0
OPERATIONS = frozenset(map(amqp.key_of, (amqp.REGISTER, amqp.LISTEN, amqp.LEAVE, *amqp.VERBS)))
"""The routing keys of what chiffon has no message for."""


class Message(msgspec.Struct, eq=False, gc=False):
    """A delivery of the broker without its token; `credential` only serves to find it in a copy."""

    broker: Broker
    arrival: Arrival
    body: bytes
    credential: str | None
    peer: Peer | None = None

    def __repr__(self) -> str:
        return f"Message({self.arrival.tag})"

    @property
    def answer_to(self) -> str | None:
        place = self.arrival.reply_to
        return place if place is not None and place.startswith(f"{amqp.REPLIES}.") else None

    def tell(self, text: bytes) -> None:
        """Tell the sender, if it still waits for answers."""
        if self.answer_to is not None:
            self.broker.reply(self.answer_to, text)

    def header(self, name: str) -> str | None:
        value = self.arrival.headers.get(name)
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return value if isinstance(value, str) else None


class Context(msgspec.Struct, frozen=True):
    """What a decision's answer needs."""

    message: Message
    about: Correlation | None = None


class Outcomes(Protocol):
    """What becomes of messages (`amqp_inbox.AmqpInbox`)."""

    @property
    def handler(self) -> ChiffonHandler: ...

    def accepted(self, message: Message, id: str | None) -> None: ...

    def refused(self, message: Message, fault: Fault, agent: Agent | None, about: Correlation | None) -> None: ...

    async def operate(self, message: Message, id: AgentId) -> Sequence[bytes]: ...


class Peer:
    """One agent's messages, in order. It is its own loop's wire, over which nothing is written."""

    has_room = True

    def __init__(self, inbox: Outcomes, agent: Agent) -> None:
        self._inbox = inbox
        self._agent = agent.id
        self._stopped = False
        self._waiting: deque[Message] = deque()
        self.held: list[Message] = []
        self.open: dict[int, Message] = {}
        self._again: asyncio.TimerHandle | None = None
        self.loop = ConnectionLoop(
            inbox.handler.hub,
            agent.id,
            SessionId(inbox.handler.hub.mint()),
            lambda connection: AmqpSession(inbox, agent, connection),
            self,
            hang_up=lambda reason: None,
            paced=False,
        )

    def receive(self, message: Message) -> None:
        self.open[message.arrival.tag] = message
        if self._stopped or self._waiting:
            self._waiting.append(message)
        else:
            self._feed(message)

    def _feed(self, message: Message) -> None:
        self.loop.session.expect(message)
        self.loop.receive(message.body)

    def hold(self, message: Message) -> None:
        """The hub could not take it now: decide it again in a moment."""
        self.held.append(message)
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._feed_again)

    def _feed_again(self) -> None:
        self._again = None
        held, self.held = sorted(self.held, key=lambda message: message.arrival.tag), []
        if self._inbox.handler.hub.agent(self._agent) is not None:
            for message in held:
                self._feed(message)

    def forget(self) -> None:
        """The connection is gone, or the hub stops: the broker delivers all of it again."""
        self._waiting.clear()
        self.held.clear()
        self.open.clear()
        if self._again is not None:
            self._again.cancel()
            self._again = None

    # -- `connection.Wire`

    def write(self, frames: Sequence[bytes]) -> None:
        """Answers go by `AmqpInbox`, which knows to whom."""

    def ping(self) -> None:
        """Nothing was written."""

    def stop_reading(self) -> None:
        self._stopped = True

    def resume_reading(self) -> None:
        self._stopped = False
        while self._waiting and not self._stopped:
            self._feed(self._waiting.popleft())


class AmqpSession(ChiffonSession):
    """The protocol's side: as on a WebSocket, and each message remembers which delivery it is."""

    def __init__(self, inbox: Outcomes, agent: Agent, connection: Connection) -> None:
        super().__init__(inbox.handler, agent, connection)
        self._inbox = inbox
        self._expected: deque[Message] = deque()

    def expect(self, message: Message) -> None:
        """The next frame is this message's body: the loop decodes frames in the order in which they came."""
        self._expected.append(message)

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        message = self._expected.popleft()
        if message.arrival.key in OPERATIONS:
            request = Request(message.arrival.message_id, Context(message))
            return LookUp(partial(self._inbox.operate, message, agent.id), request, after_commits=True)
        decoded = self._handler.decode(agent, frame, traceparent=message.header(amqp.TRACEPARENT))
        match decoded:
            case CommandFrame(command=command, request=request):
                return CommandFrame(command, _with(request, message))
            case LookUp(find=find, request=request):
                return LookUp(find, _with(request, message))
            case Invalid(fault=fault, message_id=id, context=about):
                return Invalid(fault, id, Context(message, about))

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        self._inbox.accepted(request.context.message, request.message_id)
        return ()

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        self._inbox.refused(context.message, fault, agent, context.about)
        return b""


def _with(request: Request, message: Message) -> Request:
    return msgspec.structs.replace(request, context=Context(message, request.context))
