"""One connection to the hub in agentmsg, for agents and clients alike: each message once, in and out.

A message that is promised at least once is sent again over this connection until the hub has acknowledged it; if the
hub never does, the connection is given up, and the engine or the client sends the message over the next one. A message
from the hub is acknowledged when its owner says so; one that was not when the connection broke counts as new when it
comes again.

    WebSocket   both ends send ACKs
    HTTP        the answer to a POST is the hub's receipt, so there is no outbox; deliveries are acknowledged by their
                ids. A refusal is an ErrorReport without a message around it, and is given one
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import httpx2
import msgspec

from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.connection import (
    Acknowledged,
    Connection,
    Inbox,
    Invalid,
    Outbox,
    Outlived,
    Received,
    Repeated,
    SendAgain,
    Sent,
)
from dragoman.protocols.agentmsg.records import ErrorReport, Priority, Record, RetryOverrides
from dragoman.protocols.agentmsg.types import ANYONE, HUB, MAX_RETRIES, SUBPROTOCOL, Message, MessageType, Stamp
from dragoman.sdk.address import Address
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.links import Frame, Pipe
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.polling import PolledPipe
from dragoman.sdk.network.websocket import WebSocket
from dragoman.sdk.runtime import Runtime
from dragoman.wire.errors import Stage
from dragoman.wire.role import Role

log = logging.getLogger("dragoman.sdk")

WEBSOCKET_PATH = "/agentmsg/ws?acks=many"
"""One ACK of the hub's may name several messages: `Session` reads them all."""


class MessagePipe(Pipe, Protocol):
    """`confirms`: the transport itself says what has arrived."""

    @property
    def confirms(self) -> bool: ...


class Arrival(NamedTuple):
    """A message that came for the first time; `receipt` where it is to be acknowledged."""

    message: Message
    tree: dict[str, Any]
    receipt: str | None


