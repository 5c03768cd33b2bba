"""A WebSocket whose messages go straight to a `Listener`: the wire of a connection loop.

uvicorn hands every frame to the application through a queue and a task, and stops and restarts reading around each.
Here the listener is called as messages arrive, decides when reading stops, and writes without waiting; the ASGI
application only opens the connection and learns of its end. `ws_frames` reads and writes the plainest frames; the rest
of the protocol (all other frames, the handshakes) stays with the `websockets` library.

- *Arrival*: `ping` sends a ping behind everything written so far, and `ponged` is called when the peer answers it: then
  all of that has arrived there.
- *Silent peers*: while the hub does not read, because it is behind, it cannot see pongs; the peer is not blamed for
  that. But when nothing could be written to a peer for `write_seconds`, the hub cuts the connection. A close that waits
  until everything was written would wait for ever.
- *Close codes*: a connection that ends because of what the peer sent ends with a code that says so. The peer may be in
  the middle of sending the rest, and closing a socket with something unread resets the connection, which overtakes the
  code. So the hub throws away what still comes, until nothing comes for `QUIET_SECONDS`.
- *Memory*: a large message takes its bytes from what the hub may hold (`core.memory`) as soon as its length is known.
  While there is no room, the hub reads no more of it. One that comes in fragments has no length, so two of them could
  wait for each other: one that got half of what it needs and no more for `PATIENCE_SECONDS` ends with 1013.
- *Fairness*: tiny frames cost a thousand times what their bytes do, and one read may bring forty thousand. So messages
  are processed for `TURN_SECONDS` at a time, and other connections have their turn in between.
- *Compression* costs memory and time for each connection, so only the paths that want it offer it. The library inflates
  a message no further than the largest one allowed: a bomb ends its connection with 1009.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from http import HTTPStatus
from time import monotonic
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from dragoman.core.memory import SMALL, STRANGERS, MemoryBudget
from dragoman.server.ws_frames import BINARY, TEXT, Cutter, encode_frames

EXTENSION = "dragoman.socket"
"""Where the application finds the socket in its ASGI scope, under `extensions`."""

PING = b"dragoman"
VERSION = "13"

REST_SECONDS = 0.25
TURN_SECONDS = 0.005
SLICE = 512
"""Bytes given to the library at once where frames are compressed: at most 85 of them."""
FRAGMENTS = 65_536
"""Frames that one message may come in."""

PATIENCE_SECONDS = 10.0
LOOK_SECONDS = 1.0
"""How often a connection that waits for memory looks by itself whether there is some."""

QUIET_SECONDS = 0.5
LINGER_SECONDS = 5.0
"""A peer that goes on sending after that sees the reset alone."""

DEFLATE = ServerPerMessageDeflateFactory(
    server_max_window_bits=12,
    client_max_window_bits=12,
    compress_settings={"memLevel": 5},
)
"""Small windows: 64 KiB for each connection instead of 300."""


class Listener(Protocol):
    """The receiver of messages (`connection.ConnectionLoop`)."""

    def receive(self, frame: bytes) -> None:
        """A whole message came."""
        ...

    def ponged(self) -> None:
        """Everything written before the last `ping` has arrived."""
        ...

    def writable(self) -> None:
        """The peer reads again."""
        ...


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One WebSocket, the wire of its connection loop (`connection.Wire`).

    Three things may stop reading: the connection loop, because the hub is behind; a peer that does not read the hub's
    answers; one that sends more than `frames_at_once` in a quarter of a second, where refusing costs, too. Reading goes
    on when none of them holds.
    """

    listener: Listener | None = None
    compressed_paths: frozenset[str] = frozenset()
    write_seconds: float = 30.0
    """How long a peer may read nothing while the hub has something for it."""
    _cutter: Cutter | None = None
    """Once the handshake began, unless frames are compressed."""
    _lingers_until: float | None = None
    """Since the hub gave the peer up."""
    _unwritten = 0
    _stalled: asyncio.TimerHandle | None = None
    _held = False
    """Whether the hub reads no more because there are `_unread` pieces."""
    _is_planned = False
    _memory: MemoryBudget | None = None
    _principal = STRANGERS
    _taken = 0
    """Bytes taken for the message that is being read."""
    _lacking_since: float | None = None
    """Since when there is no room for the rest of it."""
    _look: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread: deque[tuple[bytes, bool | None]] = deque()
        self._stops: set[str] = set()
        """Why the hub does not read."""
        self._kind = TEXT
        self._frames_at_once: int | None = None
        self._frames_lately = 0
        self._rest: asyncio.TimerHandle | None = None

    def handle_connect(self, event: Request) -> None:
        if event.path.partition("?")[0] in self.compressed_paths:
            self.conn.available_extensions = [DEFLATE]
        if event.headers.get_all("Sec-WebSocket-Version") not in ([], [VERSION]):
            self._refuse_version()
            return
        super().handle_connect(event)
        scope: dict[str, Any] | None = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][EXTENSION] = self
            if not self.conn.extensions:
                self._cutter = Cutter(self.config.ws_max_size)

    def _refuse_version(self) -> None:
        """The library calls another version a bad request; RFC 6455 (4.2.2) wants the answer to name ours."""
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        reason = f"This WebSocket version is not spoken here; use version {VERSION}.\n"
        response = self.conn.reject(HTTPStatus.UPGRADE_REQUIRED, reason)
        response.headers["Upgrade"] = "websocket"
        response.headers["Sec-WebSocket-Version"] = VERSION
        self.conn.send_response(response)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.close()

    # -- in

    def data_received(self, data: bytes) -> None:
        if self._lingers_until is not None:
            self._linger(self._lingers_until)
            return
        if not self.handshake_initiated:
            super().data_received(data)
            return
        if self._cutter is None:
            self._unread.extend((data[at : at + SLICE], None) for at in range(0, len(data), SLICE))
        else:
            self._unread.extend(self._cutter.cut(data))
        if not self._is_planned:
            self._process()

    def _process(self) -> None:
        """Pass received messages to the listener, for `TURN_SECONDS`."""
        self._is_planned = False
        until = monotonic() + TURN_SECONDS
        while self._unread and not self._waits:
            if self.transport.is_closing() or self._lingers_until is not None:
                self._unread.clear()
                break
            piece, is_text = self._unread.popleft()
            if is_text is None:
                super().data_received(piece)
            elif not self.close_sent:
                self._pass_on(piece, is_text)
            if monotonic() > until:
                self._process_soon()
                break
        if self._cutter is not None and not self._unread:
            self._reserve(self._cutter.expected)
        self._hold(bool(self._unread) or self._lacking_since is not None)

    def attach(
        self,
        listener: Listener,
        principal: str,
        memory: MemoryBudget,
        *,
        binary: bool = False,
        frames_at_once: int | None = None,
    ) -> None:
        """Pass messages to this `listener`; their bytes are taken from the principal's `memory`."""
        self.listener, self._principal, self._memory = listener, principal, memory
        self._kind = BINARY if binary else TEXT
        self._frames_at_once = frames_at_once

    def _reserve(self, expected: int) -> None:
        """Take memory for the message that is being read, or stop reading until there is room for it."""
        memory, more = self._memory, expected - self._taken
        if memory is None or more <= 0 or expected <= SMALL or expected > self.config.ws_max_size:
            return
        if memory.take(self._principal, more, self._taken) is None:
            self._taken = expected
            self._lacking_since = None
            return
        now = self.loop.time()
        if self._lacking_since is None:
            self._lacking_since = now
        elif self._taken and now - self._lacking_since > PATIENCE_SECONDS:
            self._lacking_since = None
            self.conn.fail(CloseCode.TRY_AGAIN_LATER, "the hub has no memory for this message now; send it again")
            self.handle_parser_exception()
            return
        memory.when_room(self._principal, self._look_for_room)
        if self._look is not None:
            self._look.cancel()
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_for_room)

    def _look_for_room(self) -> None:
        if self._lacking_since is not None and not self.transport.is_closing():
            self._process()

    def _give_back(self) -> None:
        taken, self._taken, self._lacking_since = self._taken, 0, None
        if self._memory is not None:
            self._memory.no_matter(self._look_for_room)
            self._memory.give_back(self._principal, taken)

    async def receive(self) -> Any:
        message = await super().receive()
        self._process_soon()  # uvicorn may have gone on reading
        return message

    def _process_soon(self) -> None:
        if self._unread and not self._is_planned:
            self._is_planned = True
            self.loop.call_soon(self._process)

    @property
    def _waits(self) -> bool:
        """Whether the listener has stopped reading."""
        return self.read_paused and self.listener is not None

    def _hold(self, held: bool) -> None:
        if held is self._held:
            return
        self._held = held
        if self.read_paused or self.transport.is_closing():
            return
        if held:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        if self.listener is None:
            super().send_receive_event_to_app()
            return
        data = bytes(self.frames[0]) if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if not self.close_sent:
            self._pass_on(data, self.curr_msg_data_type == "text")
        if self._taken:
            self._give_back()  # the listener holds it now

    def _pass_on(self, message: bytes, is_text: bool) -> None:
        if self.listener is None:
            self.frames, self.curr_msg_data_type = [message], "text" if is_text else "bytes"
            super().send_receive_event_to_app()
            return
        if is_text:
            try:
                message.decode()
            except UnicodeDecodeError:
                self.conn.fail(CloseCode.INVALID_DATA, "a text frame that is not UTF-8")
                self.handle_parser_exception()
                return
        if self._frames_at_once is not None:
            self._count(self._frames_at_once)
        self.listener.receive(message)
        if not self.has_room:
            self.stop_reading("room")

    def _count(self, most: int) -> None:
        self._frames_lately += 1
        if self._rest is None:
            self._rest = self.loop.call_later(REST_SECONDS, self._rested)
        if self._frames_lately >= most:
            self.stop_reading("pace")

    def _rested(self) -> None:
        self._rest, self._frames_lately = None, 0
        self.resume_reading("pace")

    def handle_parser_exception(self) -> None:
        """As uvicorn's, except that the peer has time to read the close code before the connection is closed."""
        close = self.conn.close_sent
        if close is None or self._lingers_until is not None:
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.stop_keepalive()
        self._stops.clear()
        self.resume_reading()
        self._lingers_until = self.loop.time() + LINGER_SECONDS
        self._linger(self._lingers_until)

    def _linger(self, until: float) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_at(min(self.loop.time() + QUIET_SECONDS, until), self.transport.close)

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= FRAGMENTS:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "a message in too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        answer = b"".join(self.conn.data_to_send())
        if self.has_room:  # a peer that does not read gets no more answers
            self.transport.write(answer)

    def stop_reading(self, why: str = "loop") -> None:
        self._stops.add(why)
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            if not self._held:
                self.transport.pause_reading()

    def resume_reading(self, why: str = "loop") -> None:
        self._stops.discard(why)
        if not self._stops and self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            if not self._held:
                self.transport.resume_reading()
            self._process_soon()

    # -- out

    @property
    def open(self) -> bool:
        return self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing())

    @property
    def has_room(self) -> bool:
        """Whether the peer keeps up with what the hub writes."""
        return self.writable.is_set()

    def write(self, messages: Iterable[bytes]) -> None:
        """Write messages. Those written while the socket closes are lost, as on any socket."""
        if not self.open:
            return
        if self._cutter is not None:
            self.transport.write(encode_frames(self._kind, messages))
            return
        send = self.conn.send_text if self._kind == TEXT else self.conn.send_binary
        try:
            for message in messages:
                send(message)
        except InvalidState:
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # it ended, by a refusal; uvicorn would log that it did not

    def ping(self) -> None:
        if not self.open:
            return
        try:
            self.conn.send_ping(PING)
        except InvalidState:
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    def handle_pong(self, event: Frame) -> None:
        if self.listener is not None and bytes(event.data) == PING:
            self.listener.ponged()
        else:
            super().handle_pong(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_written()

    def _watch_written(self) -> None:
        self._stop_watching()
        self._unwritten = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.write_seconds, self._check_written)

    def _stop_watching(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _check_written(self) -> None:
        self._stalled = None
        left = self.transport.get_write_buffer_size()
        if left and left >= self._unwritten:
            self.transport.abort()
        elif left:
            self._watch_written()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread.clear()
        if self._rest is not None:
            self._rest.cancel()
        self._stop_watching()
        self._give_back()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()
        if self.listener is not None:
            self.listener.writable()
            if self.has_room:
                self.resume_reading("room")

    # -- keepalive

    def keepalive_timeout(self) -> None:
        if (self.read_paused or self._held) and not self.close_sent:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
        self._watch_written()


def watched(write_seconds: float, compressed_paths: frozenset[str]) -> type[WebSocketConnection]:
    """The class with these settings; uvicorn makes the instances."""
    return type(
        "Watched", (WebSocketConnection,), {"write_seconds": write_seconds, "compressed_paths": compressed_paths}
    )
