"""Forge's messages over a WebSocket: MessagePack where the hub speaks it, else JSON; compressed beyond this machine."""

from __future__ import annotations

import msgspec

from dragoman.protocols.forge.types import SUBPROTOCOL_JSON, SUBPROTOCOL_MSGPACK, Encoding
from dragoman.sdk.address import Address
from dragoman.sdk.forge.session import HEARD
from dragoman.sdk.network.websocket import WebSocket

PATH = "/forge/ws"


class WebSocketWire:
    """`session.Wire` over a WebSocket."""

    is_lines = False

    def __init__(self, address: Address) -> None:
        self._socket = WebSocket(
            address,
            PATH,
            [SUBPROTOCOL_MSGPACK, SUBPROTOCOL_JSON],
            largest=HEARD.bytes,
            refusal=_refusal,
            compress=not address.is_loopback,
        )

    async def open(self) -> Encoding:
        chosen = await self._socket.open()
        encoding = Encoding(chosen) if chosen is not None else Encoding.JSON
        self._socket.is_binary = encoding is Encoding.MSGPACK
        return encoding

    async def receive(self) -> bytes:
        return await self._socket.receive()

    def send(self, data: bytes) -> None:
        self._socket.send(data)

    async def drain(self) -> None:
        await self._socket.drain()

    async def close(self) -> None:
        await self._socket.close()


def _refusal(content: bytes) -> str | None:
    """The words of a `response:error`."""
    try:
        error = msgspec.json.decode(content)["error"]
        return f"{error['message']} ({error['code']})"
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return None
