"""How many streams coven's endpoint serves, in all and on one connection, and how much they may bring with them."""

from __future__ import annotations

import asyncio
import struct

import grpc
import pytest
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman.core.rules import Rules
from dragoman.protocols.coven import codec
from dragoman.protocols.coven.types import FileData, SendMessage
from dragoman.server.coven.grpc_port import CovenLimits


def test_as_many_files_as_a_task_may_have_are_read_on_both_sides() -> None:
    """An agent of ours took 64, and broke its stream over a task with more of them until that had failed."""
    most = Rules().files_per_task
    message = SendMessage(request_id="r", attachments=(FileData("a", "b/c", b""),) * most)
    assert codec.decode_server(codec.encode_server(message)) == message
    assert CovenLimits().attachments == most


async def test_only_so_many_streams_are_served_at_once() -> None:
    async with gateway(limits={"streams": 2}) as hub:
        first, _ = await hub.agent("a1"), await hub.agent("a2")
        assert await (await hub.stream()).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        first.vanish()
        await hub.until(lambda: hub.endpoint.streams == 1)
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


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame of HTTP/2."""
    return struct.pack("!I", len(payload))[1:] + bytes((kind, flags)) + struct.pack("!I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that touches no table (HPACK 6.2.2)."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0)


@pytest.mark.parametrize("path", [outside.STREAM, "/coven.CovenClient/Send", "/grpc.health.v1.Health/Check"])
async def test_a_peer_that_acknowledges_nothing_may_not_send_more_metadata(path: str) -> None:
    """gRPC itself enforces its limit only on clients that have acknowledged it."""
    said = {
        b":method": b"POST", b":scheme": b"http", b":path": path.encode(), b":authority": b"hub",
        b"content-type": b"application/grpc", b"te": b"trailers",
    }  # fmt: skip
    fields = b"".join(literal(*field) for field in said.items())
    fields += b"".join(literal(b"x-%d" % number, b"v" * 100) for number in range(400))
    pieces = [fields[start : start + 16384] for start in range(0, len(fields), 16384)]
    last = len(pieces) - 1
    async with gateway(limits={"register_seconds": 1000}) as hub:
        reader, writer = await asyncio.open_connection(*hub.address.rsplit(":", 1))
        writer.write(PREFACE)
        for number, piece in enumerate(pieces):
            writer.write(frame(9 if number else 1, 4 if number == last else 0, 1, piece))
        await outside.soon(reader.readuntil(b"grpc-status\x018"))  # RESOURCE_EXHAUSTED
        writer.close()
        await hub.agent("modest")


async def test_a_peer_that_never_acknowledges_what_it_may_do_is_closed() -> None:
    async with gateway(limits={"handshake_seconds": 0.5}) as hub:
        reader, writer = await asyncio.open_connection(*hub.address.rsplit(":", 1))
        writer.write(PREFACE)
        await outside.soon(reader.read(), 40)  # by itself gRPC waits for a minute
        writer.close()
        await hub.agent("polite")
