"""A message of an agentmsg agent becomes commands of the hub.

    message                               command
    ------------------------------------  ------------------------------------------------------------------------
    TASK_ASSIGNMENT                       Submit, to the agent it names, or to any that can do it
    TASK_UPDATE by the task's owner       ReportProgress; `completed` Finish; `failed`, `cancelled` ReportFault
    TASK_UPDATE by another agent          `cancelled` Cancel; else, to another agent, Tell
    TASK_COMPLETE, TASK_FAILED            Finish, ReportFault
    TASK_HANDOFF: request, response       HandOver, AnswerHandover
    HELP_REQUEST, HELP_RESPONSE           AskHelp (AskPerson with `ask: "person"`), GiveHelp
    STATUS_UPDATE, HEARTBEAT              ReportStatus, Beat; and Tell, where they are for another agent
    ERROR_REPORT to the hub               ReportError
    ERROR_REPORT to another agent         Tell; and before it ReportError, where it is about a task of the sender's
    STATE_UPDATE                          ChangeState
    STATE_QUERY                           none: it only reads
    ACK, REGISTER                         Acknowledge, RegisterAgent

The codec has checked shape and meaning; here the message meets what the hub knows of its sender. What the hub keeps and
forwards is the message's JSON and its bytes, with the fields that no struct has.

Agents also write to each other about tasks that the hub does not know. So a report about no task of its sender's is
forwarded to the agent that it is addressed to (`forward_instead`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from dragoman.core.commands import (
    Acknowledge,
    AnswerHandover,
    AskHelp,
    AskPerson,
    Beat,
    Cancel,
    ChangeState,
    Command,
    Finish,
    GiveHelp,
    Handing,
    HandOver,
    HelpVerdict,
    Lineage,
    RegisterAgent,
    ReportError,
    ReportFault,
    ReportProgress,
    ReportStatus,
    Routing,
    Severity,
    Submit,
    Tell,
    Timing,
)
from dragoman.core.ids import EPOCH, SECOND, AgentId, Instant, TaskId, instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Backoff, DirectMessage
from dragoman.core.model.policy import backoff_in
from dragoman.core.model.state import Operation, Registry
from dragoman.core.model.tasks import Priority, QuestionDetails
from dragoman.core.tasks.assistance import ASKED_OF_ANOTHER
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, owned_by, refuse
from dragoman.messages.tasks import Failure, Json, Result
from dragoman.protocols.agentmsg import codec, mapping, records, routing
from dragoman.protocols.agentmsg.errors import NUMBERS, REQUIREMENTS, fault_in
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.records import ErrorReport, Record
from dragoman.protocols.agentmsg.types import (
    MAX_RETRIES,
    Ack,
    HandoffReason,
    Heartbeat,
    HelpRequest,
    HelpResponse,
    HelpResponseType,
    Message,
    MessageType,
    Register,
    StateQuery,
    StateUpdate,
    StatusUpdate,
    TaskAssignment,
    TaskComplete,
    TaskFailed,
    TaskHandoffRequest,
    TaskHandoffResponse,
    TaskUpdate,
)
from dragoman.server.agentmsg.ids import agent_named, delivery_of, own_name, task_id
from dragoman.server.content import trace_id_in

Holds = Callable[[TaskId], bool]

PRIORITIES: Mapping[records.Priority, Priority] = {own: Priority(own.value) for own in records.Priority}
VERDICTS: Mapping[HelpResponseType, HelpVerdict] = {
    HelpResponseType.DIRECT_ANSWER: HelpVerdict.ANSWERED,
    HelpResponseType.RESOURCE_PROVISION: HelpVerdict.ANSWERED,
    HelpResponseType.COLLABORATIVE_SESSION: HelpVerdict.ANSWERED,
    HelpResponseType.ESCALATION: HelpVerdict.ESCALATED,
    HelpResponseType.UNABLE_TO_HELP: HelpVerdict.UNABLE,
}
REASONS: Mapping[HandoffReason, Handing] = {reason: Handing(reason.value.lower()) for reason in HandoffReason}
TERMS = ("estimated_completion", "requirements", "constraints")
"""What an agent answers to a handoff, beside yes or no and why."""
FORWARDED = frozenset(
    {MessageType.TASK_UPDATE, MessageType.TASK_COMPLETE, MessageType.TASK_FAILED, MessageType.HELP_RESPONSE}
)
"""Messages that are direct messages where they are no reports. An answer to a handoff is not among them: the hub does
not know it because the handoff is over, and its reader would take a late yes for a task that is gone."""
COPIED = frozenset({StatusUpdate, Heartbeat, ErrorReport})
"""Messages that the hub reads and forwards, where they are for another agent."""
CANCELLED = "cancelled on request"

_canonical = msgspec.json.Encoder(order="deterministic").encode


# -- messages ----------------------------------------------------------------------------------------------------


class Inbound(NamedTuple):
    """A message of an agent: decoded, as JSON, as bytes; and what the hub knows of it.

    `traceparent` is the transport's, `content` the `codec.fingerprint`, where it is known already. `holds` says whether
    the agent has a task now: an update means something else from a task's owner than from others. Without it, the
    sender counts as the owner, unless it cancels the task.
    """

    agent: Agent
    message: Message
    tree: Json
    data: bytes
    now: Instant
    traceparent: str | None = None
    content: bytes | None = None
    holds: Holds | None = None

    @property
    def payload(self) -> Json:
        """The payload with all its fields."""
        payload: Json = self.tree["payload"]
        return payload

    @property
    def trace_id(self) -> str | None:
        """The trace in the message, else the transport's (all-D7)."""
        return trace_id_in(self.message.metadata.traceparent, self.traceparent)

    @property
    def digest(self) -> str:
        return (self.content or codec.fingerprint(self.tree)).hex()

    @property
    def priority(self) -> Priority:
        """The effective one (D3)."""
        return PRIORITIES[routing.priority(self.message)]

    @property
    def retry(self) -> Backoff | None:
        """How it wants to be sent again, beside `max_retries`."""
        own = self.message.metadata.retry_config
        return None if own is None else backoff_in(msgspec.to_builtins(own))

    @property
    def expires_at(self) -> Instant | None:
        end = None if self.message.metadata.ttl_ms is None else routing.expires_at(self.message)
        return None if end is None else instant(end)

    def direct_message(self) -> DirectMessage:
        """The message as the hub delivers it to another agent: word for word."""
        message = self.message
        return DirectMessage(
            sender=self.agent.id,
            message_id=message.id,
            kind=message.type.value,
            digest=self.digest,
            raw=msgspec.Raw(self.data),
            protocol=PROTOCOL,
            once=not routing.is_kept(message),
            attempts=message.metadata.max_retries + 1,
            retry=self.retry,
            expires_at=self.expires_at,
        )

    def forward(self, to: AgentId, *, reports: bool = False, progress: bool = False) -> Tell:
        """Deliver it to another agent. `reports`, `progress`: it says how a task ended or how far it is, which only
        some agents may say."""
        about = routing.task(self.message)
        return Tell(
            principal=self.agent.id,
            protocol=PROTOCOL,
            direct_message=self.direct_message(),
            to=to,
            priority=self.priority,
            lane=None if about is None else task_id(about),
            reports=reports,
            progress=progress,
        )


