"""A2acp's row of `sdk.services`. An agent serves and calls under one identity, over one link."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dragoman.sdk.a2acp.caller import A2acpCaller
from dragoman.sdk.a2acp.channel import Channel, Post
from dragoman.sdk.a2acp.client import A2acpClient
from dragoman.sdk.a2acp.identity import Identity
from dragoman.sdk.a2acp.io import HttpPost, channels
from dragoman.sdk.a2acp.link import A2acpLink, Memory
from dragoman.sdk.address import Address
from dragoman.sdk.errors import HubUnreachable
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.services import Participant, Service


@asynccontextmanager
async def service(who: Participant, address: Address, runtime: Runtime) -> AsyncIterator[Service]:
    post = HttpPost(address)
    try:
        async with service_over(who, post, channels(address, post), runtime) as made:
            yield made
    finally:
        await post.close()


@asynccontextmanager
async def service_over(
    who: Participant, post: Post, dial: Callable[[], Channel], runtime: Runtime
) -> AsyncIterator[Service]:
    """The same over other channels, for tests."""
    memory, identity = Memory(), _identity(who, post, runtime)
    caller = identity.caller = A2acpCaller(identity)
    try:
        yield Service(dial=lambda: A2acpLink(dial(), identity, memory), caller=caller)
    finally:
        await caller.end(HubUnreachable(f"{who.id} is not at work any more"))


def client(who: Participant, address: Address, runtime: Runtime) -> A2acpClient:
    post = HttpPost(address)
    return A2acpClient(_identity(who, post, runtime), channels(address, post), who.give_up_after)


def _identity(who: Participant, post: Post, runtime: Runtime) -> Identity:
    return Identity(who.known_id, post, runtime, domain=who.domain, version=who.version, state_dir=who.state_dir)
