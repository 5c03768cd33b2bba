"""What agents ask of each other, and what an agent says of itself: help, handoffs, status, errors, registration."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.core.commands import (
    AnswerHandover,
    AskHelp,
    AskPerson,
    Beat,
    Command,
    GiveHelp,
    Handing,
    HandOver,
    HelpVerdict,
    RegisterAgent,
    ReportError,
    ReportStatus,
    Severity,
)
from dragoman.core.ids import SECOND, instant
from dragoman.core.model.tasks import Priority, QuestionDetails
from dragoman.protocols.agentmsg import codec, mapping, records, routing
from dragoman.protocols.agentmsg.errors import fault_in
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.records import ErrorReport
from dragoman.protocols.agentmsg.types import (
    HandoffReason,
    Heartbeat,
    HelpRequest,
    HelpResponse,
    HelpResponseType,
    Register,
    StatusUpdate,
    TaskHandoffRequest,
    TaskHandoffResponse,
)
from dragoman.server.agentmsg.ids import agent_named, own_name, task_id
from dragoman.server.agentmsg.inbound.message import PRIORITIES, Inbound

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


def ask_help(inbound: Inbound, request: HelpRequest) -> Command:
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


def give_help(inbound: Inbound, response: HelpResponse) -> Command:
    return GiveHelp(
        principal=inbound.agent.id,
        protocol=PROTOCOL,
        request_id=codec.lowered(response.request_id),
        direct_message=inbound.direct_message(),
        verdict=VERDICTS[response.response_type],
        answer=mapping.help_in(response, inbound.payload),
        more=response.follow_up_required,
    )


def hand_over(inbound: Inbound, request: TaskHandoffRequest) -> Command:
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


def answer_handover(inbound: Inbound, response: TaskHandoffResponse) -> Command:
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


def status(inbound: Inbound, update: StatusUpdate) -> Command:
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


def beat(inbound: Inbound, beat: Heartbeat) -> Command:
    state = None if beat.state is None else beat.state.value
    return Beat(principal=inbound.agent.id, protocol=PROTOCOL, state=state)


def error(inbound: Inbound, report: ErrorReport) -> Command:
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


def register(inbound: Inbound, register: Register) -> Command:
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
