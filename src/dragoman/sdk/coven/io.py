"""Coven over gRPC: an agent's link is one bidirectional stream of raw messages.

Coven has no receipts. A message counts as accepted once it is written, because the hub asks again for whatever it has
not committed when the stream breaks: with the same request id, which `transcripts` (and, after a restart, the journal)
answers from memory. So nothing is lost, and nothing is done twice.

    the hub sends       the link does
    ------------------  ---------------------------------------------------------------------------------
    send_message        sends again what it sent about it before, if anything, and hands it on
    cancel              hands it on, and ends the request: every request ends, and the stream is free
    shutdown            closes its half when no request is open; the engine connects again
    the end             `LinkDown`, or what the status says where a retry is no use

gRPC costs a tenth of a second to load, so this module is imported only when an address says `coven`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

from dragoman.protocols.coven import types
from dragoman.protocols.coven.codec import LIMITS
from dragoman.protocols.coven.connection import Connection, Event, Invalid
from dragoman.protocols.coven.types import AGENT_STREAM, MessageResponse, SendMessage, Shutdown, Welcome
from dragoman.sdk.address import Address
from dragoman.sdk.coven import responses
from dragoman.sdk.coven.channel import BROKEN, Ending, grpc, in_brief, open_channel
from dragoman.sdk.coven.transcripts import Transcripts
from dragoman.sdk.errors import DragomanError, Misconfigured, NotAllowed, RequestRefused
from dragoman.sdk.links import Introduction, LinkDown, ProtocolCapabilities
from dragoman.sdk.messages import Accepted, Cancel, Inbound, Outbound, Question, Report
from dragoman.sdk.network.connect_errors import advised
from dragoman.sdk.runtime import Runtime
from dragoman.wire.errors import LocalProtocolError
from dragoman.wire.role import Role

log = logging.getLogger("dragoman.sdk")

WELCOME_TIMEOUT = 60.0
"""The hub may first have to find out whether the agent's older stream is dead: one cycle of its pings (coven-D4)."""
CLOSE_TIMEOUT = 5.0
HEARTBEAT = 30.0
STILL_THERE = 5.0
"""Seconds before the next try when the hub takes the agent for connected already."""
CONGESTED = 256 * 1024
LARGEST = LIMITS.message_bytes + 1024 * 1024
"""Above the codec's own limit, so that the codec refuses too large messages with a sentence."""

#: Status before the welcome → what is raised, where trying again is no use.
FINAL: dict[grpc.StatusCode, type[DragomanError]] = {
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.UNIMPLEMENTED: Misconfigured,
    grpc.StatusCode.INVALID_ARGUMENT: RequestRefused,
}


