"""What slow, stalled and greedy clients may do. uvicorn alone holds a stalled connection for ever.

    a client that…                              is closed
    ------------------------------------------  ----------------------------------------------------------------
    sends nothing, or its headers too slowly    `header_seconds` after connecting, or after a later request began
    stalls or drips its body                    when a window of `body_seconds` brought under `body_bytes`
    keeps a connection without a request        after `idle_seconds`
    does not read what we write                 when nothing could be written for `write_seconds`, also on a WebSocket
    sends more header bytes than `header_bytes` at once, 431
    sends as many behind its body (trailers,
    which are ignored) or between its chunks    at once, 431
    pipelines too many requests                 at once, 400, when more than `PIPELINED` requests wait for their turn
    goes on sending a body that was refused     after `discard_bytes` more
    connects above the number of connections    at once, 503
    sends more than the hub has memory for      at once, 503
    closes its sending side                     when its requests are answered; in the middle of a request, at once

A sweep over all connections checks these once a second: a request only sets a few attributes and needs no timer. So
each check may come a second late, and a limit of ten seconds is configured as nine. WebSockets are also watched by
pings (`websocket`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from dragoman.server.asgi import SILENT

MIB = 1024 * 1024


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times, sizes and numbers that the endpoints allow."""

    message_bytes: int = 8 * MIB
    message_depth: int = 64
    header_seconds: float = 9.0
    header_bytes: int = 64 * 1024
    body_seconds: float = 9.0
    body_bytes: int = 1024
    idle_seconds: float = 75.0
    write_seconds: float = 30.0
    discard_bytes: int = 64 * MIB
    max_connections: int = 10_000
    poll_seconds: float = 60.0
    poll_messages: int = 100
    unanswered_frames: int = 256
    """Frames of one WebSocket that may wait for their commit; beyond that the hub stops reading."""
    ws_ping_seconds: float = 20.0

    @property
    def ws_bytes(self) -> int:
        """The hub refuses frames up to this size with the protocol's own error; longer ones end the link with 1009."""
        return self.message_bytes * 2


PIPELINED = 1000
"""Requests that may wait on one connection. Each costs much more than its bytes, and one read may bring ten
thousand."""

FRAMING = 8
"""Bytes on the wire for each byte of a body: a chunk of one byte takes six."""

OFFER = frozenset({b"connection", b"upgrade", b"http2-settings"})
"""The headers of an offer to upgrade to another protocol, which `Connection` names as well."""

_FULL = b"Too many connections; try again shortly.\n"
_NO_MEMORY = b"The hub has no memory for this now; try again later.\n"
_HEADERS = b"The headers are too large; send fewer or shorter ones.\n"
_LATER = b"503 Service Unavailable\r\nretry-after: 5"


def _plain(status: bytes, text: bytes) -> bytes:
    head = b"HTTP/1.1 %b\r\ncontent-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, len(text)) + text


