"""A client that speaks chiffon itself: an orchestrator with a token of its own.

A request is said again with the same request_id until the hub has it; from then on the hub owes us the result, and
delivers it over whatever link we have, as often as it takes until we acknowledge. So a broken link, a restarted
hub or a lost receipt changes nothing for who waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
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
from dragoman.sdk.calls import KINDS, Call
from dragoman.sdk.errors import DragomanError, HubUnreachable, Misconfigured, RequestRefused
from dragoman.sdk.events import Question, TaskInfo
from dragoman.sdk.following import Calls
from dragoman.sdk.links import Accepted, Frame, LinkDown, Pipe, unreachable
from dragoman.sdk.world import World, backoff

log = logging.getLogger("dragoman.sdk")

OPTIONS = frozenset({"priority", "dependencies", "hints", "parent"})


class ChiffonClient(Calls[Call]):
    """What `Client` does, in chiffon. `dial` makes a pipe; `name` is our kind, or our id when we have none."""

    def __init__(
        self, name: str, dial: Callable[[], Pipe], world: World, cancel: Callable[[str, str | None], Any] | None = None
    ) -> None:
        self._name = name
        self._dial = dial
        self._world = world
        self._cancel = cancel
        self._calls: dict[str, Call] = {}
        self._by_task: dict[str, Call] = {}
        self._untaken: dict[str, Call] = {}
        self._pipe: Pipe | None = None
        self._online: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Connect; a hub that is not there is reported at once, one that goes away later is waited for."""
        self._loop = asyncio.get_running_loop()
        pipe = self._dial()
        try:
            await pipe.open(None)
        except LinkDown as down:
            await pipe.close()
            raise unreachable(down) from None
        self._pipe = pipe
        self._online = self._loop.create_task(self._stay_online(pipe))

    async def close(self) -> None:
        if self._online is not None:
            self._online.cancel()
            await asyncio.gather(self._online, return_exceptions=True)
        self._fail_all(HubUnreachable("the client was closed"))

    # --- what callers want ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the hub has it, durably."""
        if target is None:
            raise Misconfigured("chiffon addresses a kind of agent or an agent: say whom you call")
        call = self._request(target, work, dict(given), options)
        self._keep(call)
        self._say(call)
        try:
            await asyncio.shield(call.taken)
        except BaseException:
            self._forget(call)
            raise
        return call.task_id

    async def cancel(self, task_id: str, reason: str | None) -> None:
        if self._cancel is None:
            raise Misconfigured("this link cannot cancel")
        await self._cancel(task_id, reason)

    async def task(self, task_id: str, wait: float = 0) -> TaskInfo:
        raise _no_word("look at a task")

    async def questions(self, status: str | None) -> list[Question]:
        raise _no_word("list questions")

    async def answer(self, question_id: str, answer: Any) -> None:
        raise _no_word("answer a question")

    # --- calls ---

    def _request(self, target: str, work: str, given: dict[str, Any], options: Mapping[str, Any]) -> Call:
        assert self._loop is not None
        unknown = set(options) - OPTIONS
        if unknown:
            raise Misconfigured(f"chiffon has no word for {', '.join(sorted(unknown))}")
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
                task_id=self._world.mint(),
                work_type=work,
                parameters=given,
                hints=None if hints is None else msgspec.convert(hints, Hints),
            ),
            Stamp(self._world.mint(), self._world.now()),
            Correlation(self._world.mint(), trace.uuid(span.trace_id) if span is not None else self._world.mint()),
            from_agent=self._name,
            to_agent=kind,
            x_custom_fields=custom,
        )
        return Call(request, self._loop)

    def _keep(self, call: Call) -> None:
        self._calls[call.request.request_id] = call
        self._by_task[call.task_id] = call
        self._untaken[call.request.message_id] = call

    def _taken(self, call: Call, error: Exception | None = None) -> None:
        """The hub has it, or will not have it."""
        self._untaken.pop(call.request.message_id, None)
        if call.taken.done():
            return
        if error is None:
            call.taken.set_result(None)
        else:
            call.taken.set_exception(error)

    def _forget(self, call: Call) -> None:
        self._calls.pop(call.request.request_id, None)
        self._untaken.pop(call.request.message_id, None)
        if self._by_task.get(call.task_id) is call:
            del self._by_task[call.task_id]
        for future in (call.taken, call.done):
            if not future.done():
                future.cancel()
            elif not future.cancelled():
                future.exception()

    def _known(self, task_id: str) -> Call:
        call = self._by_task.get(task_id)
        if call is None:
            raise Misconfigured(f"task {task_id} was not called for by this client, or its result was fetched already")
        return call

    def _say(self, call: Call) -> None:
        if self._pipe is not None:
            self._pipe.send(call.frame, call.request.message_id, call.task_id)

    # --- the link ---

    async def _stay_online(self, pipe: Pipe) -> None:
        failures = 0
        try:
            while True:
                try:
                    while True:
                        for arrival in await pipe.receive():
                            self._hear(pipe, arrival)
                        failures = 0
                except LinkDown as down:
                    log.warning("no link to the hub (%s)", down)
                self._pipe = None
                while self._pipe is None:
                    await pipe.close()
                    await self._world.sleep(backoff(failures, self._world.chance()))
                    failures += 1
                    pipe = self._dial()
                    try:
                        await pipe.open(None)
                        self._pipe = pipe
                    except LinkDown as down:
                        log.info("still no link to the hub (%s)", down)
                for call in list(self._untaken.values()):
                    self._say(call)
        except DragomanError as error:
            self._fail_all(error)
        finally:
            self._pipe = None
            await pipe.close()

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
        found = self._calls.get(message.request_id)
        if found is not None:
            self._hear_of(found, message, is_delivery=isinstance(delivery, str))
        elif isinstance(message.payload, WorkRequest):
            self._decline(pipe, message)
        if isinstance(delivery, str):
            pipe.acknowledge(delivery)

    def _hear_of(self, call: Call, message: Envelope[Payload], *, is_delivery: bool) -> None:
        payload = message.payload
        if isinstance(payload, ErrorPayload) and not is_delivery and not call.taken.done():
            return self._refused(call, payload)
        self._taken(call)
        return call.hear(message)

    def _refused(self, call: Call, payload: ErrorPayload) -> None:
        """The hub did not take the request: perhaps it is an agent's name and not a kind; perhaps later."""
        code = payload.error_code
        if code == 5002 and not call.is_pinned:
            self._calls.pop(call.request.request_id, None)
            self._untaken.pop(call.request.message_id, None)
            call.is_pinned = True
            pinned = {**call.request.x_custom_fields, "agent_id": call.request.to_agent}
            ids = {"message_id": self._world.mint(), "request_id": self._world.mint()}
            call.send_as(msgspec.structs.replace(call.request, **ids, x_custom_fields=pinned))
            self._keep(call)
            return self._say(call)
        if code != 5002 and errors.is_retryable(code) and call.tries < len(errors.RETRY_DELAYS):
            delay = errors.RETRY_DELAYS[call.tries]
            call.tries += 1
            task = asyncio.ensure_future(self._say_later(call, delay))
            call.done.add_done_callback(lambda _: task.cancel())
            return None
        facts = {"code": code, **payload.error_context}
        refused = RequestRefused(f"{payload.error_message} ({code})", kind=KINDS.get(code), facts=facts)
        return self._taken(call, refused)

    async def _say_later(self, call: Call, delay: float) -> None:
        await self._world.sleep(delay)
        if not call.taken.done():
            self._say(call)

    def _fail_all(self, error: Exception) -> None:
        for call in list(self._calls.values()):
            self._taken(call, error)
            call.finish(None, error)

    def _decline(self, pipe: Pipe, message: Envelope[Payload]) -> None:
        """Somebody wants work of a client."""
        work_type = message.payload.work_type if isinstance(message.payload, WorkRequest) else ""
        envelope = codec.envelope(
            errors.unsupported_work(work_type_requested=work_type, supported_types=()),
            Stamp(self._world.mint(), self._world.now()),
            Correlation(message.request_id, message.trace_id),
            from_agent=self._name,
            to_agent=message.from_agent,
        )
        pipe.send(codec.encode(envelope), envelope.message_id, message.request_id)


def _no_word(what: str) -> Misconfigured:
    return Misconfigured(f"chiffon has no word to {what}: use a Client of the management API (an http:// address)")
