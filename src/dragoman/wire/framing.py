"""Framing: bytes in any pieces become whole messages or whole lines, within a limit.

One HTTP body or one WebSocket message is one message, however many pieces it came in. The limit holds while the pieces
arrive: a sender of an endless body is refused at the limit, not after the memory is gone.

A program's output is lines. They arrive in whatever pieces the pipe has, with many lines in one or one line in many.
Lines end with LF; a CR before it belongs to the ending. Blank lines say nothing and are left out.

    kept between two pieces    at most one unfinished line, never more bytes of it than the limit
    a longer line              is dropped as it comes, and reported once, when it ends, with its length

A child that prints without end costs the search for the next LF in C, and no memory.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

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


LONGEST = 1024 * 1024


class Overlong(Struct, frozen=True):
    """A line that was dropped, and how long it was without its ending."""

    length: int


Line: TypeAlias = bytes | Overlong


class LineFraming:
    """The receiving end of one stream of lines."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._pieces: list[bytes] = []
        self._size = 0  # of the unfinished line
        self._dropping = False  # it is too long already, and only counted
        self._last = b""  # its last byte: a CR may belong to its ending

    @property
    def held(self) -> int:
        """Bytes kept of the unfinished line."""
        return 0 if self._dropping else self._size

    def feed(self, data: bytes) -> list[Line]:
        """The lines that ended in this piece, in order."""
        if not data:
            return []
        if b"\n" not in data:
            self._keep(data)
            return []
        first, *whole = data.split(b"\n")
        rest = whole.pop()
        lines: list[Line] = []
        self._keep(first)
        self._end(lines)
        if whole:
            if b"\r" in data:
                whole = [line.removesuffix(b"\r") for line in whole]
            if len(data) > self._longest:
                lines.extend(line if len(line) <= self._longest else Overlong(len(line)) for line in whole if line)
            else:
                lines.extend(filter(None, whole))
        if rest:
            self._keep(rest)
        return lines

    def finish(self) -> list[Line]:
        """The stream has ended: what stood there without an ending is the last line."""
        lines: list[Line] = []
        self._end(lines)
        return lines

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._size += len(piece)
        self._last = piece[-1:]
        if self._dropping:
            return
        if self._size > self._longest + (self._last == b"\r"):
            self._dropping = True
            self._pieces.clear()
        else:
            self._pieces.append(piece)

    def _end(self, lines: list[Line]) -> None:
        size = self._size - (self._last == b"\r")
        if self._dropping:
            lines.append(Overlong(size))
        elif size > 0:
            line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            lines.append(line[:size] if size < len(line) else line)
        self._pieces.clear()
        self._size, self._last, self._dropping = 0, b"", False
