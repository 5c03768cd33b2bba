"""HTTP below the endpoints: a router for the few hot paths, bodies with a limit, answers in one write.

A dictionary finds a hot path in one step; everything else (management, operations, dashboard) falls through to an
ordinary Starlette application. Handlers speak raw ASGI: at twenty thousand requests a second, request and response
objects cost more than the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from dragoman.core.memory import STRANGERS, MemoryBudget
from dragoman.messages.faults import Fault, Refused
from dragoman.server.refusals import CALLER
from dragoman.wire.errors import RemoteProtocolError, Stage
from dragoman.wire.framing import WholeMessage
from dragoman.wire.guard import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = (b"content-type", b"application/json")
SILENT = "http.silent"
"""A message type beside those of ASGI: the client closed its sending side. It may still read, or be gone
(`limits.Cycle`)."""


STRANGE_HOST = (
    "invalid",
    "Not for this hub",
    "This hub does not answer to this name. Use localhost or its address, or add the name to server.allowed_hosts.",
)
STRANGE_ORIGIN = (
    "forbidden",
    "Not from this site",
    "A page of another site may not open a WebSocket here. Add its host to server.allowed_hosts to allow it.",
)


LONGEST_RETRY_AFTER = 60


def retry_after(fault: Fault, default: int = 1) -> int:
    """The `Retry-After` header of a refusal: as many seconds as the refusal itself names, in every protocol."""
    seconds = fault.facts.get("retry_after")
    if not isinstance(seconds, int | float):
        return default
    return min(LONGEST_RETRY_AFTER, max(1, math.ceil(seconds)))


class Disconnected(Exception):
    """The client disconnected while the hub read its request."""


class Router:
    """Routes to `hot` by exact path, to `prefixes` by the path's beginning, and the rest to `fallback`. A request gives
    the `memory` that it holds back when it ends."""

    def __init__(
        self,
        hot: Mapping[str, ASGIApp],
        fallback: ASGIApp,
        *,
        prefixes: Mapping[str, ASGIApp] | None = None,
        memory: MemoryBudget | None = None,
        patience: float = 0.0,
        hosts: Hosts | None = None,
    ) -> None:
        self._hosts = hosts or Hosts()
        self._hot = dict(hot)
        self._prefixes = tuple((prefixes or {}).items())
        self._fallback = fallback
        self._memory = memory or MemoryBudget()
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        client = scope.get("client")
        CALLER.set(client[0] if client else None)
        if not self._hosts.knows(host := header(scope, b"host")):
            await self._send_problem(scope, receive, send, 421, *STRANGE_HOST)
            return
        if scope["type"] == "websocket" and not self._hosts.trusts(header(scope, b"origin"), host):
            await self._send_problem(scope, receive, send, 403, *STRANGE_ORIGIN)
            return
        app = self._hot.get(path)
        if app is None:
            app = next((app for prefix, app in self._prefixes if path.startswith(prefix)), self._fallback)
        if scope["type"] == "websocket":
            await (app(scope, receive, send) if speaks_websocket(app) else self._refuse_socket(scope, receive, send))
            return
        held = scope[HOLD] = RequestMemory(self._memory, self._patience)
        try:
            await app(scope, receive, send)
        finally:
            if held.size:
                held.release()

    async def _refuse_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a WebSocket at a path that has none."""
        there = ", ".join(sorted(known for known, app in self._hot.items() if speaks_websocket(app)))
        detail = f"No WebSocket is opened at this address. Open it at one of: {there}."
        await self._send_problem(scope, receive, send, 404, "not_found", "Not found", detail)

    async def _send_problem(
        self, scope: Scope, receive: Receive, send: Send, status: int, kind: str, title: str, detail: str
    ) -> None:
        """Refuse a request or a WebSocket before an endpoint gets it, with a problem document (RFC 9457)."""
        problem = {
            "type": f"urn:dragoman:problem:{kind}",
            "title": title,
            "status": status,
            "detail": detail,
            "instance": scope.get("path", ""),
            "kind": kind,
            "reason": kind,
            "message": detail,
            "field": None,
            "facts": {},
            "next": None,
        }
        body, media = json.dumps(problem).encode(), (b"content-type", b"application/problem+json")
        if scope["type"] != "websocket":
            await answer(send, status, body, kind=media)
            return
        await receive()  # websocket.connect
        await send({"type": "websocket.http.response.start", "status": status, "headers": [media]})
        await send({"type": "websocket.http.response.body", "body": body})


def speaks_websocket(app: ASGIApp) -> bool:
    """Whether the application takes WebSockets (`websocket_endpoint`); most take only requests."""
    return bool(getattr(app, "speaks_websocket", False))


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def header_text(scope: Scope, name: bytes) -> str | None:
    value = header(scope, name)
    return None if value is None else value.decode("latin-1")


async def read_body(scope: Scope, receive: Receive, limit: int, principal: str = STRANGERS) -> bytes:
    """The whole body; raises `RemoteProtocolError` (SIZE) as soon as it is known to be too large, and `Refused` when
    the hub has no memory for it.

    A declared length is refused before a byte is read where it is above the limit, or above the memory that the hub has
    left for all messages or for this principal's. A body without a length takes memory as it comes.
    """
    declared = header(scope, b"content-length")
    promised = int(declared) if declared is not None and declared.isdigit() else 0
    if promised > limit:
        raise RemoteProtocolError(f"message of {promised} bytes exceeds the limit of {limit} bytes", stage=Stage.SIZE)
    if promised:
        await hold(scope, principal, promised)
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body"):
        body: bytes = message["body"]
        if len(body) <= limit:
            if len(body) > promised:
                await hold(scope, principal, len(body) - promised)
            return body
    whole, got = WholeMessage(Limits(bytes=limit)), 0
    while True:
        if message["type"] == "http.disconnect":
            raise Disconnected
        got += len(message["body"])
        whole.feed(message["body"])
        if got > promised:
            await hold(scope, principal, got - promised)
            promised = got
        if not message.get("more_body"):
            return whole.finish()
        message = await receive()


