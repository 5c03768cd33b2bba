"""`coven.CovenClient`: the side that the document leaves open. A message goes in, its events stream out.

A caller's stream is nothing but a way to read a task's events, which are in the store. Nothing is buffered for it: a
slow reader reads later, one that comes back says how far it was, and one that never does changes nothing. Every
stream ends with `done` or `error`, or with a status that says to resume.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc
import structlog

from dragoman.core.commands import Cancel
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.memory import SMALL
from dragoman.core.model.tasks import Event, Status, Task
from dragoman.core.ports import Intake, Store, StoreFailed, Watch
from dragoman.messages.faults import Kind, Refused, new_fault, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.coven import codec
from dragoman.protocols.coven.mapping import PROTOCOL
from dragoman.protocols.coven.types import TASK_ID_KEY, CancelReply, SendMessage
from dragoman.server.asgi import room_for
from dragoman.server.coven import inbound, outbound
from dragoman.server.coven.authentication import Identity
from dragoman.server.coven.grpc_port import address_of, metadata_of, turn_away
from dragoman.server.files import FileKeeper
from dragoman.server.refusals import CALLER, UNREADABLE, RefusalLog
from dragoman.server.session import read_account
from dragoman.wire.errors import RemoteProtocolError

log = structlog.get_logger("dragoman.server")

PAGE = 100
ROOM_SECONDS = 2.0
"""How long a call waits, unread, for the hub to have room for it."""
FULL = new_fault(Kind.OVERLOADED, "the hub holds too many messages", next="try again in a moment", retryable=True)
LOOK_AGAIN = 60.0
"""Seconds after which a follower looks by itself."""


class Callers:
    """The three calls."""

    def __init__(
        self,
        hub: Intake,
        store: Store,
        files: FileKeeper,
        *,
        identity: Identity,
        limits: codec.Limits,
        refusals: RefusalLog,
        counts: Counter[str],
    ) -> None:
        self._hub = hub
        self._store = store
        self._files = files
        self._identity = identity
        self._limits = limits
        self._refusals = refusals
        self._counts = counts
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End every stream with a status that says to resume."""
        self._draining.set()

    def handlers(self) -> Any:
        return {
            # One message comes, but we read it ourselves: gRPC would keep it in memory until the stream ends.
            "Send": grpc.stream_stream_rpc_method_handler(self.send),
            "Follow": grpc.unary_stream_rpc_method_handler(self.follow),
            "Cancel": grpc.unary_unary_rpc_method_handler(self.cancel),
        }

    async def send(self, _requests: Any, context: Any) -> None:
        await self._answer(context, "task.submit", self._send(context))

    async def follow(self, request: bytes, context: Any) -> None:
        await self._answer(context, "task.follow", self._follow(request, context))

    async def cancel(self, request: bytes, context: Any) -> bytes:
        answered: bytes = await self._answer(context, "task.cancel", self._cancel(request, context))
        return answered

    async def _answer(self, context: Any, what: str, answer: Awaitable[Any]) -> Any:
        CALLER.set(address_of(context))
        try:
            return await answer
        except Refused as refused:
            fault = refused.fault
        except RemoteProtocolError as error:
            fault = inbound.fault_of(error)
            await self._refusals.record(what, fault, principal=None, protocol=PROTOCOL)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except StoreFailed as error:
            log.error("the store cannot be read", what=what, why=str(error))
            fault = UNREADABLE
        except Exception:
            log.exception("a call failed", what=what)
            fault = new_fault(Kind.INTERNAL, "the hub failed to serve this call", next="its log says why")
        self._counts[f"refused.{fault.kind.value}"] += 1
        return await turn_away(context, fault)

    # -- the calls

    async def _send(self, context: Any) -> None:
        task = await self._asked(context)
        with self._hub.streams.one(task.origin.principal):
            await self._send_events(context, task, 0, task.origin.request_id)

    async def _asked(self, context: Any) -> Task:
        """Read the one message, and submit what it asks for; it is held no longer than that."""
        memory, holder = self._hub.memory, self._identity.named(metadata_of(context.invocation_metadata()))
        if not await room_for(memory, holder, ROOM_SECONDS):
            raise Refused(memory.misfit(holder, SMALL) or FULL)
        request = await context.read()
        if request is grpc.aio.EOF:
            raise refuse(Kind.INVALID, "the call ended without a message")
        size = len(request)
        if (fault := memory.take(holder, size)) is not None:
            memory.refused += 1
            raise Refused(fault)
        give_back = partial(memory.give_back, holder, size)
        try:
            message = codec.decode_send(request, self._limits)
            metadata = metadata_of(context.invocation_metadata())
            principal = await self._identity.caller(metadata, message.sender)
            self._hub.streams.check(principal)
            if self._draining.is_set():
                raise refuse(Kind.OVERLOADED, "the hub is stopping", next="try again in a moment", retryable=True)
            # A caller that goes away in the middle has asked, or has not: never half of it.
            asked = self._submit(principal, message, metadata.get("traceparent"), give_back)
        except BaseException:
            give_back()
            raise
        return await self._files.to_its_end(asked)

    async def _submit(
        self, principal: AgentId, message: SendMessage, traceparent: str | None, decided: Callable[[], None]
    ) -> Task:
        kept: list[FileRef] = []
        task: Task | None = None
        try:
            for file in message.attachments:
                kept += [
                    await self._files.keep(file.data, name=file.filename, mime_type=file.mime_type, owner=principal)
                ]
            task = await self._hub.execute(
                inbound.submit_of(
                    principal,
                    message,
                    kept,
                    find=self._hub.agent,
                    request_id=message.request_id or self._hub.mint(),
                    traceparent=traceparent,
                )
            )
            return task
        finally:
            decided()
            # Refused, or asked before: then the first request's files are the task's.
            theirs = {file.id for file in task.output.files} if task is not None else set()
            for ref in kept:
                if ref.id not in theirs:
                    self._files.drop(ref.id)

    async def _theirs(self, context: Any, task_id: str) -> Task:
        """The task, if the caller may know of it."""
        metadata = metadata_of(context.invocation_metadata())
        principal = await self._identity.caller(metadata)
        task = await self._store.task(TaskId(task_id))
        if task is None or not self._identity.may_follow(principal, metadata, task.origin.principal):
            raise refuse(Kind.NOT_FOUND, "no such task", field="task_id")
        return task

    async def _follow(self, request: bytes, context: Any) -> None:
        asked = codec.decode_follow(request, self._limits)
        task = await self._theirs(context, asked.task_id)
        with self._hub.streams.one(task.origin.principal):
            await self._send_events(context, task, asked.after, task.origin.request_id)

    async def _cancel(self, request: bytes, context: Any) -> bytes:
        asked = codec.decode_cancel(request, self._limits)
        task = await self._theirs(context, asked.task_id)
        if task.status is Status.CANCELLED:  # a repeated cancel: the first answer may be lost
            return codec.encode_cancel_reply(CancelReply(task_id=task.id, status=task.status.value))
        reason = asked.reason or "cancelled on request"
        cancelled: Task = await self._hub.execute(
            Cancel(principal=task.origin.principal, protocol=PROTOCOL, task_id=task.id, reason=reason)
        )
        return codec.encode_cancel_reply(CancelReply(task_id=cancelled.id, status=cancelled.status.value))

    # -- a task's events

    async def _send_events(self, context: Any, task: Task, after: int, request_id: str) -> None:
        await context.send_initial_metadata(((TASK_ID_KEY, task.id),))
        context.set_trailing_metadata(((TASK_ID_KEY, task.id),))
        async with self._hub.watch(task.id) as watch:
            while True:
                page = await self._store.events(task.id, after=after, limit=PAGE)
                # The head is read after its events, so that an ending is known to be the outcome, or undone.
                now = await self._store.task(task.id)
                if now is None:
                    raise refuse(Kind.NOT_FOUND, "no such task any more: it ended long ago", field="task_id")
                task = now
                for event in page:
                    await self._write(context, event, task, request_id)
                    after = event.seq
                    if task.final and event.seq == task.outcome.event:
                        return None
                if task.final and after >= (task.outcome.event or 0):
                    return await self._send_end_again(context, task, request_id)
                if task.seq > after:
                    continue
                if self._draining.is_set():
                    raise refuse(Kind.OVERLOADED, "the hub is stopping", next="follow the task again", retryable=True)
                await self._news(watch)

    async def _write(self, context: Any, event: Event, task: Task, request_id: str) -> None:
        file = outbound.file_in(event)
        data = None if file is None else await self._files.fetch(file.id)
        whole = await self._whole(task) if outbound.ends_in_pieces(event) else None
        for response in outbound.responses_of(event, task, request_id=request_id, data=data, whole=whole):
            message = codec.encode_response(response)
            if len(message) <= self._limits.message_bytes:
                await context.write(message)
                continue
            sent = (await read_account(self._store, task.id, event.seq - 1)).output
            for part in outbound.fitted(response, self._limits.message_bytes, sent):
                await context.write(codec.encode_response(part))

    async def _whole(self, task: Task) -> str:
        """An output that came in pieces: `full_response` has all of it."""
        return (await read_account(self._store, task.id, task.seq)).output

    async def _send_end_again(self, context: Any, task: Task, request_id: str) -> None:
        """A caller that resumes after the very end gets the end again, never an empty stream."""
        page = await self._store.events(task.id, after=(task.outcome.event or task.seq) - 1, limit=1)
        for event in page:
            await self._write(context, event, task, request_id)

    async def _news(self, watch: Watch) -> None:
        changed = asyncio.ensure_future(watch.changed(LOOK_AGAIN))
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({changed, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiting in (changed, draining):
                waiting.cancel()
            await asyncio.gather(changed, draining, return_exceptions=True)