def commands_of(inbound: Inbound) -> tuple[Command, ...]:
    """The commands of a message, in this order; raises `Refused`."""
    agent, message = inbound.agent, inbound.message
    if message.sender != agent.id:
        what = owned_by(agent.id, message.sender)
        raise refuse(Kind.FORBIDDEN, what, field="from", agent_id=agent.id)
    if message.metadata.ttl_ms is not None and routing.is_expired(message, moment(inbound.now)):
        raise Refused(outlived(message))
    kind = type(message.payload)
    if kind is StateQuery:
        return ()
    make = _COMMANDS.get(kind)
    if make is None:
        raise refuse(
            Kind.INVALID, "an agent does not say this", next=f"{message.type.value} is the hub's", field="type"
        )
    command = make(inbound, message.payload)
    to = agent_named(message.to) if kind in COPIED and type(command) is not Tell else None
    return (command,) if to is None else (command, inbound.forward(to))


def forward_instead(inbound: Inbound, fault: Fault) -> Tell | None:
    """The direct message that a refused report is after all, if it is one: "no such task, or not yours" means only that
    the hub has no part in it. Help that another agent was asked for is not for its reader, either."""
    to = agent_named(inbound.message.to)
    if fault.kind is not Kind.NOT_FOUND or to is None or inbound.message.type not in FORWARDED:
        return None
    return None if fault.facts.get("reason") == ASKED_OF_ANOTHER else inbound.forward(to, reports=True)


