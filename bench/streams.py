"""Bidirectional gRPC streams for the load process: bytes in, bytes out, nothing awaited by the scenario.

`grpc.aio` wants one write at a time on a stream; a `Scenario` begins operations without awaiting. So every stream
has a small outbox and one task that empties it. Messages stay bytes here: who uses a stream knows its types.

A stream gets a connection of its own where `alone` is set, as agents in processes of their own would have. grpc
otherwise quietly puts all channels of a process to the same place on one connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

AGENT_STREAM = "/coven.CovenControl/AgentStream"
LARGEST = 16 * 1024 * 1024


def coven_types() -> Any:
    """The document's messages, compiled from its text (bench/coven.proto) in the process that asks.

    Never in a process that also imports the hub's own: one process knows a full name only once.
    """
    return grpc.protos("bench/coven.proto")  # type: ignore[attr-defined]


def channel(address: str, *, alone: bool) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", LARGEST), ("grpc.use_local_subchannel_pool", int(alone))]
    return grpc.aio.insecure_channel(address, options=options)


class BidiStream:
    """One stream: `send` queues, `hear` gets every message, `lose` is told when the other side ends it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        method: str,
        hear: Callable[[bytes], None],
        lose: Callable[[str], None],
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self._call: Any = channel.stream_stream(method)(metadata=metadata)  # type: ignore[call-arg]
        self._hear = hear
        self._lose = lose
        self._outbox: deque[bytes] = deque()
        self._wake: asyncio.Future[None] | None = None
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]

    def send(self, message: bytes) -> None:
        self._outbox.append(message)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                while self._outbox:
                    await self._call.write(self._outbox.popleft())
                self._wake = loop.create_future()
                await self._wake
        except (grpc.RpcError, asyncio.InvalidStateError) as gone:
            self._lose(f"write: {gone!r}")

    async def _read(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._hear(message)
        except grpc.RpcError as gone:
            self._lose(f"read: {gone!r}")
            return
        self._lose(f"the stream ended: {await self._call.code()} {await self._call.details()}")

    def close(self) -> None:
        self._lose = lambda why: None
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
