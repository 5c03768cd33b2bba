"""One agent's stream: `core.ports.LinkEnd` towards the hub, messages towards the agent.

Two loops and a verdict. The reading loop hears the agent and reports to the hub; it stops reading while too much of
what was heard has not been committed. The writing loop says what the hub wants said, one piece of work at a time.
The stream ends when the verdict falls: the agent left, the hub let go, the protocol was broken, patience is over.

The hub gives a stream one task at a time and keeps the rest (D5). It may still hand over the next while the agent is
busy with one that was given up: that waits here until the agent ends the old one, for `cancel_seconds`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import grpc
import structlog

from dragoman.bindings import coven
from dragoman.core.commands import Acknowledge, Command, Finish, ReportFault, ReportProgress
from dragoman.core.ids import HUB, AgentId, DeliveryId, SessionId, TaskId
from dragoman.core.model.deliveries import MessageKind, Outgoing
from dragoman.core.model.tasks import EventKind
from dragoman.core.ports import Intake, Store
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.messages.tasks import Result
from dragoman.protocols.coven.connection import Connection
from dragoman.protocols.coven.errors import Oddity
from dragoman.protocols.coven.events import Beat, Completed, Event, Ignored, Invalid, Responded
from dragoman.protocols.coven.state import State
from dragoman.protocols.coven.types import FileData, MessageResponse, Text
from dragoman.security.redaction import disclosed
from dragoman.server.coven.file_keeper import FileKeeper
from dragoman.server.coven.limits import CovenLimits
from dragoman.server.coven.reports import Reports
from dragoman.server.outgoing import UNREAD, is_passing
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")

Verdict = tuple[grpc.StatusCode, str]
LEFT: Verdict = (grpc.StatusCode.OK, "")

POINTLESS = frozenset({Kind.CONFLICT, Kind.NOT_FOUND})
"""The task is over, or somebody else's: the agent works for nothing."""
UNSTORED = frozenset({Kind.OVERLOADED, Kind.INTERNAL, Kind.UNAUTHENTICATED})
"""The hub could not keep what was said: the stream ends, and the work is done again, rather than with a hole in it."""


