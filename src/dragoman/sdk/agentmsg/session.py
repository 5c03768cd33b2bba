"""One link's conversation in agentmsg, for agents and clients alike: messages out, messages in, each of them once.

What is promised at least once is said again over this link until the hub has acknowledged it (`state.Outbox`); if it
never does, the link is given up, and whoever keeps the message says it over the next one. What came is acknowledged
when its owner says so; what was not acknowledged when the link broke counts as new when it comes again.

Where the transport itself confirms (the answer to a POST), there is no outbox, and receipts are delivery ids.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, Protocol

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
from dragoman.protocols.agentmsg.records import Priority, Record, RetryWish
from dragoman.protocols.agentmsg.types import HUB, MAX_RETRIES, Message, MessageType, Stamp
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.pipe import Frame, Pipe
from dragoman.sdk.runtime import Runtime
from dragoman.wire.errors import Stage
from dragoman.wire.role import Role

log = logging.getLogger("dragoman.sdk")


class MessagePipe(Pipe, Protocol):
    """`confirms`: the transport says itself what has arrived."""

    @property
    def confirms(self) -> bool: ...


class Arrival(NamedTuple):
    """A message that came for the first time; `receipt` where it is to be acknowledged."""

    message: Message
    tree: dict[str, Any]
    receipt: str | None


class Session:
    """`name` is who we are at the hub."""

    def __init__(self, pipe: MessagePipe, runtime: Runtime, name: str, inbox: Inbox) -> None:
        self._pipe = pipe
        self._runtime = runtime
        self._connection = Connection(Role.AGENT, name, inbox=inbox, outbox=None if pipe.confirms else Outbox())
        self._held: dict[str, tuple[Message, str | None]] = {}
        self._acks: list[Message] = []
        self._said = asyncio.Event()
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
        """At least one thing; raises `LinkDown` when the link is over."""
        while True:
            heard: list[Arrival | Accepted] = []
            for said in await self._pipe.receive():
                heard += (said,) if isinstance(said, Accepted) else self._hear(said)
            if heard:
                return heard

    def _hear(self, frame: Frame) -> list[Arrival | Accepted]:
        heard: list[Arrival | Accepted] = []
        for event in self._connection.receive(frame.data, self._runtime.now()):
            match event:
                case Received():
                    heard.append(self._received(event, frame.receipt))
                case Acknowledged():
                    named = (event.message.answers, *event.message.payload.message_ids)
                    heard.append(Accepted(tuple(codec.lowered(id) for id in named if id)))
                case Repeated(acknowledged=True):
                    self._acknowledge(event.message, frame.receipt)
                case Repeated():
                    log.debug("%s came again and is still being dealt with", event.message.id)
                case Invalid() | Outlived():
                    self._refuse(event)
        return heard

    def _received(self, event: Received, delivery: str | None) -> Arrival:
        message = event.message
        outbox, about = self._connection.outbox, message.answers
        if outbox is not None and about and message.sender == HUB and message.type is MessageType.ERROR_REPORT:
            outbox.acknowledged(about)  # refused, or never delivered: in any case nobody will acknowledge it any more
        receipt = f"{message.sender}/{message.id}" if event.wants_ack else None
        if receipt is not None:
            self._held[receipt] = message, delivery
        return Arrival(message, event.tree, receipt)

    def _refuse(self, event: Invalid | Outlived) -> None:
        if isinstance(event, Invalid) and (event.error.field, event.error.stage) == ("to", Stage.MEANING):
            # What the hub sends over this connection is for the agent that owns the token.
            raise NotAllowed(f"{event.error.what}. Give the agent its own token.")
        log.warning("the hub said something that %s", event.error.what if isinstance(event, Invalid) else "is too old")
        frame = self._connection.refuse(event, self._stamp())
        if frame is not None:
            self._send(frame, self._runtime.mint(), "")

    # --- acknowledgments ---

    def acknowledge(self, receipt: str) -> None:
        """We have it. Several of one turn go out together."""
        held = self._held.pop(receipt, None)
        if held is not None:
            self._acknowledge(*held)

    def _acknowledge(self, message: Message, delivery: str | None) -> None:
        if self._pipe.confirms:
            self._connection.acknowledge([message], self._stamp())
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

    def say(
        self,
        payload: Record,
        *,
        id: str,
        at: datetime,
        to: str = HUB,
        lane: str = "",
        priority: str | None = None,
        correlation_id: str | None = None,
        ttl_ms: float | None = None,
        retry: RetryWish | None = None,
        traceparent: str | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        """Say it; `beside` are fields of the payload that the document does not have.

        Raises `LocalProtocolError` where it cannot be said: too long, or a contradiction in itself.
        """
        message = codec.message(
            payload,
            Stamp(id, at),
            sender=self._connection.me,
            to=to,
            priority=None if priority is None else Priority(priority),
            correlation_id=correlation_id,
            ttl_ms=ttl_ms,
            max_retries=MAX_RETRIES if retry is None or retry.max_attempts is None else retry.max_attempts - 1,
            retry_config=retry,
            traceparent=traceparent,
        )
        data = codec.encode(message)
        if beside:
            tree = codec.parse(data)
            data = codec.reissue(data, {"payload": {**tree["payload"], **beside}})
        outbox = self._connection.outbox
        if outbox is not None and outbox.state(id) not in (Sent.UNSENT, Sent.WAITING):
            self._send(data, id, lane)  # it is over for the outbox, but its owner says it once more
            return
        frame = self._connection.send(message, self._runtime.now(), chance=self._runtime.chance(), data=data)
        self._send(frame, id, lane)

    def _send(self, frame: bytes, id: str, lane: str) -> None:
        self._pipe.send(frame, id, lane)
        self._said.set()

    async def drain(self) -> None:
        await self._pipe.drain()

    def quiesce(self) -> None:
        self._pipe.quiesce()

    async def _repeat(self) -> None:
        """Say again what was not acknowledged in time."""
        while True:
            due = self._connection.next_due
            if due is None:
                self._said.clear()
                await self._said.wait()
                continue
            await self._runtime.sleep(max(0.0, (due - self._runtime.now()).total_seconds()))
            for late in self._connection.late(self._runtime.now(), self._runtime.chance()):
                if isinstance(late, SendAgain):
                    self._pipe.send(late.data, late.message_id, "")
                else:
                    log.warning("the hub acknowledged %s %s never", late.message.type.value, late.message.id)
                    await self._pipe.close()

    def _stamp(self) -> Stamp:
        return Stamp(self._runtime.mint(), self._runtime.now())
