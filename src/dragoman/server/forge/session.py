"""Forge's words on one link: what a line or frame means, and how the hub's side is put into lines or frames.

A batch is heard message by message. The connection loop keeps the order of requests; each is answered under its id.

    heard                                     becomes
    ----------------------------------------  -------------------------------------------------------------
    a request or event that changes something a command; the response follows its commit
    a request that reads                      a look into the store, and a note in the audit record
    a new task with attachments, dependencies
    or a parent; a file that comes of work;
    a cancel                                  a look (files are kept, names checked), then the command
    a line that is no message, an event:log   a line in the agent's log
    too much (D9)                             RATE_LIMITED for a request; a count for an event
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from dragoman.core.commands import Command, NoteRead, NoteRefusal, ReportFault
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Status, Task
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import Dropped, EventReceived, LogReceived, RequestReceived
from dragoman.protocols.forge.types import (
    TYPE_OF,
    Anything,
    Attachment,
    CancelTask,
    Encoding,
    ErrorBody,
    ErrorEvent,
    GetFile,
    GetTask,
    LogEvent,
    Message,
    Progress,
    Publish,
    Published,
    QueryAgents,
    QueryTasks,
    Shutdown,
    SubmitTask,
    Subscribe,
    Unsubscribe,
    UpdateTask,
)
from dragoman.server.forge import queries
from dragoman.server.forge.bus import Reader
from dragoman.server.forge.failures import error_of, fields_in
from dragoman.server.forge.handler import Excess, ForgeHandler, LogSink, TaskLog
from dragoman.server.forge.inbound import cancellation, claim, command_of, digest, progress, submission, update
from dragoman.server.forge.outbound import in_pieces, messages_of, stamp
from dragoman.server.forge.views import agent_view, task_view
from dragoman.server.forge.vocabulary import PROTOCOL
from dragoman.server.outgoing import read_account
from dragoman.server.session import (
    NOTHING,
    Answered,
    Batch,
    CommandFrame,
    Decoded,
    Invalid,
    LookUp,
    Request,
    Session,
)
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

ANY = "*"
SUBMIT = TYPE_OF[SubmitTask]
INDEPENDENT = (Progress, Publish, Subscribe, Unsubscribe)
"""Messages that look something up, but nothing that earlier ones of the same link may still be changing."""


class About(msgspec.Struct, frozen=True):
    """What an answer answers: the request's id, its type, whether anybody waits, and what it calls fields. `kept` are
    its files: until it is decided they belong to nothing else."""

    id: str | None
    type: str
    asks: bool
    answer: ErrorBody | None = None
    fields: Mapping[str, str] | None = None
    kept: list[FileRef] = msgspec.field(default_factory=list)


class ForgeSession(Session):
    """One for each link. `log` takes the agent's log lines; without one they are kept with its task, or, where they
    belong to none, in its own log. `whole_tasks`: it is a module, which can ask for nothing."""

    protocol = PROTOCOL

    def __init__(
        self,
        handler: ForgeHandler,
        agent: AgentId,
        log: LogSink | None = None,
        *,
        encoding: Encoding = Encoding.JSON,
        limits: Limits = codec.LIMITS,
        whole_tasks: bool = False,
    ) -> None:
        super().__init__(handler.hub, agent)
        self._whole_tasks = whole_tasks
        self._handler = handler
        self._log: LogSink = log or TaskLog(handler.hub, agent, handler.notebook(agent))
        self._counts_lines = log is None  # a sink of somebody else's has its own measure
        self._encoding = encoding
        self._limits = limits
        self._dropping: set[asyncio.Task[None]] = set()
        self._excess = Excess(self._log)
        self._subscriptions: Reader | None = None

    # -- in

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        parts = codec.split(frame, encoding=self._encoding, limits=self._limits)
        if parts:
            return Batch(tuple(parts))
        read = codec.read(frame, Role.HUB, encoding=self._encoding, limits=self._limits, agent_id=agent.id)
        return self._decode(agent, read[0]) if read else NOTHING

    def _decode(self, agent: Agent, event: Any) -> Decoded:
        match event:
            case LogReceived(text=text, type=type):
                if self._counts_lines and not self._handler.admit(agent.id):
                    self._excess.count(event=True)
                else:
                    self._log("info", text, {} if type is None else {"type": type})
                return NOTHING
            case Dropped(length=length):
                told = {"type": TYPE_OF[ErrorEvent], "length": length}  # D1
                self._log("error", f"a message of {length} bytes was dropped; it is too long", told)
                return NOTHING
        asks = event.asks if isinstance(event, codec.Invalid) else isinstance(event, RequestReceived)
        if not self._handler.admit(agent.id):
            return self._too_much(agent, event, asks=asks)
        if isinstance(event, codec.Invalid):
            return self._invalid(event)
        assert isinstance(event, RequestReceived | EventReceived)
        message = event.message
        about = About(message.id, message.type, asks, fields=fields_in(message.payload))
        request = Request(message.id, about, lane=_updated(message))
        look = self._lookup_of(agent, message, event.tree, about.kept)
        if look is not None:
            return LookUp(look, request, after_commits=not isinstance(message.payload, INDEPENDENT))
        message = self._about_its_task(agent, message)
        try:
            command = command_of(agent, message, event.tree, self._handler.request_seconds)
        except Refused as refused:
            return Invalid(refused.fault, message.id, about)
        if command is None:
            self._log_event(message)
            return NOTHING
        return CommandFrame(command, request)

    def _about_its_task(self, agent: Agent, message: Message) -> Message:
        """An error beyond recovery that names no task is about the only one that its agent has (D6)."""
        match message.payload:
            case ErrorEvent(recoverable=False, task_id=None) as said if len(held := self._hub.load_of(agent.id)) == 1:
                return msgspec.structs.replace(message, payload=msgspec.structs.replace(said, task_id=held[0]))
        return message

    def _invalid(self, event: codec.Invalid) -> Decoded:
        kind = Kind.TOO_LARGE if event.stage.value == "size" else Kind.INVALID
        fault = Fault(kind=kind, message=event.what, field=event.field, facts={"stage": event.stage.value})
        about = About(event.about, "request" if event.asks else "event", event.asks, event.answer)
        return Invalid(fault, event.about, about)

    def _too_much(self, agent: Agent, event: Any, *, asks: bool) -> Decoded:
        """Refuse or drop; only the first of a flood is kept in the audit record."""
        first = self._excess.fresh
        self._excess.count(event=not asks)
        if not asks:
            return NOTHING
        request_id = event.about if isinstance(event, codec.Invalid) else event.message.id
        about = About(request_id, "request", asks=True)
        fault = Fault(
            kind=Kind.RATE_LIMITED,
            message="too many messages a second; slow down",
            retryable=True,
            facts={"retryAfterMs": int(self._handler.wait(agent.id) * 1000) + 1},
        )
        if first:
            return Invalid(fault, request_id, about)
        return Answered((self.encode_refusal(fault, about, agent),))

    def _log_event(self, message: Message) -> None:
        """An event that is a line of a log."""
        match message.payload:
            case LogEvent(level=level, message=text, context=context, task_id=task):
                self._log(level, text, context if task is None else {**context, "taskId": task})
            case ErrorEvent(error=text, stack=stack, task_id=task):
                given = {"stack": stack, "taskId": task}
                self._log("error", text, {name: value for name, value in given.items() if value is not None})

    # -- what needs a look

    def _lookup_of(
        self, agent: Agent, message: Message, tree: dict[str, Any], kept: list[FileRef]
    ) -> Callable[[], Awaitable[Sequence[bytes] | Command]] | None:
        handler = self._handler
        match message.payload:
            case QueryAgents() as asked:
                return partial(self._read, agent, message, None, partial(queries.agents, handler, agent, asked))
            case QueryTasks() as asked:
                return partial(self._read, agent, message, None, partial(queries.tasks, handler, agent, asked))
            case GetTask(task_id=id):
                return partial(self._read, agent, message, id, partial(queries.task, handler, agent, id))
            case GetFile(task_id=id) as asked:
                return partial(self._read, agent, message, id, partial(queries.file, handler, agent, asked))
            case Subscribe(topic=topic) | Unsubscribe(topic=topic):
                return partial(self._read, agent, message, topic, partial(self._subscribe, message.payload))
            case Publish() as said:
                return partial(self._publish, agent, message, said, tree)
            case CancelTask(task_id=id):
                return partial(self._cancel, agent, message, id, tree)
            case UpdateTask(status="running") as said:
                return partial(self._take_up, agent, message, said, tree, kept)
            case Progress(file=Attachment()) as said:
                return partial(self._take_file, agent, message, said, tree, kept)
            case SubmitTask() as task if task.attachments or task.dependencies or task.parent_id:
                return partial(self._submit, agent, message, task, tree, kept)
            case _:
                return None

    async def _read(
        self, agent: Agent, message: Message, about: str | None, read: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Sequence[bytes]:
        """Every request is in the audit record, also one that only reads."""
        async with self._noting(agent, message, about):
            found = await read()
        await self._hub.execute(self._note(agent, message, about))
        return [self._success(message.id, found)]

    def _note(self, agent: Agent, message: Message, about: str | None, **more: Any) -> NoteRead:
        return NoteRead(principal=agent.id, protocol=self.protocol, what=_audited(message), about=about, **more)

    @asynccontextmanager
    async def _noting(self, agent: Agent, message: Message, about: str | None) -> AsyncIterator[None]:
        """What is refused here never becomes a command, so nobody else puts it into the audit record."""
        try:
            yield
        except Refused as refused:
            what = _audited(message)
            await self._hub.execute(
                NoteRefusal(principal=agent.id, protocol=self.protocol, what=what, fault=refused.fault, about=about)
            )
            raise

    async def _cancel(self, agent: Agent, message: Message, task_id: str, tree: dict[str, Any]) -> Command:
        async with self._noting(agent, message, task_id):
            await queries.steered(self._handler, agent, task_id)
        return cancellation(agent, message, tree)

    async def _take_up(
        self, agent: Agent, message: Message, said: UpdateTask, tree: dict[str, Any], kept: list[FileRef]
    ) -> Command:
        """`running`: on one's own task that is progress; one in the queue is claimed first."""
        async with self._noting(agent, message, said.task_id):
            task = await queries.seen(self._handler, agent, said.task_id)
        if task.owner != agent.id and task.status is Status.QUEUED:
            task = await self._hub.execute(claim(agent, task.id))
        async with self._noting(agent, message, said.task_id):
            return update(agent, message, said, tree, await self._keep(agent, task, said.file, kept))

    async def _take_file(
        self, agent: Agent, message: Message, said: Progress, tree: dict[str, Any], kept: list[FileRef]
    ) -> Command:
        async with self._noting(agent, message, said.task_id):
            task = await queries.seen(self._handler, agent, said.task_id)
            return progress(agent, message, said, tree, await self._keep(agent, task, said.file, kept))

    async def _keep(self, agent: Agent, task: Task, file: Attachment | None, kept: list[FileRef]) -> FileRef | None:
        """A file of one's own work; nobody else's is kept, even for a moment."""
        if file is None:
            return None
        if task.owner != agent.id:
            raise refuse(Kind.NOT_FOUND, "no such task, or not yours", field="payload.taskId", taskId=task.id)
        data = _content("payload.file.data", file.data)
        ref = await self._handler.files.keep(data, name=file.filename, mime_type=file.mime_type, owner=agent.id)
        kept.append(ref)
        return ref

    async def _submit(
        self, agent: Agent, message: Message, said: SubmitTask, tree: dict[str, Any], kept: list[FileRef]
    ) -> Command:
        async with self._noting(agent, message, None):
            await self._take_along(agent, said, kept)
        return submission(agent, message, tree, tuple(kept))

    async def _take_along(self, agent: Agent, said: SubmitTask, kept: list[FileRef]) -> None:
        """The files of a new task, kept; but only if it hangs on nothing that its submitter may not see."""
        for name, ids in (("dependencies", said.dependencies), ("parentId", (said.parent_id,))):
            for id in ids:
                if id is not None:
                    await queries.seen(self._handler, agent, id, f"payload.{name}")
        contents = [
            _content(f"payload.attachments[{index}].data", attachment.data)
            for index, attachment in enumerate(said.attachments)
        ]
        for attachment, data in zip(said.attachments, contents, strict=True):
            ref = await self._handler.files.keep(
                data, name=attachment.filename, mime_type=attachment.mime_type, owner=agent.id
            )
            kept.append(ref)

    def _drop_unused(self, about: About, used: Task | None) -> None:
        """Files that came with a request which was refused, or said before, belong to nothing."""
        theirs = set() if used is None else {file.id for file in used.files}
        while about.kept:
            file = about.kept.pop()
            if file.id not in theirs:
                dropping = asyncio.ensure_future(self._handler.files.drop(file.id))
                self._dropping.add(dropping)
                dropping.add_done_callback(self._dropping.discard)

    async def _publish(self, agent: Agent, message: Message, said: Publish, tree: dict[str, Any]) -> Sequence[bytes]:
        """At most once, also if it is said again because the answer got lost: it is noted before it is told."""
        topic, bus = said.topic, self._handler.bus
        async with self._noting(agent, message, topic):
            if ANY in topic:
                raise refuse(Kind.INVALID, "a topic has no `*`; that is for subscriptions", field="payload.topic")
        once = {"message_id": message.id, "digest": digest(("publish", tree["payload"]))}
        delivered = await self._hub.execute(self._note(agent, message, topic, count=bus.audience(topic), **once))
        if delivered is None:
            delivered = bus.publish(topic, agent.id, said.data)
        return [self._success(message.id, {"topic": topic, "delivered": delivered})]

    async def _subscribe(self, said: Subscribe | Unsubscribe) -> dict[str, Any]:
        topic = said.topic
        if ANY in topic[:-1]:
            raise refuse(Kind.INVALID, "a pattern has its `*` at the end", field="payload.topic")
        if self._subscriptions is None:
            self._subscriptions = self._handler.bus.join(self._published)
        if isinstance(said, Subscribe):
            return {"topic": topic, "subscribed": True, "new": self._subscriptions.subscribe(topic)}
        return {"topic": topic, "subscribed": False, "had": self._subscriptions.unsubscribe(topic)}

    # -- the bus

    def closed(self) -> None:
        super().closed()
        if self._subscriptions is not None:
            self._subscriptions.leave()
            self._subscriptions = None
        self._excess.tell()

    def _published(self, topic: str, publisher: str, data: Any, missed: int) -> bool:
        if self._connection is None:
            return False
        said = Published(topic=topic, publisher=publisher, data=data, missed=missed)
        return self._connection.write_if_room([self._frame(codec.message(said, self._stamp()))])

    # -- out

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None if in_pieces(outgoing) else self._frames(outgoing, agent, now)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        whole = None
        if in_pieces(outgoing):
            whole = (await read_account(self._handler.store, outgoing.delivery.task, outgoing.event.seq)).output
        return self._frames(outgoing, agent, self._hub.now(), whole)

    def _frames(self, outgoing: Outgoing, agent: Agent, now: Instant, whole: str | None = None) -> Sequence[bytes]:
        told = messages_of(outgoing, agent, now, whole, whole_tasks=self._whole_tasks)
        return [self._frame(said) for said in told]

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        about: About = request.context
        if isinstance(outcome, Task):
            self._drop_unused(about, outcome)
        if not about.asks or about.id is None:
            return ()
        if isinstance(outcome, Task) and isinstance(command, ReportFault) and outcome.status is Status.COMPLETED:
            return [self.encode_refusal(_too_late(outcome), about, agent)]
        if isinstance(outcome, Task):
            submitted = about.type == SUBMIT
            return [self._success(about.id, {"task": task_view(outcome, submitted=submitted)})]
        if isinstance(outcome, Agent):
            return [self._success(about.id, {"agent": self._introduced(outcome)})]
        return ()  # a question: its answer is the response, whenever it comes

    def _introduced(self, agent: Agent) -> dict[str, Any]:
        held = self._hub.load_of(agent.id)
        return agent_view(agent, reachable=True, load=len(held), current=held[0] if held else None)

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        said: About = context
        self._drop_unused(said, None)
        error = error_of(fault, said.answer, said.fields)
        if not said.asks:
            self._log("warn", f"{said.type} was refused: {fault}", {"code": error.code, **_told(said)})
            return b""
        return self._frame(codec.failure(said.id, error, self._stamp()))

    def encode_shutdown(self, grace_ms: int, reason: str) -> bytes:
        """The farewell before a connection is closed (D10)."""
        return self._frame(codec.message(Shutdown(grace_period=grace_ms, reason=reason), self._stamp()))

    def _frame(self, said: Anything) -> bytes:
        return codec.write(said, self._encoding)

    def _success(self, request_id: str, payload: dict[str, Any]) -> bytes:
        return self._frame(codec.success(request_id, payload, self._stamp()))

    def _stamp(self) -> Any:
        return stamp(self._hub.mint(), self._hub.now())


def _too_late(task: Task) -> Fault:
    """For whoever says that a task failed which it has completed."""
    message = f"the task is already {task.status.value}, and its result cannot change; assign a new task for another"
    return Fault(kind=Kind.CONFLICT, message=message, field="task_id", facts={"task_id": task.id})


def _updated(message: Message) -> str | None:
    """The task that a request reports on. Events are told of no refusal, so none of them comes again."""
    return message.payload.task_id if isinstance(message.payload, UpdateTask) else None


def _audited(message: Message) -> str:
    """What the audit record calls a request that is no command."""
    return message.type.replace("request:", "forge.")


def _content(field: str, data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise refuse(Kind.INVALID, "expected base64", field=field) from None


def _told(about: About) -> dict[str, Any]:
    return {} if about.id is None else {"about": about.id}
