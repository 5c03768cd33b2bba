"""Slow, stalled and greedy clients are closed; everybody else is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.server.limits import Limits
from dragoman.server.server import SWEEP_SECONDS, HttpServer, PortBusy

QUICK = {"header_seconds": 0.2, "body_seconds": 0.2, "idle_seconds": 0.2}


@pytest.fixture(autouse=True)
def _sweep_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman.server.server.SWEEP_SECONDS", 0.05)


class Raw:
    """A client that speaks bytes."""

    def __init__(self, kit: Any, port: int) -> None:
        self._kit = kit
        self._port = port

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    def head(self, extra: bytes = b"") -> bytes:
        token = self._kit.tokens["orch-1"].encode()
        return b"POST /api/agent/message HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token + b"\r\n" + extra

    async def closed(self) -> bytes:
        """Everything until the hub closes; a reset while we still send is a close too."""
        data = b""
        try:
            while piece := await self._kit.soon(self.reader.read(65536)):
                data += piece
        except ConnectionError:
            pass
        return data


def test_a_stalled_client_is_closed_within_ten_seconds_unless_configured_otherwise() -> None:
    limits = Limits()
    assert max(limits.header_seconds, limits.body_seconds) + SWEEP_SECONDS <= 10


@pytest.mark.parametrize("said", [b"", b"P", b"POST /api/agent/message HTTP/1.1\r\nhost: x\r\nslow"])
async def test_slow_headers_are_closed(said: bytes, opened: Any, kit: Any) -> None:
    async with opened(**QUICK) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(said)
        assert await raw.closed() == b""


async def test_headers_that_drip_are_closed_all_the_same(opened: Any, kit: Any) -> None:
    async with opened(**QUICK) as serving, Raw(kit, serving.port) as raw:
        dripping = asyncio.ensure_future(drip(raw, raw.head(b"x-slow: " + b"y" * 10_000)))
        assert await raw.closed() == b""
        dripping.cancel()


async def test_the_time_of_a_first_request_begins_with_the_connection(opened: Any, kit: Any) -> None:
    """Otherwise a client that waits almost that long before the first byte has twice the time."""
    async with opened(header_seconds=60) as serving, Raw(kit, serving.port) as raw:
        await kit.soon(seen(lambda: serving.connections == 1))
        (connection,) = serving._server.server_state.connections
        deadline = connection.deadline
        raw.writer.write(b"POST /api")
        await kit.soon(seen(lambda: connection._header_bytes == 9))
        assert connection.deadline == deadline


async def seen(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def drip(raw: Raw, data: bytes) -> None:
    for byte in data:
        raw.writer.write(bytes((byte,)))
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("dripping", [False, True])
async def test_a_body_that_stalls_or_drips_is_closed(dripping: bool, opened: Any, kit: Any) -> None:
    async with opened(**QUICK) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(raw.head(b"content-length: 50000\r\n\r\n{"))
        rest = asyncio.ensure_future(drip(raw, b" " * 50_000)) if dripping else None
        assert await raw.closed() == b""
        if rest is not None:
            rest.cancel()


async def test_a_body_that_makes_progress_is_waited_for(opened: Any, kit: Any, hub: Any) -> None:
    async with opened(body_seconds=1000, body_bytes=10) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(raw.head(b"content-length: 60\r\n\r\n"))
        await kit.soon(seen(lambda: serving.connections == 1))
        (connection,) = serving._server.server_state.connections
        for window in range(1, 6):
            raw.writer.write(b"x" * 10)
            await kit.soon(seen(lambda: connection._body_got == 10))
            connection.sweep(connection.loop.time() + 1001 * window)
        raw.writer.write(b"x" * 10)  # five times the deadline, but never without progress
        assert b" 400 " in await kit.soon(raw.reader.readline())


async def test_an_idle_connection_is_closed_after_its_answer(opened: Any, kit: Any) -> None:
    async with opened(idle_seconds=0.2) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"elsewhere" in await raw.closed()


async def test_a_request_under_way_is_not_idle(opened: Any, kit: Any, hub: Any) -> None:
    async with opened(idle_seconds=0.2) as serving, Raw(kit, serving.port) as raw:
        token = kit.tokens["orch-1"].encode()
        query = b"GET /api/agent/messages?wait=0.6 HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + token + b"\r\n\r\n"
        raw.writer.write(query)
        assert b'{"messages":[]}' in await raw.closed()


@pytest.mark.parametrize(("end", "status"), [(b"", b" 431 "), (b"\r\n", b" 400 ")])
async def test_large_headers_are_refused_whether_they_end_or_not(
    end: bytes, status: bytes, opened: Any, kit: Any
) -> None:
    async with opened(header_bytes=10_000) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(raw.head(b"x-large: " + b"y" * 20_000 + b"\r\n") + end)
        assert status in await raw.closed()


CHUNKED = b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "around",
    {
        "one trailer": b"2\r\n{}\r\n0\r\nx: " + b"y" * 20_000,
        "many trailers": b"2\r\n{}\r\n0\r\n" + b"x: y\r\n" * 4000,
        "an extension of a chunk": b"2;" + b"y" * 20_000,
    }.items(),
    ids=lambda case: case[0],
)
async def test_what_is_sent_around_a_body_has_an_end(around: tuple[str, bytes], opened: Any, kit: Any) -> None:
    async with opened(header_bytes=10_000, body_seconds=1000) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(raw.head(CHUNKED))
        await kit.soon(
            seen(lambda: [one.cycle is not None for one in serving._server.server_state.connections] == [True])
        )
        raw.writer.write(around[1])
        assert b" 431 " in await raw.closed()


async def test_a_body_in_chunks_of_one_byte_is_read(opened: Any, kit: Any) -> None:
    async with opened(header_bytes=10_000) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(raw.head(CHUNKED) + b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n")
        assert b" 400 " in await kit.soon(raw.reader.readline())


async def test_a_trailer_is_no_header(opened: Any, kit: Any) -> None:
    token = kit.tokens["orch-1"].encode()
    said = b"POST /api/agent/ack HTTP/1.1\r\nhost: x\r\n" + CHUNKED
    async with opened() as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(said + b"2\r\n{}\r\n0\r\nauthorization: Bearer " + token + b"\r\n\r\n")
        assert b" 401 " in await kit.soon(raw.reader.readline())


async def test_only_so_many_requests_wait_for_their_turn(opened: Any, kit: Any) -> None:
    async with opened() as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(b"GET /livez HTTP/1.1\r\n\r\n" * 5000)
        told = await raw.closed()
        assert b"HTTP/1.1 400 " in told
        assert told.count(b"HTTP/1.1 ") < 5000


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
async def test_a_client_that_sends_before_it_reads_and_wants_to_leave_hears_why_it_is_refused(
    version: bytes, opened: Any, kit: Any
) -> None:
    """As urllib does: `Connection: close`, the whole body, and only then the answer."""
    size = 2 * 1024 * 1024
    async with opened(message_bytes=1000) as serving, Raw(kit, serving.port) as raw:
        head = raw.head(b"connection: close\r\ncontent-length: %d\r\n\r\n" % size).replace(b"HTTP/1.1", version)
        raw.writer.write(head)
        for _ in range(size // 65536):
            raw.writer.write(b" " * 65536)
            await kit.soon(raw.writer.drain())
        assert b" 413 " in await kit.soon(raw.reader.readline())
        assert (await raw.closed()).endswith(b"}")


@pytest.mark.parametrize(("version", "chunked"), [(b"HTTP/1.1", True), (b"HTTP/1.0", False)])
async def test_a_stream_has_no_chunks_for_a_client_that_does_not_know_them(
    version: bytes, chunked: bool, hub: Any, kit: Any
) -> None:
    async def two(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async with HttpServer(hub, (), fallback=two, port=0) as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(b"GET / %b\r\nhost: x\r\nconnection: close\r\n\r\n" % version)
        head, _, body = (await raw.closed()).partition(b"\r\n\r\n")
    assert (b"chunked" in head) is chunked
    assert body == (b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" if chunked else b"onetwo")


@pytest.mark.parametrize("step", [1, 64, 1_000_000])
async def test_an_offer_of_another_protocol_is_passed_over_and_the_body_is_read(
    step: int, opened: Any, kit: Any, hub: Any
) -> None:
    """As Java's client sends every request."""
    body = json.dumps(kit.message()).encode()
    offer = b"connection: Upgrade, HTTP2-Settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n"
    async with opened() as serving, Raw(kit, serving.port) as raw:
        sent = raw.head(offer + b"content-length: %d\r\n\r\n" % len(body)) + body
        for place in range(0, len(sent), step):
            raw.writer.write(sent[place : place + step])
            await raw.writer.drain()
        assert b" 202 " in (await raw.closed()).partition(b"\r\n")[0]
    assert len(hub.asked) == 1


