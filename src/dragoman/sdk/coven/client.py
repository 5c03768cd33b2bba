"""A client that speaks coven: a message goes in, its events stream out (`coven.CovenClient`).

The client sends a request again under the same id until the hub has it, and reads a task's stream again after the last
event it got: no event is missed and none comes twice. The client waits up to `retry_for` seconds for a hub that was
reached once and is gone for a moment; if it was never reached, the client raises at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from dragoman.protocols.coven import codec, mapping
from dragoman.protocols.coven.codec import Limits
from dragoman.protocols.coven.types import (
    CANCEL,
    FAULT_KEY,
    FOLLOW,
    MESSAGE_KEY,
    SEND,
    TASK_ID_KEY,
    CancelRequest,
    FileData,
    FollowRequest,
    SendMessage,
)
from dragoman.sdk import trace
from dragoman.sdk.address import Address
from dragoman.sdk.calling.backend import LONGEST_ABSENCE, Attempts, HubRetries, TemporaryFailure, named
from dragoman.sdk.coven.calls import CallEvents
from dragoman.sdk.coven.channel import BROKEN, grpc, in_brief, never_connected, open_channel
from dragoman.sdk.errors import Conflict, DragomanError, Misconfigured, NotAllowed, NotFound, NotSupported
from dragoman.sdk.events import Event, Question, TaskInfo
from dragoman.sdk.failures import refused
from dragoman.sdk.messages import File
from dragoman.sdk.network.connect_errors import advised
from dragoman.sdk.runtime import Runtime

OPTIONS = frozenset({"priority", "thread", "files"})
MOST_BYTES = 128 * 1024 * 1024
"""The largest answer: as long as the hub allows an agent's answer to be."""
MOST_UNREAD = 256
"""Streams of submitted tasks that stay open until the caller reads them; for older ones the client opens another."""
CALL_TIMEOUT = 30.0

#: Status → what is raised; any other status of the hub is `RequestRefused`.
RAISED: dict[grpc.StatusCode, type[DragomanError]] = {
    grpc.StatusCode.UNAUTHENTICATED: NotAllowed,
    grpc.StatusCode.PERMISSION_DENIED: NotAllowed,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.UNIMPLEMENTED: Misconfigured,
}
PASSING = frozenset({"overloaded", "rate_limited"})
"""Faults of the hub that a retry may help."""
CONFLICTS = frozenset({"conflict"})
TRANSPORT = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL}
)
"""Without a fault of the hub, these statuses mean that the connection broke."""

_LIMITS = Limits(message_bytes=MOST_BYTES)