def outlived(message: Message) -> Fault:
    """The time to live of a message was over before it could be delivered (D6)."""
    ttl = message.metadata.ttl_ms or 0
    return new_fault(
        Kind.TIMEOUT,
        f"{message.type.value} {message.id} was not delivered within its {ttl:g} ms",
        next="send it anew, with more time",
        field="metadata.ttl_ms",
        facts={"message_id": message.id, "ttl_ms": ttl},
    )


def moment(now: Instant) -> datetime:
    """The instant as a datetime, for the protocol's own functions."""
    return EPOCH + timedelta(microseconds=now)


# -- tasks -------------------------------------------------------------------------------------------------------


def _submit(inbound: Inbound, assignment: TaskAssignment) -> Command:
    task, context, constraints = assignment.task, assignment.task.context, assignment.task.constraints
    metadata = {} if context is None else context.metadata
    limits: Json = {}
    if constraints is not None:
        limits = {name: value for name in NUMBERS if (value := getattr(constraints, name)) is not None}
    limits |= {name: metadata[name] for name in REQUIREMENTS if metadata.get(name) is not None}
    deadline = None if constraints is None or constraints.deadline is None else instant(constraints.deadline)
    parent = metadata.get("parent_task_id")
    own = inbound.message.metadata.priority
    # an assignment is urgent by itself (D3): of its own priority only `critical` says more than the context does
    priority = own if context is None or own is records.Priority.CRITICAL else context.priority
    return Submit(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        request_id=inbound.message.id,
        digest=inbound.digest,
        type=task.task_type,
        task_id=task_id(task.task_id),
        called=own_name(task.task_id),
        content=mapping.request_in(task, inbound.payload["task"]),
        raw=inbound.data,
        name=_text(metadata.get("name")),
        description=task.description or None,
        priority=PRIORITIES[priority],
        constraints=limits,
        routing=Routing(
            pinned=agent_named(inbound.message.to),
            required_capabilities=() if constraints is None else constraints.required_capabilities,
        ),
        timing=Timing(
            deadline=deadline,
            firm=deadline is not None,
            total_seconds=None if deadline is None else max(0.0, (deadline - inbound.now) / SECOND),
            retry=_retry(inbound),
            expires_at=inbound.expires_at,
        ),
        lineage=Lineage(
            dependencies=() if context is None else tuple(map(task_id, context.dependencies)),
            called_dependencies=() if context is None else context.dependencies,
            trace_id=inbound.trace_id,
            parent=task_id(parent) if type(parent) is str and parent else None,
            thread=_text(metadata.get("thread")),
        ),
    )


def _retry(inbound: Inbound) -> Backoff | None:
    """How the assignment is sent again to the agent. Three retries are what every message says by default (D7): then
    the policy decides how many."""
    own, retries = inbound.retry, inbound.message.metadata.max_retries
    if retries == MAX_RETRIES:
        return own
    return msgspec.structs.replace(own or Backoff(), attempts=retries + 1)


def _update(inbound: Inbound, update: TaskUpdate) -> Command:
    id = task_id(update.task_id)
    mine = None if inbound.holds is None else inbound.holds(id)
    if not mine:
        if update.status == "cancelled":
            return Cancel(  # the caller does not want it any more (B4)
                principal=inbound.agent.id,
                protocol=PROTOCOL,
                task_id=id,
                reason=update.message or CANCELLED,
                message_id=inbound.message.id,
                digest=inbound.digest,
            )
        to = None if mine is None else agent_named(inbound.message.to)
        if to is not None:
            progress = update.progress is not None or update.output is not None
            return inbound.forward(to, reports=update.status is not None, progress=progress)
    return _report(inbound, update, id)


