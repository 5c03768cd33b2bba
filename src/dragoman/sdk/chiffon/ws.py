"""Chiffon's frames over a WebSocket, with receipts (`?receipts=1`). Acknowledgments of one turn go in one frame."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import SUBPROTOCOL, Acknowledgment, Receipt
from dragoman.sdk.address import Address
from dragoman.sdk.chiffon.http import refusal, register
from dragoman.sdk.links import Frame
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.http import http_client
from dragoman.sdk.network.websocket import WebSocket

PATH = "/api/agent/ws?receipts=1"

_CONTROL = re.compile(rb'\s*\{\s*"accepted"\s*:')


_receipt = msgspec.json.Decoder(Receipt).decode
_encode = msgspec.json.Encoder().encode


class WebSocketPipe:
    """`pipe.Pipe` over a WebSocket."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._acks: list[str] = []
        self._socket = WebSocket(
            address,
            PATH,
            [SUBPROTOCOL],
            largest=codec.LIMITS.bytes,
            refusal=refusal,
            last_word=self._acknowledgment,
        )

    async def open(self, registration: bytes | None) -> bytes:
        answer = b""
        if registration is not None:
            async with http_client(self._address) as client:
                answer = await register(client, registration)
        await self._socket.open()
        return answer

    async def receive(self) -> Sequence[Frame | Accepted]:
        data = await self._socket.receive()
        if _CONTROL.match(data):
            try:
                return (Accepted(_receipt(data).accepted),)
            except msgspec.DecodeError:
                pass  # an envelope may begin with a field of that name; then the codec says what is wrong
        return (Frame(data),)

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        self._socket.send(frame)

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        self._socket.flush_soon()

    def _acknowledgment(self) -> bytes | None:
        if not self._acks:
            return None
        acks, self._acks = self._acks, []
        return _encode(Acknowledgment(tuple(acks)))

    async def drain(self) -> None:
        await self._socket.drain()

    def quiesce(self) -> None:
        """The hub pushes; what comes now is left unacknowledged."""

    async def close(self) -> None:
        await self._socket.close()
