"""Calling in a2acp: ask the broker who can, shake hands, and call under the contract.

    call ── discover ── shake hands ── request ─────────────────────── response
            (first use of a target and intent)   refused or lost: said again, see below

A request is said again under the same id until the broker has it; from then on the hub owes us the answer and delivers
it over whatever link we have. An error that says when to try again is obeyed, a few times, under a new id.

The link is somebody else's: a serving agent's, or a client's (`client`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.contracts import Contract, Mode
from dragoman.protocols.a2acp.intents import Offering
from dragoman.protocols.a2acp.types import Message, MessageType
from dragoman.sdk import trace
from dragoman.sdk.a2acp.calls import Call
from dragoman.sdk.a2acp.channel import Channel, Write
from dragoman.sdk.a2acp.identity import BROKER, PROGRESS, Identity
from dragoman.sdk.a2acp.keyring import Unopened
from dragoman.sdk.a2acp.relations import Relations, Terms
from dragoman.sdk.calling.calls import CallTracker
from dragoman.sdk.errors import DragomanError, Misconfigured
from dragoman.sdk.failures import CallFailed, TimedOut, failure
from dragoman.wire.errors import LocalProtocolError

OPTIONS = frozenset({"mode", "encrypt", "retries"})
RETRIES = 2
PATIENCE = 15.0
"""Seconds for an answer of the broker itself: three times what a handshake may take."""
MOST_TRIES = 3


class _Question:
    """Something that the broker is asked."""

    def __init__(self, write: Write) -> None:
        self.write = write
        self.tries = 1
        self.answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()


class A2acpCaller(CallTracker[Call]):
    """`talk.Caller`, and `sdk.client.Backend`."""

    protocol = "a2acp"

    def __init__(self, identity: Identity, give_up_after: float | None = None) -> None:
        super().__init__(identity.runtime, give_up_after)
        self._identity = identity
        self._channel: Channel | None = None
        self._questions: dict[str, _Question] = {}
        self._threads: dict[str, Call] = {}
        self._cancels: dict[str, tuple[Write, asyncio.Future[None]]] = {}
        self.relations = Relations(identity, self._ask)

    async def open(self) -> None:
        """The link is somebody else's."""

    async def close(self) -> None:
        """Likewise; see `end`."""

    # --- what callers want ---

    async def submit(self, target: str | None, work: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> str:
        """Returns when the broker has it, durably."""
        self._check(options, OPTIONS)
        span = trace.current()
        call = Call(
            self._runtime.mint(),
            Terms(target or None, work, options.get("mode") or "broker", bool(options.get("encrypt"))),
            given,
            None if span is None else span.traceparent,
            options.get("retries", RETRIES),
        )
        self._calls[call.task_id] = call
        try:
            await self._try(call)
            await asyncio.shield(call.taken)
        except BaseException:
            self._forget(call)
            raise
        return call.task_id

    async def cancel(self, task_id: str, reason: str | None) -> None:
        call = self._known(task_id)
        call.is_cancelled = True
        contract_id = None if call.contract is None else call.contract.contract_id
        id, body = self._runtime.mint(), intents.Cancel(contract_id=contract_id, reason=reason or "")
        write = self._identity.write(
            MessageType.EVENT,
            id=id,
            to=BROKER,
            intent=intents.CANCEL,
            payload=intents.payload(body),
            correlation_id=call.thread,
        )
        heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancels[id] = write, heard
        self._send(id, call.task_id, write)
        try:
            await heard
        finally:
            self._cancels.pop(id, None)

    # --- contracts ---

    async def discover(self, **wanted: str | None) -> list[Offering]:
        return await self.relations.discover(**wanted)

    async def contract(self, intent: str, agent: str | None, mode: Mode, encrypt: bool, **schemas: Any) -> Contract:
        return await self.relations.contract(Terms(agent, intent, mode, encrypt), **schemas)

    async def terminate(self, collaboration_id: str, reason: str) -> None:
        await self.relations.terminate(collaboration_id, reason)

    async def rotate(self, collaboration_id: str) -> None:
        await self.relations.rotate(collaboration_id)

    # --- the broker ---

    async def _ask(self, intent: str, body: intents.Body, capabilities: tuple[str, ...]) -> Message:
        await self._identity.find_out()
        id = self._runtime.mint()
        question = _Question(self._identity.ask_broker(intent, body, correlation_id=id, capabilities=capabilities))
        self._questions[id] = question
        self._send(id, id, question.write)
        patience = asyncio.get_running_loop().create_task(self._runtime.sleep(PATIENCE))
        try:
            waiting: set[asyncio.Future[Any]] = {question.answer, patience}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not question.answer.done():
                raise TimedOut(f"the broker did not answer {intent} within {PATIENCE:g} seconds", by=BROKER.agent_id)
            return question.answer.result()
        finally:
            patience.cancel()
            self._questions.pop(id, None)

    # --- calls ---

    async def _try(self, call: Call) -> None:
        """Under terms that hold now, say it."""
        contract = call.contract = await self.relations.contract(call.terms)
        payload = {**call.given, "contract_id": contract.contract_id}
        if call.traceparent is not None:
            payload["traceparent"] = call.traceparent
        call.id = self._runtime.mint()
        call.write = self._identity.write(
            MessageType.REQUEST,
            id=call.id,
            to=contract.target_agent,
            intent=contract.intent,
            payload=payload,
            correlation_id=call.thread,
            capabilities=contract.security.required_capabilities,
            seal=contract.security.encryption == "aes256",
        )
        self._threads[call.thread] = call
        self._untaken[call.id] = call
        self._say(call)

    def _failed(self, call: Call, error: Exception, message: Message | None = None) -> None:
        """Try again where that can help."""
        self._threads.pop(call.thread, None)
        self._untaken.pop(call.id, None)
        pause = call.pause(error) if isinstance(error, CallFailed) else None
        if pause is None:
            call.fail(error, message)
            return
        if call.has_new_contract and call.contract is not None:
            self.relations.forget(call.contract.contract_id)
        call.thread = self._runtime.mint()
        self._start(self._try_later(call, pause))

    async def _try_later(self, call: Call, pause: float) -> None:
        try:
            await self._runtime.sleep(pause)
            if call.is_cancelled:
                raise CallFailed("cancelled before it was tried again", task_id=call.task_id)
            await self._try(call)
        except DragomanError as error:
            call.fail(error)

    def _forget(self, call: Call) -> None:
        self._threads.pop(call.thread, None)
        super()._forget(call)

    def _fail_all(self, error: Exception) -> None:
        super()._fail_all(error)
        waiting: list[asyncio.Future[Any]] = [question.answer for question in self._questions.values()]
        for answer in (*waiting, *(heard for _, heard in self._cancels.values())):
            if not answer.done():
                answer.set_exception(error)

    # --- the link, which comes and goes ---

    def attach(self, channel: Channel) -> None:
        """Everything that was not taken goes out again."""
        self._channel = channel
        for id, question in self._questions.items():
            self._send(id, id, question.write)
        for call in self._untaken.values():
            self._say(call)
        for id, (write, _) in self._cancels.items():
            self._send(id, id, write)

    def detach(self) -> None:
        self._channel = None

    def _say(self, call: Call) -> None:
        if call.write is not None:
            self._send(call.id, call.task_id, call.write)

    def _send(self, id: str, lane: str, write: Write) -> None:
        if self._channel is not None:
            self._channel.say(id, lane, write)

    def accepted(self, id: str) -> bool:
        call = self._untaken.pop(id, None)
        if call is not None:
            call.take()
            return True
        if id in self._cancels:
            heard = self._cancels[id][1]
            if not heard.done():
                heard.set_result(None)
            return True
        return id in self._questions

    def refused(self, id: str, message: Message | None, error: Exception | None) -> bool:
        if message is not None:
            if self._identity.is_repetition(message):
                return self.accepted(id)
            error = failure(codec.error(message), by=message.source_agent.agent_id)
        assert error is not None
        if isinstance(error, LocalProtocolError | Unopened):
            error = Misconfigured(f"that cannot be said: {error}")
        call, question = self._untaken.get(id), self._questions.get(id)
        if call is not None:
            if message is not None and self._identity.is_stale(message) and call.retries > 0:
                call.retries -= 1
                self._say(call)
            else:
                self._failed(call, call.failed(message) if message is not None else error, message)
        elif question is not None:
            self._unanswered(id, question, message, error)
        elif id in self._cancels:
            heard = self._cancels[id][1]
            if not heard.done():
                heard.set_exception(error)
        else:
            return False
        return True

    def _unanswered(self, id: str, question: _Question, message: Message | None, error: Exception) -> None:
        pause = error.retry_after if isinstance(error, CallFailed) and error.retryable else None
        if message is not None and self._identity.is_stale(message):
            pause = 0.0
        if pause is not None and question.tries < MOST_TRIES:
            question.tries += 1
            self._start(self._ask_later(id, question, pause))
        elif not question.answer.done():
            question.answer.set_exception(error)

    async def _ask_later(self, id: str, question: _Question, pause: float) -> None:
        await self._runtime.sleep(pause)
        if not question.answer.done():
            self._send(id, id, question.write)

    def hear(self, message: Message) -> bool:
        thread = message.correlation_id or ""
        question, call = self._questions.get(thread), self._threads.get(thread)
        if message.message_type is MessageType.EVENT:
            if message.intent == intents.TERMINATE:
                self.relations.forget(str((message.payload or {}).get("collaboration_id")))
                return True
            if call is None or message.intent != PROGRESS:
                return False
        if question is not None:
            self._answered(thread, question, message)
            return True
        if call is None:
            return False
        self.accepted(call.id)
        if message.message_type is MessageType.ERROR:
            self._failed(call, call.failed(message), message)
            return True
        try:
            opened = self._identity.opened(message)
        except Unopened as error:
            if message.message_type is MessageType.RESPONSE:
                self._failed(call, error)
            return True
        if message.message_type is MessageType.EVENT:
            call.progress(opened)
        else:
            self._threads.pop(thread, None)
            call.completed(opened)
        return True

    def _answered(self, id: str, question: _Question, message: Message) -> None:
        if message.message_type is MessageType.ERROR:
            error = failure(codec.error(message), by=message.source_agent.agent_id)
            self._unanswered(id, question, message, error)
        elif not question.answer.done():
            question.answer.set_result(message)