def _report(inbound: Inbound, update: TaskUpdate, id: TaskId) -> Command:
    """How the owner of a task says that it goes, or how it ended."""
    if update.status == "completed":
        text = update.output if update.output is not None else update.message or ""
        return _finish(inbound, id, Result(output=text or None), text)
    if update.status == "failed":
        return _fault(inbound, id, Fault(kind=Kind.WORK_FAILED, message=update.message or "the work failed"))
    if update.status == "cancelled":
        return _fault(inbound, id, Fault(kind=Kind.CANCELLED, message=update.message or "its agent gave it up"))
    content = mapping.progress_in(update, inbound.payload)
    step = content.named_step
    return ReportProgress(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        message_id=inbound.message.id,
        content=content,
        raw=inbound.data,
        percent=content.percent,
        step=None if step is None else _text(step.name),
        output=update.output or "",
        paused=update.status == "paused",
        priority=inbound.priority,
    )


def _complete(inbound: Inbound, done: TaskComplete) -> Command:
    content = mapping.result_in(done, inbound.payload)
    return _finish(inbound, task_id(done.task_id), content, content.output or "")


def _failed(inbound: Inbound, failure: TaskFailed) -> Command:
    payload = inbound.payload
    report, usage = payload["error"], None if failure.usage is None else payload["usage"]
    return _fault(inbound, task_id(failure.task_id), fault_in(failure.error, report), report=report, usage=usage)


def _finish(inbound: Inbound, id: TaskId, content: Result, text: str) -> Finish:
    return Finish(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        task_id=id,
        digest=hashlib.sha256(_canonical((inbound.message.type.value, inbound.payload))).hexdigest(),
        message_id=inbound.message.id,
        content=content,
        raw=inbound.data,
        output=text,
    )


def _fault(
    inbound: Inbound, id: TaskId, fault: Fault, report: Json | None = None, usage: Json | None = None
) -> ReportFault:
    return ReportFault(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        fault=fault,
        task_id=id,
        message_id=inbound.message.id,
        digest=inbound.digest,
        content=Failure(fault=fault, report=report, usage=usage),
        raw=inbound.data,
    )


def _text(value: object) -> str | None:
    return value[:200] if type(value) is str and value else None


# -- between agents ----------------------------------------------------------------------------------------------


def _ask_help(inbound: Inbound, request: HelpRequest) -> Command:
    to, tree = agent_named(inbound.message.to), inbound.payload
    details = QuestionDetails(help_type=request.help_type.value, urgency=request.urgency, context=tree["context"])
    deadline = None if request.deadline is None else instant(request.deadline)
    if to is None and mapping.asks_person(tree):
        waits = None if deadline is None else max(0.0, (deadline - inbound.now) / SECOND)
        return AskPerson(
            principal=inbound.agent.id,
            protocol=PROTOCOL,
            request_id=inbound.message.id,
            ask=mapping.ask_in(request, tree, waits),
            task_id=task_id(request.task_id),
            details=details,
        )
    critical = routing.URGENCY[request.urgency] is records.Priority.CRITICAL
    return AskHelp(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        direct_message=inbound.direct_message(),
        question=request.description,
        topic=request.help_type.value,
        to=to,
        task_id=task_id(request.task_id),
        priority=Priority.CRITICAL if critical else inbound.priority,
        deadline=deadline,
        details=msgspec.structs.replace(details, task=request.task_id),
    )


def _give_help(inbound: Inbound, response: HelpResponse) -> Command:
    return GiveHelp(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        request_id=codec.lowered(response.request_id),
        direct_message=inbound.direct_message(),
        verdict=VERDICTS[response.response_type],
        answer=mapping.help_in(response, inbound.payload),
        more=response.follow_up_required,
    )


def _hand_over(inbound: Inbound, request: TaskHandoffRequest) -> Command:
    return HandOver(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        direct_message=inbound.direct_message(),
        task_id=task_id(request.task_id),
        called=own_name(request.task_id),
        reason=REASONS[request.reason],
        deadline=instant(request.due),
        to=agent_named(inbound.message.to) or agent_named(request.to_agent),
        required_capabilities=request.constraints.required_capabilities,
        type=request.context.task_type,
        trace_id=inbound.trace_id,
        known=mapping.handoff_in(request, inbound.payload),
        fault=None if request.error is None else fault_in(request.error, inbound.payload["error"]),
        priority=PRIORITIES[request.context.priority],
    )


def _answer_handover(inbound: Inbound, response: TaskHandoffResponse) -> Command:
    correlation = inbound.message.metadata.correlation_id
    assert correlation is not None  # the codec insists
    terms = {name: value for name in TERMS if (value := inbound.payload.get(name)) is not None}
    return AnswerHandover(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        request_id=correlation,
        direct_message=inbound.direct_message(),
        accepted=response.accepted,
        error=response.error,
        terms=terms,
    )


