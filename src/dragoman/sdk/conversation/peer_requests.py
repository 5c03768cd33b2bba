"""The requests of an agent to other agents (help, handoffs), and its direct messages.

    the hub delivers                   it is                                       acknowledged
    ---------------------------------  ------------------------------------------  --------------------------------
    HELP_RESPONSE                      the answer that a task waits for            when it is in the journal
    TASK_HANDOFF, a response           likewise                                    at once: the hub has decided
    ERROR_REPORT about one of those    its refusal                                 at once
    HELP_REQUEST, TASK_HANDOFF,        for the agent's own handlers                when it is in the journal; a
    anything else                      (`peer_handlers`)                           restart goes on with it

The messages are agentmsg's: no other protocol has agents that converse (`ProtocolCapabilities.converses`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.messages import tasks
from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.errors import new_report
from dragoman.protocols.agentmsg.records import (
    ErrorReport,
    ErrorType,
    Priority,
    Record,
    TaskConstraints,
    TaskContext,
    TaskEvent,
)
from dragoman.protocols.agentmsg.types import HUB
from dragoman.sdk.conversation.peer_handlers import ESCALATION, UNABLE, IncomingRequests, PeerHandlers
from dragoman.sdk.errors import NotSupported, RequestRefused
from dragoman.sdk.links import Introduction
from dragoman.sdk.messages import Correlation, IncomingMessage, OutgoingMessage, Proposal, ProposalAnswer
from dragoman.sdk.peers import Handoff, Help, Resource
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.journal import Answered, Journal
from dragoman.sdk.work.outbox import Outbox
from dragoman.sdk.work.outcome import encoded, error_text
from dragoman.sdk.work.running_task import RunningTask
from dragoman.sdk.work.task_runner import TaskRunner

log = logging.getLogger("dragoman.sdk")

SEND_AGAIN = 1.0
MOST_TRIES = 10
PASSING = (ErrorType.RATE_LIMIT, ErrorType.RESOURCE_EXHAUSTED)
"""Refusals for now: the same message is sent again shortly."""
OURS_TO_MEND = (ErrorType.VALIDATION_ERROR, ErrorType.AUTHENTICATION_ERROR)
"""Refusals of a request that could never have been accepted: they are raised."""

Deadline = datetime | timedelta | float | None


class Asked(Struct):
    """A message whose answer `task` waits for; without a task, its sender waits for the hub's receipt."""

    message: OutgoingMessage
    waiting: asyncio.Future[Any]
    task: RunningTask | None = None
    more: asyncio.Queue[Help] | None = None
    escalations: tuple[Help, ...] = ()
    tries: int = 1


