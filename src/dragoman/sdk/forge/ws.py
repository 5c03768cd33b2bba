"""Forge's messages over a WebSocket: MessagePack where the hub speaks it, else JSON; compressed beyond this machine.
Messages that are recorded, for people, are JSON."""

from __future__ import annotations

import msgspec

from dragoman.protocols.forge.types import Encoding
from dragoman.sdk.address import Address
from dragoman.sdk.forge.session import RECEIVED
from dragoman.sdk.network.websocket import WebSocket

PATH = "/forge/ws"


class WebSocketWire(WebSocket):
    """`session.Wire` over a WebSocket."""

    is_lines = False

    def __init__(self, address: Address) -> None:
        super().__init__(
            address,
            PATH,
            [Encoding.JSON.value] if address.record else [Encoding.MSGPACK.value, Encoding.JSON.value],
            largest=RECEIVED.bytes,
            refusal=_refusal,
            compress=not address.is_loopback,
        )

    async def open(self) -> str | None:
        chosen = await super().open()
        self.is_binary = chosen == Encoding.MSGPACK
        return chosen


def _refusal(content: bytes) -> str | None:
    """The sentence of a `response:error`."""
    try:
        error = msgspec.json.decode(content)["error"]
        return f"{error['message']} ({error['code']})"
    except (msgspec.DecodeError, KeyError, TypeError, IndexError):
        return None
