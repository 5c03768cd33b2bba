"""Forge over any wire: requests and their responses, events, notices, and the rate.

The hub refuses more than 100 messages a second, and events beyond that are lost (D9). So what is sent too fast waits
here, in its order. A `then` of an event is called when it has left, that of a request with the response.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import Dropped, Invalid, LogReceived, NoticeReceived, ResponseReceived
from dragoman.protocols.forge.errors import RATE_LIMITED
from dragoman.protocols.forge.ratelimit import BURST, RATE, Bucket
from dragoman.protocols.forge.types import (
    REQUEST_SECONDS,
    AskUser,
    Encoding,
    Failure,
    Message,
    Payload,
    Response,
    Stamp,
)
from dragoman.sdk.errors import DragomanError
from dragoman.sdk.links import LinkDown
from dragoman.sdk.runtime import Runtime
from dragoman.wire.framing import Line, LineFraming, Overlong
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

log = logging.getLogger("dragoman.sdk")

LARGEST = codec.LIMITS.bytes
"""Bytes of a message that every orchestrator takes (D1)."""
RECEIVED = Limits(bytes=codec.AGENT_RECEIVES, depth=codec.LIMITS.depth)
MARGIN = 0.9
"""Of the hub's rate."""
MOST_WAITING = 64
"""So many messages may wait for their turn before a handler that sends more is made to wait."""

Then: TypeAlias = Callable[[Response], None]


class Wire(Protocol):
    """Bytes in and out: pieces of lines, or whole frames."""

    @property
    def is_lines(self) -> bool: ...

    async def open(self) -> str | None:
        """Connect; returns the subprotocol that the hub chose, if any."""
        ...

    async def receive(self) -> bytes:
        """The next bytes. Raises `HungUp` when the other end has closed for good, `LinkDown` when the link broke."""
        ...

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class HungUp(LinkDown):
    """The other end has closed for good. `hears`: what we send may still be read."""

    def __init__(self, why: str, *, hears: bool) -> None:
        super().__init__(why)
        self.hears = hears


