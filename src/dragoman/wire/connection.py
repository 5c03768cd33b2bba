"""The shape of every protocol's connection: bytes in, events out; messages in, bytes out.

A connection owns the protocol state of one link and nothing else. The transport above it moves the bytes, and
nobody below it exists. `receive` never raises for what a peer sent: a broken message becomes an event that
says how to answer, because one bad message must not end a link that carries many exchanges. `send` raises
`LocalProtocolError` before a byte leaves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dragoman.wire.role import Role

EventT = TypeVar("EventT")
MessageT = TypeVar("MessageT")


class Connection(ABC, Generic[EventT, MessageT]):
    """One end of one link."""

    def __init__(self, role: Role) -> None:
        self.role = role

    @abstractmethod
    def receive(self, data: bytes) -> list[EventT]:
        """Take one framed message from the peer and return what it meant."""

    @abstractmethod
    def send(self, message: MessageT) -> bytes:
        """Return the bytes to put on the link, or raise `LocalProtocolError`."""