class AgentStream:
    def __init__(
        self,
        hub: Intake,
        store: Store,
        keeping: FileKeeper,
        *,
        agent: AgentId,
        session: SessionId,
        connection: Connection,
        context: Any,
        limits: CovenLimits,
        counts: Counter[str],
    ) -> None:
        self.agent = agent
        self.session = session
        self.connection = connection
        self.last_heard = asyncio.get_running_loop().time()
        self.gone = asyncio.Event()
        self._hub = hub
        self._store = store
        self._keeping = keeping
        self._context = context
        self._limits = limits
        self._counts = counts
        self._reports = Reports(
            hub,
            agent,
            unanswered=limits.unanswered,
            pending_bytes=limits.pending_bytes,
            refused=self._refused,
        )
        self._verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._task: TaskId | None = None
        self._words: deque[bytes] = deque()
        self._work: deque[Outgoing] = deque()
        self._composing: Outgoing | None = None
        self._stir = asyncio.Event()
        self._leaving = False

    # -- its life

    async def serve(self) -> Verdict:
        """Until the verdict falls."""
        loops = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        for loop in loops:
            loop.add_done_callback(self._broke)
        try:
            return await self._verdict
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)

    def _broke(self, loop: asyncio.Task[None]) -> None:
        """A loop that ends by itself takes the stream with it."""
        if loop.cancelled() or self._verdict.done():
            return
        error = loop.exception()
        if error is None or isinstance(error, grpc.aio.UsageError | grpc.aio.InternalError):
            self.end(LEFT)
            return
        log.error("a stream broke", agent=self.agent, exc_info=error)
        self.end((grpc.StatusCode.INTERNAL, "the hub failed to serve this stream; connect again"))

    def interrupted(self) -> bool:
        """The stream is over: what was heard goes in, and whether a request was left open is told (D6)."""
        self._reports.flush()
        return bool(self.connection.end_of_stream())

    def end(self, verdict: Verdict) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)

    # -- in: the agent speaks

    async def _read(self) -> None:
        while True:
            await self._reports.room()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                await self._reports.settled()
                self.end(LEFT)
                return
            self.last_heard = asyncio.get_running_loop().time()
            for event in self.connection.receive(data):
                await self._hear(event, len(data))

    async def _hear(self, event: Event, size: int) -> None:
        match event:
            case Responded():
                await self._progress(event.message, size)
            case Completed():
                task = self._over()
                if task is not None:
                    self._reports.other(coven.end_of(self.agent, task, event), size)
            case Ignored():
                self._counts[f"ignored.{event.why.value}"] += 1
                again = event.why is Oddity.SECOND_REGISTER and self.connection.ignored[event.why] == 1
                say = log.warning if again else log.debug  # D3; once a stream is enough
                say("ignored", agent=self.agent, why=event.why.value, request=event.request_id)
                if self.connection.request is None:
                    self._over()
            case Invalid():
                self._counts["broken"] += 1
                fault = coven.fault_of(event.error)
                self.end((grpc.StatusCode.INVALID_ARGUMENT, coven.status_of(fault)[1]))
            case Beat():
                self._counts["heartbeats"] += 1

    async def _progress(self, message: MessageResponse, size: int) -> None:
        task, event = self._task, message.event
        if task is None:
            return
        if isinstance(event, Text) and message.progress is None and not message.unknown:
            self._reports.text(task, event.text)
        elif isinstance(event, FileData):
            await self._file(task, message, event, size)
        else:
            self._reports.other(coven.progress_of(self.agent, task, message), size)

    async def _file(self, task: TaskId, message: MessageResponse, file: FileData, size: int) -> None:
        """Kept before it is told of. Nothing is read meanwhile, so nothing overtakes it."""
        self._hub.memory.add(self.agent, size)
        try:
            kept = await self._keeping.keep(file, owner=self.agent)
        except Refused as refused:
            self._give_up(task, refused.fault)
            return
        finally:
            self._hub.memory.give_back(self.agent, size)
        self._reports.other(coven.progress_of(self.agent, task, message, kept))

    def _over(self) -> TaskId | None:
        """The open request ended: the next may leave, if one waits."""
        task, self._task = self._task, None
        if self._work:
            self._stir.set()
        return task

    def _refused(self, command: Command, refused: Refused) -> None:
        """The hub did not take a report."""
        fault = refused.fault
        if isinstance(command, ReportProgress):
            for file in command.files:
                self._keeping.drop(file.id)
        if fault.kind in UNSTORED:
            self.end((grpc.StatusCode.UNAVAILABLE, coven.status_of(fault)[1]))
        elif isinstance(command, ReportProgress | Finish):
            if fault.kind not in POINTLESS:
                self._give_up(command.task_id, fault)
            elif command.task_id == self._task:
                self._abandon(fault.message)

    def _give_up(self, task: TaskId, fault: Fault) -> None:
        """What the agent sent cannot be kept, and never will: the task has failed."""
        self._reports.other(ReportFault(principal=self.agent, protocol=coven.PROTOCOL, task_id=task, fault=fault))
        if task == self._task:
            self._abandon(fault.message)

    def _abandon(self, reason: str) -> None:
        """Nobody waits for the open request: say so to an agent that can hear it (B4)."""
        if self.connection.abandoned or self.connection.request is None:
            return
        if self.connection.understands_cancel:
            self._words.append(self.connection.send_cancel(reason[:500]))
        else:
            self.connection.abandon()
        self._task = None
        self._stir.set()

    # -- out: the hub speaks

    def deliver(self, outgoing_messages: Sequence[Outgoing]) -> None:
        heard: list[DeliveryId] = []
        for outgoing in outgoing_messages:
            kind = outgoing.delivery.kind
            if kind is MessageKind.WORK:
                self._take(outgoing)
            else:
                heard.append(outgoing.delivery.id)
                if kind is MessageKind.CANCEL:
                    self._cancel(outgoing)
        if heard:  # coven has no words for the rest, and nothing to lose by not hearing it
            self._hub.enqueue_and_forget(
                Acknowledge(principal=self.agent, deliveries=tuple(heard), session=self.session)
            )
        if self._work:
            self._stir.set()

    def _take(self, outgoing: Outgoing) -> None:
        task = outgoing.task
        if task.origin.principal == HUB:  # a health check: that the stream stands is the answer
            content = Result(output="the stream stands")
            alive = Finish(principal=self.agent, task_id=task.id, digest="stream", content=content)
            self._hub.enqueue(alive).add_done_callback(_forget)
        elif self.connection.request == task.request_id and self.connection.resume():
            self._task = task.id  # it was given up and is asked for again, while the agent is still at it
        else:
            if task.id == self._task:  # the agent is still at the turn before: what it says of that is not of this one
                self._abandon("the task goes on in another turn")
            self._work.append(outgoing)

    def _cancel(self, outgoing: Outgoing) -> None:
        task = outgoing.delivery.task
        if task == self._task:
            self._abandon(coven.reason_of(outgoing))
            return
        if self._composing is not None and self._composing.task.id == task:
            self._composing = None
        self._work = deque(outgoing for outgoing in self._work if outgoing.task.id != task)

    def hang_up(self, reason: CloseReason) -> None:
        self.end((grpc.StatusCode[reason.grpc], reason.sentence))

    def shut_down(self, reason: str) -> None:
        """Ask the agent to finish and leave; no work follows (D10)."""
        if self.connection.state in (State.READY, State.BUSY):
            self._words.append(self.connection.send_shutdown(reason))
        self._leaving = True
        self._stir.set()

    async def _write(self) -> None:
        while True:
            while self._words:
                await self._context.write(self._words.popleft())
            if self._work and not self._leaving and await self._send_next():
                continue
            self._stir.clear()
            if not self._words:
                await self._wait()

    async def _wait(self) -> None:
        """For something to say. Work that waits behind a request which was given up waits only so long."""
        if not self._work or self.connection.request is None:
            await self._stir.wait()
            return
        try:
            async with asyncio.timeout(self._limits.cancel_seconds):
                await self._stir.wait()
        except TimeoutError:
            if self._work and self.connection.abandoned:
                message = "a request that was given up was not ended, and other work waits; connect again"
                self.end((grpc.StatusCode.UNAVAILABLE, message))
                await self._stir.wait()

    async def _send_next(self) -> bool:
        """The next piece of work, if the agent is free."""
        if not self.connection.ready:
            return False
        outgoing = self._composing = self._work.popleft()
        try:
            attachments = await self._attachments(outgoing)
            if not self._still_wanted(outgoing):
                return True
            data = self.connection.send(
                coven.message_of(outgoing, attachments, reads_input=self.connection.reads_input)
            )
        except Exception as error:  # one outgoing message that cannot be put into words must not hold up the others
            self._report_unencodable(outgoing, error)
            return True
        self._composing = None
        self._task = outgoing.task.id
        await self._context.write(data)
        return True

    def _still_wanted(self, outgoing: Outgoing) -> bool:
        """Neither cancelled nor asked to leave while the message was made."""
        return self._composing is outgoing and self.connection.ready

    async def _attachments(self, outgoing: Outgoing) -> tuple[FileData, ...]:
        event = outgoing.event
        if event.kind is EventKind.RETRIED:  # a person sent the first request again
            event = (await self._store.events(outgoing.task.id, limit=1))[0]
        found = []
        for file in coven.attachments_in(event):
            data = await self._keeping.fetch(file.id)
            if data is None:
                raise Refused(Fault(kind=Kind.NOT_FOUND, message=f"the attachment {file.name!r} is no longer there"))
            found.append(coven.attached(file, data))
        return tuple(found)

    def _report_unencodable(self, outgoing: Outgoing, error: Exception) -> None:
        why = str(disclosed(error, personal=outgoing.personal))
        log.warning("unencodable", task=outgoing.delivery.task, agent=self.agent, why=why)
        message = f"the work cannot be put into a message to this agent: {why}"
        if is_passing(error):
            fault = UNREAD
        else:
            fault = error.fault if isinstance(error, Refused) else Fault(kind=Kind.TOO_LARGE, message=message)
        self._reports.other(ReportFault(principal=self.agent, task_id=outgoing.task.id, fault=fault))


def _forget(future: Any) -> None:
    if not future.cancelled():
        future.exception()
