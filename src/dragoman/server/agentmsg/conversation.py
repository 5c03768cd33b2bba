"""What agents ask of each other, as commands: help, and to go on with a task. Both carry the message word for word.

response_type                                                    verdict
---------------------------------------------------------------  ---------
DIRECT_ANSWER, RESOURCE_PROVISION, COLLABORATIVE_SESSION         answered
ESCALATION                                                       escalated
UNABLE_TO_HELP                                                   unable
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET

from dragoman.core.commands import AnswerHandover, AskHelp, AskPerson, Command, GiveHelp, Handing, HandOver, HelpVerdict
from dragoman.core.ids import SECOND, AgentId, instant
from dragoman.core.model.tasks import Priority
from dragoman.messages.tasks import Handoff
from dragoman.protocols.agentmsg import codec, mapping, routing
from dragoman.protocols.agentmsg.types import (
    HandoffReason,
    HelpRequest,
    HelpResponse,
    HelpResponseType,
    TaskHandoffRequest,
    TaskHandoffResponse,
)
from dragoman.server.agentmsg.exchange import PRIORITIES, Said, effective
from dragoman.server.agentmsg.failures import fault_in
from dragoman.server.agentmsg.names import PERSON, PROTOCOL, name_to_keep, somebody, task_id

VERDICTS: Mapping[HelpResponseType, HelpVerdict] = {
    HelpResponseType.DIRECT_ANSWER: HelpVerdict.ANSWERED,
    HelpResponseType.RESOURCE_PROVISION: HelpVerdict.ANSWERED,
    HelpResponseType.COLLABORATIVE_SESSION: HelpVerdict.ANSWERED,
    HelpResponseType.ESCALATION: HelpVerdict.ESCALATED,
    HelpResponseType.UNABLE_TO_HELP: HelpVerdict.UNABLE,
}
REASONS: Mapping[HandoffReason, Handing] = {reason: Handing(reason.value.lower()) for reason in HandoffReason}
TERMS = ("estimated_completion", "requirements", "constraints", "error")


def ask_help(said: Said, request: HelpRequest) -> tuple[Command, ...]:
    if said.payload.get("ask") == PERSON and somebody(said.message.to) is None:
        return (_ask_person(said, request),)
    urgent = PRIORITIES[routing.URGENCY[request.urgency]]
    return (
        AskHelp(
            principal=said.agent.id,
            protocol=PROTOCOL,
            direct_message=said.direct_message(),
            question=request.description,
            topic=request.help_type.value,
            to=somebody(said.message.to),
            task_id=task_id(request.task_id),
            priority=Priority.CRITICAL if urgent is Priority.CRITICAL else effective(said.message),
            deadline=None if request.deadline is None else instant(request.deadline),
            details={
                "help_type": request.help_type.value,
                "urgency": request.urgency,
                "context": said.payload["context"],
                "task": request.task_id,
            },
        ),
    )


def _ask_person(said: Said, request: HelpRequest) -> AskPerson:
    """A question that no agent can answer (ours): `ask: "person"`, with `options` and a `default` if there are any."""
    given = said.payload
    waits = None if request.deadline is None else (instant(request.deadline) - said.now) / SECOND
    return AskPerson(
        principal=said.agent.id,
        protocol=PROTOCOL,
        request_id=said.message.id,
        ask=mapping.ask_in(request, given, None if waits is None else max(0.0, waits)),
        task_id=task_id(request.task_id),
        details={"help_type": request.help_type.value, "urgency": request.urgency, "context": given["context"]},
    )


def give_help(said: Said, response: HelpResponse) -> tuple[Command, ...]:
    answer: dict[str, Any] = {"content": response.content, "response_type": response.response_type.value}
    for name in ("resources", "answer"):
        if said.payload.get(name) is not None:
            answer[name] = said.payload[name]
    return (
        GiveHelp(
            principal=said.agent.id,
            protocol=PROTOCOL,
            request_id=codec.lowered(response.request_id),
            direct_message=said.direct_message(),
            verdict=VERDICTS[response.response_type],
            answer=answer,
            more=response.follow_up_required,
        ),
    )


def hand_over(said: Said, request: TaskHandoffRequest) -> tuple[Command, ...]:
    given = said.payload
    report: dict[str, Any] = given.get("error") or {}
    context = given["context"]
    known = Handoff(
        metadata=context["metadata"],
        history=context["history"],
        dependencies=context["dependencies"],
        constraints=given["constraints"],
        error=None if request.error is None else report,
        recovery_attempts=UNSET if request.error is None else report["recovery_attempts"],
    )
    return (
        HandOver(
            principal=said.agent.id,
            protocol=PROTOCOL,
            direct_message=said.direct_message(),
            task_id=task_id(request.task_id),
            called=name_to_keep(request.task_id),
            reason=REASONS[request.reason],
            deadline=instant(request.due),
            to=_wished_for(said, request),
            required_capabilities=request.constraints.required_capabilities,
            type=request.context.task_type,
            trace_id=said.trace_id,
            known=known,
            fault=None if request.error is None else fault_in(request.error, report),
            priority=PRIORITIES[request.context.priority],
        ),
    )


def _wished_for(said: Said, request: TaskHandoffRequest) -> AgentId | None:
    """Who shall have it: whom the message is for; one for the hub may name somebody, or leave the choice to it."""
    return somebody(said.message.to) or somebody(request.to_agent)


def answer_handover(said: Said, response: TaskHandoffResponse) -> tuple[Command, ...]:
    correlation = said.message.metadata.correlation_id
    assert correlation is not None  # the codec insists
    return (
        AnswerHandover(
            principal=said.agent.id,
            protocol=PROTOCOL,
            request_id=correlation,
            direct_message=said.direct_message(),
            accepted=response.accepted,
            terms={name: said.payload[name] for name in TERMS if said.payload.get(name) is not None},
        ),
    )
