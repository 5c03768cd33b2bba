"""A coven gateway for tests: a real gRPC server in this process that is nothing but coven's HUB role.

What it says is the test's. Nothing here sleeps; every wait is bounded by `PATIENCE` real seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tests.unit.sdk.harness import PATIENCE

from dragoman import Agent
from dragoman.protocols.coven import codec
from dragoman.protocols.coven.connection import Completed, Connection, Event, Responded
from dragoman.protocols.coven.types import (
    CLIENT,
    CONTROL,
    Done,
    Error,
    FollowRequest,
    Heartbeat,
    MessageResponse,
    RegisterAgent,
    SendMessage,
    Text,
)
from dragoman.sdk.address import Address, parse
from dragoman.sdk.coven.channel import grpc
from dragoman.sdk.runtime import SystemRuntime
from dragoman.wire.role import Role

T = TypeVar("T")


class Hasty(SystemRuntime):
    """Pauses before a new try are short; what is meant for quiet times takes its time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds if seconds >= 10 else min(seconds, 0.01))


class Stream:
    """One agent's stream, from the gateway's end."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.metadata = dict(context.invocation_metadata())
        self.connection = Connection(Role.HUB)
        self.over = asyncio.Event()
        self.verdict: tuple[grpc.StatusCode, str] | None = None
        self.is_left = False
        self._heard: asyncio.Queue[Event] = asyncio.Queue()

    @property
    def who(self) -> RegisterAgent:
        assert self.connection.agent is not None
        return self.connection.agent

    async def read(self) -> None:
        while (data := await self.context.read()) is not grpc.aio.EOF:
            for event in self.connection.receive(data):
                if not isinstance(event, Heartbeat):
                    self._heard.put_nowait(event)
        self.is_left = True
        self.over.set()

    async def hear(self) -> Event:
        async with asyncio.timeout(PATIENCE):
            return await self._heard.get()

    async def said(self) -> tuple[list[MessageResponse], Completed]:
        """Everything up to the end of the open request; signs of life are passed over."""
        responses: list[MessageResponse] = []
        while True:
            event = await self.hear()
            if isinstance(event, Completed):
                return responses, event
            assert isinstance(event, Responded), event
            if event.message.event is not None:
                responses.append(event.message)

    async def text(self, wanted: str) -> None:
        """Until this text has come, in any pieces."""
        got = ""
        while got != wanted:
            event = await self.hear()
            assert isinstance(event, Responded), event
            if isinstance(event.message.event, Text):
                got += event.message.event.text
            assert wanted.startswith(got), (wanted, got)

    async def end(self) -> Done | Error:
        event = (await self.said())[1].message.event
        assert isinstance(event, Done | Error)
        return event

    async def give(self, request_id: str, content: str = "", **more: Any) -> None:
        await self.write(self.connection.send(SendMessage(request_id=request_id, content=content, **more)))

    async def write(self, data: bytes) -> None:
        await asyncio.wait_for(self.context.write(data), PATIENCE)

    def cut(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, words: str = "cut") -> None:
        self.verdict = (code, words)
        self.over.set()

    async def left(self) -> None:
        """Until the agent closed its half."""
        await asyncio.wait_for(self.over.wait(), PATIENCE)
        assert self.is_left


class Gateway:
    """`turn_away`: how the next streams are refused, before any welcome."""

    def __init__(self, credentials: Any = None) -> None:
        self._credentials = credentials
        self.turn_away: list[tuple[grpc.StatusCode, str]] = []
        self.send: Callable[[SendMessage, Any], Awaitable[None]] | None = None
        self.follow: Callable[[FollowRequest, Any], Awaitable[None]] | None = None
        self.cancel: Callable[[bytes, Any], Awaitable[bytes]] | None = None
        self._streams: asyncio.Queue[Stream] = asyncio.Queue()

    async def __aenter__(self) -> Gateway:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
        control = {"AgentStream": grpc.stream_stream_rpc_method_handler(self._agent)}
        client = {
            "Send": grpc.unary_stream_rpc_method_handler(self._send),
            "Follow": grpc.unary_stream_rpc_method_handler(self._follow),
            "Cancel": grpc.unary_unary_rpc_method_handler(self._cancel),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(CONTROL, control),
                grpc.method_handlers_generic_handler(CLIENT, client),
            )
        )
        if self._credentials is None:
            self.url = f"coven://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            self.url = f"covens://localhost:{self._server.add_secure_port('127.0.0.1:0', self._credentials)}"
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)

    def address(self, token: str | None = None) -> Address:
        return parse(self.url, token)

    async def stream(self) -> Stream:
        """The next stream that was welcomed."""
        return await asyncio.wait_for(self._streams.get(), PATIENCE)

    async def _agent(self, _requests: Any, context: Any) -> None:
        await context.send_initial_metadata(())
        stream = Stream(context)
        (event,) = stream.connection.receive(await context.read())
        assert isinstance(event, RegisterAgent), event
        if self.turn_away:
            await context.abort(*self.turn_away.pop(0))
        await context.write(stream.connection.send_welcome("gateway"))
        self._streams.put_nowait(stream)
        reading = asyncio.ensure_future(stream.read())
        try:
            await stream.over.wait()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if stream.verdict is not None:
            await context.abort(*stream.verdict)

    async def _send(self, request: bytes, context: Any) -> None:
        assert self.send is not None
        await self.send(codec.decode_send(request), context)

    async def _follow(self, request: bytes, context: Any) -> None:
        assert self.follow is not None
        await self.follow(codec.decode_follow(request), context)

    async def _cancel(self, request: bytes, context: Any) -> bytes:
        assert self.cancel is not None
        return await self.cancel(request, context)


class Serving:
    """`async with Serving(agent, gateway) as serving:` the agent is at work inside."""

    def __init__(self, agent: Agent, gateway: Gateway) -> None:
        self.agent = agent
        self.gateway = gateway

    async def __aenter__(self) -> Serving:
        self.task = asyncio.ensure_future(self.agent.serve(self.gateway.url))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def ended(self) -> None:
        await asyncio.wait_for(self.task, PATIENCE)