class Session:
    """`name` is the agent's id at the hub."""

    def __init__(self, pipe: MessagePipe, runtime: Runtime, name: str, inbox: Inbox) -> None:
        self._pipe = pipe
        self._runtime = runtime
        self._connection = Connection(Role.AGENT, name, inbox=inbox, outbox=None if pipe.confirms else Outbox())
        self._held: dict[str, tuple[Message, str | None]] = {}
        self._acks: list[Message] = []
        self._sent = asyncio.Event()
        self._repeating: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._pipe.open(None)
        if self._connection.outbox is not None:
            self._repeating = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        self._connection.release([message for message, _ in self._held.values()])
        self._held.clear()
        if self._repeating is not None:
            self._repeating.cancel()
            await asyncio.gather(self._repeating, return_exceptions=True)
        await self._pipe.close()

    # --- in ---

    async def receive(self) -> list[Arrival | Accepted]:
        """At least one; raises `LinkDown` when the connection is over."""
        while True:
            arrived: list[Arrival | Accepted] = []
            for one in await self._pipe.receive():
                arrived += (one,) if isinstance(one, Accepted) else self._decode(one)
            if arrived:
                return arrived

    def _decode(self, frame: Frame) -> list[Arrival | Accepted]:
        arrived: list[Arrival | Accepted] = []
        for event in self._connection.receive(frame.data, self._runtime.now()):
            match event:
                case Received():
                    arrived.append(self._received(event, frame.receipt))
                case Acknowledged():
                    named = (event.message.answers, *event.message.payload.message_ids)
                    arrived.append(Accepted(tuple(codec.lowered(id) for id in named if id)))
                case Repeated(acknowledged=True):
                    self._acknowledge(event.message, frame.receipt)
                case Repeated():
                    log.debug("%s came again before it was acknowledged", event.message.id)
                case Invalid() | Outlived():
                    self._refuse(event)
        return arrived

    def _received(self, event: Received, delivery: str | None) -> Arrival:
        message = event.message
        outbox, about = self._connection.outbox, message.answers
        if outbox is not None and about and message.sender == HUB and message.type is MessageType.ERROR_REPORT:
            outbox.acknowledged(about)  # the hub refused it, or could not deliver it: no ACK of it will come
        receipt = f"{message.sender}/{message.id}" if event.wants_ack else None
        if receipt is not None:
            self._held[receipt] = message, delivery
        return Arrival(message, event.tree, receipt)

    def _refuse(self, event: Invalid | Outlived) -> None:
        if isinstance(event, Invalid) and (event.error.field, event.error.stage) == ("to", Stage.MEANING):
            # What the hub sends over this connection is for the agent that owns the token.
            raise NotAllowed(f"{event.error.what}. Give the agent its own token.")
        log.warning("the hub sent a message that %s", event.error.what if isinstance(event, Invalid) else "is too old")
        frame = self._connection.refuse(event, self._stamp())
        if frame is not None:
            self._write(frame, self._runtime.mint(), "")

    # --- acknowledgments ---

    def acknowledge(self, receipt: str) -> None:
        """The agent has it. Several of one turn go out together."""
        held = self._held.pop(receipt, None)
        if held is not None:
            self._acknowledge(*held)

    def _acknowledge(self, message: Message, delivery: str | None) -> None:
        if self._pipe.confirms:
            self._connection.accept(message)
            if delivery is not None:  # else it was the answer to a POST
                self._pipe.acknowledge(delivery)
            return
        if not self._acks:
            asyncio.get_running_loop().call_soon(self._flush)
        self._acks.append(message)

    def _flush(self) -> None:
        acks, self._acks = self._acks, []
        stamp = self._stamp()
        if acks:
            self._pipe.send(self._connection.acknowledge(acks, stamp), stamp.id, "")

    # --- out ---

    def send(
        self,
        payload: Record,
        *,
        id: str | None = None,
        at: datetime | None = None,
        to: str = HUB,
        lane: str = "",
        priority: str | None = None,
        correlation_id: str | None = None,
        ttl_ms: float | None = None,
        retry: RetryOverrides | None = None,
        traceparent: str | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> str:
        """Send a message and return its id; `beside` are more fields of the payload.

        Raises `LocalProtocolError` where it cannot be sent: too long, or a contradiction in itself.
        """
        message = codec.message(
            payload,
            Stamp(id or self._runtime.mint(), at or self._runtime.now()),
            sender=self._connection.me,
            to=to,
            priority=None if priority is None else Priority(priority),
            correlation_id=correlation_id,
            ttl_ms=ttl_ms,
            max_retries=MAX_RETRIES if retry is None or retry.max_attempts is None else retry.max_attempts - 1,
            retry_config=retry,
            traceparent=traceparent,
        )
        frame = codec.encode(message, beside)
        outbox = self._connection.outbox
        if outbox is None or outbox.state(message.id) in (Sent.UNSENT, Sent.WAITING):
            # else the outbox is done with it, and its owner sends it once more
            self._connection.send(message, self._runtime.now(), chance=self._runtime.chance(), data=frame)
        self._write(frame, message.id, lane)
        return message.id

    def _write(self, frame: bytes, id: str, lane: str) -> None:
        self._pipe.send(frame, id, lane)
        self._sent.set()

    async def drain(self) -> None:
        await self._pipe.drain()

    def quiesce(self) -> None:
        self._pipe.quiesce()

    async def _repeat(self) -> None:
        """Send again what was not acknowledged in time."""
        while True:
            due = self._connection.next_due
            if due is None:
                self._sent.clear()
                await self._sent.wait()
                continue
            await self._runtime.sleep(max(0.0, (due - self._runtime.now()).total_seconds()))
            for late in self._connection.late(self._runtime.now(), self._runtime.chance()):
                if isinstance(late, SendAgain):
                    self._pipe.send(late.data, late.message_id, "")
                else:
                    log.warning("the hub never acknowledged %s %s", late.message.type.value, late.message.id)
                    await self._pipe.close()

    def _stamp(self) -> Stamp:
        return Stamp(self._runtime.mint(), self._runtime.now())


# --- over HTTP and over a WebSocket ---


class _Receipt(msgspec.Struct, frozen=True):
    """`answer` is the hub's message to a registration or a query."""

    answer: msgspec.Raw = msgspec.Raw()


_receipt = msgspec.json.Decoder(_Receipt).decode
_report = msgspec.json.Decoder(ErrorReport).decode


def pipes(address: Address, runtime: Runtime) -> Callable[[], MessagePipe]:
    """Makes a pipe to the address, each time a new one."""
    if address.transport == "ws":
        return lambda: WebSocketMessages(address)
    return lambda: HttpMessages(address, runtime)


class HttpMessages(PolledPipe):
    INBOX = POST = "/agentmsg/messages"
    ACK = "/agentmsg/ack"
    REFUSED = PolledPipe.REFUSED | {429}
    confirms = True

    def __init__(
        self, address: Address, runtime: Runtime, *, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        super().__init__(address, transport=transport)
        self._runtime = runtime

    async def _register(self, registration: bytes) -> bytes:
        return await self._greet()  # the registration is a message like any other

    def _answered(self, response: httpx2.Response, message_id: str) -> Sequence[Frame | Accepted]:
        if response.is_success:
            answer = _receipt(response.content).answer
            return (Accepted((message_id,)), *((Frame(bytes(answer)),) if answer else ()))
        stamp = Stamp(self._runtime.mint(), self._runtime.now())
        message = codec.message(_report(response.content), stamp, sender=HUB, to=ANYONE, correlation_id=message_id)
        return (Frame(codec.encode(message)),)

    def _refusal(self, content: bytes) -> str | None:
        return refusal(content)


class WebSocketMessages:
    confirms = False

    def __init__(self, address: Address) -> None:
        self._socket = WebSocket(address, WEBSOCKET_PATH, [SUBPROTOCOL], largest=codec.LIMITS.bytes, refusal=refusal)

    async def open(self, registration: bytes | None) -> bytes:
        await self._socket.open()
        return b""

    async def receive(self) -> Sequence[Frame | Accepted]:
        return (Frame(await self._socket.receive()),)

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._socket.send(frame)

    def acknowledge(self, receipt: str) -> None:
        """An ACK is a frame here."""

    async def drain(self) -> None:
        await self._socket.drain()

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left unacknowledged."""

    async def close(self) -> None:
        await self._socket.close()


def refusal(content: bytes) -> str | None:
    """The sentence of an ErrorReport, and what it says to do next."""
    try:
        report = _report(content)
    except msgspec.DecodeError:
        return None
    actions = [text for text in report.suggested_actions if text.rstrip(".").lower() not in report.message.lower()]
    return ". ".join(text.rstrip(".") for text in (report.message, *actions))
