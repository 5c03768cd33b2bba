"""What an agent and other agents ask of each other: help, and to take a task over. Both sides, and letters besides.

    what comes                         is                                          acknowledged
    ---------------------------------  ------------------------------------------  --------------------------------
    HELP_RESPONSE                      the answer to a task that waits with it     when the answer is in the journal
    TASK_HANDOFF, a response           likewise                                    at once: the hub has decided
    ERROR_REPORT about one of those    its refusal                                 at once
    HELP_REQUEST, TASK_HANDOFF,        put before the agent's own handler          when it is in the journal; a
    anything else                                                                  restart goes on with it

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
from dragoman.protocols.agentmsg.records import (
    ErrorReport,
    ErrorType,
    Priority,
    Record,
    TaskConstraints,
    TaskContext,
    TaskEvent,
)
from dragoman.sdk.conversation.peer_handlers import IncomingRequests, PeerHandlers, report
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

HUB = agentmsg.HUB
SAY_AGAIN = 1.0
MOST_TRIES = 10
PASSING = (ErrorType.RATE_LIMIT, ErrorType.RESOURCE_EXHAUSTED)
"""Refusals that are no answer: the same is said again shortly."""
OURS_TO_MEND = (ErrorType.VALIDATION_ERROR, ErrorType.AUTHENTICATION_ERROR)
"""Refusals of a request that could never have been taken: they are raised."""

ESCALATION = agentmsg.HelpResponseType.ESCALATION.value

Deadline = datetime | timedelta | float | None


class Asked(Struct):
    """A message whose answer `task` waits for; without a task, its sender waits for the hub's receipt."""

    letter: OutgoingMessage
    waiting: asyncio.Future[Any]
    task: RunningTask | None = None
    more: asyncio.Queue[Help] | None = None
    escalations: tuple[Help, ...] = ()
    tries: int = 1


