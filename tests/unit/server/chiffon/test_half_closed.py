"""Clients that close their side after the request, and read on: what they asked is answered, what waits ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from dragoman.core.commands import CloseLink, OpenLink, Submit

POLL = b"GET /api/agent/messages?wait=60"


async def exchange(kit: Any, port: int, *pieces: bytes) -> bytes:
    """All that the hub answers to a client that sends this and then nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    writer.write_eof()
    try:
        answered: bytes = await kit.soon(reader.read())
    finally:
        writer.close()
    return answered


def request(kit: Any, line: bytes, body: bytes = b"", version: bytes = b"1.1", length: int | None = None) -> bytes:
    token = kit.tokens["orch-1"].encode()
    head = b"%b HTTP/%b\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n"
    return head % (line, version, token, len(body) if length is None else length) + body


def messages(answer: bytes) -> Any:
    return json.loads(answer.rpartition(b"\r\n\r\n")[2])["messages"]


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_request_is_answered_and_then_the_connection_ends(
    serving: Any, hub: Any, kit: Any, version: bytes
) -> None:
    said = json.dumps(kit.message()).encode()
    answer = await exchange(kit, serving.port, request(kit, b"POST /api/agent/message", said, version))
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert len(hub.asked_for(Submit)) == 1


async def test_a_request_that_waits_for_its_commit_is_answered(serving: Any, hub: Any, kit: Any) -> None:
    hub.held = []
    said = request(kit, b"POST /api/agent/message", json.dumps(kit.message()).encode())
    asking = asyncio.ensure_future(exchange(kit, serving.port, said))
    await hub.until(lambda: bool(hub.held))
    await kit.soon(closed_its_side(serving))
    hub.release()
    assert (await asking).startswith(b"HTTP/1.1 202 ")


async def closed_its_side(serving: Any) -> None:
    """Until the hub knows that its only client sends nothing more."""
    (connection,) = serving._server.server_state.connections
    while connection.cycle.keep_alive:
        await asyncio.sleep(0.01)


async def test_every_one_of_several_requests_is_answered(serving: Any, kit: Any) -> None:
    answer = await exchange(kit, serving.port, *[request(kit, b"GET /livez")] * 3)
    assert answer.count(b"HTTP/1.1 ") == 3


async def test_a_poll_takes_what_waits(serving: Any, hub: Any, kit: Any) -> None:
    def give(link: OpenLink) -> int:
        hub.ends[link.session].deliver([kit.outgoing(1)])
        return 1

    hub.script[OpenLink] = give
    assert len(messages(await exchange(kit, serving.port, request(kit, POLL)))) == 1


async def test_a_poll_waits_for_nothing(serving: Any, hub: Any, kit: Any) -> None:
    """A client that is gone looks the same: what came later would be given to nobody, until its lease ends."""
    assert messages(await exchange(kit, serving.port, request(kit, POLL))) == []
    assert [link.session for link in hub.asked_for(CloseLink)] == [link.session for link in hub.asked_for(OpenLink)]


async def test_a_parked_poll_ends_when_its_client_may_have_gone(serving: Any, hub: Any, kit: Any) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    writer.write(request(kit, POLL))
    await hub.until(lambda: bool(hub.ends))
    writer.write_eof()
    assert messages(await kit.soon(reader.read())) == []
    writer.close()


async def test_half_a_request_is_none(serving: Any, hub: Any, kit: Any) -> None:
    cut = request(kit, b"POST /api/agent/message", b"{", length=100)
    assert await exchange(kit, serving.port, cut) == b""
    assert hub.asked_for(Submit) == []
