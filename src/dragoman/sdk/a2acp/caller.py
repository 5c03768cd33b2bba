"""Calling in a2acp: ask the broker which agent can, shake hands, and call under the contract.

    call ── discover ── shake hands ── request ─────────────────────── response
            (first use of a target and intent)   refused or lost: sent again, see below

A request is sent again under the same id until the broker has it; from then on the hub owes the answer and delivers it
over whatever link the agent has. An error that says when to try again is obeyed, a few times, under a new id.

The link is a serving agent's, or a client's (`entry`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.protocols.a2acp import codec, intents, mapping
from dragoman.protocols.a2acp.contracts import Contract, Mode
from dragoman.protocols.a2acp.errors import KINDS
from dragoman.protocols.a2acp.intents import Offering
from dragoman.protocols.a2acp.types import BROKER_ID, PROTOCOL, Message, MessageType
from dragoman.sdk import trace
from dragoman.sdk.a2acp.channel import Channel, Write
from dragoman.sdk.a2acp.identity import BROKER, Identity
from dragoman.sdk.a2acp.keyring import Unopened
from dragoman.sdk.a2acp.relations import Relations, Terms
from dragoman.sdk.calling.calls import CallTracker, PendingCall
from dragoman.sdk.errors import DragomanError, Misconfigured
from dragoman.sdk.events import value_of
from dragoman.sdk.failures import (
    CallFailed,
    RateLimitExceeded,
    SchemaMismatch,
    SecurityPolicyViolation,
    TimedOut,
    failed,
    failure,
)
from dragoman.wire.errors import LocalProtocolError

OPTIONS = frozenset({"mode", "encrypt", "retries"})
RETRIES = 2
PATIENCE = 15.0
"""Seconds for an answer of the broker itself: three times what a handshake may take."""
MOST_TRIES = 3
CANCELLED = "cancelled"
OVER = ("expired", "superseded")
"""Standings of a contract that was in force when the caller looked."""
OF_AGENTS = (RateLimitExceeded, TimedOut)
"""Errors of agents after which a call is tried again. An agent's INTERNAL_ERROR is its work, which failed."""


class Call(PendingCall):
    """One call, and its events. Tried again it is the same call for its caller, and another request for the broker:
    `thread` is the correlation id of the last one."""

    def __init__(self, task_id: str, terms: Terms, given: Mapping[str, Any], traceparent: str | None, retries: int):
        super().__init__(task_id, "")
        self.thread = task_id
        self.terms = terms
        self.given = dict(given)
        self.traceparent = traceparent
        self.retries = retries
        self.write: Write | None = None
        self.contract: Contract | None = None
        self.is_cancelled = False
        self.has_new_contract = False

    def completed(self, message: Message) -> None:
        schema = True if self.contract is None else self.contract.output_schema
        value = mapping.value_in(message.payload or {}, schema, message.value_in)
        data = {"result": value}
        if isinstance(message.usage, dict):
            data["usage"] = message.usage
        self._tell("completed", message, data)
        self.finish(value_of(value, self.streamed))

    def progress(self, message: Message) -> None:
        payload = message.payload or {}
        report = mapping.progress_in(payload)
        data: dict[str, Any] = {"status": "running"} | msgspec.to_builtins(mapping.progress_out(report))
        if report.message:
            data.setdefault("step", {"name": report.message})
        if payload.get("file"):
            data["file"] = payload["file"]
        self._tell("progress", message, data)

    def pause(self, error: CallFailed) -> float | None:
        """After how many seconds to try again, or None if that is no use."""
        if self.is_cancelled or self.done.done():
            return None
        is_sealed = self.contract is not None and self.contract.security.encryption == "aes256"
        is_over = error.details.get("standing") in OVER or error.details.get("field") == "payload.kid"
        # An agent that cannot open a payload has lost its keys; an error about sealed work has no more than its code.
        is_shut = isinstance(error, SecurityPolicyViolation) and error.by not in (None, BROKER_ID)
        if (is_over or (is_shut and is_sealed)) and not self.has_new_contract:
            self.has_new_contract = True
            return 0.0
        kind = error.details.get("kind")
        may_pass = isinstance(error, OF_AGENTS) if kind is None else kind not in (CANCELLED, "work_failed")
        if not (error.retryable and may_pass and self.retries > 0):
            return None
        self.retries -= 1
        return error.retry_after

    def fail(self, error: Exception, message: Message | None = None) -> None:
        if isinstance(error, CallFailed):
            fault = error.details.get("fault")
            text = str((fault if isinstance(fault, dict) else {}).get("message") or error.message)
            status = CANCELLED if error.details.get("kind") == CANCELLED or self.is_cancelled else "failed"
            facts = {"code": error.code, "message": text, **error.details}
            self._tell(status, message, {"fault": facts})
            ended = failed(
                text,
                task_id=self.task_id,
                status=status,
                kind=kind_of(error),
                code=error.code,
                exit_code=error.details.get("exit_code"),
                facts=error.details,
            )
            if isinstance(ended, CallFailed):
                ended.retry_after, ended.by = error.retry_after, error.by
            error = ended
        super().fail(error)

    def _tell(self, kind: str, message: Message | None, data: dict[str, Any]) -> None:
        at = None if message is None else message.timestamp.isoformat()
        agent = None if message is None else message.source_agent.agent_id
        self.tell(kind, data, at=at, agent=agent)


