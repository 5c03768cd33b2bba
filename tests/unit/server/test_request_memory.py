"""What a request holds of the hub's memory: taken before its body is read, given back however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from dragoman.core.memory import SMALL, MemoryBudget, MemoryLimits
from dragoman.messages.faults import Kind, Refused
from dragoman.server.asgi import ASGIApp, Receive, Router, Scope, Send, answer, read_body

MUCH = 2 * SMALL
LIMIT = 10 * MUCH


class Client:
    """Sends its body in pieces, and counts how many were asked for."""

    def __init__(self, *pieces: bytes, length: bool = True) -> None:
        self.pieces = list(pieces)
        self.asked = 0
        whole = b"%d" % sum(map(len, pieces))
        self.headers = [(b"content-length", whole)] if length else []

    async def __call__(self) -> MutableMapping[str, Any]:
        piece = self.pieces[self.asked]
        self.asked += 1
        return {"type": "http.request", "body": piece, "more_body": self.asked < len(self.pieces)}


class Desk:
    """An endpoint that keeps its request until it is let go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.read = asyncio.Event()
        self.refused: list[Kind] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(scope, receive, LIMIT, "boss")
        except Refused as refused:
            self.refused.append(refused.fault.kind)
            return
        self.read.set()
        await self.go_on.wait()
        await answer(send, 202, b"{}")


async def sent(_: Any) -> None: ...


def asked(app: ASGIApp, client: Client) -> asyncio.Task[None]:
    scope = {"type": "http", "path": "/", "headers": client.headers}
    return asyncio.ensure_future(app(scope, client, sent))  # type: ignore[arg-type]


def served(handler: Desk, *, patience: float = 0.0) -> tuple[Router, MemoryBudget]:
    memory = MemoryBudget(MemoryLimits(total=LIMIT, per_principal=2 * MUCH))
    return Router({"/": handler}, handler, memory=memory, patience=patience), memory


@pytest.mark.parametrize("length", [True, False])
async def test_a_request_holds_its_body_until_it_is_answered(length: bool) -> None:
    handler = Desk()
    app, memory = served(handler)
    request = asked(app, Client(b"x" * SMALL, b"x" * SMALL, length=length))
    await handler.read.wait()
    assert memory._by.get("boss", 0) == MUCH
    handler.go_on.set()
    await request
    assert memory.held == 0


async def test_beyond_the_allowance_a_request_is_refused_before_a_byte_is_read() -> None:
    handler = Desk()
    app, memory = served(handler)
    first = [asked(app, Client(b"x" * MUCH)) for _ in range(2)]
    late = Client(b"x" * MUCH)
    await asyncio.wait_for(asked(app, late), 10)
    assert (handler.refused, late.asked, memory.refused) == ([Kind.RATE_LIMITED], 0, 1)
    handler.go_on.set()
    await asyncio.gather(*first)
    await asyncio.wait_for(asked(app, late), 10)
    assert (late.asked, memory.held) == (1, 0)


async def test_a_body_without_a_length_is_refused_as_soon_as_there_is_no_room_for_more() -> None:
    handler = Desk()
    app, memory = served(handler)
    first = asked(app, Client(b"x" * MUCH))
    await handler.read.wait()
    endless = Client(*[b"x" * SMALL] * 9, length=False)
    await asyncio.wait_for(asked(app, endless), 10)
    assert (handler.refused, endless.asked) == ([Kind.RATE_LIMITED], 3)
    assert memory.held == MUCH
    handler.go_on.set()
    await first


async def test_a_request_that_waits_for_room_is_read_when_there_is_some() -> None:
    handler = Desk()
    app, memory = served(handler, patience=60)
    first = [asked(app, Client(b"x" * MUCH)) for _ in range(2)]
    late = Client(b"x" * MUCH)
    waiting = asked(app, late)
    while not memory.waiting:
        await asyncio.sleep(0)
    assert late.asked == 0
    handler.go_on.set()
    await asyncio.gather(*first, waiting)
    assert (late.asked, handler.refused, memory.held) == (1, [], 0)


async def test_a_request_that_is_cut_off_while_it_waits_holds_nothing() -> None:
    handler = Desk()
    app, memory = served(handler, patience=60)
    first = [asked(app, Client(b"x" * MUCH)) for _ in range(2)]
    waiting = asked(app, Client(b"x" * MUCH))
    while not memory.waiting:
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    handler.go_on.set()
    await asyncio.gather(*first)
    assert (memory.waiting, memory.held) == (0, 0)