async def departure(receive: Receive) -> None:
    """Wait until the client of a request that was read has disconnected, or may have."""
    while (await receive())["type"] not in ("http.disconnect", SILENT):
        pass


async def is_gone(receive: Receive) -> bool:
    """Whether the client has disconnected by now, or may have."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await departure(receive)
            return True
    return False


async def answer(
    send: Send, status: int, body: bytes, *, headers: tuple[tuple[bytes, bytes], ...] = (), kind: Any = JSON
) -> None:
    """Send one whole response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})


# -- the names that a hub answers to

LOCAL = "localhost"
REMEMBERED = 256
"""So many accepted headers are recognised by their bytes, without parsing."""


class Hosts:
    """Which names a hub answers to, so that no web page reaches it by a name of its own (DNS rebinding).

    A browser with a page of `evil.example` may resolve that name to 127.0.0.1 later, and then send the page's requests
    to a hub on loopback, with `Host: evil.example`. So a hub that only this machine can reach answers to `localhost`,
    to names below it, to addresses, and to the names its operator allows. One that others can reach answers to any
    name, unless the operator allows only some. `allowed` is None for any name.

    A browser opens a WebSocket for a page of another site without a check of its own, but names the site (`Origin`).
    That must be the host it connects to, or an allowed one. Other clients send no `Origin`.
    """

    def __init__(self, allowed: Iterable[str] | None = None) -> None:
        self._allowed = None if allowed is None else frozenset(_name(name) for name in allowed)
        self._good: set[bytes] = set()

    def knows(self, host: bytes | None) -> bool:
        """Whether a request with this Host header is for this hub. A request without one does not come from a
        browser."""
        if self._allowed is None or host is None or host in self._good:
            return True
        if not self._is_ours(_name(host.decode("latin-1"))):
            return False
        if len(self._good) < REMEMBERED:
            self._good.add(host)
        return True

    def trusts(self, origin: bytes | None, host: bytes | None) -> bool:
        """Whether a page of this origin may open a WebSocket here."""
        if origin is None:
            return True
        site = _name(urlsplit(origin.decode("latin-1")).netloc)
        if not site:
            return False
        if host is not None and site == _name(host.decode("latin-1")):
            return True
        return self.allows(origin)

    def allows(self, origin: bytes) -> bool:
        """Whether the operator named the site of this origin."""
        site = _name(urlsplit(origin.decode("latin-1")).netloc)
        return bool(site) and self._allowed is not None and site in self._allowed

    def _is_ours(self, name: str) -> bool:
        if name == LOCAL or name.endswith(f".{LOCAL}") or (self._allowed is not None and name in self._allowed):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # an address is not resolved, so DNS rebinding cannot use it


def _name(host: str) -> str:
    """A host without its port, in the form in which names are compared."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0].rstrip(".") if host.count(":") == 1 else host.rstrip(".")


# -- the bytes that requests hold

HOLD = "dragoman.hold"
"""The key of a request's `RequestMemory` in its ASGI scope."""


class RequestMemory:
    """The bytes of one request that the hub holds, from before its body is read until it is answered (`core.memory`).

    The router puts one into the scope of every HTTP request and releases it when the request ends, in whatever way. A
    request for which there is no room waits a moment, unread; then the hub refuses it as retryable.
    """

    __slots__ = ("_budget", "_patience", "_principal", "size")

    def __init__(self, budget: MemoryBudget, patience: float) -> None:
        self._budget = budget
        self._patience = patience
        self._principal = STRANGERS
        self.size = 0

    async def take(self, principal: str, size: int) -> None:
        """Take so many bytes more; raises `Refused` when there was no room within the waiting time."""
        if not self.size:
            self._principal = principal
        fault = self._budget.take(self._principal, size, self.size)
        if fault is not None and (self._patience <= 0 or not await self._room(size)):
            self._budget.refused += 1
            raise Refused(self._budget.misfit(self._principal, size, self.size) or fault)
        self.size += size

    async def _room(self, size: int) -> bool:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._budget.wait(self._principal, size, lambda: room.set_result(None), self.size)
        if waiting is None:
            return False
        try:
            await asyncio.wait({room}, timeout=self._patience)
        except asyncio.CancelledError:
            if room.done():
                self._budget.give_back(self._principal, size)
            else:
                self._budget.forget(waiting)
            raise
        if not room.done():
            self._budget.forget(waiting)
        return room.done()

    def release(self) -> None:
        size, self.size = self.size, 0
        self._budget.give_back(self._principal, size)


async def hold(scope: MutableMapping[str, Any], principal: str, size: int) -> None:
    """Take bytes for the request of this scope; raises `Refused`. Without a router around it, nothing is counted."""
    held: RequestMemory | None = scope.get(HOLD)
    if held is not None and size:
        await held.take(principal, size)


async def room_for(budget: MemoryBudget, principal: str, seconds: float | None = None) -> bool:
    """Wait until there is room for more bytes of this principal, or the time is up; gives whether there is."""
    if budget.has_room(principal):
        return True
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not room.done():
            room.set_result(None)

    budget.when_room(principal, then)
    try:
        await asyncio.wait({room}, timeout=seconds)
    finally:
        budget.no_matter(then)
    return room.done()
