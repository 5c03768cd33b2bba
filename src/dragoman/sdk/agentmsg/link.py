"""An agent's link in agentmsg: the engine's messages ⇄ the payloads of a session.

    the engine sends         as                               the hub sends                    the engine gets
    -----------------------  -------------------------------  -------------------------------  ----------------
    Report, bare             TASK_UPDATE, normal: once,       TASK_ASSIGNMENT                  Assignment
                             again if refused for now
    Report with content      TASK_UPDATE, high: kept          TASK_UPDATE cancelled            Cancel
    Question                 HELP_REQUEST to the hub          TASK_UPDATE paused, in_progress  Pause, Resume
    Outcome, Decline         TASK_COMPLETE, TASK_FAILED       HELP_RESPONSE to a Question      Answer
    OutgoingMessage          its payload                      ERROR_REPORT about a task's      Refused
    (on opening)             REGISTER                         WELCOME                          Welcomed
                                                              ACK, or the answer to a POST     Accepted
                                                              anything else                    IncomingMessage

A message that is sent again has the same id. A long output goes in pieces, whose ids follow from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import attachments_in
from dragoman.messages.tasks import Failure
from dragoman.protocols.agentmsg import errors, mapping
from dragoman.protocols.agentmsg.connection import Inbox
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Record, Usage
from dragoman.protocols.agentmsg.types import (
    HUB,
    HelpContext,
    HelpRequest,
    HelpResponse,
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
    failure,
    part,
)
from dragoman.sdk.runtime import Runtime
from dragoman.sdk.work.outcome import TIMED_OUT
from dragoman.wire.errors import LocalProtocolError

log = logging.getLogger("dragoman.sdk")

PROTOCOL_CAPABILITIES = ProtocolCapabilities(
    name=mapping.PROTOCOL, refuses_each=True, words_are_receipts=False, converses=True
)
MOST_BARE = 256
"""Bare reports that the hub may still refuse: it acknowledges none of them."""
PIECE = 512 * 1024
"""Characters of output in one message: even if all of them are written as escapes it fits."""


class Memory(Struct):
    """What outlives a connection: the inbox, and the questions whose answers may come over the next one."""

    inbox: Inbox = field(default_factory=Inbox)
    questions: dict[str, Question] = {}


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

    def acknowledge(self, receipt: str) -> None:
        self.session.acknowledge(receipt)

    async def drain(self) -> None:
        await self.session.drain()

    def quiesce(self) -> None:
        self.session.quiesce()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    # --- in ---

    async def receive(self) -> Sequence[Inbound]:
        while True:
            inbound: list[Inbound] = []
            for arrived in await self.session.receive():
                if isinstance(arrived, Accepted):
                    for id in arrived.ids:
                        self._about.pop(id, None)
                    inbound.append(arrived)
                else:
                    inbound += self._inbound(arrived)
            if inbound:
                return inbound

    def _inbound(self, arrival: Arrival) -> Iterator[Inbound]:
        message, tree, receipt = arrival
        payload = message.payload
        match payload:
            case TaskAssignment():
                yield _assignment(arrival, self._runtime)
            case TaskUpdate(status="cancelled"):
                yield Cancel(task_id=payload.task_id, reason=payload.message or "cancelled", receipt=receipt)
            case TaskUpdate(status="paused"):
                yield Pause(task_id=payload.task_id, receipt=receipt)
            case TaskUpdate(status="in_progress"):
                yield Resume(task_id=payload.task_id, receipt=receipt)
            case HelpResponse() if message.sender == HUB and payload.request_id in self._memory.questions:
                question = self._memory.questions.pop(payload.request_id)
                answer = mapping.answer_in(payload, tree["payload"], question.ask.default)
                yield Answer(id=question.id, task_id=question.correlation.task_id, answer=answer, receipt=receipt)
            case ErrorReport() if message.answers == self._registration:
                self._not_registered(payload, receipt)
            case ErrorReport() if (correlation := self._refused(message.answers, payload)) is not None:
                yield Refused(
                    request_id=correlation.request_id,
                    reason=payload.message,
                    retryable=errors.is_retryable(payload),
                    receipt=receipt,
                    message_id=message.answers,
                )
            case Welcome():
                yield Welcomed(payload.heartbeat_interval_ms / 1000)
            case _:
                yield IncomingMessage(message=message, tree=tree, receipt=receipt)

    def _refused(self, message_id: str | None, report: ErrorReport) -> Correlation | None:
        """The work that a refused message was about. A bare report that is refused for good does not matter."""
        if message_id in self._bare and errors.is_retryable(report):
            return self._bare.pop(message_id)
        return self._about.pop(message_id or "", None)

    def _not_registered(self, report: ErrorReport, receipt: str | None) -> None:
        if report.error_type is ErrorType.AUTHENTICATION_ERROR:
            raise NotAllowed(report.message)
        if receipt is not None:
            self.acknowledge(receipt)
        log.warning("not registered: %s", report.message)  # work comes all the same

    # --- out ---

    def send(self, message: Outbound) -> None:
        if not isinstance(message, OutgoingMessage):
            bare = isinstance(message, Report) and not message.has_content
            (self._bare if bare else self._about)[message.id] = message.correlation
            if len(self._bare) > MOST_BARE:
                del self._bare[next(iter(self._bare))]
        match message:
            case Report():
                self._report(message)
            case Question():
                self._memory.questions[message.id] = message
                self._ask(message)
            case Outcome():
                self._finish(message)
            case Decline():
                self._fail(message, _why_declined(message))
            case OutgoingMessage():
                self._forward(message)
            case _:
                raise AssertionError(message)  # agentmsg has no proposals

    def _send(self, message: Outbound, payload: Record, id: str | None = None, **metadata: Any) -> None:
        correlation = message.correlation
        metadata["traceparent"] = f"00-{correlation.trace_id}-{trace.span_id(message.id)}-01"
        self.session.send(payload, id=id or message.id, at=message.at, lane=correlation.task_id, **metadata)

    def _forward(self, message: OutgoingMessage) -> None:
        try:
            self._send(
                message,
                message.payload,
                to=message.to,
                correlation_id=message.correlation_id,
                priority=message.priority,
                ttl_ms=message.ttl_ms,
                retry=message.retry,
                beside=message.beside,
            )
        except LocalProtocolError as error:
            log.error("a message to %s cannot be sent: %s", message.to, error)

    def _report(self, report: Report) -> None:
        content = report.content
        *first, last = _pieces(content.output or "")
        self._send_pieces(report, first)
        fields = mapping.progress_out(replace(content, output=last or None))
        if content.file is not None:
            fields["file"] = content.file.id
        update = TaskUpdate(
            task_id=report.correlation.task_id,
            status="in_progress",
            message="" if content.named_step is None else content.named_step.name or "",
        )
        self._send(report, update, priority="high" if report.has_content else None, beside=fields)

    def _send_pieces(self, message: Report | Outcome, pieces: Sequence[str]) -> None:
        for number, piece in enumerate(pieces, start=1):
            update = TaskUpdate(task_id=message.correlation.task_id, output=piece)
            self._send(message, update, part(message.id, number), priority="high")

    def _finish(self, outcome: Outcome) -> None:
        content = outcome.content
        if isinstance(content, Failure):
            self._fail(outcome, _why_failed(content), content.usage)
            return
        if not outcome.result_json and len(outcome.output) > PIECE:
            self._send_pieces(outcome, _pieces(outcome.output))
            content = replace(content, output=None)  # the hub joins the pieces
        done = TaskComplete(task_id=outcome.correlation.task_id, result=None)
        try:
            self._send(outcome, done, beside=mapping.result_out(content))
        except LocalProtocolError as unfit:
            text = f"the result cannot be sent: {unfit}; return text, which is split, or store it and return where"
            self._finish(replace(outcome, content=failure(text, {"message": text}, usage=content.usage)))

    def _fail(self, message: Outcome | Decline, fault: Fault, usage: dict[str, Any] | None = None) -> None:
        task_id = message.correlation.task_id
        error = errors.agent_report(fault, error_id=message.id, agent_id=self._name, task_id=task_id)
        used = None if usage is None else Usage(**usage)
        self._send(message, TaskFailed(task_id=task_id, error=error, usage=used))

    def _ask(self, question: Question) -> None:
        seconds = question.ask.timeout_seconds
        request = HelpRequest(
            requester_id=self._name,
            task_id=question.correlation.task_id,
            help_type=HelpType.TECHNICAL_GUIDANCE,
            description=question.ask.question,
            context=HelpContext(current_state=f"{question.percent} % done", attempted_solutions=()),
            urgency="medium",
            deadline=None if seconds is None else question.at + timedelta(seconds=seconds),
        )
        self._send(question, request, beside=mapping.ask_out(question.ask))


def _assignment(arrival: Arrival, runtime: Runtime) -> Assignment:
    """A redelivery is the same message, so it is the same request."""
    message, tree, receipt = arrival
    task, fields = message.payload.task, tree["payload"]["task"]
    span = trace.parse(message.metadata.traceparent)
    return Assignment(
        correlation=Correlation(
            task_id=task.task_id,
            request_id=f"{message.sender}/{message.id}",
            trace_id=runtime.mint().replace("-", "") if span is None else span.trace_id,
            sender=message.sender,
        ),
        type=task.task_type,
        request=replace(
            mapping.assigned_in(task, fields), attachments=attachments_in(fields.get("attachments") or ()) or None
        ),
        receipt=receipt,
        attempt=task.attempt,
        traceparent=message.metadata.traceparent if span is not None else None,
        priority="normal" if task.context is None else task.context.priority.value,
        constraints=fields.get("constraints") or {},
        is_new_round=False,
    )


def _why_failed(failure: Failure) -> Fault:
    """The last line of the output, then the facts. The hub tries again after a broken connection, not after this."""
    error, output = failure.report or {}, failure.output or ""
    return Fault(
        kind=Kind.WORK_FAILED,
        named=Kind.TIMEOUT if failure.exit_code == TIMED_OUT else None,
        message=output.rstrip().rpartition("\n")[2] or str(error.get("message") or "the work failed"),
        facts={"type": error.get("type"), "exit_code": failure.exit_code},
    )


def _why_declined(decline: Decline) -> Fault:
    fault = decline.fault
    field = fault.field and fault.field.replace("parameters", "task.input", 1)
    facts = fault.facts if fault.kind is Kind.UNSUPPORTED_WORK else {}
    return Fault(kind=fault.kind, message=decline.sentence, field=field, facts=facts)


def _pieces(output: str) -> list[str]:
    return [output[start : start + PIECE] for start in range(0, len(output), PIECE)] or [""]