class CovenClient:
    """What `Client` does, in coven. `id` is who calls; without a token it is a guest's name, and may be empty."""

    def __init__(self, address: Address, id: str, runtime: Runtime, *, retry_for: float = LONGEST_ABSENCE) -> None:
        self._address = address
        self._id = id
        self._runtime = runtime
        self._retries = HubRetries(address.shown, runtime, retry_for)
        self._channel: grpc.aio.Channel | None = None
        self._unread: dict[str, Any] = {}

    async def open(self) -> None:
        """gRPC connects with the first call."""
        self._channel = open_channel(self._address, MOST_BYTES)

    async def close(self) -> None:
        for call in self._unread.values():
            call.cancel()
        self._unread.clear()
        if self._channel is not None:
            await self._channel.close()

    # --- for callers ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        request = codec.encode_send(self._message(target, work, given, options))
        if self._address.record is not None:
            self._address.record(True, request)
        tries = self._retries.begin()
        while True:
            call = self._at(SEND)(request, metadata=self._metadata())
            try:
                metadata = dict(await call.initial_metadata() or ())
                if TASK_ID_KEY not in metadata:
                    # The call is over. gRPC drops the first response if the end comes before that response was read.
                    metadata = dict(await call.trailing_metadata() or ())
                if TASK_ID_KEY not in metadata:
                    await self._raise_status(call)
                task_id = str(metadata[TASK_ID_KEY])
                tries.reached()
                self._keep(task_id, call)
                return task_id
            except (TemporaryFailure, *BROKEN) as error:
                call.cancel()
                await self._try_again(tries, error)
            except BaseException:
                call.cancel()
                raise

    async def result(self, task_id: str) -> Any:
        seen = CallEvents(task_id)
        async for _ in self._listen(seen):
            pass
        return seen.outcome()

    async def events(self, task_id: str, after: int) -> AsyncIterator[Event]:
        async for event in self._listen(CallEvents(task_id, after)):
            yield event

    async def cancel(self, task_id: str, reason: str | None) -> None:
        request = codec.encode_cancel(CancelRequest(task_id=task_id, reason=reason or ""))
        tries = self._retries.begin()
        while True:
            try:
                await self._unary()(request, metadata=self._metadata(), timeout=CALL_TIMEOUT)
                tries.reached()
                return
            except BROKEN as error:
                await self._try_again(tries, self._judge(error))

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        raise _cannot("look at a task")

    async def questions(self, status: str | None) -> list[Question]:
        raise _cannot("list questions")

    async def answer(self, question_id: str, answer: Any) -> None:
        raise _cannot("answer a question")

    # --- a task's events ---

    async def _listen(self, seen: CallEvents) -> AsyncIterator[Event]:
        """The events of a task, over as many streams as it takes."""
        call = self._unread.pop(seen.task_id, None) if not seen.cursor else None
        tries = self._retries.begin()
        while True:
            if call is None:
                request = codec.encode_follow(FollowRequest(task_id=seen.task_id, after=seen.cursor))
                call = self._at(FOLLOW)(request, metadata=self._metadata())
            try:
                while (data := await call.read()) is not grpc.aio.EOF:
                    tries.reached()
                    if self._address.record is not None:
                        self._address.record(False, data)
                    event = seen.add(codec.decode_response(data, _LIMITS))
                    if event is not None:
                        yield event
                    if seen.is_over:
                        return
                error: Exception = TemporaryFailure("the stream ended before the task did")
            except BROKEN as broken:
                error = self._judge(broken)
            finally:
                call.cancel()
            await self._try_again(tries, error)
            call = None
            seen.resume()

    def _keep(self, task_id: str, call: Any) -> None:
        """The stream is open already: a caller that wants the events reads it from its beginning."""
        old = self._unread.pop(task_id, None)
        if old is not None:
            old.cancel()
        self._unread[task_id] = call
        if len(self._unread) > MOST_UNREAD:
            self._unread.pop(next(iter(self._unread))).cancel()

    # --- one call ---

    def _message(
        self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]
    ) -> SendMessage:
        unknown = set(options) - OPTIONS
        if unknown:
            raise NotSupported(f"coven has no option {named(unknown)}")
        span = trace.current()
        content, input_json = mapping.input_out(given)
        files = [msgspec.convert(file, File, from_attributes=True) for file in options.get("files") or ()]
        return SendMessage(
            request_id=self._runtime.mint(),
            thread_id=options.get("thread") or "",
            sender=self._id,
            content=content,
            attachments=tuple(FileData(file.name, file.mime_type, file.data) for file in files),
            work_type=work,
            input_json=input_json,
            traceparent=span.traceparent if span is not None else "",
            to_agent=target or "",
            priority=options.get("priority") or "",
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        metadata = []
        if self._address.token:
            metadata.append(("authorization", f"Bearer {self._address.token}"))
        span = trace.current()
        if span is not None:
            metadata.append(("traceparent", span.traceparent))
        return tuple(metadata)

    def _at(self, method: str) -> Any:
        return self._open_channel().unary_stream(method)

    def _unary(self) -> Any:
        return self._open_channel().unary_unary(CANCEL)

    def _open_channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise Misconfigured("use it as `async with Client(…) as hub:`")
        return self._channel

    async def _raise_status(self, call: Any) -> None:
        """The hub did not begin to answer."""
        code = await call.code()
        trailing = dict(await call.trailing_metadata() or ())
        raise self._meant(code, str(await call.details() or ""), trailing)

    def _judge(self, error: Exception) -> Exception:
        """The exception of a broken call: returned if a retry may help, else raised."""
        if not isinstance(error, grpc.aio.AioRpcError):
            return TemporaryFailure(str(error) or type(error).__name__)
        meant = self._meant(error.code(), error.details() or "", dict(error.trailing_metadata() or ()))
        if isinstance(meant, TemporaryFailure):
            return meant
        raise meant

    def _meant(self, code: grpc.StatusCode, details: str, trailing: Mapping[str, Any]) -> Exception:
        fault = trailing.get(FAULT_KEY)
        if fault in PASSING:
            self._retries.was_reached = True
            return TemporaryFailure(details)
        if fault is None and code in TRANSPORT:
            return TemporaryFailure(advised(in_brief(details), secure=self._address.is_secure) or code.name)
        if fault in CONFLICTS:
            return Conflict(details)
        raised = RAISED.get(code)
        if raised is not None and not (raised is Misconfigured and fault):  # a hub that speaks coven knows the method
            return raised(details or code.name)
        sent = trailing.get(MESSAGE_KEY)
        message = sent.decode("utf-8", "replace") if isinstance(sent, bytes) else details
        return refused(details or code.name, kind=str(fault) if fault else code.name.lower(), message=message)

    async def _try_again(self, tries: Attempts, error: Exception) -> None:
        """A connection that was cut after it had been made shows that a server listens there."""
        await tries.again(error, is_there=not never_connected(error))


def _cannot(what: str) -> NotSupported:
    return NotSupported(f"coven cannot {what}: use a Client of the management API (an http:// address)")
