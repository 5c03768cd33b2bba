"""One agent's gRPC stream: the wire of a connection loop, as a WebSocket or a child's pipes are.

Two tasks and an end. One reads messages for the loop, unless that wants no more for now; one writes what the loop has.
The stream ends when the agent left, the hub let go, the protocol was broken, or patience is over.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import grpc
import structlog

from dragoman.core.ids import AgentId, SessionId
from dragoman.core.ports import Intake, Store
from dragoman.protocols.coven.connection import Connection
from dragoman.server.connection import ConnectionLoop
from dragoman.server.coven.file_keeper import FileKeeper
from dragoman.server.coven.limits import CovenLimits
from dragoman.server.coven.session import LEFT, CovenSession, StreamEnd
from dragoman.server.request_memory import room_for
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")


class AgentStream:
    has_room = True
    """A stream has one task at a time, so there is never much to write."""

    def __init__(
        self,
        hub: Intake,
        store: Store,
        files: FileKeeper,
        *,
        agent: AgentId,
        session_id: SessionId,
        connection: Connection,
        context: Any,
        limits: CovenLimits,
        counts: Counter[str],
    ) -> None:
        self.agent = agent
        self.session_id = session_id
        self.last_heard = asyncio.get_running_loop().time()
        self.gone = asyncio.Event()
        self._hub = hub
        self._context = context
        self._ended: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()
        self._frames: deque[bytes] = deque()
        self._to_write = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self.session = CovenSession(
            hub, store, files, agent, stream=connection, limits=limits, counts=counts, end=self.end
        )
        self.loop = ConnectionLoop(
            hub,
            agent,
            session_id,
            self.session,
            self,
            hang_up=self._hang_up,
            unanswered=limits.unanswered,
            joined_bytes=limits.pending_bytes,
            paced=False,
        )

    # -- its life

    async def serve(self) -> StreamEnd:
        """From the welcome to its end."""
        self.session.welcomed()
        tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        for task in tasks:
            task.add_done_callback(self._broke)
        try:
            return await self._ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _broke(self, task: asyncio.Task[None]) -> None:
        """A task that ends by itself takes the stream with it."""
        if task.cancelled() or self._ended.done():
            return
        error = task.exception()
        if error is None or isinstance(error, grpc.aio.UsageError | grpc.aio.InternalError):
            self.end(LEFT)
            return
        log.error("a stream broke", agent=self.agent, exc_info=error)
        self.end((grpc.StatusCode.INTERNAL, "the hub failed to serve this stream; connect again"))

    def end(self, how: StreamEnd) -> None:
        if not self._ended.done():
            self._ended.set_result(how)

    def close(self) -> bool:
        """The stream is over: what was received is enqueued. Whether a request was left open (D6)."""
        self.loop.close()
        return bool(self.session.stream.end_of_stream())

    def _hang_up(self, reason: CloseReason) -> None:
        self.end((grpc.StatusCode[reason.grpc], reason.sentence))

    # -- messages

    async def _read(self) -> None:
        while True:
            await self._reading.wait()
            await room_for(self._hub.memory, self.agent)
            data = await self._context.read()
            if data is grpc.aio.EOF:
                await self.loop.drain()
                self.end(LEFT)
                return
            self.last_heard = asyncio.get_running_loop().time()
            self.loop.receive(data)

    async def _write(self) -> None:
        while True:
            while self._frames:
                await self._context.write(self._frames.popleft())
            self._to_write.clear()
            await self._to_write.wait()

    # -- the connection loop's wire

    def write(self, frames: Sequence[bytes]) -> None:
        self._frames.extend(frames)
        self._to_write.set()

    def ping(self) -> None:
        """A stream has no pings of ours. What coven has no message for is acknowledged at once."""
        self.loop.ponged()

    def stop_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()
