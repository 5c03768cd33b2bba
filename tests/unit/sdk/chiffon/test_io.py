"""The bytes: a real WebSocket server in this process, and HTTP against scripted answers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from tests.unit.sdk.harness import PATIENCE
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from dragoman import Agent, Conflict, NotAllowed
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.types import Correlation, Stamp, WorkRequest
from dragoman.sdk.address import Address, parse
from dragoman.sdk.chiffon.http import HttpPipe
from dragoman.sdk.chiffon.link import ChiffonLink
from dragoman.sdk.chiffon.ws import WebSocketPipe
from dragoman.sdk.links import Frame, LinkDown
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import SystemRuntime

WORLD = SystemRuntime()
TOKEN = "a7f3d8c2e1b9f4a6c8e2d1b3f4a6c8e2"


def work(n: int, task_id: str | None = None, request_id: str | None = None) -> Any:
    return codec.envelope(
        WorkRequest(task_id=task_id or WORLD.mint(), work_type="double", parameters={"n": n}),
        Stamp(WORLD.mint(), WORLD.now()),
        Correlation(request_id or WORLD.mint(), WORLD.mint()),
        from_agent="orchestrator",
        to_agent="worker",
        x_custom_fields={"delivery_id": WORLD.mint()},
    )


class Server:
    """A WebSocket server that plays the hub: what to do with a connection is the test's."""

    def __init__(self, talk: Callable[[ServerConnection, int], Any]) -> None:
        self._talk = talk
        self.connections = 0
        self.requests: list[Request] = []

    async def __aenter__(self) -> Server:
        self._server = await serve(
            self._handle,
            "127.0.0.1",
            0,
            subprotocols=["chiffon.v1"],
            process_request=self._check,  # type: ignore[list-item]
        )
        port = next(iter(self._server.sockets)).getsockname()[1]
        self.address = parse(f"chiffon+ws://127.0.0.1:{port}", TOKEN)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    def _check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.requests.append(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return connection.respond(401, "who are you?")
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        self.connections += 1
        await self._talk(connection, self.connections)


class Unregistered(WebSocketPipe):
    """These servers speak no HTTP beside the WebSocket: the registration is answered here."""

    async def open(self, registration: bytes | None) -> bytes:
        await super().open(None)
        return b'{"agent_id":"worker","agent_type":"worker","protocol_version":"1.0"}'


def doubling() -> tuple[Agent, list[int]]:
    agent = Agent("worker", concurrency=64)
    runs: list[int] = []

    @agent.on("double")
    async def double(n: int) -> int:
        runs.append(n)
        return n * 2

    return agent, runs


@pytest.fixture
async def serving() -> AsyncIterator[Callable[[Agent, Address], None]]:
    tasks: list[asyncio.Task[None]] = []

    def start(agent: Agent, address: Address) -> None:
        tasks.append(
            asyncio.ensure_future(agent.serve_over(lambda: ChiffonLink(Unregistered(address), WORLD)))  # type: ignore[arg-type]
        )

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_two_hundred_requests_over_a_real_websocket(serving: Callable[[Agent, Address], None]) -> None:
    agent, runs = doubling()
    results: asyncio.Queue[Any] = asyncio.Queue()

    async def talk(socket: ServerConnection, number: int) -> None:
        for n in range(200):
            await socket.send(codec.encode(work(n)).decode())
        async for frame in socket:
            if "ack" in (said := json.loads(frame)):
                continue
            assert codec.decode(str(frame).encode()).type == "work_result"
            results.put_nowait(said["x_custom_fields"]["result"])
            await socket.send(json.dumps({"accepted": [said["message_id"]]}))

    async with Server(talk) as server, asyncio.timeout(PATIENCE):
        serving(agent, server.address)
        said = sorted([await results.get() for _ in range(200)])
        assert server.requests[0].path == "/api/agent/ws?receipts=1"
    assert said == [2 * n for n in range(200)]
    assert len(runs) == 200


async def test_a_reply_lost_on_the_wire_is_sent_again_and_the_work_ran_once(
    serving: Callable[[Agent, Address], None],
) -> None:
    agent, runs = doubling()
    request = work(21)
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def talk(socket: ServerConnection, number: int) -> None:
        if number == 1:
            await socket.send(codec.encode(request).decode())
        frame = await socket.recv()
        heard.put_nowait(frame.encode() if isinstance(frame, str) else frame)
        if number == 1:
            socket.transport.abort()  # the result has come, the receipt never leaves
            return
        # The hub has lost the first reply, so it repeats the request as well.
        await socket.send(json.dumps({"accepted": [json.loads(frame)["message_id"]]}))
        await socket.send(codec.encode(request).decode())
        frame = await socket.recv()
        while b'"ack"' in (frame := frame.encode() if isinstance(frame, str) else frame):
            frame = await socket.recv()
        heard.put_nowait(frame)
        await socket.wait_closed()

    async with Server(talk) as server, asyncio.timeout(PATIENCE):
        serving(agent, server.address)
        first, second, third = [await heard.get() for _ in range(3)]
    assert first == second == third
    assert codec.decode(first).type == "work_result"
    assert runs == [21]


async def test_a_frame_that_makes_no_sense_is_answered_and_the_connection_stays_up(
    serving: Callable[[Agent, Address], None],
) -> None:
    agent, runs = doubling()
    heard: asyncio.Queue[Any] = asyncio.Queue()

    async def talk(socket: ServerConnection, number: int) -> None:
        await socket.send('{"type": "work_request", "payload": 1}')
        heard.put_nowait(codec.decode(str(await socket.recv()).encode()))
        await socket.send(codec.encode(work(1)).decode())
        heard.put_nowait(codec.decode(str(await socket.recv()).encode()))
        await socket.wait_closed()

    async with Server(talk) as server, asyncio.timeout(PATIENCE):
        serving(agent, server.address)
        error, result = await heard.get(), await heard.get()
    assert (error.type, error.payload.error_code) == ("error", 5003)
    assert (result.type, runs) == ("work_result", [1])


async def test_a_wrong_token_is_final() -> None:
    async def talk(socket: ServerConnection, number: int) -> None: ...

    async with Server(talk) as server, asyncio.timeout(PATIENCE):
        pipe = WebSocketPipe(parse(server.address.base.replace("http", "chiffon+ws"), "wrong"))
        with pytest.raises(NotAllowed) as caught:
            await pipe.open(None)
    assert "wrong" not in str(caught.value)


@pytest.mark.parametrize(("code", "raised"), [(4001, NotAllowed), (4009, Conflict), (1012, LinkDown)])
async def test_how_the_hub_hangs_up_says_whether_to_come_back(code: int, raised: type[Exception]) -> None:
    async def talk(socket: ServerConnection, number: int) -> None:
        await socket.close(code, "a reason")

    async with Server(talk) as server, asyncio.timeout(PATIENCE):
        pipe = WebSocketPipe(server.address)
        await pipe.open(None)
        with pytest.raises(raised, match="a reason"):
            await pipe.receive()
        await pipe.close()


# --- HTTP ---


class HttpHub:
    """Answers an HTTP pipe: one poll brings `inbox`, the next ones wait for ever."""

    def __init__(self, inbox: list[dict[str, Any]], answer: httpx2.Response | None = None) -> None:
        self._inbox = inbox
        self._answer = answer
        self.posted: list[dict[str, Any]] = []
        self.acked: list[str] = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        path = request.url.path
        if path == "/api/agent/register":
            return httpx2.Response(200, json={"agent_id": "worker", "agent_type": "worker", "protocol_version": "1.0"})
        if path == "/api/agent/messages":
            if not self._inbox:
                await asyncio.Event().wait()
            inbox, self._inbox = self._inbox, []
            return httpx2.Response(200, json={"messages": inbox})
        if path == "/api/agent/ack":
            self.acked += json.loads(request.content)["delivery_ids"]
            return httpx2.Response(200, json={"acknowledged": 1})
        assert path == "/api/agent/message"
        self.posted.append(json.loads(request.content))
        return self._answer or httpx2.Response(202, json={"status": "accepted"})

    def pipe(self) -> HttpPipe:
        return HttpPipe(parse("chiffon+http://127.0.0.1:1", TOKEN), transport=httpx2.MockTransport(self))


async def test_over_http_work_comes_by_poll_and_a_202_is_the_receipt() -> None:
    message = json.loads(codec.encode(work(1)))
    hub = HttpHub([{"delivery_id": "d1", "message": message}])
    pipe = hub.pipe()
    async with asyncio.timeout(PATIENCE):
        await pipe.open(b"{}")
        (frame,) = await pipe.receive()
        assert isinstance(frame, Frame)
        assert (json.loads(frame.data), frame.receipt) == (message, "d1")
        pipe.acknowledge("d1")
        for n in range(10):
            pipe.send(b'{"n":%d}' % n, f"m{n}", "one lane")
        accepted = [id for _ in range(10) for id in (await _next_accepted(pipe)).ids]
        await pipe.close()
    assert accepted == [f"m{n}" for n in range(10)]
    assert [posted["n"] for posted in hub.posted] == list(range(10))
    assert hub.acked == ["d1"]


async def _next_accepted(pipe: HttpPipe) -> Accepted:
    (arrival,) = await pipe.receive()
    assert isinstance(arrival, Accepted)
    return arrival


async def test_over_http_a_refusal_as_an_envelope_is_a_frame() -> None:
    refusal = {"payload": {"error_code": 5003, "error_message": "no such task"}}
    pipe = HttpHub([], httpx2.Response(404, json=refusal)).pipe()
    async with asyncio.timeout(PATIENCE):
        await pipe.open(b"{}")
        pipe.send(b"{}", "m", "lane")
        (frame,) = await pipe.receive()
        await pipe.close()
    assert isinstance(frame, Frame)
    assert json.loads(frame.data) == refusal


@pytest.mark.parametrize(
    ("answer", "raised", "pause"),
    [
        (httpx2.Response(503, headers={"retry-after": "7"}), LinkDown, 7.0),
        (httpx2.Response(502, text="<html>"), LinkDown, None),
        (httpx2.Response(401, json={}), NotAllowed, None),
    ],
)
async def test_over_http_anything_else_takes_the_connection_down(
    answer: httpx2.Response, raised: type[Exception], pause: float | None
) -> None:
    pipe = HttpHub([], answer).pipe()
    async with asyncio.timeout(PATIENCE):
        await pipe.open(b"{}")
        pipe.send(b"{}", "m", "lane")
        with pytest.raises(raised) as caught:
            await pipe.receive()
        await pipe.close()
    assert getattr(caught.value, "retry_after", None) == pause


async def test_a_hub_that_dies_over_a_new_connection_is_waited_for() -> None:
    """uvloop has no socket to show of a connection that is gone already, and an agent ended with an AttributeError."""

    def gone(request: httpx2.Request) -> httpx2.Response:
        raise AttributeError("'NoneType' object has no attribute 'getpeername'", name="getpeername", obj=None)

    pipe = HttpPipe(parse("chiffon+http://127.0.0.1:8420"), transport=httpx2.MockTransport(gone))
    with pytest.raises(LinkDown, match="the connection was reset"):
        await pipe.open(b"{}")
    await pipe.close()


async def test_a_hub_that_breaks_tls_off_is_waited_for() -> None:
    """Whoever shows no certificate where one is required hears so only by the first answer; an agent ended with an
    SSLError."""

    def refused(request: httpx2.Request) -> httpx2.Response:
        raise ssl.SSLError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert certificate required")

    pipe = HttpPipe(parse("chiffon+https://127.0.0.1:8420"), transport=httpx2.MockTransport(refused))
    with pytest.raises(LinkDown, match="name yours in DRAGOMAN_CLIENT_CERTIFICATE"):
        await pipe.open(b"{}")
    await pipe.close()