class TooLong(DragomanError):
    """A message of ours has more bytes than travel in one."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes are more than the {LARGEST} that a forge message may have")
        self.size = size


class Declined(DragomanError):
    """The orchestrator answered a request with an error."""

    def __init__(self, response: Failure) -> None:
        super().__init__(f"{response.error.message} ({response.error.code})")
        self.error = response.error


class Session:
    """One end of one link: an agent's, or a caller's."""

    def __init__(self, wire: Wire, runtime: Runtime) -> None:
        self._wire = wire
        self._runtime = runtime
        self._encoding = Encoding.JSON
        self._framing: LineFraming | None = None
        self._waiting: dict[str, tuple[Then, float]] = {}
        self._due: list[tuple[float, str]] = []
        self._queue: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self._bucket = Bucket(tokens=BURST * MARGIN, at=runtime.monotonic(), rate=RATE * MARGIN, burst=BURST * MARGIN)
        self._is_waiting = False
        self._is_open = False
        self._room = asyncio.Event()

    async def open(self) -> None:
        self._encoding = Encoding(await self._wire.open() or Encoding.JSON)
        self._framing = LineFraming(RECEIVED.bytes) if self._wire.is_lines else None
        self._is_open = True

    # --- out ---

    def request(
        self, payload: Payload, then: Then, stamp: Stamp | None = None, meta: dict[str, Any] | None = None
    ) -> None:
        """Send a request, or repeat the one with this stamp; raises `TooLong`."""
        stamp = stamp or Stamp(self._runtime.mint(), self._runtime.now())
        data = self._write(payload, stamp, meta)
        due = self._runtime.monotonic() + _patience(payload)
        self._waiting[stamp.id] = then, due
        heapq.heappush(self._due, (due, stamp.id))
        self._send(data, None)

    async def ask(self, payload: Payload) -> dict[str, Any]:
        """Send a request and wait for the answer; raises `Declined`."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.request(payload, lambda response: None if answered.done() else answered.set_result(response))
        response = await answered
        if isinstance(response, Failure):
            raise Declined(response)
        return response.payload

    def event(
        self,
        payload: Payload,
        stamp: Stamp | None = None,
        meta: dict[str, Any] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Send an event. `then` is called when it has left."""
        self._send(self._write(payload, stamp or Stamp(self._runtime.mint(), self._runtime.now()), meta), then)

    def has_time(self) -> bool:
        """Whether there is room for log lines: half of the rate is for the work."""
        now = self._runtime.monotonic()
        return self._is_open and not self._queue and self._bucket.take(now, int(BURST / 2))[1] >= int(BURST / 2)

    def _write(self, payload: Payload, stamp: Stamp, meta: dict[str, Any] | None) -> bytes:
        message: Message = codec.message(payload, stamp, meta=meta)
        data = codec.write(message, self._encoding) + (b"\n" if self._framing is not None else b"")
        if len(data) > LARGEST:
            raise TooLong(len(data))
        return data

    def _send(self, data: bytes, then: Callable[[], None] | None) -> None:
        self._queue.append((data, then))
        self._flush()

    def _flush(self) -> None:
        """Send what the rate allows now, the rest later."""
        if not self._is_open or not self._queue:
            return
        now = self._runtime.monotonic()
        self._bucket, granted = self._bucket.take(now, len(self._queue))
        for _ in range(granted):
            data, then = self._queue.popleft()
            self._wire.send(data)
            if then is not None:
                then()
        if self._queue and not self._is_waiting:
            self._is_waiting = True
            self._runtime.later(max(0.01, self._bucket.wait(now)), self._next)
        if len(self._queue) < MOST_WAITING:
            self._room.set()

    def _next(self) -> None:
        self._is_waiting = False
        self._flush()

    async def drain(self) -> None:
        """Wait while too many messages wait for their turn."""
        while self._is_open and len(self._queue) >= MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        await self._wire.drain()

    # --- in ---

    async def notices(self) -> list[Message]:
        """The next notices, perhaps none; responses go to their requests."""
        try:
            data = await self._wire.receive()
        except HungUp:
            for line in self._framing.finish() if self._framing is not None else ():
                self._read(line)
            raise
        lines = self._framing.feed(data) if self._framing is not None else (data,)
        notices = [notice for line in lines for notice in self._read(line)]
        self._warn_of_silence()
        return notices

    def _read(self, line: Line) -> list[Message]:
        """The notices of a line or frame."""
        if isinstance(line, Overlong):
            log.warning("a message of the orchestrator was too long: %d bytes", line.length)
            return []
        notices = []
        for event in codec.read(line, Role.AGENT, encoding=self._encoding, limits=RECEIVED):
            match event:
                case NoticeReceived(message=message):
                    notices.append(message)
                case ResponseReceived(message=response):
                    self._answered(response)
                case LogReceived(text=text):
                    log.debug("the orchestrator sent a line: %s", text[:1000])
                case Dropped(length=length):
                    log.warning("a message of the orchestrator was too long: %d bytes", length)
                case Invalid(what=what):
                    log.warning("the orchestrator sent an invalid message: %s", what)
        return notices

    def _warn_of_silence(self) -> None:
        now = self._runtime.monotonic()
        while self._due and self._due[0][0] <= now:
            due, request_id = heapq.heappop(self._due)
            if request_id in self._waiting and self._waiting[request_id][1] == due:  # else it was repeated since
                log.warning("the orchestrator has not answered request %s yet", request_id)

    def _answered(self, response: Response) -> None:
        if isinstance(response, Failure) and response.error.details.get("reason") == RATE_LIMITED:
            self._bucket = Bucket(tokens=0, at=self._runtime.monotonic(), rate=RATE * MARGIN, burst=BURST * MARGIN)
        waiting = self._waiting.pop(response.correlation_id or "", None)
        if waiting is not None:
            waiting[0](response)
        elif isinstance(response, Failure) and response.correlation_id is None:
            log.warning("the orchestrator refuses a message: %s", response.error.message)

    async def close(self) -> None:
        self._is_open = False
        self._room.set()
        await self._wire.close()


def _patience(payload: Payload) -> float:
    """Seconds until a response is late. The orchestrator itself answers TIMEOUT; that has the time to arrive (D8)."""
    if not isinstance(payload, AskUser):
        return REQUEST_SECONDS
    return REQUEST_SECONDS + (REQUEST_SECONDS if payload.timeout is None else payload.timeout / 1000)
