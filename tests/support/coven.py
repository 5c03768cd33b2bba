"""A coven client that is not ours: built from the document's protobuf text alone, it imports nothing of dragoman.

The messages live in a descriptor pool of their own, so they cannot meet the hub's generated ones in one process.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

DOCUMENT = Path(__file__).with_name("coven_document.md")
STREAM = "/coven.CovenControl/AgentStream"
PATIENCE = 60.0


async def soon(what: Any, seconds: float = PATIENCE) -> Any:
    """Every wait is bounded."""
    return await asyncio.wait_for(what, seconds)


def finished(answer: Any) -> Any:
    """What a coroutine returns that has nothing left to wait for."""
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it still waits")


def document_proto() -> str:
    """The document's blocks as one file."""
    blocks = re.findall(r"```protobuf\n(.*?)```", DOCUMENT.read_text("utf-8"), re.DOTALL)
    return "\n".join(['syntax = "proto3";', "package coven;", *blocks])


@cache
def document() -> Any:
    """The document's messages, compiled now: `document().AgentMessage(…)`."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "outside.proto")
        source.write_text(document_proto(), "utf-8")
        target = Path(folder, "outside.pb")
        arguments = ["protoc", f"--proto_path={folder}", f"--descriptor_set_out={target}", str(source)]
        assert protoc.main(arguments) == 0
        files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    found = pool.FindFileByName("outside.proto")
    classes = {name: message_factory.GetMessageClass(form) for name, form in found.message_types_by_name.items()}
    return SimpleNamespace(**classes, descriptors=dict(found.message_types_by_name))


class Agent:
    """One stream of one agent. Messages are the document's."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.pb = document()
        self._first: tuple[Any, str] | None = None
        call.add_done_callback(self._ended)

    async def say(self, **payload: Any) -> None:
        await self.raw(self.pb.AgentMessage(**payload).SerializeToString())

    async def raw(self, data: bytes) -> None:
        """The gateway may have ended the stream by now: `hear` and `code` tell of it, not who speaks."""
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await soon(self.call.write(data))

    async def register(self, agent_id: str, name: str = "", capabilities: Iterable[str] = ()) -> Any:
        """Register, and return the welcome."""
        await self.say(register={"agent_id": agent_id, "name": name, "capabilities": list(capabilities)})
        received = await self.hear()
        assert received.WhichOneof("payload") == "welcome", received
        return received.welcome

    async def hear(self) -> Any:
        """The next message of the gateway; raises `grpc.aio.AioRpcError` if the stream ended badly."""
        data = await soon(self.call.read())
        if data is grpc.aio.EOF:
            raise EOFError(str(await soon(self.call.code())))
        return self.pb.ServerMessage.FromString(data)

    async def work(self) -> Any:
        """The next SendMessage."""
        received = await self.hear()
        assert received.WhichOneof("payload") == "send_message", received
        return received.send_message

    async def respond(self, request_id: str, **event: Any) -> None:
        await self.say(response={"request_id": request_id, **event})

    async def heartbeat(self, timestamp_ms: int = 0) -> None:
        await self.say(heartbeat={"timestamp_ms": timestamp_ms})

    async def code(self) -> Any:
        """How the stream ended."""
        last = await soon(self.call.code())
        return self._first[0] if self._first else last

    async def details(self) -> str:
        last = await soon(self.call.details())
        return str(self._first[1] if self._first else last)

    def _ended(self, call: Any) -> None:
        """Keep what the gateway said: gRPC's asyncio client puts INTERNAL over it if a write fails after the end."""
        self._first = self._first or (finished(call.code()), finished(call.details()))

    async def leave(self) -> None:
        """Say that nothing more comes, and wait for the end."""
        await soon(self.call.done_writing())
        await self.code()

    def vanish(self) -> None:
        """Break the stream off."""
        self.call.cancel()


@asynccontextmanager
async def channel(address: str, options: Sequence[tuple[str, Any]] = ()) -> AsyncIterator[Any]:
    # A pool of its own: channels to one address would otherwise share a connection.
    given = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options]
    async with grpc.aio.insecure_channel(address, options=given) as opened:
        yield opened


def stream(channel: Any, *, token: str | None = None) -> Agent:
    """Open an agent's stream."""
    metadata = (("authorization", f"Bearer {token}"),) if token is not None else None
    return Agent(channel.stream_stream(STREAM)(metadata=metadata))