class CovenLink:
    """`links.Link` in coven."""

    def __init__(self, address: Address, runtime: Runtime, memory: Transcripts) -> None:
        self._address = address
        self._runtime = runtime
        self._memory = memory
        self._connection = Connection(Role.AGENT)
        self._does: tuple[str, ...] = ()
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._ending: Ending
        self._loops: list[asyncio.Task[None]] = []
        self._turn: responses.Turn | None = None
        self._ended: list[str] = []
        self._outbox: deque[tuple[bytes, str | None]] = deque()
        self._size = 0
        self._stir = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._inbound: asyncio.Queue[Inbound | DragomanError] = asyncio.Queue()
        self._is_leaving = False
        self._is_quiet = False
        self._is_over = False

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return responses.PROTOCOL_CAPABILITIES

    # --- its life ---

    async def open(self, who: Introduction) -> None:
        self._does = who.work_types
        self._channel = open_channel(self._address, LARGEST)
        token = self._address.token
        metadata = (("authorization", f"Bearer {token}"),) if token else None
        self._call = self._channel.stream_stream(AGENT_STREAM)(metadata=metadata)
        self._ending = Ending(self._call)
        register = self._connection.send_register(
            who.agent_id,
            name=who.kind or who.agent_id,
            capabilities=who.work_types,
            work_types=who.work_types,
            version=who.version or "",
        )
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT):
                await self._call.write(register)
                await self._welcome()
        except TimeoutError:
            raise LinkDown("the hub did not answer the registration") from None
        except BROKEN:
            raise await self._verdict(is_welcome=False) from None
        loop = asyncio.get_running_loop()
        self._loops = [loop.create_task(each()) for each in (self._read, self._write, self._beat)]

    async def _welcome(self) -> None:
        while True:
            data = await self._call.read()
            if data is grpc.aio.EOF:
                raise await self._verdict(is_welcome=False)
            (event,) = self._connection.receive(data)
            if isinstance(event, Welcome):
                return
            if isinstance(event, Invalid):
                raise LinkDown(f"the hub sent something that is no message of coven: {event.error}")

    async def _verdict(self, *, is_welcome: bool) -> DragomanError:
        """What the end of the stream means."""
        try:
            code, details = await self._ending.status()
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise
            return LinkDown("the stream was given up")
        final = FINAL.get(code)
        if final is NotAllowed or (final is not None and not is_welcome):
            return final(details or f"the hub ended the stream: {code.name}")
        if code is grpc.StatusCode.ALREADY_EXISTS:
            return LinkDown(details, retry_after=STILL_THERE)
        reason = advised(in_brief(details), secure=self._address.is_secure)
        return LinkDown(reason or ("the stream ended" if code is grpc.StatusCode.OK else code.name))

    async def close(self) -> None:
        """End the stream, if it is still open; the hub reads everything that was sent before."""
        with contextlib.suppress(Exception):
            if self._loops and not self._is_over:
                self._is_leaving, self._turn = True, None
                self._stir.set()
                await asyncio.wait(self._loops[:2], timeout=CLOSE_TIMEOUT)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._call is not None:
            self._call.cancel()
        if self._channel is not None:
            with contextlib.suppress(Exception):
                await self._channel.close()

    # --- in ---

    async def receive(self) -> Sequence[Inbound]:
        waiting = [await self._inbound.get()]
        while not self._inbound.empty():
            waiting.append(self._inbound.get_nowait())
        inbound: list[Inbound] = []
        for each in waiting:
            if isinstance(each, DragomanError):
                if not inbound:
                    raise each
                self._inbound.put_nowait(each)
                break
            inbound.append(each)
        return inbound

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                for event in self._connection.receive(data):
                    self._received(event)
            error = await self._verdict(is_welcome=True)
        except BROKEN:
            error = await self._verdict(is_welcome=True)
        except LinkDown as down:
            error = down
        self._is_over = True
        self._room.set()
        self._stir.set()
        if not self._is_quiet:  # an agent that takes no more work needs no other link
            self._inbound.put_nowait(error)

    def _received(self, event: Event) -> None:
        match event:
            case SendMessage():
                self._begin(event)
            case types.Cancel(reason=reason):
                self._cancel(reason)
            case Shutdown(reason=reason):
                log.info("the hub asks us to leave: %s", reason)
                self._is_leaving = True
                self._stir.set()
            case Invalid(error):
                raise LinkDown(f"the hub sent something that is no message of coven: {error}")

    def _begin(self, message: SendMessage) -> None:
        for request_id in self._ended:  # one at a time: what ended on this stream before is committed
            self._memory.forget(request_id)
        self._ended.clear()
        turn = self._turn = responses.turn_of(message, self._memory.asked)
        self._memory.asked.pop(message.thread_id, None)
        for sent in self._memory.begin(message.request_id, turn.print):
            self._respond(sent)
        self._inbound.put_nowait(responses.work_of(message, turn, self._runtime.mint(), self._does))

    def _cancel(self, reason: str) -> None:
        turn = self._turn
        if turn is not None:
            self._memory.forget(turn.request_id)
            self._inbound.put_nowait(Cancel(task_id=turn.task_id, reason=reason))
            self._put(responses.cancelled(turn, reason))
            self._end_turn(turn)

    # --- out ---

    def acknowledge(self, receipt: str) -> None:
        """Coven has no receipts."""

    def send(self, message: Outbound) -> None:
        """Send a message. One whose request is not open stays in the transcripts until the hub asks again."""
        self._memory.add(message)
        if self._turn is not None and message.correlation.request_id == self._turn.request_id:
            self._respond(message)
        else:
            self._inbound.put_nowait(Accepted((message.id,)))

    def _respond(self, message: Outbound) -> None:
        turn = self._turn
        if turn is None:
            return
        try:
            for response in responses.responses_of(message, turn):
                self._put(response)
        except (
            LocalProtocolError
        ) as error:  # too large for one message: report that instead, and end where it had to end
            log.warning("a message about task %s does not fit into coven: %s", turn.task_id, error)
            if self._connection.request is not None and not isinstance(message, Report):
                self._put(responses.too_large(turn, str(error)))
        self._mark(message.id)
        if self._connection.request is None:
            if isinstance(message, Question) and turn.is_plain:
                self._memory.ask(turn.thread_id, turn.task_id)
            self._end_turn(turn)

    def _end_turn(self, turn: responses.Turn) -> None:
        self._turn = None
        self._ended.append(turn.request_id)
        self._stir.set()

    def _put(self, response: MessageResponse) -> None:
        self._queue(self._connection.send(response))

    def _queue(self, data: bytes) -> None:
        self._outbox.append((data, None))
        self._size += len(data)
        if self._size > CONGESTED:
            self._room.clear()
        self._stir.set()

    def _mark(self, id: str) -> None:
        """Accepted when everything before this is written."""
        self._outbox.append((b"", id))
        self._stir.set()

    async def _write(self) -> None:
        try:
            while not self._is_over:
                accepted = []
                while self._outbox:
                    data, id = self._outbox.popleft()
                    if id is not None:
                        accepted.append(id)
                        continue
                    await self._call.write(data)
                    self._size -= len(data)
                    if self._size <= CONGESTED:
                        self._room.set()
                if accepted:
                    self._inbound.put_nowait(Accepted(tuple(accepted)))
                elif (self._is_leaving or self._is_quiet) and (self._turn is None):
                    await self._call.done_writing()
                    return
                self._stir.clear()
                if not self._outbox and not accepted:
                    await self._stir.wait()
        except BROKEN:
            pass  # the reading loop reports it

    async def _beat(self) -> None:
        while True:
            await self._runtime.sleep(HEARTBEAT)
            self._queue(self._connection.send_heartbeat(int(self._runtime.now().timestamp() * 1000)))

    async def drain(self) -> None:
        await self._room.wait()

    def quiesce(self) -> None:
        """Take no more work: the agent's half of the stream closes as soon as no request is open."""
        self._is_quiet = True
        self._stir.set()
