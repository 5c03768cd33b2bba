"""A WebSocket whose frames go straight to whoever listens.

uvicorn hands every frame to the application through a queue and a task, and stops and restarts reading around each.
Here a `Listener` is called as frames arrive, says itself when reading shall stop, and writes without waiting; the
ASGI application only opens the link and learns of its end. The protocol itself (framing, masking, close handshake)
stays with the `websockets` library.

`mark` sends a ping behind everything written so far, and `marked` is called when the peer's WebSocket answers it: then
all of that has arrived there. A peer whose frames we have stopped reading, because the hub is behind, cannot be heard
answering pings; it is not blamed for that.

Compression costs memory and time for each connection, so only the paths that want it offer it. What a peer sends is
inflated no further than the largest message allowed: a bomb ends its link with 1009.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame
from websockets.http11 import Request

EXTENSION = "dragoman.socket"
"""Where the application finds the socket in its ASGI scope, under `extensions`."""

MARK = b"dragoman"

COMPRESSED_PATHS = frozenset({"/forge/ws"})
DEFLATE = ServerPerMessageDeflateFactory(
    server_max_window_bits=12,
    client_max_window_bits=12,
    compress_settings={"memLevel": 5},
)
"""Small windows: 64 KiB for each connection instead of 300."""


class Listener(Protocol):
    """The application's end."""

    def heard(self, frame: bytes) -> None:
        """A whole message came."""
        ...

    def marked(self) -> None:
        """Everything written before the last `mark` has arrived."""
        ...

    def writable(self) -> None:
        """The peer has read what held us up."""
        ...


class Socket(WebSocketsSansIOProtocol):
    """One WebSocket connection."""

    listener: Listener | None = None

    def handle_connect(self, event: Request) -> None:
        if event.path.partition("?")[0] in COMPRESSED_PATHS:
            self.conn.available_extensions = [DEFLATE]
        super().handle_connect(event)
        scope: dict[str, Any] | None = getattr(self, "scope", None)
        if scope is not None:
            scope["extensions"][EXTENSION] = self

    # -- in

    def send_receive_event_to_app(self) -> None:
        listener = self.listener
        if listener is None:
            super().send_receive_event_to_app()
            return
        data = self.frames[0] if len(self.frames) == 1 else b"".join(self.frames)
        self.frames = []
        if not self.close_sent:
            listener.heard(bytes(data))

    def stop_reading(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.read_paused = True
            self.transport.pause_reading()

    def go_on_reading(self) -> None:
        if self.read_paused and not self.transport.is_closing():
            self.read_paused = False
            self.transport.resume_reading()

    # -- out

    @property
    def open(self) -> bool:
        return self.handshake_complete and not (self.close_sent or self.disconnected or self.transport.is_closing())

    @property
    def has_room(self) -> bool:
        """Whether the peer keeps up with what we write."""
        return self.writable.is_set()

    def write(self, frames: Iterable[bytes]) -> None:
        """Send text frames. What is written to a socket that is closing is lost, as on any socket."""
        self._send(self.conn.send_text, frames)

    def write_binary(self, frames: Iterable[bytes]) -> None:
        self._send(self.conn.send_binary, frames)

    def _send(self, send: Callable[[bytes], None], frames: Iterable[bytes]) -> None:
        if not self.open:
            return
        try:
            for frame in frames:
                send(frame)
        except InvalidState:
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True  # it ended, by a refusal; uvicorn would log that it did not

    def mark(self) -> None:
        if not self.open:
            return
        try:
            self.conn.send_ping(MARK)
        except InvalidState:
            return
        self.transport.write(b"".join(self.conn.data_to_send()))

    def handle_pong(self, event: Frame) -> None:
        if self.listener is not None and bytes(event.data) == MARK:
            self.listener.marked()
        else:
            super().handle_pong(event)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.listener is not None:
            self.listener.writable()

    # -- keepalive

    def keepalive_timeout(self) -> None:
        if self.read_paused and not self.close_sent:
            self.pong_timer = None
            self.pending_ping_payload = None
            self.schedule_ping()
            return
        super().keepalive_timeout()
