"""How many streams coven's door serves, in all and on one connection."""

from __future__ import annotations

import asyncio

import grpc
from tests.support import coven as outside
from tests.support.coven_world import gateway


async def test_only_so_many_streams_are_served_at_once() -> None:
    async with gateway(limits={"streams": 2}) as hub:
        first, _ = await hub.agent("a1"), await hub.agent("a2")
        assert await (await hub.stream()).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.vanish()
        await hub.until(lambda: hub.door.streams == 1)
        await hub.agent("a3")


async def test_one_connection_has_only_so_many_streams_and_the_next_waits() -> None:
    async with gateway(limits={"streams_per_connection": 2}) as hub:
        channel = await hub.channel()
        first = outside.stream(channel)
        await outside.soon(first.call.initial_metadata())  # from here on it knows how many there may be
        second = outside.stream(channel)
        await outside.soon(second.call.initial_metadata())
        third = outside.stream(channel)
        waiting = asyncio.ensure_future(third.call.initial_metadata())
        await hub.agent("worker")  # on a connection of its own
        assert not waiting.done()
        first.vanish()
        await outside.soon(waiting)
