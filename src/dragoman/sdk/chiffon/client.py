"""A client that speaks chiffon itself: an orchestrator with a token of its own.

The client sends a request with the same request_id until the hub has it. From then on the hub owes the result, and
delivers it over any connection, as often as it takes until the client acknowledges it. So a broken connection, a
restarted hub or a lost receipt changes nothing for the caller that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.chiffon import chunks, codec, errors, mapping, requests
from dragoman.protocols.chiffon.types import (
    Correlation,
    Envelope,
    ErrorPayload,
    Hints,
    Payload,
    Stamp,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.sdk import trace
from dragoman.sdk.calling.calls import ConnectedClient, PendingCall
from dragoman.sdk.errors import Misconfigured, NotSupported, TaskFailed
from dragoman.sdk.events import value_of
from dragoman.sdk.failures import failed, refused
from dragoman.sdk.links import Frame, Pipe
from dragoman.sdk.messages import Accepted
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

OPTIONS = frozenset({"priority", "dependencies", "hints", "parent"})
UNAVAILABLE = 5002


class Call(PendingCall):
    """One request, and what the hub sent about it."""

    def __init__(self, request: Envelope[WorkRequest]) -> None:
        super().__init__(request.payload.task_id, request.message_id)
        self.request = request
        self.frame = codec.encode(request)
        self.tries = 1
        self.is_pinned = requests.agent_in(request.x_custom_fields) is not None
        self._blocks = chunks.Reassembly()
        self._received: set[str] = set()

    def send_as(self, request: Envelope[WorkRequest]) -> None:
        """Ask again, with another request."""
        self.id, self.request, self.frame = request.message_id, request, codec.encode(request)

    def receive(self, message: Envelope[Payload]) -> None:
        """A message of the hub about this call."""
        if message.message_id in self._received:
            return  # delivered again: the acknowledgment got lost
        self._received.add(message.message_id)
        match message.payload:
            case ErrorPayload() as error:
                self._failed(message, error)
            case WorkResult() as result:
                self._ended(message, result)
            case WorkStatus() as status:
                self._progressed(message, status)

    def _progressed(self, message: Envelope[Payload], status: WorkStatus) -> None:
        custom = message.x_custom_fields
        data: dict[str, Any] = msgspec.to_builtins(mapping.progress_in(status, custom))
        data.pop("chunk", None)
        data.pop("stream", None)
        if status.step is not None:
            data["output"] = status.step.output
        if custom.get("file") is not None:
            data["file"] = custom["file"]
        self._add("paused" if status.status == "paused" else "progress", message, data)

    def _ended(self, message: Envelope[Payload], result: WorkResult) -> None:
        output = self._assembled(result)
        if output is None:
            return
        done = mapping.result_in(result, message.x_custom_fields)
        data = {"output": output, "exit_code": result.exit_code, "result": done.value}
        if done.usage:
            data["usage"] = done.usage
        if result.exit_code == 0:
            self._add("completed", message, data)
            self.finish(value_of(done.value, output or self.streamed))
            return
        self._add("failed", message, data)
        fault = mapping.fault_fields_in(message.x_custom_fields)
        error = failed(
            fault.get("message") or output.rstrip().rpartition("\n")[2] or f"exit code {result.exit_code}",
            task_id=self.task_id,
            kind=fault.get("kind") or "work_failed",
            exit_code=result.exit_code,
            output=output,
            facts={"agent": message.x_custom_fields.get("agent_id")},
        )
        self.fail(error)

    def _assembled(self, result: WorkResult) -> str | None:
        """The whole output, once its last block is there."""
        if result.output_chunk is None:
            return result.output
        try:
            place = chunks.parse(result.output_chunk)
            if place.start == 0:  # an attempt before this one may have broken off in the middle
                self._blocks = chunks.Reassembly()
            self._blocks = self._blocks.feed(chunks.Block(place, result.output))
            return self._blocks.finish() if chunks.is_last(result) else None
        except chunks.ChunkError as error:
            self._blocks = chunks.Reassembly()
            if chunks.is_last(result):
                self.fail(TaskFailed(f"its output came broken: {error}", task_id=self.task_id))
            return None

    def _failed(self, message: Envelope[Payload], payload: ErrorPayload) -> None:
        status = "cancelled" if payload.error_code == errors.TASK_CANCELLED else "failed"
        fault = mapping.fault_fields_in(message.x_custom_fields)
        facts = {"code": payload.error_code, "message": payload.error_message, **payload.error_context}
        text = fault.get("message") or payload.error_message
        self._add(status, message, {"fault": facts, "message": text})
        error = failed(
            text,
            task_id=self.task_id,
            status=status,
            kind=fault.get("kind") or errors.KINDS.get(payload.error_code),
            code=payload.error_code,
            exit_code=fault.get("exit_code"),
            facts=facts,
        )
        self.fail(error)

    def _add(self, kind: str, message: Envelope[Payload], data: dict[str, Any]) -> None:
        agent = mapping.text_in(message.x_custom_fields, "agent_id")
        self.tell(kind, data, at=message.timestamp.isoformat(), agent=agent)


class ChiffonClient(ConnectedClient[Call, Pipe]):
    """`Client` in chiffon. `dial` makes a pipe; `name` is the client's kind, or its id where it has none."""

    protocol = "chiffon"

    def __init__(
        self,
        name: str,
        dial: Callable[[], Pipe],
        runtime: Runtime,
        cancel: Callable[[str, str | None], Awaitable[None]] | None = None,
        give_up_after: float | None = None,
    ) -> None:
        super().__init__(runtime, give_up_after)
        self._name = name
        self._dial = dial
        self._cancel = cancel
        self._requests: dict[str, Call] = {}
        self._pipe: Pipe | None = None

    # --- calls ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        if target is None:
            raise Misconfigured("chiffon addresses a kind of agent or an agent: say whom you call")
        call = self._request(target, work, dict(given), options)
        self._keep(call)
        self._say(call)
        await self._until_taken(call)
        return call.task_id

    async def cancel(self, task_id: str, reason: str | None) -> None:
        if self._cancel is None:
            raise NotSupported("this link cannot cancel")
        await self._cancel(task_id, reason)

    def _request(self, target: str, work: str, given: dict[str, Any], options: Mapping[str, Any]) -> Call:
        self._check(options, OPTIONS)
        kind, _, agent_id = target.partition("/")
        span, hints, mint = trace.current(), options.get("hints"), self._runtime.mint
        request = codec.envelope(
            WorkRequest(
                task_id=mint(),
                work_type=work,
                parameters=given,
                hints=None if hints is None else msgspec.convert(hints, Hints),
            ),
            Stamp(mint(), self._runtime.now()),
            Correlation(mint(), mint() if span is None else mapping.trace_uuid(span.trace_id)),
            from_agent=self._name,
            to_agent=kind,
            x_custom_fields=requests.request_fields_out(
                agent_id=agent_id,
                priority=options.get("priority"),
                dependencies=options.get("dependencies") or (),
                parent_task_id=options.get("parent"),
                traceparent=None if span is None else span.traceparent,
            ),
        )
        return Call(request)

    def _keep(self, call: Call) -> None:
        self._requests[call.request.request_id] = call
        self._calls[call.task_id] = call
        self._untaken[call.id] = call

    def _forget(self, call: Call) -> None:
        self._requests.pop(call.request.request_id, None)
        super()._forget(call)

    def _say(self, call: Call) -> None:
        if self._pipe is not None:
            self._pipe.send(call.frame, call.id, call.task_id)

    # --- the connection ---

    def _new_link(self) -> Pipe:
        return self._dial()

    async def _connect(self, link: Pipe) -> None:
        await link.open(None)

    def _attach(self, link: Pipe) -> None:
        self._pipe = link
        for call in list(self._untaken.values()):
            self._say(call)

    def _detach(self) -> None:
        self._pipe = None

    async def _listen(self, link: Pipe) -> None:
        for arrival in await link.receive():
            self._receive(link, arrival)

    def _receive(self, pipe: Pipe, arrival: Frame | Accepted) -> None:
        if isinstance(arrival, Accepted):
            for id in arrival.ids:
                if (call := self._untaken.get(id)) is not None:
                    self._taken(call)
            return
        try:
            message = codec.decode(arrival.data)
        except errors.ChiffonError as error:
            log.warning("the hub sent a message that is not valid chiffon: %s", error)
            return
        delivery = arrival.receipt or mapping.text_in(message.x_custom_fields, "delivery_id")
        call = self._requests.get(message.request_id)
        if call is not None:
            if isinstance(message.payload, ErrorPayload) and delivery is None and not call.taken.done():
                self._refused(call, message, message.payload)
            else:
                self._taken(call)
                call.receive(message)
        elif isinstance(message.payload, WorkRequest):
            self._decline(pipe, message, message.payload.work_type)
        if delivery is not None:
            pipe.acknowledge(delivery)

    def _refused(self, call: Call, message: Envelope[Payload], payload: ErrorPayload) -> None:
        """The hub did not take the request: the target may be an agent's id and not a kind, or it may take it later."""
        code = payload.error_code
        if code == UNAVAILABLE and not call.is_pinned:
            self._requests.pop(call.request.request_id, None)
            self._untaken.pop(call.id, None)
            call.is_pinned = True
            custom = call.request.x_custom_fields | requests.request_fields_out(agent_id=call.request.to_agent)
            ids = {"message_id": self._runtime.mint(), "request_id": self._runtime.mint()}
            call.send_as(msgspec.structs.replace(call.request, **ids, x_custom_fields=custom))
            self._keep(call)
            self._say(call)
        elif code != UNAVAILABLE and errors.is_retryable(code) and call.tries < len(errors.RETRY_DELAYS):
            delay = errors.RETRY_DELAYS[call.tries]
            call.tries += 1
            self._start(self._say_later(call, delay))
        else:
            facts = {"code": code, **payload.error_context}
            fault = mapping.fault_fields_in(message.x_custom_fields)
            kind = fault.get("kind") or errors.KINDS.get(code)
            text = f"{payload.error_message} ({code})"
            self._refuse(call, refused(text, kind=kind, message=fault.get("message"), facts=facts))

    def _decline(self, pipe: Pipe, message: Envelope[Payload], work_type: str) -> None:
        """An agent or the hub asks this client for work."""
        envelope = codec.envelope(
            errors.error(5006, work_type_requested=work_type, supported_types=[]),
            Stamp(self._runtime.mint(), self._runtime.now()),
            Correlation(message.request_id, message.trace_id),
            from_agent=self._name,
            to_agent=message.from_agent,
        )
        pipe.send(codec.encode(envelope), envelope.message_id, message.request_id)
