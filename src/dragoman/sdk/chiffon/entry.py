"""Chiffon's row of `sdk.services`. An agent or client that polls does not load WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dragoman.sdk.address import Address
from dragoman.sdk.chiffon.client import ChiffonClient
from dragoman.sdk.chiffon.http import HttpPipe, canceller
from dragoman.sdk.chiffon.link import ChiffonLink
from dragoman.sdk.links import Pipe
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    dial = _dialler(address)
    yield Service(dial=lambda: ChiffonLink(dial(), runtime))


def client(who: Participant, address: Address, runtime: Runtime) -> ChiffonClient:
    return ChiffonClient(who.kind or who.known_id, _dialler(address), runtime, canceller(address), who.give_up_after)


def _dialler(address: Address) -> Callable[[], Pipe]:
    if address.transport != "ws":
        return lambda: HttpPipe(address)
    from dragoman.sdk.chiffon.ws import WebSocketPipe

    return lambda: WebSocketPipe(address)
