"""An agent's words in agentmsg, over whatever pipe carries the frames.

    the engine says          agentmsg says                    the hub says                     the engine hears
    -----------------------  -------------------------------  -------------------------------  ----------------
    Report, bare             TASK_UPDATE, normal: once,       TASK_ASSIGNMENT                  Work
                             again if refused for now
    Report with output       TASK_UPDATE, high: kept          TASK_UPDATE cancelled            Cancel
    Query                    HELP_REQUEST to the hub          TASK_UPDATE paused, in_progress  Hold, Release
    Outcome, Decline         TASK_COMPLETE, TASK_FAILED       HELP_RESPONSE to a Query         Reply
    Letter                   whatever it holds                ERROR_REPORT about a task's      Refused
    (on opening)             REGISTER                         WELCOME                          Welcomed
                                                              ACK, or the answer to a POST     Accepted
                                                              anything else                    Mail

MessageBuilder a message again says the same under the same id. A long output goes in pieces, whose ids follow from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct, field

from dragoman.messages import tasks
from dragoman.messages.faults import Kind
from dragoman.protocols.agentmsg import errors, mapping
from dragoman.protocols.agentmsg.connection import Inbox
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Usage
from dragoman.protocols.agentmsg.types import (
    HUB,
    HelpContext,
    HelpRequest,
    HelpResponse,
    HelpResponseType,
    HelpType,
    Register,
    TaskAssignment,
    TaskComplete,
    TaskFailed,
    TaskUpdate,
    Welcome,
)
from dragoman.sdk import trace
from dragoman.sdk.agentmsg.session import Arrival, MessagePipe, Session
from dragoman.sdk.conversation.peer_handlers import report
from dragoman.sdk.errors import NotAllowed
from dragoman.sdk.links import Introduction, ProtocolCapabilities
from dragoman.sdk.messages import (
    Accepted,
    Answer,
    Assignment,
    Cancel,
    Correlation,
    Decline,
    Inbound,
    IncomingMessage,
    Outbound,
    Outcome,
    OutgoingMessage,
    Pause,
    Question,
    Refused,
    Report,
    Resume,
    Welcomed,
    attachments_in,
    failure,
    part,
)
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.outcome import TIMED_OUT
from dragoman.wire.errors import LocalProtocolError

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(
    name="agentmsg", refuses_each=True, words_are_receipts=False, converses=True
)
MOST_BARE = 256
"""Bare reports that the hub may still refuse: it acknowledges none of them."""
PIECE = 512 * 1024
"""Characters of output in one message: even if all of them are written as escapes it fits."""
STEERED: dict[str | None, type[Pause | Resume]] = {"paused": Pause, "in_progress": Resume}


class Memory(Struct):
    """What outlives a link: what came, and the questions whose answers may come over the next one."""

    inbox: Inbox = field(default_factory=Inbox)
    queries: dict[str, Question] = {}


class AgentmsgLink:
    """`links.Link` in agentmsg."""

    def __init__(self, pipe: MessagePipe, runtime: Runtime, memory: Memory) -> None:
        self._pipe = pipe
        self._runtime = runtime
        self._memory = memory
        self._name = ""
        self._session: Session | None = None
        self._registration = ""
        self._about: dict[str, Correlation] = {}
        self._bare: dict[str, Correlation] = {}

    @property
    def protocol_capabilities(self) -> ProtocolCapabilities:
        return PROTOCOL_CAPABILITIES

    @property
    def session(self) -> Session:
        assert self._session is not None, "opened before it is used"
        return self._session

    async def open(self, who: Introduction) -> None:
        self._name = who.agent_id
        self._session = Session(self._pipe, self._runtime, who.agent_id, self._memory.inbox)
        await self._session.open()
        register = Register(
            agent_id=who.agent_id,
            capabilities=who.skills,
            task_types=who.work_types,
            version=who.version,
            max_concurrent=who.concurrency,
        )
        self._registration = self._session.send(register)

    async def receive(self) -> Sequence[Inbound]:
        while True:
            heard: list[Inbound] = []
            for said in await self.session.receive():
                if isinstance(said, Accepted):
                    for id in said.ids:
                        self._about.pop(id, None)
                    heard.append(said)
                else:
                    heard += self._understand(said)
            if heard:
                return heard

    def acknowledge(self, receipt: str) -> None:
        self.session.acknowledge(receipt)

    def send(self, message: Outbound) -> None:
        if type(message) is OutgoingMessage:
            self._post(message)
            return
        if type(message) is not Report or message.has_content:
            self._about[message.id] = message.correlation
        else:
            self._bare[message.id] = message.correlation
            if len(self._bare) > MOST_BARE:
                del self._bare[next(iter(self._bare))]
        if type(message) is Report:
            self._report(message)
        elif type(message) is Question:
            self._memory.queries[message.id] = message
            self._ask(message)
        elif type(message) is Outcome:
            self._finish(message)
        else:
            assert type(message) is Decline
            self._say(message, TaskFailed(task_id=message.correlation.task_id, error=_declined(message, self._name)))

    async def drain(self) -> None:
        await self.session.drain()

    def quiesce(self) -> None:
        self.session.quiesce()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- in ---

    def _understand(self, said: Arrival) -> Iterator[Inbound]:
        message, tree, receipt = said
        payload = message.payload
        match payload:
            case TaskAssignment():
                yield _work(said, self._runtime)
            case TaskUpdate(status="cancelled"):
                yield Cancel(task_id=payload.task_id, reason=payload.message or "cancelled", receipt=receipt)
            case TaskUpdate(status="paused" | "in_progress"):
                yield STEERED[payload.status](task_id=payload.task_id, receipt=receipt)
            case HelpResponse() if message.sender == HUB and payload.request_id in self._memory.queries:
                yield self._reply(payload, tree, receipt)
            case ErrorReport() if message.answers == self._registration:
                self._not_registered(payload, receipt)
            case ErrorReport() if message.answers in self._about:
                correlation = self._about.pop(message.answers)
                retry = errors.is_retryable(payload)
                yield Refused(
                    request_id=correlation.request_id,
                    reason=payload.message,
                    retryable=retry,
                    receipt=receipt,
                    message_id=message.answers,
                )
            case ErrorReport() if message.answers in self._bare and errors.is_retryable(payload):
                yield Refused(
                    request_id=self._bare.pop(message.answers).request_id,
                    reason=payload.message,
                    retryable=True,
                    receipt=receipt,
                    message_id=message.answers,
                )
            case Welcome():
                yield Welcomed(payload.heartbeat_interval_ms / 1000)
            case _:
                yield IncomingMessage(message=message, tree=tree, receipt=receipt)

    def _reply(self, response: HelpResponse, tree: dict[str, Any], receipt: str | None) -> Answer:
        query = self._memory.queries.pop(response.request_id)
        answer: Any = tree["payload"].get("answer", response.content)
        if response.response_type is HelpResponseType.UNABLE_TO_HELP:  # nobody answered in time
            answer = query.ask.default
        return Answer(id=query.id, task_id=query.correlation.task_id, answer=answer, receipt=receipt)

    def _not_registered(self, report: ErrorReport, receipt: str | None) -> None:
        if report.error_type is ErrorType.AUTHENTICATION_ERROR:
            raise NotAllowed(report.message)
        if receipt is not None:
            self.acknowledge(receipt)
        log.warning("not registered: %s", report.message)  # work comes all the same

    # --- out ---

    def _say(self, message: Outbound, payload: Any, id: str | None = None, **metadata: Any) -> None:
        correlation = message.correlation
        metadata["traceparent"] = f"00-{correlation.trace_id}-{trace.span_id(message.id)}-01"
        self.session.send(payload, id=id or message.id, at=message.at, lane=correlation.task_id, **metadata)

    def _post(self, letter: OutgoingMessage) -> None:
        try:
            self._say(
                letter,
                letter.payload,
                to=letter.to,
                correlation_id=letter.correlation_id,
                priority=letter.priority,
                ttl_ms=letter.ttl_ms,
                retry=letter.retry,
                beside=letter.beside,
            )
        except LocalProtocolError as error:
            log.error("a message to %s cannot be said: %s", letter.to, error)

    def _report(self, report: Report) -> None:
        task_id = report.correlation.task_id
        content = report.content
        *first, last = _pieces(content.output or "")
        for number, piece in enumerate(first, start=1):
            self._say(report, TaskUpdate(task_id=task_id, output=piece), part(report.id, number), priority="high")
        step = content.named_step
        update = TaskUpdate(task_id=task_id, status="in_progress", message="" if step is None else step.name or "")
        beside = mapping.progress_out(msgspec.structs.replace(content, output=last or None))
        if content.file is not None:
            beside["file"] = content.file.id
        self._say(report, update, priority="high" if report.has_content else None, beside=beside)

    def _finish(self, outcome: Outcome) -> None:
        task_id = outcome.correlation.task_id
        usage = None if outcome.content.usage is None else Usage(**outcome.content.usage)
        if outcome.failure is not None:
            error = _failed(outcome, outcome.failure, self._name)
            self._say(outcome, TaskFailed(task_id=task_id, error=error, usage=usage))
            return
        result_json = outcome.result_json
        result: Any = msgspec.json.decode(result_json) if result_json else (outcome.output or None)
        if not result_json and len(outcome.output) > PIECE:
            result = None  # who reads it finds the pieces joined
            for number, piece in enumerate(_pieces(outcome.output), start=1):
                self._say(outcome, TaskUpdate(task_id=task_id, output=piece), part(outcome.id, number), priority="high")
        # The words beside a structured result, where there are any but its own JSON.
        has_words = bool(result_json) and outcome.output.encode() != result_json
        beside = {"output": outcome.output} if has_words else {}
        try:
            self._say(outcome, TaskComplete(task_id=task_id, result=result, usage=usage), beside=beside)
        except LocalProtocolError as unfit:
            words = f"the result cannot be told: {unfit}; return text, which is split, or store it and return where"
            content = failure(words, {"message": words}, usage=outcome.content.usage)
            self._finish(msgspec.structs.replace(outcome, content=content))

    def _ask(self, query: Question) -> None:
        seconds = query.ask.timeout_seconds
        request = HelpRequest(
            requester_id=self._name,
            task_id=query.correlation.task_id,
            help_type=HelpType.TECHNICAL_GUIDANCE,
            description=query.ask.question,
            context=HelpContext(current_state=f"{query.percent} % done", attempted_solutions=()),
            urgency="medium",
            deadline=None if seconds is None else query.at + timedelta(seconds=seconds),
        )
        self._say(query, request, beside=mapping.ask_out(query.ask))


def _work(said: Arrival, runtime: Runtime) -> Assignment:
    """The task as work. A delivery that is repeated is the same message, so it is the same request."""
    message, tree, receipt = said
    task, raw = message.payload.task, tree["payload"]["task"]
    span = trace.parse(message.metadata.traceparent)
    context, constraints = raw.get("context") or {}, raw.get("constraints") or {}
    metadata = context.get("metadata") or {}
    return Assignment(
        correlation=Correlation(
            task_id=task.task_id,
            request_id=f"{message.sender}/{message.id}",
            trace_id=runtime.mint().replace("-", "") if span is None else span.trace_id,
            sender=message.sender,
        ),
        type=task.task_type,
        request=tasks.Request(
            input=task.input,
            answer=task.answer,
            context=tasks.Context(
                metadata=metadata, history=context.get("history") or (), dependencies=context.get("dependencies") or ()
            ),
            handover=_handover(raw.get("handover") or metadata.get("handover")),
            attachments=attachments_in(raw.get("attachments") or ()) or None,
        ),
        receipt=receipt,
        attempt=task.attempt,
        traceparent=message.metadata.traceparent if span is not None else None,
        priority=context.get("priority") or "normal",
        constraints=constraints,
        is_new_round=False,
    )


def _handover(given: object) -> tasks.Handoff | None:
    """Who handed the task over and why. What else the last owner knew stands in the task itself."""
    if not isinstance(given, dict):
        return None
    known = tasks.fitting(tasks.Handoff, {"from": given.get("from_agent"), **given})
    return known and msgspec.structs.replace(known, metadata=None, history=None, story=None)


def _failed(outcome: Outcome, failure: tasks.Failure, agent: str) -> ErrorReport:
    """The words first, then the facts. Trying the same again is the hub's to decide for a broken link, not for this."""
    known = failure.report or {}
    words = outcome.output.rstrip().rpartition("\n")[2] or str(known.get("message") or "the work failed")
    kind = ErrorType.TIMEOUT if failure.exit_code == TIMED_OUT else ErrorType.EXTERNAL_SERVICE_ERROR
    details = {"kind": "work_failed", "retryable": False, "type": known.get("type"), "exit_code": failure.exit_code}
    return report(kind, words, id=outcome.id, agent=agent, task_id=outcome.correlation.task_id, details=details)


def _declined(decline: Decline, agent: str) -> ErrorReport:
    fault = decline.fault
    field = fault.field and fault.field.replace("parameters", "task.input", 1)
    details: dict[str, Any] = {"kind": "invalid", "retryable": False}
    if field:
        details["field"] = field
    if fault.kind is Kind.UNSUPPORTED_WORK:
        details |= {"kind": "unsupported_work", **fault.facts}
    kind = ErrorType.VALIDATION_ERROR
    return report(
        kind, decline.sentence, id=decline.id, agent=agent, task_id=decline.correlation.task_id, details=details
    )


def _pieces(output: str) -> list[str]:
    return [output[start : start + PIECE] for start in range(0, len(output), PIECE)] or [""]
