"""One agent's gRPC stream: coven on it (`CovenSession`), and the wire of a connection loop below (`AgentStream`).

The hub gives a stream one task at a time and keeps the rest (D5). It may still hand over the next while the agent is
busy with one that was given up: that waits here until the agent ends the old one, for `cancel_seconds`.

Coven has no message for a refusal. So where the hub refuses a report

    it could not store it           the hub ends the stream, and the work is done again, rather than with a hole in it
    the task is over, or another    the hub asks the agent to stop, if it understands that (B4)
      agent's
    for any other reason            the task has failed, and the hub asks the agent to stop
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import grpc
import msgspec
import structlog

from dragoman.core.commands import Command, Finish, ReportFault
from dragoman.core.ids import HUB, AgentId, DeliveryId, Instant, SessionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import EventKind
from dragoman.core.ports import Intake, Store
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Result
from dragoman.protocols.coven.connection import Completed, Ignored, Invalid, Responded, State
from dragoman.protocols.coven.connection import Connection as Stream
from dragoman.protocols.coven.errors import Oddity
from dragoman.protocols.coven.mapping import PROTOCOL
from dragoman.protocols.coven.types import FileData, Heartbeat, MessageResponse, Text
from dragoman.security.redaction import disclosed
from dragoman.server.asgi import room_for
from dragoman.server.connection import ConnectionLoop
from dragoman.server.coven import inbound, outbound
from dragoman.server.coven.grpc_port import CovenLimits
from dragoman.server.files import FileKeeper
from dragoman.server.session import (
    NOTHING,
    UNREAD,
    CommandFrame,
    Connection,
    Decoded,
    LookUp,
    Piece,
    Request,
    Session,
    is_passing,
)
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")

StreamEnd = tuple[grpc.StatusCode, str]
LEFT: StreamEnd = (grpc.StatusCode.OK, "")

POINTLESS = frozenset({Kind.CONFLICT, Kind.NOT_FOUND})
"""The task is over, or another agent's: the agent works for nothing."""
UNSTORED = frozenset({Kind.OVERLOADED, Kind.INTERNAL, Kind.UNAUTHENTICATED})
"""The hub could not keep the report."""

LANE = "stream"
"""All reports of one stream are one sequence: it has one task at a time."""


class Report(msgspec.Struct, frozen=True):
    """What a refusal is about. `task`: None for a fault, after which nothing follows; `kept`: its files."""

    task: TaskId | None
    kept: list[FileRef] = msgspec.field(default_factory=list)


