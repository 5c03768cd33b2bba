"""The thin end of HTTP: a router for the few hot paths, bodies with a bound, answers in one write.

A dictionary finds a hot path in one step; everything else (management, operations, dashboard) falls through to an
ordinary Starlette application. Handlers speak raw ASGI: at twenty thousand requests a second, request and response
objects cost more than the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from dragoman.core.memory import STRANGERS, MemoryBudget
from dragoman.messages.faults import Fault
from dragoman.server.hosts import Hosts
from dragoman.server.refusals import CALLER
from dragoman.server.request_memory import HOLD, RequestMemory, hold
from dragoman.wire.errors import RemoteProtocolError, Stage
from dragoman.wire.framing import WholeMessage
from dragoman.wire.guard import Limits

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = (b"content-type", b"application/json")
SILENT = "http.silent"
"""A message beside those of ASGI: the client sends nothing more. It may still read, or be gone (`limits.Cycle`)."""


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
    """What `Retry-After` says beside a refusal: as many seconds as the refusal itself, whatever the protocol."""
    seconds = fault.facts.get("retry_after")
    if not isinstance(seconds, int | float):
        return default
    return min(LONGEST_RETRY_AFTER, max(1, math.ceil(seconds)))


class Disconnected(Exception):
    """The client went away while we read its request."""


class Router:
    """`hot` by exact path, `prefixes` by the path's beginning, the rest to `fallback`. What a request holds of `memory`
    it gives back when it is over."""

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
        """Somebody wants a WebSocket where there is none."""
        there = ", ".join(sorted(known for known, app in self._hot.items() if speaks_websocket(app)))
        detail = f"No WebSocket is opened at this address. Open it at one of: {there}."
        await self._send_problem(scope, receive, send, 404, "not_found", "Not found", detail)

    async def _send_problem(
        self, scope: Scope, receive: Receive, send: Send, status: int, kind: str, title: str, detail: str
    ) -> None:
        """Refuse a request or a WebSocket before anybody looks at it, as a problem (RFC 9457)."""
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
    """Whether it takes what comes by a WebSocket; most know only requests (`websocket_endpoint` is what does)."""
    return bool(getattr(app, "speaks_websocket", False))


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


async def read_body(scope: Scope, receive: Receive, limit: int, principal: str = STRANGERS) -> bytes:
    """The whole body; raises `RemoteProtocolError` (SIZE) as soon as it is known to be too large, and `Refused` when
    the hub has no memory for it.

    A declared length above the limit is refused before a byte is read; so is one that does not fit into what the hub
    holds of everybody's messages, and of this principal's. A body without a length is held as it comes.
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
    """Until the client of a request that was read has gone away, or may have."""
    while (await receive())["type"] not in ("http.disconnect", SILENT):
        pass


async def is_gone(receive: Receive) -> bool:
    """Whether it has by now."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await departure(receive)
            return True
    return False


async def answer(
    send: Send, status: int, body: bytes, *, headers: tuple[tuple[bytes, bytes], ...] = (), kind: Any = JSON
) -> None:
    """One whole response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [kind, length, *headers]})
    await send({"type": "http.response.body", "body": body})