# -- about the agent itself --------------------------------------------------------------------------------------


def _status(inbound: Inbound, update: StatusUpdate) -> Command:
    payload = inbound.payload
    return ReportStatus(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        status={**payload["status"], **msgspec.to_builtins(update.status)},
        current_tasks=update.current_tasks,
        usage={**payload["resource_usage"], **msgspec.to_builtins(update.resource_usage)},
        health={**payload["health_metrics"], **msgspec.to_builtins(update.health_metrics)},
        next_available=None if update.next_available is None else instant(update.next_available),
    )


def _beat(inbound: Inbound, beat: Heartbeat) -> Command:
    state = None if beat.state is None else beat.state.value
    return Beat(principal=inbound.agent.id, protocol=PROTOCOL, state=state)


def _error(inbound: Inbound, report: ErrorReport) -> Command:
    to = agent_named(inbound.message.to)
    about = None if report.task_id is None else task_id(report.task_id)
    if to is not None and (about is None or (inbound.holds is not None and not inbound.holds(about))):
        return inbound.forward(to)  # about no task that the hub gave to the sender
    return ReportError(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        fault=fault_in(report, inbound.payload),
        severity=Severity(report.severity),
        report=inbound.payload,
        message_id=inbound.message.id,
        task_id=about,
    )


def _register(inbound: Inbound, register: Register) -> Command:
    """An agent may fill in what is open, never change who it is (all-D1)."""
    agent = inbound.agent
    return RegisterAgent(
        principal=agent.id,
        protocol=PROTOCOL,
        name=register.name,
        version=register.version,
        work_types=register.task_types if register.task_types is not None else agent.work_types,
        capabilities=register.capabilities,
        max_concurrent=register.max_concurrent or agent.max_concurrent,
        callback_url=agent.callback_url,
        details=agent.details,
    )


# -- acknowledgments and shared state ----------------------------------------------------------------------------


def _acknowledge(inbound: Inbound, ack: Ack) -> Command:
    """`server.agentmsg.handler` answers ACKs by what it delivered; here a message names its delivery, or none."""
    metadata = inbound.message.metadata
    named = [codec.lowered(id) for id in (metadata.correlation_id, *ack.message_ids, metadata.delivery_id) if id]
    deliveries = tuple(dict.fromkeys(map(delivery_of, named)))
    return Acknowledge(principal=inbound.agent.id, protocol=PROTOCOL, deliveries=deliveries)


def _change(inbound: Inbound, update: StateUpdate) -> Command:
    return change_of(inbound.agent.id, update, message_id=inbound.message.id, digest=inbound.digest)


def change_of(
    principal: AgentId, update: StateUpdate, *, message_id: str | None = None, digest: str = ""
) -> ChangeState:
    """A StateUpdate of an agent, or of a person with the admin token; in a message, or alone."""
    name, changes, task = update.entity_id, update.changes, None
    if update.entity_type == "TASK":  # it may be a task of the hub, which knows it by its own id
        task = task_id(name)
        name = own_name(name) or task
        if update.operation == "CREATE":
            if changes.get("id") not in (None, update.entity_id):  # else it would have another entity's id
                raise refuse(Kind.INVALID, "the id of a task is its entity_id", field="changes.id")
            changes = {**changes, "id": update.entity_id}
    return ChangeState(
        principal=principal,
        protocol=PROTOCOL,
        operation=Operation(update.operation),
        entity=Registry(update.entity_type),
        entity_id=name,
        changes=changes,
        version=update.version,
        task=task,
        message_id=message_id,
        digest=digest,
    )


_COMMANDS: Mapping[type[Record], Callable[[Inbound, Any], Command]] = {
    TaskUpdate: _update,
    TaskAssignment: _submit,
    TaskComplete: _complete,
    TaskFailed: _failed,
    TaskHandoffRequest: _hand_over,
    TaskHandoffResponse: _answer_handover,
    HelpRequest: _ask_help,
    HelpResponse: _give_help,
    StatusUpdate: _status,
    Heartbeat: _beat,
    StateUpdate: _change,
    ErrorReport: _error,
    Ack: _acknowledge,
    Register: _register,
}
