"""HTTP, WebSocket, event streams and long polls for all realms at one address.

A connection belongs to the realm that its first request names. The front reads heads of requests, and carries bytes:
from then on client and node talk to each other, with the node's own limits, answers and close codes. What the front
adds are the time for the first head, its size, and a number of connections.

    the first request names no realm, or one that is not there    421, which says how to name one
    no node of the realm can be reached                           503, retryable
    a later request on the connection names another realm         the node answers what it has, then 421: a client asks
                                                                  again on a connection of its own (RFC 9110, 15.5.20)
    the node dies                                                 the connection ends, as with the node itself
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus

import httptools
import structlog

from dragoman.app.realms.places import Opener, Places
from dragoman.app.realms.route import LONGEST_HEAD, Head, Heads, HeadTooLong
from dragoman.security.tls import Renewal
from dragoman.server.server import GOODBYE_SECONDS, listen

log = structlog.get_logger("dragoman.realms")

CHUNK = 64 * 1024
HEADER_SECONDS = 9.0
LINGER_SECONDS = 2.0
"""How long a client may take to read a refusal."""
NAME_ONE = "name one: by the host name (REALM.hub.example), or with a token that was made in it"


class Stream:
    """A peer: what it sends, and what is sent to it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer


class Front:
    def __init__(
        self,
        places: Places,
        open_: Opener,
        *,
        host: str,
        port: int,
        tls: Renewal | None = None,
        max_connections: int = 10_000,
    ) -> None:
        self.host = host
        self.port = port
        self._places = places
        self._open = open_
        self._tls = tls
        self._most = max_connections
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    async def start(self) -> None:
        """Listen. Raises `PortBusy`; `port` is the bound one afterwards."""
        listener = listen(self.host, self.port)
        self.port = listener.getsockname()[1]
        secured = {} if self._tls is None else {
            "ssl": self._tls.context, "ssl_handshake_timeout": HEADER_SECONDS, "ssl_shutdown_timeout": GOODBYE_SECONDS,
        }  # fmt: skip
        self._server = await asyncio.start_server(self._accept, sock=listener, limit=CHUNK, **secured)  # type: ignore[arg-type]

    async def stop(self) -> None:
        """Connections end as when a node stops; agents come back, to another front or to this one's next run."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(Stream(reader, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve(self, client: Stream) -> None:
        if len(self._connections) > self._most:
            await _refuse(client, 503, "overloaded", "this address has too many connections; come back in a moment")
            return
        heads = Heads()
        try:
            async with asyncio.timeout(HEADER_SECONDS):
                first, sent = await _first_head(client.reader, heads)
        except TimeoutError:
            return
        except (httptools.HttpParserError, HeadTooLong) as error:
            long = isinstance(error, HeadTooLong)
            sentence = f"the headers have more than {LONGEST_HEAD} bytes" if long else "this is no HTTP/1.1 request"
            await _refuse(client, 431 if long else 400, "invalid", sentence)
            return
        if first is None:
            return
        realms = self._places.realms
        if first.is_for_the_front(realms):
            await self._say_how_it_is(client, first)
            return
        realm = first.realm(realms)
        if realm is None:
            await _refuse(client, 421, "not_found", f"there is no such realm at this address; {NAME_ONE}")
            return
        node = await self._reach(realm)
        if node is None:
            await _refuse(client, 503, "overloaded", f"no node of the realm {realm} can be reached; ask again soon")
            return
        try:
            await self._carry(client, node, realm, heads, sent)
        finally:
            node.writer.close()

    async def _reach(self, realm: str) -> Stream | None:
        for place in self._places.of(realm):
            try:
                return Stream(*await self._open(place))
            except OSError as error:
                log.info("a node cannot be reached", realm=realm, node=place.name, at=place.http, why=str(error))
        return None

    async def _carry(self, client: Stream, node: Stream, realm: str, heads: Heads, sent: bytes) -> None:
        """Until one of them ends. `sent`: what was read of the client already."""
        node.writer.write(sent)
        back = asyncio.create_task(_pass_on(node.reader, client.writer))
        there = asyncio.create_task(self._pass_requests(client.reader, node.writer, realm, heads))
        try:
            done, _ = await asyncio.wait((back, there), return_when=asyncio.FIRST_COMPLETED)
            if there in done and there.exception() is None and there.result():
                with suppress(NotImplementedError, OSError):  # the node sends what it owes, and closes
                    node.writer.write_eof()
                    await back
                    await _refuse(client, 421, "conflict", f"this connection is for the realm {realm}; open another")
            elif there in done and there.exception() is None:
                await back
        finally:
            for task in (back, there):
                task.cancel()
            await asyncio.gather(back, there, return_exceptions=True)

    async def _pass_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, realm: str, heads: Heads
    ) -> bool:
        """True where a request for another realm came: it is not passed on."""
        while data := await reader.read(CHUNK):
            try:
                found = heads.feed(data)
            except (httptools.HttpParserError, HeadTooLong):
                found = iter(())  # the node refuses it in its own words
            if any(head.realm(self._places.realms) not in (realm, None) for head in found):
                return True
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return False

    async def _say_how_it_is(self, client: Stream, head: Head) -> None:
        realms = sorted(self._places.realms)
        served = [realm for realm in realms if self._places.is_ready(realm)]
        if head.path == b"/livez":
            await _answer(client, 200, {"status": "ok"})
        else:
            detail = f"{len(served)} of {len(realms)} realms have a node that is ready"
            status = "ok" if served else "unready"
            await _answer(client, 200 if served else 503, {"status": status, "detail": detail})


async def _first_head(reader: asyncio.StreamReader, heads: Heads) -> tuple[Head | None, bytes]:
    """The first request's head, and everything that was read. No head: the client left."""
    sent = b""
    while data := await reader.read(CHUNK):
        sent += data
        for head in heads.feed(data):
            return head, sent
    return None, sent


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


async def _refuse(client: Stream, status: int, kind: str, message: str) -> None:
    """A problem document (RFC 9457), as a node would write it."""
    title = HTTPStatus(status).phrase
    problem = {
        "type": f"urn:dragoman:problem:{kind}", "title": title, "status": status, "detail": message, "kind": kind,
        "reason": kind, "message": message, "field": None, "facts": {}, "next": None,
    }  # fmt: skip
    more = [("retry-after", "1")] if status == HTTPStatus.SERVICE_UNAVAILABLE else []
    await _answer(client, status, problem, more, media="application/problem+json")


async def _answer(
    client: Stream, status: int, body: object, more: Iterable[tuple[str, str]] = (), media: str = "application/json"
) -> None:
    """And close: the client may be in the middle of sending, so it gets a moment to read the answer."""
    text = json.dumps(body).encode()
    headers = [("content-type", media), ("content-length", str(len(text))), ("connection", "close"), *more]
    head = "".join(f"{name}: {value}\r\n" for name, value in headers)
    client.writer.write(f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n{head}\r\n".encode() + text)
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(LINGER_SECONDS):
            await client.writer.drain()
            if client.writer.can_write_eof():
                client.writer.write_eof()
                while await client.reader.read(CHUNK):
                    pass
