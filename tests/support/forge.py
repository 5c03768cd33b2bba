"""Forge for tests: an end of a connection that is nothing but the codec; a hub with a forge endpoint, and clients."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from typing import Any, TypeVar

import msgspec
from websockets.asyncio.client import connect
from websockets.sync.client import connect as sync_connect

from dragoman.core.commands import AddAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Agent
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import Dropped, Event
from dragoman.protocols.forge.types import AnyMessage, Encoding, ErrorBody, Payload, Stamp
from dragoman.security.tokens import token_hash
from dragoman.server.forge.bus import Bus
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.websocket import ForgeWebSocket
from dragoman.server.limits import Limits as TransportLimits
from dragoman.server.server import HttpServer
from dragoman.stores.files import MemoryFiles
from dragoman.wire import Role
from dragoman.wire.framing import Line, LineFraming, Overlong
from dragoman.wire.guard import Limits
from tests.support.world import World

T = TypeVar("T")
PATIENCE = 60.0


class End:
    """One end of a forge connection: the codec, and lines where it is a pipe. It keeps no state of any request."""

    def __init__(
        self,
        role: Role,
        *,
        lines: bool = False,
        encoding: Encoding = Encoding.JSON,
        limits: Limits = codec.LIMITS,
        agent_id: str | None = None,
    ) -> None:
        self._role = role
        self._encoding = encoding
        self._limits = limits
        self._agent_id = agent_id
        self.framing = LineFraming(limits.bytes) if lines else None

    def receive(self, data: bytes) -> list[Event]:
        """A piece of a stream of lines, or one frame."""
        return self._events(self.framing.feed(data) if self.framing is not None else [data])

    def ended(self) -> list[Event]:
        return self._events(self.framing.finish() if self.framing is not None else [])

    def _events(self, lines: Sequence[Line]) -> list[Event]:
        events: list[Event] = []
        how: dict[str, Any] = {"encoding": self._encoding, "limits": self._limits, "agent_id": self._agent_id}
        for line in lines:
            events += [Dropped(line.length)] if isinstance(line, Overlong) else codec.read(line, self._role, **how)
        return events

    def send(self, message: AnyMessage) -> bytes:
        return codec.write(message, self._encoding) + (b"\n" if self.framing is not None else b"")

    def tell(self, payload: Payload, stamp: Stamp, **extra: Any) -> bytes:
        """A request, an event or a notice: the payload says which."""
        return self.send(codec.message(payload, stamp, **extra))

    def succeed(self, request_id: str, payload: dict[str, Any], stamp: Stamp) -> bytes:
        return self.send(codec.success(request_id, payload, stamp))

    def fail(self, request_id: str | None, error: ErrorBody, stamp: Stamp) -> bytes:
        return self.send(codec.failure(request_id, error, stamp))


# -- a hub with a forge endpoint, under a clock that only moves when told


class ForgeHub:
    """A whole hub in memory: real intake and decisions, a real port on loopback, time that stands still."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._peers: list[ForgePeer] = []
        self._stand()

    def _stand(self) -> None:
        world = self.world
        self.bus = Bus()
        self.files = MemoryFiles(world.mint)
        self.ticks = 0.0
        self.handler = ForgeHandler(
            world.intake, world.store, files=self.files, bus=self.bus, clock=lambda: self.ticks, limits=LIMITS
        )
        self.endpoint = ForgeWebSocket(self.handler)
        self.serving = HttpServer(world.intake, [self.endpoint], fallback=_elsewhere, port=0, limits=LIMITS)

    async def restart(self) -> None:
        """The hub dies and comes back on another port: nothing but the store survives."""
        await self.serving.stop(0.1)
        await self.world.restart()
        self._stand()
        await self.serving.start()

    async def add(self, id: str, *, protocol: str = "forge", **fields: Any) -> str:
        """A new agent; its token."""
        token = hashlib.md5(id.encode()).hexdigest()
        agent = Agent(
            id=AgentId(id), protocol=protocol, created_at=self.world.time, token_hash=token_hash(token), **fields
        )
        await self.world.ask(AddAgent(principal=ADMIN, agent=agent))
        return token

    async def connect(self, id: str, *, token: str | None = None, **how: Any) -> ForgePeer:
        peer = ForgePeer(self, id)
        await peer.open(token or hashlib.md5(id.encode()).hexdigest(), **how)
        self._peers.append(peer)
        return peer

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()

    async def audited(self) -> list[tuple[str, str, str]]:
        return [(r.principal, r.action, r.outcome) for r in await self.world.store.audit()]


LIMITS = TransportLimits(message_bytes=1024 * 1024)


async def _elsewhere(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"elsewhere"})


