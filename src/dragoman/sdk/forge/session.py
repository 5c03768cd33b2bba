"""Talking forge over whatever carries its lines or frames: requests and their responses, events, notices, and the pace.

An orchestrator refuses more than 100 messages a second: events beyond that are lost without a word (D9). So what is
said too fast waits here, in its order. Whoever must know when an event left gives a `then`; for a request `then` is
called with the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.connection import Connection
from dragoman.protocols.forge.errors import RATE_LIMITED
from dragoman.protocols.forge.events import Dropped, Event, Invalid, LogReceived, NoticeReceived, ResponseReceived
from dragoman.protocols.forge.ratelimit import BURST, RATE, Bucket
from dragoman.protocols.forge.types import Encoding, Failure, Message, Payload, Response, Stamp
from dragoman.sdk.errors import DragomanError
from dragoman.sdk.links import LinkDown
from dragoman.sdk.runtime import Runtime
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

log = logging.getLogger("dragoman.sdk")

LARGEST = codec.LIMITS.bytes
"""Bytes of a message that every orchestrator takes (D1)."""
LARGEST_HEARD = 16 * 1024 * 1024
MARGIN = 0.9
CROWD = 64
"""So many messages may wait for their turn before a handler that says more is made to wait."""

Then: TypeAlias = Callable[[Response], None]


class Wire(Protocol):
    """Bytes in and out: pieces of lines, or whole frames."""

    @property
    def is_lines(self) -> bool: ...

    async def open(self) -> Encoding: ...

    async def receive(self) -> bytes:
        """What came. Raises `HungUp` when the other end has closed for good, `LinkDown` when the link broke."""
        ...

    def send(self, data: bytes) -> None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class HungUp(LinkDown):
    """There is nobody at the other end any more, and never will be. `hears`: what we say may still be read."""

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
        self._connection = Connection(Role.AGENT)
        self._waiting: dict[str, Then] = {}
        self._queue: deque[tuple[bytes, Callable[[], None] | None]] = deque()
        self._bucket = Bucket(tokens=BURST * MARGIN, at=runtime.monotonic(), rate=RATE * MARGIN, burst=BURST * MARGIN)
        self._is_paced = False
        self._is_open = False
        self._room = asyncio.Event()

    async def open(self) -> None:
        encoding = await self._wire.open()
        limits = Limits(bytes=LARGEST_HEARD, depth=codec.LIMITS.depth)
        self._connection = Connection(Role.AGENT, lines=self._wire.is_lines, encoding=encoding, limits=limits)
        self._is_open = True

    # --- out ---

    def request(
        self, payload: Payload, then: Then, *, stamp: Stamp | None = None, meta: dict[str, Any] | None = None
    ) -> None:
        """Ask. The same stamp again asks the same again; raises `TooLong`."""
        stamp = stamp or Stamp(self._runtime.mint(), self._runtime.now())
        data = self._write(payload, stamp, meta)
        self._waiting[stamp.id] = then
        self._say(data, None)

    async def ask(self, payload: Payload) -> dict[str, Any]:
        """Ask, and wait for the answer; raises `Declined`."""
        answered: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.request(payload, lambda response: None if answered.done() else answered.set_result(response))
        response = await answered
        if isinstance(response, Failure):
            raise Declined(response)
        return response.payload

    def event(
        self,
        payload: Payload,
        *,
        stamp: Stamp | None = None,
        meta: dict[str, Any] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Tell. `then` is called when it has left."""
        self._say(self._write(payload, stamp or Stamp(self._runtime.mint(), self._runtime.now()), meta), then)

    def has_time(self) -> bool:
        """Whether there is room for what is not important: half of the pace is for the work."""
        now = self._runtime.monotonic()
        return self._is_open and not self._queue and self._bucket.take(now, int(BURST / 2))[1] >= int(BURST / 2)

    def _write(self, payload: Payload, stamp: Stamp, meta: dict[str, Any] | None) -> bytes:
        message: Message = codec.message(payload, stamp, meta=meta)
        data = self._connection.send(message, self._runtime.monotonic())
        if len(data) > LARGEST:
            raise TooLong(len(data))
        return data

    def _say(self, data: bytes, then: Callable[[], None] | None) -> None:
        self._queue.append((data, then))
        self._flush()

    def _flush(self) -> None:
        """What the pace allows leaves now; the rest when it does."""
        if not self._is_open or not self._queue:
            return
        now = self._runtime.monotonic()
        self._bucket, granted = self._bucket.take(now, len(self._queue))
        for _ in range(granted):
            data, then = self._queue.popleft()
            self._wire.send(data)
            if then is not None:
                then()
        if self._queue and not self._is_paced:
            self._is_paced = True
            self._runtime.later(max(0.01, self._bucket.wait(now)), self._next)
        if len(self._queue) < CROWD:
            self._room.set()

    def _next(self) -> None:
        self._is_paced = False
        self._flush()

    async def drain(self) -> None:
        """Wait while too much waits for its turn."""
        while self._is_open and len(self._queue) >= CROWD:
            self._room.clear()
            await self._room.wait()
        await self._wire.drain()

    # --- in ---

    async def notices(self) -> list[Message]:
        """What the orchestrator tells next, perhaps nothing; responses go to whoever asked."""
        try:
            data = await self._wire.receive()
        except HungUp:
            for event in self._connection.ended():
                self._hear(event)
            raise
        now = self._runtime.monotonic()
        heard = self._connection.receive(data, now)
        for late in self._connection.expire(now):
            if late.request_id in self._waiting:
                log.warning("the orchestrator has not answered request %s yet", late.request_id)
        return [event.message for event in heard if self._hear(event) and isinstance(event, NoticeReceived)]

    def _hear(self, event: Event) -> bool:
        """Whether it is a notice."""
        if isinstance(event, ResponseReceived):
            self._answered(event.message)
        elif isinstance(event, LogReceived):
            log.debug("the orchestrator says: %s", event.text[:1000])
        elif isinstance(event, Dropped):
            log.warning("a message of the orchestrator was too long: %d bytes", event.length)
        elif isinstance(event, Invalid):
            log.warning("the orchestrator said something that makes no sense: %s", event.what)
        return isinstance(event, NoticeReceived)

    def _answered(self, response: Response) -> None:
        if isinstance(response, Failure) and response.error.details.get("reason") == RATE_LIMITED:
            self._bucket = Bucket(tokens=0, at=self._runtime.monotonic(), rate=RATE * MARGIN, burst=BURST * MARGIN)
        then = self._waiting.pop(response.correlation_id or "", None)
        if then is not None:
            then(response)
        elif isinstance(response, Failure) and response.correlation_id is None:
            log.warning("the orchestrator refuses something that was said: %s", response.error.message)

    async def close(self) -> None:
        self._is_open = False
        self._room.set()
        await self._wire.close()