class PeerRequests:
    """One agent's dealings with others."""

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
        self._incoming = IncomingRequests(who, peer_handlers, runner, outbox, journal, runtime, self.letter)
        runner.reporter.peer_requests = self

    # --- what tasks want ---

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
                error_details=None if error is None else _words(error),
            ),
            urgency=urgency,  # type: ignore[arg-type]
            deadline=self._due(deadline),
        )
        letter = self.letter(request, to or HUB, task, priority="critical" if urgency == "critical" else None)
        asked = Asked(letter, _future(), task, asyncio.Queue())
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
        around = task.work.request.context or tasks.Context()
        due = self._due(deadline)
        assert due is not None
        cause = None
        if error is not None:
            kind, id = ErrorType.INTERNAL_ERROR, self._runtime.mint()
            cause = report(kind, _words(error), id=id, agent=self._who.agent_id, task_id=task.id, details={})
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
            given: Handoff = await self._wait(task, Asked(self.letter(request, to or HUB, task), _future(), task))
        if given.accepted:
            task.handed_to = given.agent_id or "somebody else"
            for message in self._outbox.about(task_id=task.id):
                self._runner.reporter.accepted(message.id)
        return given

    async def _wait(self, task: RunningTask, asked: Asked) -> Any:
        """What comes back. Others' time is not the handler's, and no sign of life disturbs it."""
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
                self._outbox.settle(asked.letter.id)
                if asked.more is None or asked.waiting.cancelled():
                    self._asked.pop(asked.letter.id, None)

    # --- what the agent itself says ---

    def require(self, what: str, instead: str) -> None:
        name = self._outbox.protocol_capabilities.name
        if not self._outbox.protocol_capabilities.converses:
            raise NotSupported(
                f"an agent cannot {what} over {name}; it can over agentmsg (agentmsg+ws://…, agentmsg+http://…){instead}"
            )

    def letter(self, payload: Record, to: str, task: RunningTask | None = None, **more: Any) -> OutgoingMessage:
        """A message to another agent or the hub. Raises if it has no JSON form: it would be tried over every link."""
        _readable(payload, more.get("beside"))
        trace_id = self._runtime.mint().replace("-", "")
        correlation = (
            Correlation(task_id="", request_id="", trace_id=trace_id, sender=HUB) if task is None else task.correlation
        )
        correlation = msgspec.structs.replace(correlation, trace_id=correlation.trace_id.replace("-", ""))
        id, at = self._runtime.mint(), self._runtime.now()
        return OutgoingMessage(id=id, at=at, correlation=correlation, to=to, payload=payload, **more)

    def send_once(self, letter: OutgoingMessage) -> None:
        """Send it if there is a link; never again."""
        self._outbox.send_once(letter)

    async def deliver(self, letter: OutgoingMessage) -> None:
        """Until the hub has it; raises `RequestRefused` if it will not have it."""
        asked = Asked(letter, _future())
        self._enqueue(asked)
        try:
            await asked.waiting
        finally:
            self._asked.pop(letter.id, None)
            self._outbox.settle(letter.id)

    def _enqueue(self, asked: Asked) -> None:
        self._asked[asked.letter.id] = asked
        self._outbox.enqueue(asked.letter)

    def accepted(self, id: str) -> None:
        """The hub has a letter of ours."""
        self._incoming.accepted(id)
        asked = self._asked.get(id)
        if asked is not None and asked.task is None and not asked.waiting.done():
            asked.waiting.set_result(None)

    # --- what others say ---

    def hear(self, mail: IncomingMessage) -> None:
        message = mail.message
        asked = self._asked.get(message.answers or "")
        match message.payload:
            case agentmsg.HelpResponse():
                self._start(self._helped(mail))
            case agentmsg.TaskHandoffResponse():
                self._outbox.acknowledge(mail.receipt)
                self._decided(asked, message.payload)
            case ErrorReport() if asked is not None:
                self._outbox.acknowledge(mail.receipt)
                self._refused(asked, message.payload)
            case ErrorReport() if self._incoming.refused(message.answers, message.payload.error_type in PASSING):
                self._outbox.acknowledge(mail.receipt)
                if message.payload.error_type in PASSING:
                    self._start(self._answer_again(message.answers))
            case _:
                self._start(self._incoming.receive(mail))

    async def _helped(self, mail: IncomingMessage) -> None:
        response = mail.message.payload
        asked = self._asked.get(codec.lowered(response.request_id))
        if asked is None or asked.task is None or asked.more is None:
            log.info("help came from %s that no task waits for any more", response.responder_id)
            return self._outbox.acknowledge(mail.receipt)
        given, id, task = _help(response), asked.letter.id, asked.task
        if given.response_type == ESCALATION:  # no answer yet: the hub asks the next helper, and in the end a person
            asked.escalations = (*asked.escalations, given)
            return self._outbox.acknowledge(mail.receipt)
        given = msgspec.structs.replace(given, escalations=asked.escalations)
        if not given.follow_up_required:
            self._asked.pop(id, None)
        if asked.waiting.done():
            asked.more.put_nowait(given)
            return self._outbox.acknowledge(mail.receipt)
        answered = Answered(
            task_id=task.id,
            request_id=id,
            at=self._runtime.now(),
            answer=msgspec.to_builtins(given),
            question=asked.letter.payload.description,
        )
        await self._journal.answer(answered)
        self._outbox.acknowledge(mail.receipt)
        if not asked.waiting.done():
            asked.waiting.set_result(answered)
        return None

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

    def _refused(self, asked: Asked, said: ErrorReport) -> None:
        if said.error_type in PASSING and asked.tries < MOST_TRIES:
            asked.tries += 1
            self._start(self._say_again(asked))
            return
        if asked.waiting.done():
            return
        payload = asked.letter.payload
        if isinstance(payload, agentmsg.TaskHandoffRequest):
            asked.waiting.set_result(Handoff(accepted=False, error=said.message))
        elif isinstance(payload, agentmsg.HelpRequest) and said.error_type not in OURS_TO_MEND and asked.task:
            self._asked.pop(asked.letter.id, None)
            given = Help(said.message, "UNABLE_TO_HELP", responder=HUB, escalations=asked.escalations)
            now, answer = self._runtime.now(), msgspec.to_builtins(given)
            asked.waiting.set_result(
                Answered(
                    task_id=asked.task.id,
                    request_id=asked.letter.id,
                    at=now,
                    answer=answer,
                    question=payload.description,
                )
            )
        else:
            kind, facts = said.error_type.value, said.context.details
            asked.waiting.set_exception(RequestRefused(said.message, kind=kind, facts=facts))

    async def _say_again(self, asked: Asked) -> None:
        await self._runtime.sleep(SAY_AGAIN)
        if not asked.waiting.done():
            self._outbox.enqueue(asked.letter)

    async def _answer_again(self, id: str) -> None:
        await self._runtime.sleep(SAY_AGAIN)
        self._incoming.answer_again(id)

    def resume(self) -> None:
        """Go on with what a former process was not done with."""
        for mail, key in self._incoming.undealt():
            self._start(self._incoming.deal(mail, key))

    def consider(self, proposal: Proposal) -> None:
        """Another agent wants to come to terms."""
        self._start(self._consider(proposal))

    async def _consider(self, proposal: Proposal) -> None:
        no = await self._incoming.agree(proposal.request)
        trace_id, sender = self._runtime.mint().replace("-", ""), proposal.request.source
        verdict = ProposalAnswer(
            id=self._runtime.mint(),
            at=self._runtime.now(),
            correlation=Correlation(task_id=proposal.id, request_id=proposal.id, trace_id=trace_id, sender=sender),
            proposal=proposal.id,
            accepted=no is None,
            reason="" if no is None else no.reason,
        )
        self._outbox.enqueue(verdict)
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
            log.error("what another agent said could not be dealt with", exc_info=error)

    def _due(self, deadline: Deadline) -> datetime | None:
        if deadline is None or isinstance(deadline, datetime):
            return deadline
        return self._runtime.now() + (deadline if isinstance(deadline, timedelta) else timedelta(seconds=deadline))


def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


def _readable(payload: Record, beside: Any) -> None:
    data = encoded("this", payload)
    encoded("this", beside)
    try:
        msgspec.json.decode(data, type=type(payload))
    except msgspec.ValidationError as error:
        raise ValueError(f"this cannot be told: {error}") from None


def _words(error: BaseException | str) -> str:
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
