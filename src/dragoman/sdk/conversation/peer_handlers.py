"""Runs the agent's own handlers for what other agents send: requests for help, handoffs, proposals, direct messages.

a help handler         answer                      a handoff handler     answer
---------------------  --------------------------  --------------------  ----------------------------------
returns text, Help     that                        True, Accept(…)       yes
yields several         each of them                False, Reject("why")  no
raises Unable, None    UNABLE_TO_HELP              raises                no, with the message
raises Escalate        ESCALATION                  returns None, or      yes if the agent does such work and
raises anything else   UNABLE_TO_HELP              there is none         has room, else no with the reason

Where a protocol has no help, the hub asks for it as a task of that topic (`help_as_work`):

{"content": the question, "help": {"help_type", "urgency", "context", "task", "escalations"?}}   a HelpRequest
text, Help(…)                               {"content", "resources"?}
Escalate, Help(response_type="ESCALATION")  the same, with "response_type": the hub asks the next agent
Unable                                      the task fails, and the hub asks the next agent
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dragoman.protocols.agentmsg import codec, mapping
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import ErrorReport, Record, ResourceReference
from dragoman.sdk import trace
from dragoman.sdk.errors import Misconfigured, Reject
from dragoman.sdk.links import Introduction
from dragoman.sdk.messages import IncomingMessage, OutgoingMessage
from dragoman.sdk.peers import (
    Accept,
    DirectMessage,
    Escalate,
    HandoffRequest,
    HandshakeRequest,
    Help,
    HelpRequest,
    Unable,
    as_help,
    escalations_in,
)
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.journal import Journal
from dragoman.sdk.work.outbox import Outbox
from dragoman.sdk.work.outcome import error_text
from dragoman.sdk.work.signature import Handler
from dragoman.sdk.work.task import Task
from dragoman.sdk.work.task_runner import TaskRunner

log = logging.getLogger("dragoman.sdk")

HELP_TYPES = tuple(kind.value for kind in agentmsg.HelpType)
UNABLE = agentmsg.HelpResponseType.UNABLE_TO_HELP.value
ESCALATION = agentmsg.HelpResponseType.ESCALATION.value

Function = Callable[..., Any]
"""A handler that a user wrote."""


class PeerHandlers(Struct):
    """The handlers that an agent declared: of help by its type, of direct messages by theirs (None: all others)."""

    help: dict[str, Function] = {}
    handoff: Function | None = None
    direct_messages: dict[str | None, Function] = {}
    handshake: Function | None = None


class PendingAnswer(NamedTuple):
    """An answer on its way to the hub. With the last one the message `key` is dealt with."""

    answer: OutgoingMessage
    key: str | None


class IncomingRequests:
    """Takes the messages for the agent itself, runs the handlers, and sends their answers. `write` makes a message."""

    def __init__(
        self,
        who: Introduction,
        peer_handlers: PeerHandlers,
        runner: TaskRunner,
        outbox: Outbox,
        journal: Journal,
        runtime: Runtime,
        write: Callable[..., OutgoingMessage],
    ) -> None:
        self._who = who
        self._peer_handlers = peer_handlers
        self._runner = runner
        self._outbox = outbox
        self._journal = journal
        self._runtime = runtime
        self._write = write
        self._answers: dict[str, PendingAnswer] = {}

    async def receive(self, incoming: IncomingMessage) -> None:
        """A message that is kept is acknowledged once it is in the journal."""
        if incoming.receipt is None:
            return await self.handle(incoming, None)
        key = f"{incoming.message.sender}/{incoming.message.id}"
        is_new = await self._journal.note(key, msgspec.json.encode(incoming.tree))
        self._outbox.acknowledge(incoming.receipt)
        if is_new:
            await self.handle(incoming, key)
        return None

    def unhandled(self) -> Iterator[tuple[IncomingMessage, str]]:
        """The messages that a former process received and did not finish handling."""
        for noted in self._journal.undealt():
            try:
                tree = codec.parse(bytes(noted.message))
                yield IncomingMessage(message=codec.interpret(tree), tree=tree), noted.key
            except AgentmsgError as error:  # an older version of this library took it
                log.warning("a message in the journal is no longer valid: %s", error)
                self._journal.deal(noted.key)

    async def handle(self, incoming: IncomingMessage, key: str | None) -> None:
        span = trace.parse(incoming.message.metadata.traceparent)
        fresh = self._runtime.mint()
        trace.enter(trace.Span(span.trace_id if span else fresh.replace("-", ""), trace.span_id(fresh)))
        match incoming.message.payload:
            case agentmsg.HelpRequest():
                await self._help(incoming, key)
            case agentmsg.TaskHandoffRequest():
                await self._decide(incoming, key)
            case _:
                await self._direct_message(incoming)
                if key is not None:
                    self._journal.deal(key)

    # --- answers ---

    def _answer(self, incoming: IncomingMessage, payload: Record, key: str | None) -> None:
        answer = self._write(payload, incoming.message.sender, correlation_id=incoming.message.id)
        self._answers[answer.id] = PendingAnswer(answer, key)
        self._outbox.enqueue(answer)

    def accepted(self, id: str) -> None:
        """The hub has an answer of the agent."""
        pending = self._answers.pop(id, None)
        if pending is not None and pending.key is not None:
            self._journal.deal(pending.key)

    def refused(self, id: str | None, is_passing: bool) -> bool:
        """The hub refuses a message; gives whether it was an answer of the agent. If it is refused for good, no agent
        waits for it any more."""
        if id is None or id not in self._answers:
            return False
        if not is_passing:
            self._outbox.settle(id)
            self.accepted(id)
        return True

    def answer_again(self, id: str) -> None:
        if (pending := self._answers.get(id)) is not None:
            self._outbox.enqueue(pending.answer)

    # --- help ---

    async def _help(self, incoming: IncomingMessage, key: str | None) -> None:
        id, requester = incoming.message.id, incoming.message.payload.requester_id
        async for given in self._given(incoming):
            try:
                self._answer(incoming, self._response(given, id), None if given.follow_up_required else key)
            except (TypeError, ValueError) as error:  # no JSON; the agent that asked must not wait for it
                log.warning("the help for %s cannot be sent: %s", requester, error)
                self._answer(incoming, self._response(Help(error_text(error), UNABLE), id), key)
                return
            if not given.follow_up_required:
                return

    def _response(self, given: Help, request_id: str) -> agentmsg.HelpResponse:
        resources = msgspec.convert(msgspec.to_builtins(given.resources), tuple[ResourceReference, ...])
        return agentmsg.HelpResponse(
            responder_id=self._who.agent_id,
            request_id=request_id,
            response_type=agentmsg.HelpResponseType(given.response_type),
            content=given.content,
            follow_up_required=given.follow_up_required,
            estimated_effort=given.estimated_effort,
            resources=resources or None,
        )

    async def _given(self, incoming: IncomingMessage) -> AsyncIterator[Help]:
        """The answers of the handler, up to the first without a follow-up."""
        payload: agentmsg.HelpRequest = incoming.message.payload
        handler = self._peer_handlers.help.get(payload.help_type.value)
        if handler is None:
            yield Help(f"{self._who.agent_id} does not help with {payload.help_type.value}", UNABLE)
            return
        request = HelpRequest(
            id=incoming.message.id,
            requester=payload.requester_id,
            task_id=payload.task_id,
            help_type=payload.help_type.value,
            description=payload.description,
            context=msgspec.to_builtins(payload.context),
            urgency=payload.urgency,
            deadline=payload.deadline,
            escalations=escalations_in(incoming.tree["payload"].get("escalations")),
        )
        try:
            async for given in _each(handler, request, self._run):
                yield Help("unable to help", UNABLE) if given is None else _as_help(given)
            if inspect.isasyncgenfunction(handler):
                yield Help("that was all", "DIRECT_ANSWER")  # read only if the last one promised more
        except Unable as unable:
            yield Help(str(unable) or "unable to help", UNABLE)
        except Escalate as escalate:
            yield as_help(escalate)
        except (Exception, SystemExit) as error:
            log.warning("helping %s failed", payload.requester_id, exc_info=error)
            yield Help(error_text(error), UNABLE)

    # --- handoffs ---

    async def _decide(self, incoming: IncomingMessage, key: str | None) -> None:
        request: agentmsg.TaskHandoffRequest = incoming.message.payload
        verdict = await self._verdict(incoming)
        try:
            self._answer(incoming, self._decision(verdict, request), key)
        except (TypeError, ValueError) as error:  # no JSON
            log.warning("the answer about task %s cannot be sent: %s", request.task_id, error)
            self._answer(incoming, self._decision(Reject(error_text(error)), request), key)

    def _decision(self, verdict: Accept | Reject, request: agentmsg.TaskHandoffRequest) -> agentmsg.TaskHandoffResponse:
        if isinstance(verdict, Reject):
            return agentmsg.TaskHandoffResponse(accepted=False, agent_id=self._who.agent_id, error=verdict.reason)
        soon = timedelta(milliseconds=max(1000.0, self._runner.stats.average_ms))
        return agentmsg.TaskHandoffResponse(
            accepted=True,
            agent_id=self._who.agent_id,
            estimated_completion=verdict.estimated_completion or self._runtime.now() + soon,
            requirements=verdict.requirements,
            constraints=request.constraints,
        )

    async def _verdict(self, incoming: IncomingMessage) -> Accept | Reject:
        payload: agentmsg.TaskHandoffRequest = incoming.message.payload
        known, us = mapping.handoff_in(payload, incoming.tree["payload"]), self._who
        given: Any = None
        if self._peer_handlers.handoff is not None:
            request = HandoffRequest(
                id=incoming.message.id,
                task_id=payload.task_id,
                task_type=payload.context.task_type,
                from_agent=payload.from_agent,
                reason=payload.reason.value,
                context=known.metadata or {},
                history=tuple(known.history or ()),
                constraints=known.constraints or {},
                deadline=payload.due,
            )
            try:
                given = await self._run(self._peer_handlers.handoff, request)
            except Reject as no:
                return no
            except Exception as error:
                log.warning("whether to take task %s over could not be decided", payload.task_id, exc_info=error)
                return Reject(error_text(error))
        if isinstance(given, Accept | Reject):
            return given
        if given is not None:
            return Accept() if given else Reject(f"{us.agent_id} does not want it")
        if payload.context.task_type not in us.work_types:
            return Reject(f"{us.agent_id} does not do {payload.context.task_type}")
        if len(self._runner.tasks) >= us.concurrency:
            return Reject(f"{us.agent_id} is busy with {len(self._runner.tasks)} tasks")
        return Accept()

    # --- proposals ---

    async def agree(self, request: HandshakeRequest) -> Reject | None:
        """Why the agent does not agree; without a handler it does."""
        if self._peer_handlers.handshake is None:
            return None
        try:
            given = await self._run(self._peer_handlers.handshake, request)
        except Reject as no:
            return no
        except Exception as error:
            log.warning("whether to agree with %s could not be decided", request.source, exc_info=error)
            return Reject(type(error).__name__)
        if isinstance(given, Reject):
            return given
        return Reject(f"{self._who.agent_id} does not want it") if given is False else None

    # --- direct messages ---

    async def _direct_message(self, incoming: IncomingMessage) -> None:
        message, handlers = incoming.message, self._peer_handlers.direct_messages
        kind = message.type.value
        handler = handlers.get(kind) or handlers.get(None)
        if handler is None:
            if isinstance(message.payload, ErrorReport):
                log.warning("%s reports: %s", message.sender, message.payload.message)
            else:
                log.info("%s sent %s, and no function of this agent takes it", message.sender, kind)
            return
        received = DirectMessage(
            id=message.id,
            at=message.timestamp,
            sender=message.sender,
            type=kind,
            payload=incoming.tree["payload"],
            correlation_id=message.answers,
        )
        try:
            await self._run(handler, received)
        except Exception as error:
            log.warning("%s of %s could not be dealt with", kind, message.sender, exc_info=error)

    async def _run(self, handler: Function, value: Any) -> Any:
        """What the handler returns. Whatever it raises is an `Exception`: it ends the handler, not the agent."""
        try:
            if inspect.iscoroutinefunction(handler):
                return await handler(value)
            given = await self._runner.in_thread(lambda: handler(value))
            return await given if inspect.isawaitable(given) else given
        except (SystemExit, asyncio.CancelledError) as error:
            us = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and us is not None and us.cancelling():
                raise
            raise RuntimeError(error_text(error)) from error


async def _each(
    handler: Function, request: HelpRequest, run: Callable[[Function, Any], Awaitable[Any]]
) -> AsyncIterator[Any]:
    """What a help handler returns, or yields."""
    if inspect.isasyncgenfunction(handler):
        async for given in handler(request):
            yield given
    else:
        yield await run(handler, request)


def _as_help(given: Any) -> Help:
    if isinstance(given, str | Help):
        return given if isinstance(given, Help) else Help(given)
    raise Misconfigured(f"a help handler returns text or a Help, not {type(given).__name__}")


# --- help as work ---


def help_as_work(helpers: Mapping[str, Function], known: Iterable[str]) -> dict[str, Handler]:
    """The handlers of help as handlers of work, by their topics; work of the same name keeps its handler."""
    return {
        topic: Handler(topic, _worker(help_type, function), timeout=None)
        for help_type, function in helpers.items()
        if (topic := help_type.lower()) not in known
    }


def _worker(help_type: str, function: Function) -> Function:
    async def give(task: Task, content: str = "", help: dict[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
        fields = help or {}
        request = HelpRequest(
            id=task.id,
            requester=task._running.correlation.sender,
            task_id=str(fields.get("task") or task.id),
            help_type=help_type,
            description=content,
            context=fields.get("context") or {"current_state": "", "attempted_solutions": []},
            urgency=str(fields.get("urgency") or "medium"),
            escalations=escalations_in(fields.get("escalations")),
        )
        try:
            return _joined([given async for given in _each(function, request, _run_in_thread)])
        except Escalate as escalate:
            return _joined([as_help(escalate)])
        except Unable as no:
            raise task.reject(str(no) or "unable to help") from None

    give.__doc__ = inspect.getdoc(function) or f"Help: {help_type.lower().replace('_', ' ')}."
    return give


async def _run_in_thread(function: Function, request: HelpRequest) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(request)
    given = await asyncio.to_thread(function, request)
    return await given if inspect.isawaitable(given) else given


def _joined(given: list[Any]) -> dict[str, Any]:
    if None in given:
        raise Unable("unable to help")
    helps = [_as_help(one) for one in given]
    if (unable := next((one for one in helps if not one.helped), None)) is not None:
        raise Unable(unable.content)
    result: dict[str, Any] = {"content": "\n\n".join(one.content for one in helps)}
    if resources := [resource for one in helps for resource in one.resources]:
        result["resources"] = resources
    if helps and helps[-1].response_type == ESCALATION:
        result["response_type"] = ESCALATION
    return result
