"""Chiffon's frames over AMQP: the agent's own queue in, the exchange of the hub out, and a receipt for each frame.

    a frame of the hub     comes from `chiffon.agent.<id>`; the broker keeps it until we acknowledge it
    a frame of ours        goes to the exchange with our token and `amq.rabbitmq.reply-to`, where the hub answers with
                           {"accepted": […]} after its commit, or with an `error`
    {"closed": …}          comes there, too: the hub ends this link as it closes a WebSocket

The hub may be away while the broker is there: then nothing is lost, and answers come when it is back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from dragoman.amqp import Arrival, Broker, Lost, Missing, NotAllowed, Outcome, Unfit, place_of
from dragoman.protocols.chiffon import amqp
from dragoman.protocols.chiffon.errors import is_retryable
from dragoman.protocols.chiffon.types import Receipt
from dragoman.sdk import errors
from dragoman.sdk.address import Address
from dragoman.sdk.chiffon.http import refusal
from dragoman.sdk.errors import Conflict, DragomanError, HubUnreachable, Misconfigured, NotFound
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network import tls
from dragoman.sdk.network.websocket import FINAL

PREFETCH = 256
ANSWER_SECONDS = 10.0
CLOSE_SECONDS = 2.0
WINDOW = 256
"""Frames that the broker has not confirmed; `drain` waits beyond that."""

CANCEL_RAISES: dict[str, type[DragomanError]] = {
    "not_found": NotFound, "conflict": Conflict, "unauthenticated": errors.NotAllowed, "forbidden": errors.NotAllowed,
}  # fmt: skip
"""The kind of a refused cancellation → what is raised."""


class _Typed(msgspec.Struct):
    type: str


class _Closed(msgspec.Struct):
    code: int
    reason: str


class _Control(msgspec.Struct):
    closed: _Closed


_type = msgspec.json.Decoder(_Typed).decode
_receipt = msgspec.json.Decoder(Receipt).decode
_closed = msgspec.json.Decoder(_Control).decode
_is_receipt = re.compile(rb'\s*\{\s*"accepted"\s*:').match
_is_closed = re.compile(rb'\s*\{\s*"closed"\s*:').match


class AmqpPipe:
    """`links.Pipe` over a broker, for the agent or client with this id."""

    def __init__(self, address: Address, agent_id: str) -> None:
        self._address = address
        self._id = agent_id
        self._broker: Broker | None = None
        self._arrived: asyncio.Queue[Frame | Accepted | None] = asyncio.Queue()
        self._down: DragomanError | None = None
        self._asked: dict[str, asyncio.Future[bytes]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._room.set()

    async def open(self, registration: bytes | None) -> bytes:
        broker = self._broker = await connected(self._address, self._id)
        broker.lost.add_done_callback(self._lost)
        try:
            await broker.consume_replies(amqp.REPLIES, self._answer_came)
            await broker.declare_queue(amqp.queue_of(self._id), amqp.QUORUM)
            await broker.consume(amqp.queue_of(self._id), self._frame_came, prefetch=PREFETCH)
        except Unfit as unfit:
            raise Misconfigured(str(unfit)) from None
        except Lost as lost:
            raise LinkDown(str(lost)) from None
        if registration is None:
            await self.ask(amqp.LISTEN, b"{}")
            return b""
        return await self.ask(amqp.REGISTER, registration)

    async def ask(self, verb: str, body: bytes) -> bytes:
        """The hub's answer to an operation. Raises `LinkDown` if there is none now, `NotAllowed` for a refusal that is
        final."""
        answer = await self._answer(verb, body)
        found = refusal_in(answer)
        if found is None:
            return answer
        code, _, sentence = found
        if is_retryable(code):
            raise LinkDown(sentence)
        raise errors.NotAllowed(sentence)

    async def _answer(self, verb: str, body: bytes) -> bytes:
        assert self._broker is not None
        id = str(uuid4())
        asked: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked[id] = asked
        try:
            outcome = await self._publish(self._broker, verb, body, id, milliseconds=int(ANSWER_SECONDS * 1000))
            if outcome is not Outcome.TAKEN:
                raise LinkDown(f"no hub has its queue at {self._address.shown}")
            async with asyncio.timeout(ANSWER_SECONDS):
                return await asked
        except TimeoutError:
            raise LinkDown(f"the broker at {self._address.shown} answers, but no hub behind it") from None
        except Lost as lost:
            raise LinkDown(f"{self._address.shown}: {lost}") from None
        finally:
            del self._asked[id]

    async def ask_once(self, verb: str, body: bytes) -> bytes:
        """The hub's answer, over a connection for this operation alone."""
        broker = self._broker = await connected(self._address, self._id)
        broker.lost.add_done_callback(self._lost)
        try:
            await broker.consume_replies(amqp.REPLIES, self._answer_came)
            return await self._answer(verb, body)
        except Lost as lost:
            raise LinkDown(str(lost)) from None
        finally:
            self._broker = None
            await broker.close()

    async def receive(self) -> Sequence[Frame | Accepted]:
        first = await self._arrived.get()
        received = [] if first is None else [first]
        while not self._arrived.empty() and (more := self._arrived.get_nowait()) is not None:
            received.append(more)
        if not received:
            self._arrived.put_nowait(None)
            raise self._down or LinkDown("the link is closed")
        if self._down is not None:
            self._arrived.put_nowait(None)
        return received

    def acknowledge(self, receipt: str) -> None:
        if self._broker is not None and receipt.isdecimal():
            self._broker.ack(int(receipt))

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        """The channel sends frames in the order in which these tasks begin, which is that of the calls."""
        sending = asyncio.ensure_future(self._send(frame, message_id))
        self._sending.add(sending)
        sending.add_done_callback(self._sent)
        if len(self._sending) >= WINDOW:
            self._room.clear()

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending.discard(sending)
        if len(self._sending) < WINDOW:
            self._room.set()

    async def _send(self, frame: bytes, message_id: str) -> None:
        broker = self._broker
        if broker is None or self._down is not None:
            return
        if self._address.record is not None:
            self._address.record(True, frame)
        try:
            outcome = await self._publish(broker, _type(frame).type, frame, message_id)
        except Lost:
            return  # `receive` raises
        if outcome is not Outcome.TAKEN:
            self._end(LinkDown(f"the hub's queue at {self._address.shown} did not take a message ({outcome.value})"))

    async def _publish(
        self, broker: Broker, type: str, body: bytes, id: str, *, milliseconds: int | None = None
    ) -> Outcome:
        return await broker.publish(
            amqp.key_of(type),
            body,
            exchange=amqp.EXCHANGE,
            id=id,
            headers=self._address.headers,
            reply_to=amqp.REPLIES,
            milliseconds=milliseconds,
        )

    async def drain(self) -> None:
        await self._room.wait()

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left unacknowledged."""

    async def close(self) -> None:
        broker, self._broker = self._broker, None
        if broker is None:
            return
        try:
            if self._sending:
                await asyncio.wait(self._sending, timeout=CLOSE_SECONDS)
            if not broker.lost.done():
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._publish(broker, amqp.LEAVE, b"{}", str(uuid4()))
        except (Lost, TimeoutError):
            pass  # the hub sees that nobody consumes the queue
        for sending in self._sending:
            sending.cancel()
        await broker.close()

    # --- what comes ---

    def _frame_came(self, arrival: Arrival) -> None:
        if self._address.record is not None:
            self._address.record(False, arrival.body)
        self._arrived.put_nowait(Frame(arrival.body, str(arrival.tag)))

    def _answer_came(self, arrival: Arrival) -> None:
        asked = self._asked.get(arrival.correlation_id or "")
        if asked is not None:
            if not asked.done():
                asked.set_result(arrival.body)
            return
        data = arrival.body
        if self._address.record is not None:
            self._address.record(False, data)
        if _is_receipt(data):
            self._arrived.put_nowait(Accepted(_receipt(data).accepted))
        elif _is_closed(data):
            closed = _closed(data).closed
            self._end(FINAL.get(closed.code, LinkDown)(closed.reason))
        else:
            self._arrived.put_nowait(Frame(data))

    def _lost(self, lost: asyncio.Future[str]) -> None:
        self._end(LinkDown(f"the connection to the broker ended: {lost.result()}"))

    def _end(self, why: DragomanError) -> None:
        if self._down is None:
            self._down = why
            self._arrived.put_nowait(None)
            self._room.set()
            for asked in self._asked.values():
                if not asked.done():
                    asked.set_exception(why)


async def connected(address: Address, name: str) -> Broker:
    """A connection to the broker of an address."""
    try:
        return await Broker.connect(place_of(address.broker), tls=tls.context(address), name=name)
    except ValueError as error:
        raise Misconfigured(str(error)) from None
    except Missing as missing:
        raise Misconfigured(str(missing)) from None
    except NotAllowed as refused:
        raise errors.NotAllowed(f"{refused}: check the user and the password in the address") from None
    except Lost as lost:
        raise LinkDown(str(lost)) from None


def canceller(address: Address, agent_id: str) -> Callable[[str, str | None], Awaitable[None]]:
    """What stops a task, over a connection of its own: chiffon has no message for it."""

    async def cancel(task_id: str, reason: str | None) -> None:
        pipe = AmqpPipe(address, agent_id)
        try:
            asked: dict[str, Any] = {"task_id": task_id, **({"reason": reason} if reason else {})}
            answer = await pipe.ask_once(amqp.VERBS[0], msgspec.json.encode(asked))
        except LinkDown as down:
            raise HubUnreachable(str(down)) from None
        found = refusal_in(answer)
        if found is not None:
            _, kind, sentence = found
            raise CANCEL_RAISES.get(kind, HubUnreachable)(sentence)

    return cancel


def refusal_in(answer: bytes) -> tuple[int, str, str] | None:
    """The code, the kind and the sentence of an `error` envelope; None where an answer is none."""
    sentence = refusal(answer)
    if sentence is None:
        return None
    envelope = msgspec.json.decode(answer)
    kind = envelope.get("x_custom_fields", {}).get("fault", {}).get("kind", "")
    return int(envelope["payload"]["error_code"]), str(kind), sentence
