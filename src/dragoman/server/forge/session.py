"""Forge on one connection: decodes a line or frame, encodes outgoing messages, outcomes and refusals.

A batch is decoded message by message. The connection loop keeps the order of requests; each is answered under its id.

    decoded                                   becomes
    ----------------------------------------  -------------------------------------------------------------
    a request or event that changes something a command; the response follows its commit
    a request that reads                      a lookup in the store, and a note in the audit record
    a new task with attachments, dependencies
    or a parent; a file that comes of work;
    a cancel                                  a lookup (files are kept, names checked), then the command
    a line that is no message, an event:log   a line in the agent's log
    too much (D9)                             RATE_LIMITED for a request; a count for an event
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from dragoman.core.commands import Command, NoteRead, NoteRefusal, ReportFault
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Status, Task
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import codec, mapping
from dragoman.protocols.forge.codec import Dropped, EventReceived, LogReceived, RequestReceived
from dragoman.protocols.forge.errors import error_out, fields_of
from dragoman.protocols.forge.types import (
    TYPE_OF,
    AnyMessage,
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
    Stamp,
    SubmitTask,
    Subscribe,
    Unsubscribe,
    UpdateTask,
)
from dragoman.server.forge import queries
from dragoman.server.forge.bus import ANY, Reader
from dragoman.server.forge.handler import Excess, ForgeHandler, LogSink, TaskLog
from dragoman.server.forge.inbound import claim, command_of, digest
from dragoman.server.forge.outbound import agent_view, in_pieces, messages_of, stamp, task_view
from dragoman.server.session import (
    NOTHING,
    Answered,
    Batch,
    CommandFrame,
    Connection,
    Decoded,
    Invalid,
    LookUp,
    Request,
    Session,
    read_account,
)
from dragoman.wire.errors import Stage
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

SUBMIT = TYPE_OF[SubmitTask]
INDEPENDENT = (Progress, Publish, Subscribe, Unsubscribe)
"""Messages that look something up, but nothing that earlier ones of the same connection may still be changing."""

Find: TypeAlias = Callable[[], Awaitable[Sequence[bytes] | Command]]


class RequestInfo(msgspec.Struct, frozen=True):
    """What an answer needs of its request: id, type, whether the agent waits for it, the codec's refusal, and the names
    of fields. `kept` are its files: until it is decided they belong to nothing else."""

    id: str | None
    type: str
    asks: bool
    refusal: ErrorBody | None = None
    fields: Mapping[str, str] | None = None
    kept: list[FileRef] = msgspec.field(default_factory=list)


class ForgeSession(Session):
    """One for each connection. `log` takes the agent's log lines; without one they are kept with its task, or, where
    they belong to none, in its own log. `whole_tasks`: the agent is a module, which can ask for nothing."""

    protocol = mapping.PROTOCOL

    def __init__(
        self,
        handler: ForgeHandler,
        agent: AgentId,
        connection: Connection,
        log: LogSink | None = None,
        *,
        encoding: Encoding = Encoding.JSON,
        limits: Limits = codec.LIMITS,
        whole_tasks: bool = False,
    ) -> None:
        super().__init__(handler.hub, agent, connection)
        self._whole_tasks = whole_tasks
        self._handler = handler
        self._log: LogSink = log or TaskLog(handler.hub, agent, handler.agent_log(agent))
        self._counts_lines = log is None  # a given sink has a limit of its own
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

    def _decode(self, agent: Agent, event: codec.Event) -> Decoded:
        match event:
            case LogReceived(text=text, type=type):
                if self._counts_lines and not self._handler.admit(agent.id):
                    self._excess.count(event=True)
                else:
                    self._log("info", text, {} if type is None else {"type": type})
                return NOTHING
            case Dropped(length=length):
                context = {"type": TYPE_OF[ErrorEvent], "length": length}  # D1
                self._log("error", f"a message of {length} bytes was dropped; it is too long", context)
                return NOTHING
            case codec.Invalid():
                about = RequestInfo(event.about, "request" if event.asks else "event", event.asks, event.answer)
            case RequestReceived(message=message) | EventReceived(message=message):
                asks = isinstance(event, RequestReceived)
                about = RequestInfo(message.id, message.type, asks, fields=fields_of(message.payload))
            case _:
                raise AssertionError("the codec gives a hub no messages of a hub")
        if not self._handler.admit(agent.id):
            return self._too_many(agent, about)
        if isinstance(event, codec.Invalid):
            kind = Kind.TOO_LARGE if event.stage is Stage.SIZE else Kind.INVALID
            facts = {"stage": event.stage.value}
            fault = Fault(kind=kind, message=event.what, next=event.next, field=event.field, facts=facts)
            return Invalid(fault, event.about, about)
        return self._decode_message(agent, event.message, event.tree, about)

    def _decode_message(self, agent: Agent, message: Message, tree: dict[str, Any], about: RequestInfo) -> Decoded:
        request = Request(message.id, about, lane=_updated(message))
        find = self._lookup_of(agent, message, tree, about.kept)
        if find is not None:
            return LookUp(find, request, after_commits=not isinstance(message.payload, INDEPENDENT))
        message = self._about_its_task(agent, message)
        try:
            command = command_of(agent, message, tree, request_seconds=self._handler.request_seconds)
        except Refused as refused:
            return Invalid(refused.fault, message.id, about)
        if command is not None:
            return CommandFrame(command, request)
        match message.payload:
            case LogEvent(level=level, message=text, context=context, task_id=task):
                self._log(level, text, context if task is None else {**context, "taskId": task})
            case ErrorEvent(error=text, stack=stack, task_id=task):
                given = {"stack": stack, "taskId": task}
                self._log("error", text, {name: value for name, value in given.items() if value is not None})
        return NOTHING

    def _about_its_task(self, agent: Agent, message: Message) -> Message:
        """An error beyond recovery that names no task is about the only one that its agent has (D6)."""
        match message.payload:
            case ErrorEvent(recoverable=False, task_id=None) as error if len(held := self._hub.load_of(agent.id)) == 1:
                return replace(message, payload=replace(error, task_id=held[0]))
        return message

    def _too_many(self, agent: Agent, about: RequestInfo) -> Decoded:
        """Refuse or drop; only the first of a flood is kept in the audit record."""
        first = self._excess.fresh
        self._excess.count(event=not about.asks)
        if not about.asks:
            return NOTHING
        about = RequestInfo(about.id, "request", asks=True)
        fault = new_fault(
            Kind.RATE_LIMITED,
            "too many messages a second",
            next="slow down",
            retryable=True,
            facts={"retryAfterMs": int(self._handler.wait(agent.id) * 1000) + 1},
        )
        if first:
            return Invalid(fault, about.id, about)
        return Answered((self.encode_refusal(fault, about, agent),))

    # -- lookups

    def _lookup_of(self, agent: Agent, message: Message, tree: dict[str, Any], kept: list[FileRef]) -> Find | None:
        handler = self._handler
        match message.payload:
            case QueryAgents() as query:
                return partial(self._read, agent, message, None, partial(queries.agents, handler, agent, query))
            case QueryTasks() as query:
                return partial(self._read, agent, message, None, partial(queries.tasks, handler, agent, query))
            case GetTask(task_id=id):
                return partial(self._read, agent, message, id, partial(queries.task, handler, agent, id))
            case GetFile(task_id=id) as query:
                return partial(self._read, agent, message, id, partial(queries.file, handler, agent, query))
            case Subscribe(topic=topic) | Unsubscribe(topic=topic):
                return partial(self._read, agent, message, topic, partial(self._subscribe, message.payload))
            case Publish() as published:
                return partial(self._publish, agent, message, published, tree)
            case UpdateTask(status="running") | Progress(file=Attachment()):
                return partial(self._report, agent, message, tree, kept)
            case CancelTask():
                return partial(self._check, agent, message, tree, kept)
            case SubmitTask() as task if task.attachments or task.dependencies or task.parent_id:
                return partial(self._check, agent, message, tree, kept)
            case _:
                return None

    async def _read(
        self, agent: Agent, message: Message, about: str | None, read: Callable[[], Awaitable[dict[str, Any]]]
    ) -> Sequence[bytes]:
        """Every request is in the audit record, also one that only reads."""
        async with self._auditing(agent, message, about):
            found = await read()
        await self._hub.execute(self._note(agent, message, about))
        return [self._success(message.id, found)]

    def _note(self, agent: Agent, message: Message, about: str | None, **more: Any) -> NoteRead:
        return NoteRead(principal=agent.id, protocol=self.protocol, what=_audited(message), about=about, **more)

    @asynccontextmanager
    async def _auditing(self, agent: Agent, message: Message, about: str | None) -> AsyncIterator[None]:
        """A request that is refused here never becomes a command, so nothing else records it."""
        try:
            yield
        except Refused as refused:
            what = _audited(message)
            await self._hub.execute(
                NoteRefusal(principal=agent.id, protocol=self.protocol, what=what, fault=refused.fault, about=about)
            )
            raise

    async def _check(self, agent: Agent, message: Message, tree: dict[str, Any], kept: list[FileRef]) -> Command:
        """A cancel, or a new task: whether the agent may see and do what it names; then the command."""
        payload: CancelTask | SubmitTask = message.payload
        about = payload.task_id if isinstance(payload, CancelTask) else None
        async with self._auditing(agent, message, about):
            if isinstance(payload, CancelTask):
                await queries.check_cancel(self._handler, agent, payload.task_id)
            else:
                await self._keep_attachments(agent, payload, kept)
        return self._command(agent, message, tree, kept)

    async def _report(self, agent: Agent, message: Message, tree: dict[str, Any], kept: list[FileRef]) -> Command:
        """Progress, perhaps with a file. `running` on a queued task claims it first."""
        payload: UpdateTask | Progress = message.payload
        async with self._auditing(agent, message, payload.task_id):
            task = await queries.visible(self._handler, agent, payload.task_id)
        if isinstance(payload, UpdateTask) and task.owner != agent.id and task.status is Status.QUEUED:
            task = await self._hub.execute(claim(agent, task.id))
        async with self._auditing(agent, message, payload.task_id):
            if (file := payload.file) is not None:
                if task.owner != agent.id:  # a file of another agent's work is not kept even for a moment
                    text = "no such task, or not yours"
                    raise refuse(Kind.NOT_FOUND, text, field="payload.taskId", taskId=task.id)
                await self._keep(agent, file, _data("payload.file.data", file), kept)
            return self._command(agent, message, tree, kept)

    def _command(self, agent: Agent, message: Message, tree: dict[str, Any], kept: list[FileRef]) -> Command:
        command = command_of(agent, message, tree, tuple(kept), self._handler.request_seconds)
        assert command is not None
        return command

    async def _keep_attachments(self, agent: Agent, submitted: SubmitTask, kept: list[FileRef]) -> None:
        """Keep the files of a new task, but only if it depends on nothing that its submitter may not see."""
        for name, ids in (("dependencies", submitted.dependencies), ("parentId", (submitted.parent_id,))):
            for id in ids:
                if id is not None:
                    await queries.visible(self._handler, agent, id, f"payload.{name}")
        contents = [_data(f"payload.attachments[{i}].data", file) for i, file in enumerate(submitted.attachments)]
        for file, data in zip(submitted.attachments, contents, strict=True):
            await self._keep(agent, file, data, kept)

    async def _keep(self, agent: Agent, file: Attachment, data: bytes, kept: list[FileRef]) -> None:
        keep = self._handler.files.keep
        kept.append(await keep(data, name=file.filename, mime_type=file.mime_type, owner=agent.id))

    def _drop_unused(self, about: RequestInfo, used: Task | None) -> None:
        """Files that came with a refused or a repeated request belong to nothing."""
        theirs = set() if used is None else {file.id for file in used.output.files}
        while about.kept:
            file = about.kept.pop()
            if file.id not in theirs:
                dropping = asyncio.ensure_future(self._handler.files.drop(file.id))
                self._dropping.add(dropping)
                dropping.add_done_callback(self._dropping.discard)

    # -- the bus

    async def _publish(
        self, agent: Agent, message: Message, published: Publish, tree: dict[str, Any]
    ) -> Sequence[bytes]:
        """At most once, also if the agent repeats it because the answer got lost: it is recorded before it is sent."""
        topic, bus = published.topic, self._handler.bus
        async with self._auditing(agent, message, topic):
            if ANY in topic:
                raise refuse(
                    Kind.INVALID, "a topic has no `*`", next="that is for subscriptions", field="payload.topic"
                )
        once = {"message_id": message.id, "digest": digest(("publish", tree["payload"]))}
        delivered = await self._hub.execute(self._note(agent, message, topic, count=bus.audience(topic), **once))
        if delivered is None:
            delivered = bus.publish(topic, agent.id, published.data)
        return [self._success(message.id, {"topic": topic, "delivered": delivered})]

    async def _subscribe(self, request: Subscribe | Unsubscribe) -> dict[str, Any]:
        topic = request.topic
        if ANY in topic[:-1]:
            raise refuse(Kind.INVALID, "a pattern has its `*` at the end", field="payload.topic")
        if self._subscriptions is None:
            self._subscriptions = Reader(self._handler.bus, self._published)
        if isinstance(request, Subscribe):
            return {"topic": topic, "subscribed": True, "new": self._subscriptions.subscribe(topic)}
        return {"topic": topic, "subscribed": False, "had": self._subscriptions.unsubscribe(topic)}

    def _published(self, topic: str, publisher: str, data: Any, missed: int) -> bool:
        if self._is_closed:
            return False
        notice = Published(topic=topic, publisher=publisher, data=data, missed=missed)
        return self._connection.write_if_room([self._frame(codec.message(notice, self._stamp()))])

    def closed(self) -> None:
        super().closed()
        if self._subscriptions is not None:
            self._subscriptions.leave()
            self._subscriptions = None
        self._excess.report()

    # -- out

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None if in_pieces(outgoing) else self._frames(outgoing, now)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        whole = None
        if in_pieces(outgoing):
            whole = (await read_account(self._handler.store, outgoing.delivery.task, outgoing.event.seq)).output
        return self._frames(outgoing, self._hub.now(), whole)

    def _frames(self, outgoing: Outgoing, now: Instant, whole: str | None = None) -> Sequence[bytes]:
        messages = messages_of(outgoing, now, whole, whole_tasks=self._whole_tasks)
        return [self._frame(message) for message in messages]

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        about: RequestInfo = request.context
        if isinstance(outcome, Task):
            self._drop_unused(about, outcome)
        if not about.asks or about.id is None:
            return ()
        if isinstance(outcome, Task) and isinstance(command, ReportFault) and outcome.status is Status.COMPLETED:
            return [self.encode_refusal(_too_late(outcome), about, agent)]
        if isinstance(outcome, Task):
            return [self._success(about.id, {"task": task_view(outcome, submitted=about.type == SUBMIT)})]
        if isinstance(outcome, Agent):
            held = self._hub.load_of(outcome.id)
            view = agent_view(outcome, reachable=True, load=len(held), current=held[0] if held else None)
            return [self._success(about.id, {"agent": view})]
        return ()  # a question: its answer is the response, whenever it comes

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        about: RequestInfo = context
        self._drop_unused(about, None)
        error = error_out(fault, about.refusal, about.fields)
        if about.asks:
            return self._frame(codec.failure(about.id, error, self._stamp()))
        named = {} if about.id is None else {"about": about.id}
        self._log("warn", f"{about.type} was refused: {fault}", {"code": error.code, **named})
        return b""

    def encode_shutdown(self, grace_ms: int, reason: str) -> bytes:
        """The notice before the hub closes a connection (D10)."""
        return self._frame(codec.message(Shutdown(grace_period=grace_ms, reason=reason), self._stamp()))

    def _frame(self, message: AnyMessage) -> bytes:
        return codec.write(message, self._encoding)

    def _success(self, request_id: str, payload: dict[str, Any]) -> bytes:
        return self._frame(codec.success(request_id, payload, self._stamp()))

    def _stamp(self) -> Stamp:
        return stamp(self._hub.mint(), self._hub.now())


def _too_late(task: Task) -> Fault:
    """For an agent that reports the failure of a task which it has completed."""
    message = f"the task is already {task.status.value}, and its result cannot change"
    next = "assign a new task for another"
    return new_fault(Kind.CONFLICT, message, next=next, field="task_id", facts={"task_id": task.id})


def _updated(message: Message) -> str | None:
    """The task that a request reports on. A refused event is not answered, so no agent sends one again."""
    return message.payload.task_id if isinstance(message.payload, UpdateTask) else None


def _audited(message: Message) -> str:
    """What the audit record calls a request that is no command."""
    return message.type.replace("request:", "forge.")


def _data(field: str, file: Attachment) -> bytes:
    try:
        return mapping.data_in(file.data)
    except ValueError as error:
        raise refuse(Kind.INVALID, str(error), field=field) from None
