"""Cuts a WebSocket's bytes into frames, and reads and writes the plain ones itself (RFC 6455, 5.2). Pure.

Nearly every frame that reaches a hub is of the simplest sort: a whole message, masked, in one read. The `websockets`
library takes thirty calls to read one, and a dozen to write one. So those are read and written here; the library does
everything else (control frames, fragments, frames that arrive in pieces, broken ones, the closing handshake). `Cutter`
gives the library such frames from their first byte to their last.
"""

from __future__ import annotations

from collections.abc import Iterable

try:
    from websockets.speedups import apply_mask
except ImportError:  # no C here
    from websockets.utils import apply_mask

FIN = 0x80
OPCODE = 0x0F
CONTINUATION, TEXT, BINARY = 0x0, 0x1, 0x2
PLAIN = {FIN | TEXT: True, FIN | BINARY: False}
MASKED = 0x80
TWO_BYTES, EIGHT_BYTES = 126, 127
"""In place of a length: it follows in so many bytes."""

MASK_BYTES = 4


class Cutter:
    """Cuts what one peer sends into frames."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._head = b""
        self._owed = 0
        self._in_fragments = False
        self.expected = 0
        """Bytes of the incomplete message: the lengths of those of its frames that have begun."""

    def cut(self, data: bytes) -> list[tuple[bytes, bool | None]]:
        """Messages, each with whether it is text, and bytes for the library with None, in the order they came."""
        pieces: list[tuple[bytes, bool | None]] = []
        if self._head:
            data, self._head = self._head + data, b""
        at, end = 0, len(data)
        while at < end:
            if self._owed:  # the library has its beginning
                piece = data[at : at + self._owed]
                self._owed -= len(piece)
                at += len(piece)
                if not self._owed and not self._in_fragments:
                    self.expected = 0
                pieces.append((piece, None))
                continue
            if end - at < 2:
                self._head = data[at:]
                break
            first, length = data[at], data[at + 1]
            body = at + 2
            masked = length >= MASKED
            length &= ~MASKED
            if length >= TWO_BYTES:
                size = 2 if length == TWO_BYTES else 8
                if end - body < size:
                    self._head = data[at:]
                    break
                length = int.from_bytes(data[body : body + size], "big")
                body += size
            if masked:
                body += MASK_BYTES
            if (
                first in PLAIN
                and masked
                and body + length <= end
                and length <= self._longest
                and not self._in_fragments
            ):
                pieces.append((apply_mask(data[body : body + length], data[body - MASK_BYTES : body]), PLAIN[first]))
                at = body + length
                continue
            self._owed = body - at + length
            if first & OPCODE <= BINARY:
                self.expected += length
                self._in_fragments = not first & FIN
        return pieces


def encode_frames(kind: int, messages: Iterable[bytes]) -> bytes:
    """Messages as a server sends them, a frame each."""
    pieces: list[bytes] = []
    for message in messages:
        length = len(message)
        if length < TWO_BYTES:
            pieces.append(bytes((FIN | kind, length)))
        elif length < 1 << 16:
            pieces.append(bytes((FIN | kind, TWO_BYTES, length >> 8, length & 0xFF)))
        else:
            pieces.append(bytes((FIN | kind, EIGHT_BYTES)) + length.to_bytes(8, "big"))
        pieces.append(message)
    return b"".join(pieces)
