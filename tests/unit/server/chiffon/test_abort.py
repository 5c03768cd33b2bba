"""A node that decides no more: WebSockets close with the code of a restart, and no request gets an answer of any kind.
The next server on the same socket serves the clients that came in between."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import websockets
from tests.support.scripted import elsewhere

from dragoman.server.server import HttpServer, listen


async def test_an_abort_closes_a_websocket_with_1012_and_answers_nothing_it_sent(
    serving: Any, hub: Any, kit: Any
) -> None:
    headers = {"authorization": f"Bearer {kit.tokens['orch-1']}"}
    url = f"{serving.url.replace('http', 'ws')}/api/agent/ws?receipts=1"
    async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
        await hub.until(lambda: bool(hub.ends))
        hub.held = []
        await socket.send(json.dumps(kit.message()))
        await hub.until(lambda: bool(hub.held))
        await kit.soon(serving.abort())
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await kit.soon(socket.recv())
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012


async def test_an_abort_cuts_a_request_without_an_answer(serving: Any, hub: Any, kit: Any) -> None:
    hub.held = []
    body = json.dumps(kit.message()).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
    head = f"POST /api/agent/message HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {kit.tokens['orch-1']}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    await hub.until(lambda: bool(hub.held))
    await kit.soon(serving.abort())
    try:
        got = await kit.soon(reader.read())
    except ConnectionResetError:
        got = b""
    assert got == b""
    writer.close()


async def test_a_client_that_comes_between_two_servers_is_served_by_the_second(hub: Any, kit: Any) -> None:
    listener = listen("127.0.0.1", 0)
    first = HttpServer(hub, (), fallback=elsewhere, port=0, listener=listener)
    await first.start()
    await first.abort()
    reader, writer = await asyncio.open_connection("127.0.0.1", first.port)
    writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    async with HttpServer(hub, (), fallback=elsewhere, port=0, listener=listener) as second:
        assert second.port == first.port
        assert b" 299 " in await kit.soon(reader.readline())
    writer.close()
    listener.close()
