"""A WebSocket to the hub, the same for every protocol.

Made for many small messages: messages sent within one turn of the event loop leave in one write, and received ones are
read without another turn. The `websockets` library does the framing, masking and close handshake; writes use its
sans-IO half, because its `send` costs a turn and a write for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.protocol import State

from dragoman.sdk.address import Address
from dragoman.sdk.errors import Conflict, DragomanError, NotAllowed
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network import tls
from dragoman.sdk.network.connect_errors import not_made
from dragoman.wire.closing import CloseReason

OPEN_TIMEOUT = 10.0
PING_INTERVAL = 20.0
QUEUE = 1024
"""Frames read ahead of the engine; beyond that the socket is not read."""

FINAL: dict[int, type[DragomanError]] = {
    CloseReason.TOKEN_REPLACED.websocket: NotAllowed,
    CloseReason.AGENT_REMOVED.websocket: NotAllowed,
    CloseReason.NEWER_CONNECTION.websocket: Conflict,
}
"""Close codes after which connecting again cannot help. If another process serves under the same id, the two would
replace each other without end."""


class WebSocket:
    """One connection. Before each write it calls `last_word`, which may give one more frame to send with it."""

    def __init__(
        self,
        address: Address,
        path: str,
        subprotocols: Sequence[str],
        *,
        largest: int,
        refusal: Callable[[bytes], str | None],
        compress: bool = False,
        last_word: Callable[[], bytes | None] = lambda: None,
    ) -> None:
        self._address = address
        self._path = path
        self._subprotocols = subprotocols
        self._largest = largest
        self._refusal = refusal
        self._compress = compress
        self._last_word = last_word
        self._socket: ClientConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._frames: list[bytes] = []
        self._flushing = False
        self.is_binary = False

    async def open(self) -> str | None:
        """Connect; returns the subprotocol that the hub chose."""
        try:
            self._socket = await connect(
                self._address.websocket(self._path),
                subprotocols=self._subprotocols,  # type: ignore[arg-type]
                additional_headers=self._address.headers,
                compression="deflate" if self._compress else None,
                open_timeout=OPEN_TIMEOUT,
                ping_interval=PING_INTERVAL,
                max_size=self._largest,
                max_queue=QUEUE,
                proxy=None if self._address.is_loopback else True,
                ssl=tls.context(self._address),
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status in (401, 403):
                words = self._refusal(bytes(error.response.body or b""))
                place = f"{self._address.shown} refuses us ({status})"
                raise NotAllowed(words or f"{place}: check the token, and that the address has no path") from None
            raise LinkDown(f"the hub answered the WebSocket with {status}") from None
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, WebSocketException) as error:
            raise not_made(self._address, error) from None
        self._loop = asyncio.get_running_loop()
        return self._socket.subprotocol

    async def receive(self) -> bytes:
        assert self._socket is not None
        try:
            frame = await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            reason = closed.rcvd.reason if closed.rcvd is not None else ""
            final = FINAL.get(closed.rcvd.code) if closed.rcvd is not None else None
            if final is not None:
                raise final(reason or "the hub ended the connection for good") from None
            raise LinkDown(f"the connection ended{': ' if reason else ''}{reason}") from None
        if self._address.record is not None:
            self._address.record(False, frame)
        return frame

    def send(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.flush_soon()

    def flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write everything of this turn at once. On a broken link it is dropped: `receive` raises."""
        self._flushing = False
        frames, self._frames = self._frames, []
        last = self._last_word()
        if last is not None:
            frames.append(last)
        socket = self._socket
        if socket is None or socket.protocol.state is not State.OPEN:
            return
        protocol = socket.protocol
        say = protocol.send_binary if self.is_binary else protocol.send_text
        record = self._address.record
        for frame in frames:
            if record is not None:
                record(True, frame)
            say(frame)
        socket.transport.write(b"".join(protocol.data_to_send()))

    async def drain(self) -> None:
        if self._socket is not None and self._socket.protocol.state is State.OPEN:
            self._flush()
            try:
                await self._socket.drain()
            except OSError:
                pass  # `receive` raises

    async def close(self) -> None:
        if self._socket is not None:
            self._flush()
            await self._socket.close()
