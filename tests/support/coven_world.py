"""A whole hub in this process with coven's endpoint open on a free port: real intake, real decisions, memory's
store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import msgspec

from dragoman.app.background import wake_rows
from dragoman.app.clock import Mint, SystemClock
from dragoman.app.intake import Intake
from dragoman.core.commands import AddAgent
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Event, Task
from dragoman.core.rules import Rules
from dragoman.messages.tasks import Request
from dragoman.protocols.coven import codec, coven_pb2, types
from dragoman.security.tokens import new_token, token_hash
from dragoman.server.coven.endpoint import CovenEndpoint
from dragoman.server.coven.grpc_port import CovenLimits
from dragoman.stores.files import MemoryFiles
from dragoman.stores.memory import MemoryStore
from tests.support import coven as outside
from tests.support.submits import submit_of

PATIENCE = 60.0
RULES = Rules(retry_delays=(0, 0, 0, 0))
"""Failed attempts are repeated at once."""


class Gateway:
    """What a test holds: the hub, its endpoint, and channels to it."""

    def __init__(self, intake: Intake, store: Any, files: MemoryFiles, endpoint: CovenEndpoint, address: str) -> None:
        self.intake = intake
        self.store = store
        self.files = files
        self.endpoint = endpoint
        self.address = address
        self._channels = contextlib.AsyncExitStack()

    async def add(self, id: str, *, protocol: str = "coven", **fields: Any) -> str:
        """An agent with a token; returns the token."""
        token = new_token()
        agent = Agent(
            id=AgentId(id),
            protocol=protocol,
            created_at=self.intake.now(),
            token_hash=token_hash(token),
            **fields,
        )
        await self.intake.execute(AddAgent(principal=ADMIN, agent=agent))
        return token

    async def channel(self, *options: tuple[str, Any]) -> Any:
        """A connection of its own."""
        return await self._channels.enter_async_context(outside.channel(self.address, options))

    async def stream(self, *, token: str | None = None) -> outside.Agent:
        """A stream on a connection of its own, not registered."""
        return outside.stream(await self.channel(), token=token)

    async def agent(self, id: str = "worker", *, token: str | None = None, **more: Any) -> outside.Agent:
        """A registered agent, built from the document alone."""
        agent = await self.stream(token=token)
        await agent.register(id, **more)
        await self.until(lambda: self.intake.reachable(AgentId(id)))
        return agent

    async def submit(self, to: str = "worker", *, work: str = "chat", **fields: Any) -> Task:
        given = fields.pop("input", {"content": "hello"})
        command = submit_of(
            principal=fields.pop("principal", ADMIN),
            protocol="api",
            request_id=fields.pop("request_id", self.intake.mint()),
            digest="d",
            type=work,
            content=Request(input=given),
            pinned=AgentId(to),
            **fields,
        )
        task: Task = await outside.soon(self.intake.execute(command))
        return task

    async def task(self, id: str) -> Task:
        task = await self.store.task(TaskId(id))
        assert task is not None
        return task

    async def events(self, id: str) -> list[Event]:
        return list(await self.store.events(TaskId(id)))

    async def bodies(self, id: str, kind: str = "progress") -> list[dict[str, Any]]:
        return [msgspec.json.decode(event.body) for event in await self.events(id) if event.kind == kind]

    async def until(self, ready: Callable[[], Any], *, about: str | None = None) -> None:
        """Wait until `ready` (which may be async) says so; bounded."""

        async def wait() -> None:
            while True:
                answer = ready()
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer:
                    return
                await asyncio.sleep(0.01)

        await outside.soon(wait())

    async def status(self, id: str, *wanted: str) -> Task:
        """The task, once it has one of these statuses."""
        async with self.intake.watch(TaskId(id)) as watch:
            for _ in range(1000):
                task = await self.task(id)
                if task.status in wanted:
                    return task
                await outside.soon(watch.changed(PATIENCE))
        raise AssertionError(f"never {wanted}")

    async def call(self, message: types.SendMessage, *, token: str | None = None, **more: Any) -> Call:
        channel = await self.channel()
        return Call(channel.unary_stream(types.SEND), codec.encode_send(message), token, **more)

    async def follow(self, task_id: str, after: int = 0, *, token: str | None = None) -> Call:
        channel = await self.channel()
        asked = codec.encode_follow(types.FollowRequest(task_id=task_id, after=after))
        return Call(channel.unary_stream(types.FOLLOW), asked, token)

    async def cancel(self, task_id: str, *, token: str | None = None) -> types.CancelReply:
        channel = await self.channel()
        asked = codec.encode_cancel(types.CancelRequest(task_id=task_id, reason="enough"))
        call = channel.unary_unary(types.CANCEL)(asked, metadata=credential(token))
        reply = coven_pb2.CancelReply.FromString(await outside.soon(call))
        return types.CancelReply(task_id=reply.task_id, status=reply.status)

    async def close(self) -> None:
        await self._channels.aclose()


def credential(token: str | None) -> Any:
    return (("authorization", f"Bearer {token}"),) if token is not None else None


class Call:
    """A caller's stream."""

    def __init__(self, method: Any, request: bytes, token: str | None, **metadata: str) -> None:
        given = [*(credential(token) or ()), *metadata.items()]
        self.call = method(request, metadata=tuple(given))

    async def next(self) -> types.MessageResponse:
        data = await outside.soon(self.call.read())
        if data is grpc.aio.EOF:
            raise EOFError(str(await outside.soon(self.call.code())))
        return codec.decode_response(data)

    async def rest(self) -> list[types.MessageResponse]:
        """Everything until the end."""
        chunks = []
        while not chunks or not chunks[-1].last:
            chunks.append(await self.next())
        return chunks

    async def code(self) -> Any:
        return await outside.soon(self.call.code())

    async def task_id(self) -> str:
        metadata = dict(await outside.soon(self.call.initial_metadata()))
        return str(metadata["dragoman-task-id"])


@asynccontextmanager
async def gateway(
    *,
    guests: bool = True,
    limits: dict[str, Any] | None = None,
    rules: Rules = RULES,
    store: Any = None,
    files: MemoryFiles | None = None,
    **door_settings: Any,
) -> AsyncIterator[Gateway]:
    clock = SystemClock()
    mint = Mint(clock)
    kept = store or MemoryStore()
    intake = Intake(kept, rules=rules, now=clock, mint=mint)
    await intake.start()
    ringing = asyncio.create_task(wake_rows(intake))
    bytes_kept = files or MemoryFiles(mint)
    endpoint = CovenEndpoint(
        intake, kept, bytes_kept, port=0, guests=guests, limits=CovenLimits(**(limits or {})), **door_settings
    )
    port = await endpoint.start()
    held = Gateway(intake, kept, bytes_kept, endpoint, f"127.0.0.1:{port}")
    try:
        yield held
    finally:
        await held.close()
        await endpoint.stop()
        ringing.cancel()
        await asyncio.gather(ringing, return_exceptions=True)
        await intake.stop()
