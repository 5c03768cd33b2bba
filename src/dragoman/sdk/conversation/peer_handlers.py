"""The agent's own handlers for what other agents say: help, handoffs, letters; and what their ends mean.

a help handler         answers                     a handoff handler     answers
---------------------  --------------------------  --------------------  ----------------------------------
returns text, Help     that                        True, Accept(…)       yes
yields several         each of them                False, Reject("why")  no
raises Unable, None    UNABLE_TO_HELP              raises                no, with the words
raises Escalate        ESCALATION                  returns None, or      yes if the agent does such work and
raises anything else   UNABLE_TO_HELP              there is none         has room, else no with the reason
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from dragoman.protocols.agentmsg import codec, errors
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorReport, ErrorType, Record
from dragoman.protocols.agentmsg.records import ResourceReference as Reference
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
from dragoman.sdk.work.task_runner import TaskRunner

log = logging.getLogger("dragoman.sdk")

HELP_TYPES = tuple(kind.value for kind in agentmsg.HelpType)


class PeerHandlers(Struct):
    """What an agent declared: who helps with what, who decides on handoffs and handshakes, who hears which letters."""

    help: dict[str, Callable[..., Any]] = {}
    handoff: Callable[..., Any] | None = None
    letters: dict[str | None, Callable[..., Any]] = {}
    handshake: Callable[..., Any] | None = None


class Answered(NamedTuple):
    """An answer on its way to the hub. With the last one the letter it answers is dealt with."""

    answer: OutgoingMessage
    key: str | None


class IncomingRequests:
    """Takes what is for the agent itself, runs the handlers, and says their answers. `write` makes a letter."""

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
        self._answers: dict[str, Answered] = {}

    async def receive(self, mail: IncomingMessage) -> None:
        """What is kept is acknowledged once it is in the journal."""
        if mail.receipt is None:  # told once
            return await self.deal(mail, None)
        key = f"{mail.message.sender}/{mail.message.id}"
        is_new = await self._journal.note(key, msgspec.json.encode(mail.tree))
        self._outbox.acknowledge(mail.receipt)
        if is_new:
            await self.deal(mail, key)
        return None

    def undealt(self) -> Iterator[tuple[IncomingMessage, str]]:
        """What a former process took and did not deal with."""
        for noted in self._journal.undealt():
            try:
                tree = codec.parse(bytes(noted.letter))
                yield IncomingMessage(message=codec.interpret(tree), tree=tree), noted.key
            except AgentmsgError as error:  # an older version of us understood it
                log.warning("a letter that was kept makes no sense any more: %s", error)
                self._journal.deal(noted.key)

    async def deal(self, mail: IncomingMessage, key: str | None) -> None:
        said = trace.parse(mail.message.metadata.traceparent)
        fresh = self._runtime.mint()
        trace.enter(trace.Span(said.trace_id if said else fresh.replace("-", ""), trace.span_id(fresh)))
        match mail.message.payload:
            case agentmsg.HelpRequest():
                await self._help(mail, key)
            case agentmsg.TaskHandoffRequest():
                await self._decide(mail, key)
            case _:
                await self._listen(mail)
                if key is not None:
                    self._journal.deal(key)

    # --- answers ---

    def _answer(self, mail: IncomingMessage, payload: Record, key: str | None) -> None:
        letter = self._write(payload, mail.message.sender, correlation_id=mail.message.id)
        self._answers[letter.id] = Answered(letter, key)
        self._outbox.enqueue(letter)

    def accepted(self, id: str) -> None:
        """The hub has an answer of ours."""
        answered = self._answers.pop(id, None)
        if answered is not None and answered.key is not None:
            self._journal.deal(answered.key)

    def refused(self, id: str | None, is_passing: bool) -> bool:
        """The hub will not have an answer of ours, if it is one. For good: then no agent waits for it any more."""
        if id is None or id not in self._answers:
            return False
        if not is_passing:
            self._outbox.settle(id)
            self.accepted(id)
        return True

    def answer_again(self, id: str) -> None:
        if (answered := self._answers.get(id)) is not None:
            self._outbox.enqueue(answered.answer)

    # --- help ---

    async def _help(self, mail: IncomingMessage, key: str | None) -> None:
        message, payload = mail.message, mail.message.payload
        async for given in self._given(payload, message.id, mail.tree["payload"]):
            try:
                self._answer(mail, self._response(given, message.id), None if given.follow_up_required else key)
            except (TypeError, ValueError) as error:  # unreadable; the agent that asked must not wait for it
                log.warning("the help for %s cannot be told: %s", payload.requester_id, error)
                unable = Help(error_text(error), "UNABLE_TO_HELP")
                self._answer(mail, self._response(unable, message.id), key)
                return
            if not given.follow_up_required:
                return

    def _response(self, given: Help, request_id: str) -> agentmsg.HelpResponse:
        return agentmsg.HelpResponse(
            responder_id=self._who.agent_id,
            request_id=request_id,
            response_type=agentmsg.HelpResponseType(given.response_type),
            content=given.content,
            follow_up_required=given.follow_up_required,
            estimated_effort=given.estimated_effort,
            resources=tuple(msgspec.convert(msgspec.to_builtins(one), Reference) for one in given.resources) or None,
        )

    async def _given(self, payload: agentmsg.HelpRequest, id: str, said: dict[str, Any]) -> AsyncIterator[Help]:
        """What the handler gives, up to the first that is the last. `said` is the payload with all its fields."""
        handler = self._peer_handlers.help.get(payload.help_type.value)
        if handler is None:
            yield Help(f"{self._who.agent_id} does not help with {payload.help_type.value}", "UNABLE_TO_HELP")
            return
        request = HelpRequest(
            id=id,
            requester=payload.requester_id,
            task_id=payload.task_id,
            help_type=payload.help_type.value,
            description=payload.description,
            context=msgspec.to_builtins(payload.context),
            urgency=payload.urgency,
            deadline=payload.deadline,
            escalations=escalations_in(said.get("escalations")),
        )
        try:
            if inspect.isasyncgenfunction(handler):
                async for given in handler(request):
                    yield _as_help(given)
                yield Help("that was all", "DIRECT_ANSWER")  # heard only if the last one promised more
            else:
                yield _as_help(await self._run(handler, request))
        except Unable as unable:
            yield Help(str(unable) or "unable to help", "UNABLE_TO_HELP")
        except Escalate as escalate:
            yield as_help(escalate)
        except (Exception, SystemExit) as error:
            log.warning("helping %s failed", payload.requester_id, exc_info=error)
            yield Help(error_text(error), "UNABLE_TO_HELP")

    # --- handoffs ---

    async def _decide(self, mail: IncomingMessage, key: str | None) -> None:
        message, payload = mail.message, mail.message.payload
        verdict = await self._verdict(message.id, payload, mail.tree["payload"])
        try:
            self._answer(mail, self._decision(verdict, payload), key)
        except (TypeError, ValueError) as error:  # unreadable
            log.warning("the answer about task %s cannot be told: %s", payload.task_id, error)
            self._answer(mail, self._decision(Reject(error_text(error)), payload), key)

    def _decision(self, verdict: Accept | Reject, payload: agentmsg.TaskHandoffRequest) -> agentmsg.TaskHandoffResponse:
        if isinstance(verdict, Reject):
            return agentmsg.TaskHandoffResponse(accepted=False, agent_id=self._who.agent_id, error=verdict.reason)
        soon = timedelta(milliseconds=max(1000.0, self._runner.stats.average_ms))
        return agentmsg.TaskHandoffResponse(
            accepted=True,
            agent_id=self._who.agent_id,
            estimated_completion=verdict.estimated_completion or self._runtime.now() + soon,
            requirements=verdict.requirements,
            constraints=payload.constraints,
        )

    async def _verdict(self, id: str, payload: agentmsg.TaskHandoffRequest, tree: dict[str, Any]) -> Accept | Reject:
        context = tree["context"]
        request = HandoffRequest(
            id=id,
            task_id=payload.task_id,
            task_type=payload.context.task_type,
            from_agent=payload.from_agent,
            reason=payload.reason.value,
            context=context["metadata"],
            history=tuple(context["history"]),
            constraints=tree["constraints"],
            deadline=payload.due,
        )
        given: Any = None
        if self._peer_handlers.handoff is not None:
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
            return Accept() if given else Reject(f"{self._who.agent_id} does not want it")
        if payload.context.task_type not in self._who.work_types:
            return Reject(f"{self._who.agent_id} does not do {payload.context.task_type}")
        if len(self._runner.tasks) >= self._who.concurrency:
            return Reject(f"{self._who.agent_id} is busy with {len(self._runner.tasks)} tasks")
        return Accept()

    # --- handshakes ---

    async def agree(self, request: HandshakeRequest) -> Reject | None:
        """Why we do not agree; without a handler we do."""
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

    # --- letters ---

    async def _listen(self, mail: IncomingMessage) -> None:
        message = mail.message
        kind = message.type.value
        handler = self._peer_handlers.letters.get(kind) or self._peer_handlers.letters.get(None)
        if handler is None:
            if isinstance(message.payload, ErrorReport):
                log.warning("%s reports: %s", message.sender, message.payload.message)
            else:
                log.info("%s sent %s, and no function of this agent takes it", message.sender, kind)
            return
        letter = DirectMessage(
            id=message.id,
            at=message.timestamp,
            sender=message.sender,
            type=kind,
            payload=mail.tree["payload"],
            correlation_id=message.answers,
        )
        try:
            await self._run(handler, letter)
        except Exception as error:
            log.warning("%s of %s could not be dealt with", kind, message.sender, exc_info=error)

    async def _run(self, handler: Callable[..., Any], value: Any) -> Any:
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


def _as_help(given: Any) -> Help:
    if isinstance(given, Help):
        return given
    if given is None:
        return Help("unable to help", "UNABLE_TO_HELP")
    if isinstance(given, str):
        return Help(given)
    raise Misconfigured(f"a help handler returns text or a Help, not {type(given).__name__}")


def report(
    kind: ErrorType, message: str, *, id: str, agent: str, task_id: str | None = None, details: dict[str, Any]
) -> ErrorReport:
    """A whole report: what the table says of its kind, and the facts."""
    rule = errors.TABLE[kind]
    return ErrorReport(
        error_id=id,
        agent_id=agent,
        error_type=kind,
        severity=rule.severity,
        message=message,
        context=ErrorContext(details=details),
        recovery_attempts=(),
        suggested_actions=(rule.action,),
        task_id=task_id,
    )