class PeerRequests:
    """One agent's requests to others."""

    def __init__(
        self,
        who: Introduction,
        peer_handlers: PeerHandlers,
        runner: TaskRunner,
        outbox: Outbox,
        journal: Journal,
        runtime: Runtime,
    ) -> None:
        self._who = who
        self._runner = runner
        self._outbox = outbox
        self._journal = journal
        self._runtime = runtime
        self._asked: dict[str, Asked] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._incoming = IncomingRequests(who, peer_handlers, runner, outbox, journal, runtime, self.message)

    # --- what tasks ask ---

    async def help(
        self,
        task: RunningTask,
        question: str,
        help_type: str,
        to: str | None,
        urgency: str,
        deadline: Deadline,
        attempted: tuple[str, ...],
        error: BaseException | str | None,
    ) -> Help:
        self.require("ask another agent for help", "; task.ask asks a person over any protocol")
        recorded = self._runner.reporter.recorded(task, question)
        if recorded is not None:
            return msgspec.convert(recorded.answer, Help)
        request = agentmsg.HelpRequest(
            requester_id=self._who.agent_id,
            task_id=task.id,
            help_type=agentmsg.HelpType(help_type),
            description=question,
            context=agentmsg.HelpContext(
                current_state=f"{task.step or task.type}, {task.percent} % done",
                attempted_solutions=attempted,
                error_details=None if error is None else _text(error),
            ),
            urgency=urgency,  # type: ignore[arg-type]
            deadline=self._due(deadline),
        )
        message = self.message(request, to or HUB, task, priority="critical" if urgency == "critical" else None)
        asked = Asked(message, _future(), task, asyncio.Queue())
        async with task.turn:
            answered: Answered = await self._wait(task, asked)
        task.answers.append(answered)
        given = msgspec.convert(answered.answer, Help)
        return msgspec.structs.replace(given, _more=asked.more) if given.follow_up_required else given

    async def handoff(
        self,
        task: RunningTask,
        to: str | None,
        reason: str,
        context: dict[str, Any],
        capabilities: tuple[str, ...],
        deadline: datetime | timedelta | float,
        error: BaseException | str | None,
    ) -> Handoff:
        self.require("hand a task over", "")
        around, due = task.work.request.context or tasks.Context(), self._due(deadline)
        assert due is not None
        cause = None
        if error is not None:
            kind, id = ErrorType.INTERNAL_ERROR, self._runtime.mint()
            cause = new_report(kind, _text(error), error_id=id, agent_id=self._who.agent_id, task_id=task.id)
        request = agentmsg.TaskHandoffRequest(
            task_id=task.id,
            from_agent=self._who.agent_id,
            to_agent=to or agentmsg.ANYONE,
            reason=agentmsg.HandoffReason(reason),
            context=TaskContext(
                task_id=task.id,
                task_type=task.type,
                priority=Priority(task.work.priority),
                metadata={**around.metadata, **msgspec.to_builtins(context)},
                dependencies=tuple(around.dependencies),
                history=msgspec.convert(around.history, tuple[TaskEvent, ...]),
            ),
            constraints=_constraints(task.work.constraints, capabilities),
            deadline=due,
            error=cause,
        )
        async with task.turn:
            given: Handoff = await self._wait(task, Asked(self.message(request, to or HUB, task), _future(), task))
        if given.accepted:
            task.handed_to = given.agent_id or "another agent"
            for message in self._outbox.about(task_id=task.id):
                self._runner.reporter.accepted(message.id)
        return given

    async def _wait(self, task: RunningTask, asked: Asked) -> Any:
        """Wait for the answer. The time does not count for the handler, and no signs of life are sent meanwhile."""
        async with self._runner.reporter.away(task):
            task.waits += 1
            task.answer = asked.waiting
            self._enqueue(asked)
            self._runner.reporter.spoke(task)
            try:
                return await asked.waiting
            finally:
                task.waits -= 1
                task.answer = None
                self._outbox.settle(asked.message.id)
                if asked.more is None or asked.waiting.cancelled():
                    self._asked.pop(asked.message.id, None)

    # --- what the agent itself sends ---

    def require(self, what: str, instead: str) -> None:
        """Raises `NotSupported` if agents do not converse over this protocol."""
        name = self._outbox.protocol_capabilities.name
        if not self._outbox.protocol_capabilities.converses:
            raise NotSupported(
                f"an agent cannot {what} over {name}; it can over agentmsg (agentmsg+ws://…, agentmsg+http://…){instead}"
            )

    def message(self, payload: Record, to: str, task: RunningTask | None = None, **more: Any) -> OutgoingMessage:
        """A message to another agent or the hub. Raises if it has no JSON form: it would be tried over every link."""
        _check_readable(payload, more.get("beside"))
        trace_id = self._runtime.mint().replace("-", "")
        correlation = (
            Correlation(task_id="", request_id="", trace_id=trace_id, sender=HUB) if task is None else task.correlation
        )
        correlation = msgspec.structs.replace(correlation, trace_id=correlation.trace_id.replace("-", ""))
        id, at = self._runtime.mint(), self._runtime.now()
        return OutgoingMessage(id=id, at=at, correlation=correlation, to=to, payload=payload, **more)

    def send_once(self, message: OutgoingMessage) -> None:
        """Send it if there is a link; never again."""
        self._outbox.send_once(message)

    async def deliver(self, message: OutgoingMessage) -> None:
        """Returns when the hub has it; raises `RequestRefused` if the hub refuses it."""
        asked = Asked(message, _future())
        self._enqueue(asked)
        try:
            await asked.waiting
        finally:
            self._asked.pop(message.id, None)
            self._outbox.settle(message.id)

    def _enqueue(self, asked: Asked) -> None:
        self._asked[asked.message.id] = asked
        self._outbox.enqueue(asked.message)

    def accepted(self, id: str) -> None:
        """The hub has a message of the agent."""
        self._incoming.accepted(id)
        asked = self._asked.get(id)
        if asked is not None and asked.task is None and not asked.waiting.done():
            asked.waiting.set_result(None)

    # --- what others send ---

    def receive(self, incoming: IncomingMessage) -> None:
        message = incoming.message
        payload = message.payload
        asked = self._asked.get(message.answers or "")
        match payload:
            case agentmsg.HelpResponse():
                self._start(self._helped(incoming))
            case agentmsg.TaskHandoffResponse():
                self._outbox.acknowledge(incoming.receipt)
                self._decided(asked, payload)
            case ErrorReport() if asked is not None:
                self._outbox.acknowledge(incoming.receipt)
                self._refused(asked, payload)
            case ErrorReport() if self._incoming.refused(message.answers, payload.error_type in PASSING):
                self._outbox.acknowledge(incoming.receipt)
                if payload.error_type in PASSING:
                    self._start(self._answer_again(message.answers))
            case _:
                self._start(self._incoming.receive(incoming))

    async def _helped(self, incoming: IncomingMessage) -> None:
        response: agentmsg.HelpResponse = incoming.message.payload
        asked = self._asked.get(codec.lowered(response.request_id))
        if asked is None or asked.task is None or asked.more is None:
            log.info("help came from %s that no task waits for any more", response.responder_id)
            return self._outbox.acknowledge(incoming.receipt)
        given = _help(response)
        if given.response_type == ESCALATION:  # no answer yet: the hub asks the next helper, and in the end a person
            asked.escalations = (*asked.escalations, given)
            return self._outbox.acknowledge(incoming.receipt)
        given = msgspec.structs.replace(given, escalations=asked.escalations)
        if not given.follow_up_required:
            self._asked.pop(asked.message.id, None)
        if asked.waiting.done():
            asked.more.put_nowait(given)
            return self._outbox.acknowledge(incoming.receipt)
        answered = self._answered(asked, asked.task, given)
        await self._journal.answer(answered)
        self._outbox.acknowledge(incoming.receipt)
        if not asked.waiting.done():
            asked.waiting.set_result(answered)
        return None

    def _answered(self, asked: Asked, task: RunningTask, given: Help) -> Answered:
        return Answered(
            task_id=task.id,
            request_id=asked.message.id,
            at=self._runtime.now(),
            answer=msgspec.to_builtins(given),
            question=asked.message.payload.description,
        )

    def _decided(self, asked: Asked | None, response: agentmsg.TaskHandoffResponse) -> None:
        if asked is None or asked.waiting.done():
            log.info("%s answered a handoff that no task waits for any more", response.agent_id)
            return
        asked.waiting.set_result(
            Handoff(
                accepted=response.accepted,
                agent_id=response.agent_id,
                error=response.error,
                requirements=response.requirements or (),
                estimated_completion=response.estimated_completion,
            )
        )

    def _refused(self, asked: Asked, report: ErrorReport) -> None:
        if report.error_type in PASSING and asked.tries < MOST_TRIES:
            asked.tries += 1
            self._start(self._send_again(asked))
            return
        if asked.waiting.done():
            return
        payload = asked.message.payload
        if isinstance(payload, agentmsg.TaskHandoffRequest):
            asked.waiting.set_result(Handoff(accepted=False, error=report.message))
        elif isinstance(payload, agentmsg.HelpRequest) and report.error_type not in OURS_TO_MEND and asked.task:
            self._asked.pop(asked.message.id, None)
            given = Help(report.message, UNABLE, responder=HUB, escalations=asked.escalations)
            asked.waiting.set_result(self._answered(asked, asked.task, given))
        else:
            kind, facts = report.error_type.value, report.context.details
            asked.waiting.set_exception(RequestRefused(report.message, kind=kind, facts=facts))

    async def _send_again(self, asked: Asked) -> None:
        await self._runtime.sleep(SEND_AGAIN)
        if not asked.waiting.done():
            self._outbox.enqueue(asked.message)

    async def _answer_again(self, id: str) -> None:
        await self._runtime.sleep(SEND_AGAIN)
        self._incoming.answer_again(id)

    def resume(self) -> None:
        """Handle the messages that a former process did not finish handling."""
        for incoming, key in self._incoming.unhandled():
            self._start(self._incoming.handle(incoming, key))

    def consider(self, proposal: Proposal) -> None:
        self._start(self._consider(proposal))

    async def _consider(self, proposal: Proposal) -> None:
        no = await self._incoming.agree(proposal.request)
        trace_id, sender = self._runtime.mint().replace("-", ""), proposal.request.source
        answer = ProposalAnswer(
            id=self._runtime.mint(),
            at=self._runtime.now(),
            correlation=Correlation(task_id=proposal.id, request_id=proposal.id, trace_id=trace_id, sender=sender),
            proposal=proposal.id,
            accepted=no is None,
            reason="" if no is None else no.reason,
        )
        self._outbox.enqueue(answer)
        self._outbox.acknowledge(proposal.receipt)

    # --- its end ---

    @property
    def is_busy(self) -> bool:
        return bool(self._background)

    async def close(self) -> None:
        for asked in self._asked.values():
            asked.waiting.cancel()
        for started in self._background:
            started.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        started = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(started)
        started.add_done_callback(self._over)

    def _over(self, started: asyncio.Task[None]) -> None:
        self._background.discard(started)
        if not started.cancelled() and (error := started.exception()) is not None:
            log.error("a message of another agent could not be dealt with", exc_info=error)

    def _due(self, deadline: Deadline) -> datetime | None:
        if deadline is None or isinstance(deadline, datetime):
            return deadline
        return self._runtime.now() + (deadline if isinstance(deadline, timedelta) else timedelta(seconds=deadline))


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _check_readable(payload: Record, beside: Any) -> None:
    data = encoded("this", payload)
    encoded("this", beside)
    try:
        msgspec.json.decode(data, type=type(payload))
    except msgspec.ValidationError as error:
        raise ValueError(f"this cannot be sent: {error}") from None


def _text(error: BaseException | str) -> str:
    return error if isinstance(error, str) else error_text(error)


def _help(response: agentmsg.HelpResponse) -> Help:
    return Help(
        content=response.content,
        response_type=response.response_type.value,
        resources=msgspec.convert(msgspec.to_builtins(response.resources or ()), tuple[Resource, ...]),
        follow_up_required=response.follow_up_required,
        estimated_effort=response.estimated_effort,
        responder=response.responder_id,
    )


def _constraints(known: dict[str, Any], capabilities: tuple[str, ...]) -> TaskConstraints:
    """Those of the task, with other capabilities where they are asked for."""
    given = msgspec.convert({"required_capabilities": (), **known}, TaskConstraints)
    return msgspec.structs.replace(given, required_capabilities=capabilities) if capabilities else given