async def test_one_connection_too_many_is_refused_with_the_reason(opened: Any, kit: Any) -> None:
    async with opened(max_connections=1) as serving, Raw(kit, serving.port) as first:
        first.writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b" 299 " in await kit.soon(first.reader.readline())
        async with Raw(kit, serving.port) as second:
            assert b" 503 " in await second.closed()


async def test_a_client_that_does_not_read_its_answer_is_cut(hub: Any, kit: Any) -> None:
    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):  # far more than the buffers on the way take
            await send({"type": "http.response.body", "body": b"x" * 1_000_000, "more_body": True})

    limits = Limits(write_seconds=0.2)
    short = HttpServer(hub, (), fallback=endless, port=0, limits=limits)
    async with short as serving, Raw(kit, serving.port) as raw:
        raw.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        await kit.soon(until(lambda: serving.connections == 1))
        await kit.soon(until(lambda: serving.connections == 0))


async def until(ready: Any) -> None:
    while not ready():
        await asyncio.sleep(0.01)


async def test_what_is_not_http_is_refused_and_the_hub_serves_on(opened: Any, kit: Any) -> None:
    async with opened() as serving:
        async with Raw(kit, serving.port) as raw:
            raw.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 not HTTP at all\r\n\r\n")
            assert b" 400 " in await raw.closed()
        async with Raw(kit, serving.port) as raw:
            raw.writer.write(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert b"elsewhere" in await raw.closed()


async def test_pipelined_requests_are_answered_in_order(opened: Any, kit: Any) -> None:
    async with opened() as serving, Raw(kit, serving.port) as raw:
        one = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
        raw.writer.write(one * 3 + b"GET /api/agent/ws HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answers = await raw.closed()
        assert answers.count(b" 299 ") == 3
        assert answers.index(b" 426 ") > answers.rindex(b" 299 ")


async def test_a_busy_port_is_a_clear_sentence(opened: Any, hub: Any) -> None:
    async with opened() as serving:
        second = HttpServer(hub, (), fallback=serving.app, port=serving.port)
        with pytest.raises(PortBusy, match=r"cannot listen on .*choose another port"):
            await second.start()