class ForgePeer:
    """An agent that shares nothing with the hub but the document: `websockets`, `json`, and MessagePack by msgspec."""

    def __init__(self, hub: ForgeHub, id: str) -> None:
        self.hub = hub
        self.id = id
        self.received: list[dict[str, Any]] = []
        self._numbers = count(1)
        self._packs = False

    async def open(
        self,
        token: str,
        *,
        subprotocol: str | None = "forge.v1.json",
        compression: str | None = None,
        patient: bool = True,
    ) -> None:
        """`patient`: takes in whatever comes, whether or not the test reads it."""
        url = self.hub.serving.url.replace("http", "ws") + "/forge/ws"
        self._packs = subprotocol == "forge.v1.msgpack"
        self.ws = await soon(
            connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                subprotocols=None if subprotocol is None else [subprotocol],  # type: ignore[list-item]
                compression=compression,
                proxy=None,
                max_queue=None if patient else 1,
            )
        )
        await self.hub.world.settle()

    async def close(self) -> None:
        await soon(self.ws.close())

    async def say(self, *messages: Any) -> None:
        """One message, or several as a batch; text as it is."""
        message = messages[0] if len(messages) == 1 else list(messages)
        if isinstance(message, str | bytes):
            await self.ws.send(message)
        else:
            await self.ws.send(
                msgspec.msgpack.encode(message) if self._packs else json.dumps(message, ensure_ascii=False)
            )

    def message(self, type: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
        given = {"type": type, "id": f"{self.id}-{next(self._numbers)}", "timestamp": "2026-02-04T14:30:00Z"}
        return {**given, "payload": payload, **more}

    async def tell(self, event: str, **payload: Any) -> str:
        message = self.message(f"event:{event}", payload)
        await self.say(message)
        id: str = message["id"]
        return id

    async def hear(self) -> dict[str, Any]:
        data = await soon(self.ws.recv())
        message: dict[str, Any] = msgspec.msgpack.decode(data) if isinstance(data, bytes) else json.loads(data)
        return message

    async def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next message that fits; the others are kept in `received`."""
        for index, message in enumerate(self.received):
            if fits(message):
                return self.received.pop(index)
        while True:
            message = await self.hear()
            if fits(message):
                return message
            self.received.append(message)

    async def ask(self, request: str, *, id: str | None = None, meta: Any = None, **payload: Any) -> Any:
        """The response's payload, or its error."""
        more = {**({"id": id} if id else {}), **({"_meta": meta} if meta else {})}
        message = self.message(f"request:{request}", payload, **more)
        await self.say(message)
        return await self.response(message["id"])

    async def response(self, id: str) -> Any:
        answer = await self.until(lambda message: message.get("correlationId") == id)
        return answer["payload"] if answer["type"] == "response:success" else answer["error"]

    async def notice(self, name: str) -> dict[str, Any]:
        message = await self.until(lambda message: message["type"] == f"notify:{name}")
        payload: dict[str, Any] = message["payload"]
        return payload


@asynccontextmanager
async def forge_hub() -> AsyncIterator[ForgeHub]:
    world = await World().start()
    hub = ForgeHub(world)
    try:
        await hub.serving.start()
        yield hub
    finally:
        await hub.close()
        await hub.serving.stop(1.0)
        await world.intake.stop()


async def soon(what: Awaitable[T]) -> T:
    """Every wait is bounded."""
    return await asyncio.wait_for(what, PATIENCE)


class ForgeClient:
    """A forge agent of a hub in another process, one step at a time."""

    def __init__(self, url: str, id: str, token: str) -> None:
        self.id = id
        self.received: list[dict[str, Any]] = []
        headers = {"Authorization": f"Bearer {token}"}
        address = url.replace("http", "ws") + "/forge/ws"
        link = sync_connect(address, additional_headers=headers, proxy=None, open_timeout=PATIENCE)
        self.ws = ExitStack().enter_context(link)  # it ends with the hub, or with the test

    def say(self, type: str, payload: dict[str, Any], id: str | None = None) -> str:
        id = id or str(uuid.uuid4())
        message = {"type": type, "id": id, "timestamp": "2026-02-04T14:30:00Z", "payload": payload}
        self.ws.send(json.dumps(message))
        return id

    def until(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for index, message in enumerate(self.received):
            if fits(message):
                return self.received.pop(index)
        while True:
            message = json.loads(self.ws.recv(timeout=3 * PATIENCE))
            if fits(message):
                return message
            self.received.append(message)

    def response(self, id: str) -> Any:
        answer = self.until(lambda message: message.get("correlationId") == id)
        return answer["payload"] if answer["type"] == "response:success" else answer["error"]

    def ask(self, request: str, payload: dict[str, Any], id: str | None = None) -> Any:
        return self.response(self.say(f"request:{request}", payload, id))

    def notice(self, name: str) -> dict[str, Any]:
        message = self.until(lambda message: message["type"] == f"notify:{name}")
        payload: dict[str, Any] = message["payload"]
        return payload
