"""Forge's frames on a real WebSocket: how they are encoded, who is let in, when to come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from tests.support.forge import End
from tests.unit.sdk.harness import PATIENCE
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from dragoman import Agent, Conflict, NotAllowed
from dragoman.protocols.forge import types as forge
from dragoman.protocols.forge.codec import RequestReceived
from dragoman.protocols.forge.types import Encoding, Stamp
from dragoman.sdk.address import Address, parse
from dragoman.sdk.forge.ws import WebSocketWire
from dragoman.sdk.links import LinkDown
from dragoman.sdk.runtime import SystemRuntime
from dragoman.wire.role import Role

WORLD = SystemRuntime()
TOKEN = "a7f3d8c2e1b9f4a6c8e2d1b3f4a6c8e2"
REFUSAL = b'{"type":"response:error","error":{"code":"UNAUTHORIZED","message":"nobody here has this token"}}'


@asynccontextmanager
async def hub(talk: Callable[[ServerConnection], Awaitable[None]], spoken: Sequence[str] = tuple(Encoding)):
    def check(connection: ServerConnection, request: Request) -> Response | None:
        assert request.path == "/forge/ws"
        if request.headers.get("authorization") == f"Bearer {TOKEN}":
            return None
        response = connection.respond(401, "")
        response.body = REFUSAL
        del response.headers["content-length"]
        response.headers["content-length"] = str(len(REFUSAL))
        return response

    async with (
        asyncio.timeout(PATIENCE),
        serve(talk, "127.0.0.1", 0, subprotocols=spoken or None, process_request=check) as server,  # type: ignore[arg-type]
    ):
        yield parse(f"forge+ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)


@pytest.mark.parametrize(
    ("spoken", "chosen", "frame"),
    [
        ((Encoding.MSGPACK, Encoding.JSON), Encoding.MSGPACK, bytes),
        ((Encoding.JSON,), Encoding.JSON, str),
        ((), Encoding.JSON, str),
    ],
)
async def test_messagepack_is_spoken_where_the_hub_does_and_json_elsewhere(
    spoken: Sequence[str], chosen: Encoding, frame: type
) -> None:
    result: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def talk(socket: ServerConnection) -> None:
        end = End(Role.HUB, encoding=chosen)

        async def say(data: bytes) -> None:
            await socket.send(data if chosen is Encoding.MSGPACK else data.decode())

        task = {"id": "t1", "type": "double", "payload": {"n": 21}}
        assigned = forge.TaskAssigned(task_id="t1", message="Task assigned.", task=task)
        await say(end.tell(assigned, Stamp(WORLD.mint(), WORLD.now())))
        async for data in socket:
            assert type(data) is frame
            for event in end.receive(data.encode() if isinstance(data, str) else data):
                assert isinstance(event, RequestReceived), event
                await say(end.succeed(event.message.id, {}, Stamp(WORLD.mint(), WORLD.now())))
                if event.message.type == "request:update-task":
                    result.set_result(event.message.payload.result)

    agent = Agent("worker", token=TOKEN)
    agent.on("double")(lambda n: n * 2)
    async with hub(talk, spoken) as address:
        serving = asyncio.ensure_future(agent.serve(address.base.replace("http", "forge+ws")))
        assert await result == 42
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_a_wrong_token_is_final_and_carries_the_hubs_sentence() -> None:
    async def talk(socket: ServerConnection) -> None: ...

    async with hub(talk) as address:
        wire = WebSocketWire(Address(protocol="forge", transport="ws", base=address.base, token="wrong"))
        with pytest.raises(NotAllowed, match="nobody here has this token"):
            await wire.open()


@pytest.mark.parametrize(("code", "raised"), [(4001, NotAllowed), (4009, Conflict), (1012, LinkDown)])
async def test_how_the_hub_hangs_up_says_whether_to_come_back(code: int, raised: type[Exception]) -> None:
    async def talk(socket: ServerConnection) -> None:
        await socket.close(code, "a reason")

    async with hub(talk) as address:
        wire = WebSocketWire(address)
        await wire.open()
        with pytest.raises(raised, match="a reason"):
            await wire.receive()
        await wire.close()