def kind_of(error: CallFailed) -> str:
    """The hub's fault for an error code. An agent that answers INTERNAL_ERROR or TIMEOUT reports that its work failed;
    input that does not fit is invalid, also where a contract says so."""
    kind = error.details.get("kind")
    if kind is None:
        return KINDS[error.CODE][1].value
    is_misfit = kind == "contract" and error.details.get("schema") == "input"
    return SchemaMismatch.KIND if is_misfit else str(kind)


class _Question:
    """A message to the broker that waits: for its answer, or, without `needs_answer`, for its receipt."""

    def __init__(self, write: Write, lane: str, *, needs_answer: bool = True) -> None:
        self.write = write
        self.lane = lane
        self.needs_answer = needs_answer
        self.tries = 1 if needs_answer else MOST_TRIES
        self.answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()

    def settle(self, answer: Message | None = None, error: Exception | None = None) -> None:
        if self.answer.done():
            return
        if error is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(answer)


class A2acpCaller(CallTracker[Call]):
    """`identity.Caller`, and `sdk.client.Backend`."""

    protocol = PROTOCOL

    def __init__(self, identity: Identity, give_up_after: float | None = None) -> None:
        super().__init__(identity.runtime, give_up_after)
        self._identity = identity
        self._channel: Channel | None = None
        self._questions: dict[str, _Question] = {}
        self._threads: dict[str, Call] = {}
        self.relations = Relations(identity, self._ask)

    async def open(self) -> None:
        """The link opens and closes elsewhere; see `end`."""

    async def close(self) -> None: ...

    # --- for callers ---

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
        question = self._questions[id] = _Question(write, call.task_id, needs_answer=False)
        self._send(id, question)
        try:
            await question.answer
        finally:
            self._questions.pop(id, None)

    async def discover(self, **wanted: str | None) -> list[Offering]:
        return await self.relations.discover(**wanted)

    async def contract(self, intent: str, agent: str | None, mode: Mode, encrypt: bool, **schemas: Any) -> Contract:
        return await self.relations.contract(Terms(agent, intent, mode, encrypt), **schemas)

    async def terminate(self, collaboration_id: str, reason: str) -> None:
        await self.relations.terminate(collaboration_id, reason)

    async def rotate(self, collaboration_id: str) -> None:
        await self.relations.rotate(collaboration_id)

    async def _ask(self, intent: str, body: intents.Body, capabilities: tuple[str, ...]) -> Message:
        """The broker's response."""
        await self._identity.find_domain()
        id = self._runtime.mint()
        write = self._identity.ask_broker(intent, body, correlation_id=id, capabilities=capabilities)
        question = self._questions[id] = _Question(write, id)
        self._send(id, question)
        patience = asyncio.get_running_loop().create_task(self._runtime.sleep(PATIENCE))
        try:
            waiting: set[asyncio.Future[Any]] = {question.answer, patience}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not question.answer.done():
                raise TimedOut(f"the broker did not answer {intent} within {PATIENCE:g} seconds", by=BROKER.agent_id)
            answer = question.answer.result()
            assert answer is not None
            return answer
        finally:
            patience.cancel()
            self._questions.pop(id, None)

    # --- calls ---

    async def _try(self, call: Call) -> None:
        """Send it under terms that hold now."""
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
        for question in self._questions.values():
            question.settle(error=error)

    # --- the link, which comes and goes ---

    def attach(self, channel: Channel) -> None:
        """Every message that the broker did not take goes out again."""
        self._channel = channel
        for call in self._untaken.values():
            self._say(call)
        for id, question in self._questions.items():
            self._send(id, question)

    def detach(self) -> None:
        self._channel = None

    def _say(self, call: Call) -> None:
        if call.write is not None and self._channel is not None:
            self._channel.send(call.id, call.task_id, call.write)

    def _send(self, id: str, question: _Question) -> None:
        if self._channel is not None:
            self._channel.send(id, question.lane, question.write)

    def accepted(self, id: str) -> bool:
        call = self._untaken.pop(id, None)
        if call is not None:
            call.take()
            return True
        question = self._questions.get(id)
        if question is not None and not question.needs_answer:
            question.settle()
        return question is not None

    def refused(self, id: str, message: Message | None, error: Exception | None) -> bool:
        call, question = self._untaken.get(id), self._questions.get(id)
        if message is not None:
            if self._identity.is_repetition(message):
                return self.accepted(id)
            error = _failure(message, "" if call is None else call.task_id)
        assert error is not None
        if isinstance(error, LocalProtocolError | Unopened):
            error = Misconfigured(f"the message cannot be encoded: {error}")
        if call is not None:
            if message is not None and self._identity.is_stale(message) and call.retries > 0:
                call.retries -= 1
                self._say(call)
            else:
                self._failed(call, error, message)
        elif question is not None:
            self._unanswered(id, question, message, error)
        return call is not None or question is not None

    def _unanswered(self, id: str, question: _Question, message: Message | None, error: Exception) -> None:
        pause = error.retry_after if isinstance(error, CallFailed) and error.retryable else None
        if message is not None and self._identity.is_stale(message):
            pause = 0.0
        if pause is not None and question.tries < MOST_TRIES:
            question.tries += 1
            self._start(self._ask_later(id, question, pause))
        else:
            question.settle(error=error)

    async def _ask_later(self, id: str, question: _Question, pause: float) -> None:
        await self._runtime.sleep(pause)
        if not question.answer.done():
            self._send(id, question)

    def receive(self, message: Message) -> bool:
        thread = message.correlation_id or ""
        question, call = self._questions.get(thread), self._threads.get(thread)
        kind = message.message_type
        if kind is MessageType.EVENT:
            if message.intent == intents.TERMINATE:
                self.relations.forget(str((message.payload or {}).get("collaboration_id")))
                return True
            if call is None or message.intent != mapping.PROGRESS:
                return False
        if question is not None:
            if kind is MessageType.ERROR:
                self._unanswered(thread, question, message, _failure(message))
            else:
                question.settle(message)
            return True
        if call is None:
            return False
        self.accepted(call.id)
        if kind is MessageType.ERROR:
            self._failed(call, _failure(message, call.task_id), message)
            return True
        try:
            opened = self._identity.opened(message)
        except Unopened as error:
            if kind is MessageType.RESPONSE:
                self._failed(call, error)
            return True
        if kind is MessageType.EVENT:
            call.progress(opened)
        else:
            self._threads.pop(thread, None)
            call.completed(opened)
        return True


def _failure(message: Message, task_id: str = "") -> CallFailed:
    """The exception of an error message."""
    return failure(codec.error(message), task_id=task_id, by=message.source_agent.agent_id)
