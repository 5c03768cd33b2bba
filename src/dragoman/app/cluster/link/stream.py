"""One TCP or TLS connection between two nodes: frames, heartbeats, and buffers with bounds.

A frame is its length in four bytes, the most significant first, and that many bytes; an empty one is a heartbeat.
Nothing here knows what frames mean. The stream ends, and says why, when

- the other end closes it, or the network does;
- nothing came for `ttl` seconds, although this end was reading;
- the other end does not read, and more than `cap` bytes wait for it;
- a frame is longer than allowed: before the handshake is over, than a few kilobytes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, cast

HEADER = 4
LARGEST = 256 * 1024 * 1024
"""Bytes of a frame between nodes that know each other: a message of the largest size, encoded."""
LARGEST_HELLO = 64 * 1024
CAP = 256 * 1024 * 1024
"""Bytes that may wait for a node that does not read."""
TTL_SECONDS = 3.0
BEATS_PER_TTL = 4
PART = 4 * 1024 * 1024
"""What is longer is sent as several frames, where it has parts."""


class Stream(asyncio.Protocol):
    """`on_frame` gets each frame, `on_end` is called once, with the reason. Neither may raise."""

    def __init__(
        self,
        on_frame: Callable[[bytes], None],
        on_end: Callable[[str], None],
        *,
        on_open: Callable[[], None] = lambda: None,
        ttl: float = TTL_SECONDS,
        cap: int = CAP,
        on_writable: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_frame = on_frame
        self._on_end = on_end
        self._on_open = on_open
        self._on_writable = on_writable
        self._ttl = ttl
        self._cap = cap
        self.largest = LARGEST_HELLO
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._held = 0
        self._needed = HEADER
        self._length: int | None = None
        """The length of the frame that comes; None while its header comes."""
        self._last_read = self._loop.time()
        self._due = self._last_read
        self._timer: asyncio.TimerHandle | None = None
        self._why = ""
        self._ended = False
        self.reading = True
        self.writable = True

    # -- the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is not of that class
        self._last_read = self._loop.time()
        self._next_beat()
        self._on_open()

    def data_received(self, data: bytes) -> None:
        self._last_read = self._loop.time()
        self._pieces.append(data)
        self._held += len(data)
        if self._held < self._needed:
            return
        rest = data if len(self._pieces) == 1 else b"".join(self._pieces)
        at = 0
        while len(rest) - at >= self._needed and not self._ended:
            if self._length is None:
                length = int.from_bytes(rest[at : at + HEADER], "big")
                at += HEADER
                if length > self.largest:
                    self.end("the other end sent no frame of this protocol")
                    return
                if length:
                    self._length = self._needed = length
            else:
                frame = rest[at : at + self._length]
                at += self._length
                self._length, self._needed = None, HEADER
                self._on_frame(frame)
        self._pieces = [rest[at:]] if at < len(rest) else []
        self._held = len(rest) - at

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self._on_writable()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._finish(self._why or (f"the connection broke: {error}" if error else "the other end closed the stream"))

    # -- its user calls

    def write(self, frame: bytes) -> None:
        """Send a frame. Ends the stream where more than `cap` bytes wait already."""
        if self._ended or self._transport is None:
            return
        self._transport.writelines((len(frame).to_bytes(HEADER, "big"), frame))
        if not self.writable and self._transport.get_write_buffer_size() > self._cap:
            self.end(f"the other end does not read: more than {self._cap} bytes wait for it")

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def stop_reading(self) -> None:
        """Until `resume_reading`, the other end's silence is this end's doing."""
        if self.reading and self._transport is not None and not self._ended:
            self.reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.reading and self._transport is not None and not self._ended:
            self.reading = True
            self._last_read = self._loop.time()
            self._transport.resume_reading()

    def end(self, why: str) -> None:
        """End it at once; what was not sent is lost."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.abort()
        self._finish(self._why)

    def close(self, why: str) -> None:
        """End it when what was written is sent."""
        self._why = self._why or why
        if self._transport is not None:
            self._transport.close()

    @property
    def certificate(self) -> dict[str, Any] | None:
        """The certificate that the other end proved; None without TLS."""
        socket = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        if not isinstance(socket, ssl.SSLObject | ssl.SSLSocket):
            return None
        return socket.getpeercert()

    def _beat(self) -> None:
        if self._ended:
            return
        now = self._loop.time()
        self._last_read += max(0.0, now - self._due)  # while this process stood still, it could hear nothing
        if self.reading and now - self._last_read > self._ttl:
            self.end(f"the other end was silent for {self._ttl:g} seconds")
            return
        self.write(b"")
        self._next_beat()

    def _next_beat(self) -> None:
        self._due = self._loop.time() + self._ttl / BEATS_PER_TTL
        self._timer = self._loop.call_at(self._due, self._beat)

    def _finish(self, why: str) -> None:
        if self._ended:
            return
        self._ended = True
        self._pieces.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._on_end(why)
