"""Chiffon's frames over a WebSocket, with receipts (`?receipts=1`).

Made for many small messages: what is sent within one turn of the event loop leaves in one write, acknowledgments
in one frame, and messages that have already arrived are taken without another turn. The framing, masking and close
handshake are the `websockets` library's; its sans-IO half is used for the writes, because its `send` costs a turn and
a write for each message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.protocol import State

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import SUBPROTOCOL
from dragoman.sdk.address import Address
from dragoman.sdk.errors import Conflict, DragomanError, NotAllowed
from dragoman.sdk.io_chiffon_http import http_client, refusal, register
from dragoman.sdk.links import Accepted, Frame, Link, LinkDown
from dragoman.sdk.words_chiffon import ChiffonLink
from dragoman.sdk.world import World

PATH = "/api/agent/ws?receipts=1"
OPEN_TIMEOUT = 10.0
PING_INTERVAL = 20.0
QUEUE = 1024
"""Frames read ahead of the engine before the socket is left to fill up."""

#: Close codes after which connecting again is no use. At 4009 another process serves under our id: taking the link
#: back would only make the two of them throw each other out for ever.
FINAL: dict[int, type[DragomanError]] = {4001: NotAllowed, 4009: Conflict}

_CONTROL = re.compile(rb'\s*\{\s*"accepted"\s*:')


class _Receipts(msgspec.Struct, frozen=True):
    accepted: tuple[str, ...]


_receipts = msgspec.json.Decoder(_Receipts).decode
_encode = msgspec.json.Encoder().encode


def agent_link(address: Address, world: World) -> Link:
    """An agent's link over a WebSocket."""
    return ChiffonLink(WebSocketPipe(address), world)


class WebSocketPipe:
    """`links.Pipe` over a WebSocket."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._socket: ClientConnection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acks: list[str] = []
        self._frames: list[bytes] = []
        self._flushing = False

    async def open(self, registration: bytes | None) -> bytes:
        answer = b""
        if registration is not None:
            async with http_client(self._address) as client:
                answer = await register(client, registration)
        try:
            self._socket = await connect(
                self._address.websocket(PATH),
                subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
                additional_headers=self._address.headers,
                compression=None,
                open_timeout=OPEN_TIMEOUT,
                ping_interval=PING_INTERVAL,
                max_size=codec.LIMITS.bytes,
                max_queue=QUEUE,
                proxy=None if self._address.is_loopback else True,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status in (401, 403):
                words = refusal(bytes(error.response.body or b""))
                raise NotAllowed(words or "the hub does not accept this token") from None
            raise LinkDown(f"the hub answered the WebSocket with {status}") from None
        except (OSError, TimeoutError, InvalidHandshake, InvalidURI, WebSocketException) as error:
            raise LinkDown(str(error) or type(error).__name__) from None
        self._loop = asyncio.get_running_loop()
        return answer

    async def receive(self) -> Sequence[Frame | Accepted]:
        assert self._socket is not None
        try:
            data = await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            reason = closed.rcvd.reason if closed.rcvd is not None else ""
            final = FINAL.get(closed.rcvd.code) if closed.rcvd is not None else None
            if final is not None:
                raise final(reason or "the hub ended the connection for good") from None
            raise LinkDown(f"the connection ended{': ' if reason else ''}{reason}") from None
        if _CONTROL.match(data):
            try:
                return (Accepted(_receipts(data).accepted),)
            except msgspec.DecodeError:
                pass  # an envelope may begin with a field of that name; then the codec says what is wrong
        return (Frame(data),)

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._frames.append(frame)
        self._flush_soon()

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._flushing and self._loop is not None:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Everything of this turn in one write. On a broken link it is dropped: `receive` says so."""
        self._flushing = False
        frames, self._frames = self._frames, []
        if self._acks:
            frames.append(_encode({"ack": self._acks}))
            self._acks = []
        socket = self._socket
        if socket is None or socket.protocol.state is not State.OPEN:
            return
        protocol = socket.protocol
        for frame in frames:
            protocol.send_text(frame)
        socket.transport.write(b"".join(protocol.data_to_send()))

    async def drain(self) -> None:
        if self._socket is not None and self._socket.protocol.state is State.OPEN:
            self._flush()
            try:
                await self._socket.drain()
            except OSError:
                pass  # `receive` says so

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left unacknowledged."""

    async def close(self) -> None:
        if self._socket is not None:
            self._flush()
            await self._socket.close()
