"""Forge's row of `sdk.services`. A child of the hub does not load WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dragoman.sdk.address import STDIO, Address
from dragoman.sdk.forge.client import ForgeClient
from dragoman.sdk.forge.link import ForgeLink
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    if address.transport == STDIO:
        from dragoman.sdk.forge.stdio import StdioLink

        yield Service(dial=lambda: StdioLink(runtime))
        return
    from dragoman.sdk.forge.ws import WebSocketWire

    yield Service(dial=lambda: ForgeLink(WebSocketWire(address), runtime))


def client(who: Participant, address: Address, runtime: Runtime) -> ForgeClient:
    from dragoman.sdk.forge.ws import WebSocketWire

    return ForgeClient(lambda: WebSocketWire(address), runtime, who.id, who.give_up_after)
