"""One WebSocket that brings very much at once: others have their turn, and the memory has an end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from dragoman.core.commands import ReportProgress
from dragoman.server import websocket

EMPTY_PING = b"\x89\x80\0\0\0\0"


def text(message: str) -> bytes:
    """A masked frame (RFC 6455, 5.2)."""
    data = message.encode()
    return b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data


@pytest.fixture
async def flooding(serving: Any, kit: Any) -> AsyncIterator[ClientConnection]:
    headers = {"authorization": f"Bearer {kit.tokens['infra-1']}"}
    url = f"{serving.url.replace('http', 'ws')}/api/agent/ws"
    async with websockets.connect(url, additional_headers=headers, proxy=None, compression=None) as socket:
        yield socket


async def test_between_the_frames_of_one_read_others_have_their_turn(
    flooding: ClientConnection, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "TURN_SECONDS", 0)
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.ensure_future(somebody_else())
    flooding.transport.write(EMPTY_PING * 2000 + text(json.dumps(kit.message("work_status"))))
    await hub.until(lambda: bool(hub.asked_for(ReportProgress)))
    other.cancel()
    assert turns >= 2000


async def test_no_more_frames_are_decoded_than_may_be_under_way(opened: Any, hub: Any, kit: Any) -> None:
    said = [json.dumps(kit.message("work_status")) for _ in range(60)]
    async with opened(unanswered_frames=4) as serving:
        headers = {"authorization": f"Bearer {kit.tokens['infra-1']}"}
        url = f"{serving.url.replace('http', 'ws')}/api/agent/ws"
        async with websockets.connect(url, additional_headers=headers, proxy=None, compression=None) as socket:
            await hub.until(lambda: bool(hub.ends))
            hub.held = []
            socket.transport.write(b"".join(map(text, said)))
            heard: list[str] = []
            while len(heard) < len(said):
                await hub.until(lambda: bool(hub.held))
                assert len(hub.held) <= 4
                heard += [command.message_id for command, _ in hub.held]
                hub.commit()
    assert heard == [json.loads(one)["message_id"] for one in said]


async def test_a_message_has_only_so_many_fragments(
    flooding: ClientConnection, monkeypatch: pytest.MonkeyPatch, kit: Any
) -> None:
    monkeypatch.setattr(websocket, "FRAGMENTS", 10)
    await flooding.send([""] * 20)
    await kit.soon(flooding.wait_closed())
    assert flooding.close_code == 1009


async def test_pings_of_one_that_does_not_read_are_not_answered(
    flooding: ClientConnection, serving: Any, hub: Any, kit: Any
) -> None:
    """Each would wait in the memory until the peer reads, or is given up."""
    await hub.until(lambda: bool(hub.ends))
    (socket,) = serving._server.server_state.connections
    socket.pause_writing()
    unanswered = await flooding.ping(b"one")
    await flooding.send("{")
    await hub.until(lambda: bool(hub.noted))
    socket.resume_writing()
    assert json.loads(await kit.soon(flooding.recv()))["type"] == "error"  # what was written before it has come
    assert not unanswered.done()
    await kit.soon(await flooding.ping(b"two"))
