"""Whole messages: one HTTP body or one WebSocket message is one message, however many pieces it came in.

The size limit is enforced while the pieces arrive: a sender of an endless body is refused at the limit, not
after the memory is gone.
"""

from __future__ import annotations

from dragoman.wire.errors import RemoteProtocolError, Stage
from dragoman.wire.guard import Limits


class WholeMessage:
    """Collects the pieces of one message, never more than the limit."""

    def __init__(self, limits: Limits) -> None:
        self._limit = limits.bytes
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> None:
        """Take the next piece; refuse as soon as the message is too large, and free what was kept."""
        self._size += len(piece)
        if self._size > self._limit:
            self._pieces.clear()
            raise RemoteProtocolError(f"message exceeds the limit of {self._limit} bytes", stage=Stage.SIZE)
        self._pieces.append(piece)

    def finish(self) -> bytes:
        """The message; the collector is empty afterwards and may serve the next one."""
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces = []
        self._size = 0
        return whole
