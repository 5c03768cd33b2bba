"""A client that speaks chiffon itself: an orchestrator with a token of its own.

A request is said again with the same request_id until the hub has it; from then on the hub owes us the result, and
delivers it over whatever link we have, as often as it takes until we acknowledge. So a broken link, a restarted
hub or a lost receipt changes nothing for who waits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from dragoman.protocols.chiffon import codec, errors
from dragoman.protocols.chiffon.types import (
    Correlation,
    Envelope,
    ErrorPayload,
    Hints,
    Payload,
    Stamp,
    WorkRequest,
)
from dragoman.sdk import trace
from dragoman.sdk.calling.calls import ConnectedClient
from dragoman.sdk.chiffon.calls import Call, fault_in
from dragoman.sdk.errors import Misconfigured, NotSupported
from dragoman.sdk.failures import refused
from dragoman.sdk.messages import Accepted
from dragoman.sdk.network.pipe import Frame, Pipe
from dragoman.sdk.runtime import Runtime

log = logging.getLogger("dragoman.sdk")

OPTIONS = frozenset({"priority", "dependencies", "hints", "parent"})


class ChiffonClient(ConnectedClient[Call, Pipe]):
    """What `Client` does, in chiffon. `dial` makes a pipe; `name` is our kind, or our id when we have none."""

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

    # --- what callers want ---

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

    # --- calls ---

    def _request(self, target: str, work: str, given: dict[str, Any], options: Mapping[str, Any]) -> Call:
        self._check(options, OPTIONS)
        kind, _, pinned = target.partition("/")
        span = trace.current()
        custom: dict[str, Any] = {name: options[name] for name in ("priority", "dependencies") if options.get(name)}
        if pinned:
            custom["agent_id"] = pinned
        if span is not None:
            custom["traceparent"] = span.traceparent
        if options.get("parent"):
            custom["parent_task_id"] = options["parent"]
        hints = options.get("hints")
        request = codec.envelope(
            WorkRequest(
                task_id=self._runtime.mint(),
                work_type=work,
                parameters=given,
                hints=None if hints is None else msgspec.convert(hints, Hints),
            ),
            Stamp(self._runtime.mint(), self._runtime.now()),
            Correlation(self._runtime.mint(), trace.uuid(span.trace_id) if span is not None else self._runtime.mint()),
            from_agent=self._name,
            to_agent=kind,
            x_custom_fields=custom,
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

    # --- the link ---

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
            self._hear(link, arrival)

    def _hear(self, pipe: Pipe, arrival: Frame | Accepted) -> None:
        if isinstance(arrival, Accepted):
            for id in arrival.ids:
                if (call := self._untaken.get(id)) is not None:
                    self._taken(call)
            return
        try:
            message = codec.decode(arrival.data)
        except errors.ChiffonError as error:
            log.warning("the hub said something that makes no sense: %s", error)
            return
        delivery = arrival.receipt or message.x_custom_fields.get("delivery_id")
        found = self._requests.get(message.request_id)
        if found is not None:
            self._hear_of(found, message, is_delivery=isinstance(delivery, str))
        elif isinstance(message.payload, WorkRequest):
            self._decline(pipe, message)
        if isinstance(delivery, str):
            pipe.acknowledge(delivery)

    def _hear_of(self, call: Call, message: Envelope[Payload], *, is_delivery: bool) -> None:
        payload = message.payload
        if isinstance(payload, ErrorPayload) and not is_delivery and not call.taken.done():
            return self._refused(call, message, payload)
        self._taken(call)
        return call.hear(message)

    def _refused(self, call: Call, message: Envelope[Payload], payload: ErrorPayload) -> None:
        """The hub did not take the request: perhaps it is an agent's name and not a kind; perhaps later."""
        code = payload.error_code
        if code == 5002 and not call.is_pinned:
            self._requests.pop(call.request.request_id, None)
            self._untaken.pop(call.id, None)
            call.is_pinned = True
            pinned = {**call.request.x_custom_fields, "agent_id": call.request.to_agent}
            ids = {"message_id": self._runtime.mint(), "request_id": self._runtime.mint()}
            call.send_as(msgspec.structs.replace(call.request, **ids, x_custom_fields=pinned))
            self._keep(call)
            return self._say(call)
        if code != 5002 and errors.is_retryable(code) and call.tries < len(errors.RETRY_DELAYS):
            delay = errors.RETRY_DELAYS[call.tries]
            call.tries += 1
            self._start(self._say_later(call, delay))
            return None
        facts = {"code": code, **payload.error_context}
        fault, words = fault_in(message), f"{payload.error_message} ({code})"
        kind = fault.get("kind") or errors.KINDS.get(code)
        return self._refuse(call, refused(words, kind=kind, message=fault.get("message"), facts=facts))

    def _decline(self, pipe: Pipe, message: Envelope[Payload]) -> None:
        """Somebody wants work of a client."""
        work_type = message.payload.work_type if isinstance(message.payload, WorkRequest) else ""
        envelope = codec.envelope(
            errors.unsupported_work(work_type_requested=work_type, supported_types=()),
            Stamp(self._runtime.mint(), self._runtime.now()),
            Correlation(message.request_id, message.trace_id),
            from_agent=self._name,
            to_agent=message.from_agent,
        )
        pipe.send(codec.encode(envelope), envelope.message_id, message.request_id)