class CovenSession(Session):
    """One for each stream; `end` ends it."""

    protocol = PROTOCOL

    def __init__(
        self,
        hub: Intake,
        store: Store,
        files: FileKeeper,
        agent: AgentId,
        connection: Connection,
        *,
        stream: Stream,
        limits: CovenLimits,
        counts: Counter[str],
        end: Callable[[StreamEnd], None],
    ) -> None:
        super().__init__(hub, agent, connection)
        self.stream = stream
        self._store = store
        self._files = files
        self._cancel_seconds = limits.cancel_seconds
        self._counts = counts
        self._end = end
        self._task: TaskId | None = None
        self._reported = 0
        self._cancelled: set[DeliveryId] = set()
        """Work that was cancelled while it waits here."""
        self._changed = asyncio.Event()
        """Whether work that waits should look again."""
        self._leaving = False

    # -- in: the agent reports

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        (event,) = self.stream.receive(frame)
        match event:
            case Responded(message=message):
                return self._progress(message)
            case Completed():
                task = self._over()
                if task is not None:
                    return CommandFrame(inbound.end_of(self._agent, task, event), self._request(task))
            case Ignored(why=why, request_id=request_id):
                self._counts[f"ignored.{why.value}"] += 1
                again = why is Oddity.SECOND_REGISTER and self.stream.ignored[why] == 1
                write = log.warning if again else log.debug  # D3; once a stream is enough
                write("ignored", agent=self._agent, why=why.value, request=request_id)
                if self.stream.request is None:
                    self._over()
            case Invalid(error=error):
                self._counts["broken"] += 1
                self._end((grpc.StatusCode.INVALID_ARGUMENT, outbound.status_of(inbound.fault_of(error))[1]))
            case Heartbeat():
                self._counts["heartbeats"] += 1
        return NOTHING

    def _progress(self, message: MessageResponse) -> Decoded:
        task, event = self._task, message.event
        if task is None:
            return NOTHING
        request = self._request(task)
        if isinstance(event, Text) and message.progress is None and not message.unknown:
            return Piece(task, event.text, partial(inbound.text_of, self._agent, task), request)
        if isinstance(event, FileData):
            return LookUp(partial(self._keep_file, task, message, event, request.context.kept), request)
        return CommandFrame(inbound.progress_of(self._agent, task, message), request)

    def _request(self, task: TaskId) -> Request:
        self._reported += 1
        return Request(str(self._reported), Report(task), lane=LANE)

    async def _keep_file(
        self, task: TaskId, message: MessageResponse, file: FileData, kept: list[FileRef]
    ) -> Command | Sequence[bytes]:
        """A file is kept before it is reported. What follows it waits, so nothing overtakes it."""
        try:
            kept.append(
                await self._files.keep(file.data, name=file.filename, mime_type=file.mime_type, owner=self._agent)
            )
        except Refused as refused:
            return self._give_up(task, refused.fault)
        return inbound.progress_of(self._agent, task, message, kept[0])

    def _over(self) -> TaskId | None:
        """The open request ended: the next may leave, if one waits."""
        task, self._task = self._task, None
        self._changed.set()
        return task

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        """The hub did not take a report."""
        report: Report = context
        for file in report.kept:
            self._files.drop(file.id)
        frames: Sequence[bytes] = ()
        if fault.kind in UNSTORED:
            self._end((grpc.StatusCode.UNAVAILABLE, outbound.status_of(fault)[1]))
        elif report.task is not None:
            if fault.kind not in POINTLESS:
                frames = self._give_up(report.task, fault)
            elif report.task == self._task:
                frames = self._abandon(fault.message)
        return frames[0] if frames else b""

    def _give_up(self, task: TaskId, fault: Fault) -> Sequence[bytes]:
        """What the agent sent cannot be kept, and never will: the task has failed."""
        self._report_fault(ReportFault(principal=self._agent, protocol=PROTOCOL, task_id=task, fault=fault))
        return self._abandon(fault.message) if task == self._task else ()

    def _report_fault(self, command: ReportFault) -> None:
        """How a task ends is reported whatever was refused before: it is in no lane."""
        if not self._is_closed:
            self._connection.enqueue(command, Request(context=Report(None)))
        else:
            self._hub.enqueue_then(command, lambda outcome, refusal: None)

    def _abandon(self, reason: str) -> Sequence[bytes]:
        """No caller waits for the open request: the message that tells the agent to stop, where it understands one
        (B4)."""
        if self.stream.abandoned or self.stream.request is None:
            return ()
        frames: Sequence[bytes] = ()
        if self.stream.understands_cancel:
            frames = [self.stream.send_cancel(reason[:500])]
        else:
            self.stream.abandon()
        self._task = None
        self._changed.set()
        return frames

    # -- out: the hub gives work

    def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        kind = outgoing.delivery.kind
        if kind is MessageKind.CANCEL:
            return self._cancel(outgoing)
        if kind is not MessageKind.WORK:
            return ()  # coven has no message for it, and the agent loses nothing by not having it
        task = outgoing.task
        if task.origin.principal == HUB:  # a health check: that the stream stands is the answer
            content = Result(output="the stream stands")
            alive = Finish(principal=self._agent, task_id=task.id, digest="stream", content=content)
            self._hub.enqueue_then(alive, lambda outcome, refusal: None)
            return ()
        if self.stream.request == task.request_id and self.stream.resume():
            self._task = task.id  # it was given up and is asked for again, while the agent is still at it
            return ()
        if task.id == self._task and not self._is_closed:
            # The agent is still at the turn before: what it reports of that is not of this one.
            self._connection.write(self._abandon("the task goes on in another turn"))
        self._changed.set()
        return super().encode(outgoing, agent, now)

    def _cancel(self, outgoing: Outgoing) -> Sequence[bytes]:
        task = outgoing.delivery.task
        if task == self._task:
            return self._abandon(outbound.reason_of(outgoing))
        self._cancelled.update(one.delivery.id for one, _ in self._waiting if one.task.id == task)
        self._changed.set()
        return ()

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None  # work waits until the agent is free

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        try:
            while await self._is_wanted(outgoing):
                attachments = await self._attachments(outgoing)
                if not self._may_leave(outgoing):
                    continue
                frame = self.stream.send(
                    outbound.message_of(outgoing, attachments, reads_input=self.stream.reads_input)
                )
                self._task = outgoing.task.id
                return [frame]
        except Exception as error:  # one outgoing message that cannot be encoded must not hold up the others
            self._report_unencodable(outgoing, error)
        return ()

    async def _is_wanted(self, outgoing: Outgoing) -> bool:
        """True as soon as work may be sent; False if it was cancelled. Work behind a request that was given up waits
        only so long."""
        while not self._may_leave(outgoing):
            if outgoing.delivery.id in self._cancelled:
                self._cancelled.discard(outgoing.delivery.id)
                return False
            self._changed.clear()
            if self.stream.request is None:
                await self._changed.wait()
                continue
            try:
                async with asyncio.timeout(self._cancel_seconds):
                    await self._changed.wait()
            except TimeoutError:
                if self.stream.abandoned:
                    message = "a request that was given up was not ended, and other work waits; connect again"
                    self._end((grpc.StatusCode.UNAVAILABLE, message))
                    await self._changed.wait()
        return True

    def _may_leave(self, outgoing: Outgoing) -> bool:
        return self.stream.ready and not self._leaving and outgoing.delivery.id not in self._cancelled

    async def _attachments(self, outgoing: Outgoing) -> tuple[FileData, ...]:
        event = outgoing.event
        if event.kind is EventKind.RETRIED:  # a person sent the first request again
            event = (await self._store.events(outgoing.task.id, limit=1))[0]
        found = []
        for file in outbound.attachments_in(event):
            data = await self._files.fetch(file.id)
            if data is None:
                raise Refused(Fault(kind=Kind.NOT_FOUND, message=f"the attachment {file.name!r} is no longer there"))
            found.append(outbound.attached(file, data))
        return tuple(found)

    def _report_unencodable(self, outgoing: Outgoing, error: Exception) -> None:
        why = str(disclosed(error, personal=outgoing.personal))
        log.warning("unencodable", task=outgoing.delivery.task, agent=self._agent, why=why)
        if is_passing(error):
            fault = UNREAD
        elif isinstance(error, Refused):
            fault = error.fault
        else:
            message = f"the work cannot be put into a message to this agent: {why}"
            fault = Fault(kind=Kind.TOO_LARGE, message=message)
        self._report_fault(ReportFault(principal=self._agent, task_id=outgoing.task.id, fault=fault))

    def welcomed(self) -> None:
        """The agent has its welcome: work that came before it may leave."""
        self._changed.set()

    def shut_down(self, reason: str) -> None:
        """Ask the agent to finish and leave; no work follows (D10)."""
        if self.stream.state in (State.READY, State.BUSY) and not self._is_closed:
            self._connection.write([self.stream.send_shutdown(reason)])
        self._leaving = True
        self._changed.set()


class AgentStream:
    """The wire of a connection loop, as a WebSocket or a child's pipes are.

    One task reads messages for the loop, unless it wants no more for now; one writes what the loop has. The stream ends
    when the agent left, the hub hung up, or the agent broke the protocol.
    """

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
        stream: Stream,
        context: Any,
        limits: CovenLimits,
        counts: Counter[str],
    ) -> None:
        self.agent = agent
        self.session_id = session_id
        self.last_message_at = asyncio.get_running_loop().time()
        self.gone = asyncio.Event()
        self._hub = hub
        self._context = context
        self._ended: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()
        self._frames: deque[bytes] = deque()
        self._to_write = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self.loop = ConnectionLoop(
            hub,
            agent,
            session_id,
            lambda connection: CovenSession(
                hub, store, files, agent, connection, stream=stream, limits=limits, counts=counts, end=self.end
            ),
            self,
            hang_up=self._hang_up,
            unanswered=limits.unanswered,
            joined_bytes=limits.pending_bytes,
            paced=False,
        )
        self.session = self.loop.session

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
            self.last_message_at = asyncio.get_running_loop().time()
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
