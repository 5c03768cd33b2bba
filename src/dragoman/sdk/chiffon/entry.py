"""Chiffon's row of `sdk.services`. An agent or client that polls does not load WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dragoman.sdk.address import AMQP, Address
from dragoman.sdk.chiffon.client import ChiffonClient
from dragoman.sdk.chiffon.http import HttpPipe, canceller
from dragoman.sdk.chiffon.link import ChiffonLink
from dragoman.sdk.links import Pipe
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    dial = _dialler(who, address)
    acknowledged_by_messages = address.transport != AMQP
    yield Service(dial=lambda: ChiffonLink(dial(), runtime, words_are_receipts=acknowledged_by_messages))


def client(who: Participant, address: Address, runtime: Runtime) -> ChiffonClient:
    cancel = canceller(address)
    if address.transport == AMQP:
        from dragoman.sdk.chiffon import amqp

        cancel = amqp.canceller(address, who.known_id)
    return ChiffonClient(who.kind or who.known_id, _dialler(who, address), runtime, cancel, who.give_up_after)


def _dialler(who: Participant, address: Address) -> Callable[[], Pipe]:
    if address.transport == AMQP:
        from dragoman.sdk.chiffon.amqp import AmqpPipe

        return lambda: AmqpPipe(address, who.known_id)
    if address.transport != "ws":
        return lambda: HttpPipe(address)
    from dragoman.sdk.chiffon.ws import WebSocketPipe

    return lambda: WebSocketPipe(address)
