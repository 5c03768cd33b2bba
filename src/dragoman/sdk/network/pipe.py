"""Whole frames to the hub and back: what the link of a message protocol stands on, whatever carries them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from dragoman.sdk.messages import Accepted


class Frame(Struct, frozen=True):
    """One message of the hub; `receipt` where the transport names the delivery beside the message."""

    data: bytes
    receipt: str | None = None


class Pipe(Protocol):
    """Frames in and out, with the transport's own confirmations, for agents and clients alike."""

    async def open(self, registration: bytes | None) -> bytes:
        """Register if there is something to say, connect, and return the hub's answer to the registration."""
        ...

    async def receive(self) -> Sequence[Frame | Accepted]: ...

    def acknowledge(self, receipt: str) -> None: ...

    def send(self, frame: bytes, message_id: str, lane: str) -> None:
        """Frames of one lane stay in order."""
        ...

    async def drain(self) -> None: ...

    def quiesce(self) -> None: ...

    async def close(self) -> None: ...