class GuardedHttp(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol, with a deadline for every state it can be in.

    `limits` is set on a subclass by `guarded`, because uvicorn makes the instances.
    """

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline: float | None = None
        self._awaiting = True  # between requests
        self._in_headers = True  # of a request, or of the next
        self._header_bytes = 0
        self._body_got = 0
        self._around = 0  # bytes after the headers that are not the body
        self._discarded = 0
        self._offered = False  # its headers offer a protocol that the hub does not have
        self._leaving = False  # the last answer is out, while the client still sends
        self._unwritten = 0

    # -- what the client does

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.deadline = self.loop.time() + self.limits.header_seconds
        if len(self.connections) > self.limits.max_connections:
            transport.write(_plain(_LATER, _FULL))
            transport.close()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._in_headers:
            self._header_bytes += len(data)
        else:
            self._around += len(data)
        self._feed(data)
        self._around = max(0, self._around)
        much = self._header_bytes if self._in_headers else self._around
        if much > self.limits.header_bytes and not self.transport.is_closing():
            if self._in_headers or not self.cycle.response_started:
                self.transport.write(_plain(b"431 Request Header Fields Too Large", _HEADERS))
            self.transport.close()

    def _feed(self, data: bytes) -> None:
        """As uvicorn's `data_received`, except for requests that offer a protocol that the hub does not have, as every
        request of Java's client does (`Upgrade: h2c`). The parser would stop at their headers and lose their body, so
        they are parsed a second time without the offer."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            message = "Invalid HTTP request received."
            self.logger.warning(message)
            self.send_400_response(message)
        except httptools.HttpParserUpgrade as stopped:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            elif self._offered:
                again = self._without_offer() + data[stopped.args[0] :]
                self._offered = False
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._feed(again)

    def _without_offer(self) -> bytes:
        line = b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [b"%b: %b" % field for field in self.headers if field[0] not in OFFER]
        options = [word.strip() for name, value in self.headers if name == b"connection" for word in value.split(b",")]
        left = [word for word in options if word.lower() not in OFFER]
        return b"\r\n".join((line, *kept, *([b"connection: " + b", ".join(left)] if left else []), b"", b""))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._awaiting = False
        self._body_got = self._discarded = 0
        if self.cycle is not None:  # the first request's time began with the connection
            self.deadline = self.loop.time() + self.limits.header_seconds

    def on_headers_complete(self) -> None:
        self._offered = self.parser.should_upgrade() and self._get_upgrade() not in (None, b"websocket")
        if self._offered:
            return
        self._in_headers, self._header_bytes, self._around = False, 0, 0
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > self.limits.header_bytes:
            raise httptools.HttpParserError("headers too large")
        if len(self.pipeline) >= PIPELINED:
            self.pipeline.clear()
            raise httptools.HttpParserError("too many requests at once")
        self.deadline = self.loop.time() + self.limits.body_seconds
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # it was no upgrade
            self.headers = []  # trailers are no headers of the request
            self.cycle.transport = cast(asyncio.Transport, _Joined(self.transport, self.loop, self.leave))
            self.cycle.__class__ = OpenEnded if self.scope["http_version"] == "1.0" else Cycle

    def on_body(self, body: bytes) -> None:
        self._body_got += len(body)
        self._around -= FRAMING * len(body)
        if self._answered():
            self._discarded += len(body)
            if self._discarded > self.limits.discard_bytes:
                self.transport.close()
        try:
            super().on_body(body)
        except MemoryError:  # uvicorn would call the request invalid
            self._give_up()

    def _give_up(self) -> None:
        """There is no memory for this request. Discard the rest of it, so that the client can read the refusal."""
        self.cycle.body = bytearray()
        self.cycle.disconnected = self.cycle.response_complete = True
        self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write(_plain(_LATER, _NO_MEMORY))
        self._leaving = True

    def on_message_complete(self) -> None:
        if self._offered:
            return
        super().on_message_complete()
        self._awaiting = self._in_headers = True
        if self._leaving:
            self.transport.close()
        # The request is complete: the hub may take its time. If it was answered already, the next one may come.
        self.deadline = self.loop.time() + self.limits.idle_seconds if self._answered() else None

    def _answered(self) -> bool:
        cycle: Any = self.cycle  # None until the first headers, whatever uvicorn says
        return cycle is not None and cycle.response_complete

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self.flow.resume_reading()
        if self._awaiting:
            self.deadline = self.loop.time() + self.limits.idle_seconds

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client has closed its sending side, or the whole connection: the hub cannot tell which. It may still
        read, so complete requests are answered, and a request that waits (a poll) is answered at once. TLS has no
        half-closed connections: there the connection is over."""
        cycle = cast("Cycle | None", self.cycle)
        if cycle is None or cycle.more_body or self.scheme == "https":
            return False
        if cycle.response_complete:
            cycle.transport.close()
            return False
        cycle.keep_alive = False
        cycle.hear_no_more()
        return True

    def leave(self) -> None:
        """Close after the last answer, but not while a refused body still comes: the client would lose the connection
        before it reads the refusal."""
        if self._in_headers:
            self.transport.close()
        else:
            self._leaving = True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = self.transport.get_write_buffer_size()
        self._write_deadline = self.loop.time() + self.limits.write_seconds

    def shutdown(self) -> None:
        """As uvicorn's, except that an answer that waits to be written leaves first."""
        if self._answered():
            self.cycle.transport.close()
        else:
            super().shutdown()

    # -- the sweep, once a second

    def sweep(self, now: float) -> None:
        """Close the connection if its time is up."""
        if self.flow.write_paused:
            size = self.transport.get_write_buffer_size()
            if size < self._unwritten:
                self._unwritten, self._write_deadline = size, now + self.limits.write_seconds
            elif now > self._write_deadline:
                self.transport.abort()
            return
        if self.deadline is None or now < self.deadline or self.flow.read_paused:
            return
        if not self._in_headers:
            got, self._body_got = self._body_got, 0
            if got >= self.limits.body_bytes:
                self.deadline = now + self.limits.body_seconds
                return
        self.transport.close()


class Cycle(RequestResponseCycle):
    """A request and its answer, in the place of the cycle that uvicorn makes.

    When the client closes its sending side, the application gets a message for that (`asgi.SILENT`), once and after the
    whole body. uvicorn would take the client for disconnected, and the answer would be lost.
    """

    _silent = False
    _read = False

    def hear_no_more(self) -> None:
        self._silent = True
        self.message_event.set()

    async def receive(self) -> Any:
        if not (self._silent and self._read):
            message = await super().receive()
            if message["type"] == "http.disconnect" or not self._read:
                self._read = not message.get("more_body")
                return message
            if not self._silent:
                return message
        self._silent = False
        return {"type": SILENT}


class OpenEnded(Cycle):
    """The answer to a request of HTTP/1.0, which has no chunks: a body without a length ends with the connection."""

    _open_ended = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if not any(name.lower() == b"content-length" for name, _ in message.get("headers", ())):
                self.chunked_encoding = False
                self._open_ended = True
        elif self._open_ended:
            self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class _Joined:
    """A transport for one response: head and body leave together.

    uvicorn writes them one after the other, and a system call costs more than everything else about a small answer. So
    writes are gathered until the event loop runs again, or until they are many bytes: the transport must see those, to
    apply its backpressure.
    """

    __slots__ = ("_leave", "_loop", "_pieces", "_size", "_transport")
    MUCH = 65_536

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, leave: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._leave = leave
        self._pieces: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        if not self._pieces:
            self._loop.call_soon(self._flush)
        self._pieces.append(data)
        self._size += len(data)
        if self._size > self.MUCH:
            self._flush()

    def _flush(self) -> None:
        if self._pieces:
            pieces, self._pieces, self._size = self._pieces, [], 0
            if not self._transport.is_closing():  # the client may be gone; then it asks again
                self._transport.write(b"".join(pieces))

    def close(self) -> None:
        self._flush()
        self._leave()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def guarded(limits: Limits) -> type[GuardedHttp]:
    """The protocol class for a server with these limits."""
    return type("Guarded", (GuardedHttp,), {"limits": limits})
