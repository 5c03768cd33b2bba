"""What agents say to each other here."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.sdk.harness import FakeRuntime

from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.records import Priority, TaskConstraints, TaskContext
from dragoman.protocols.agentmsg.types import HelpResponseType, Message

COMPLETE, FAILED, HELP, ANSWER, HANDOFF = (
    "TASK_COMPLETE",
    "TASK_FAILED",
    "HELP_REQUEST",
    "HELP_RESPONSE",
    "TASK_HANDOFF",
)


def helped(
    asked: Message,
    content: str,
    kind: HelpResponseType = HelpResponseType.DIRECT_ANSWER,
    by: str = "senior",
    more: bool = False,
) -> agentmsg.HelpResponse:
    return agentmsg.HelpResponse(
        responder_id=by,
        request_id=asked.id,
        response_type=kind,
        content=content,
        follow_up_required=more,
        estimated_effort=1,
    )


def appeal(help_type: str = "CODE_REVIEW") -> agentmsg.HelpRequest:
    return agentmsg.HelpRequest(
        requester_id="junior",
        task_id="t1",
        help_type=agentmsg.HelpType(help_type),
        description="Is this right?",
        context=agentmsg.HelpContext(current_state="stuck", attempted_solutions=("reading",)),
        urgency="high",
    )


def offer(runtime: FakeRuntime, task_type: str = "write", task_id: str = "t1") -> agentmsg.TaskHandoffRequest:
    return agentmsg.TaskHandoffRequest(
        task_id=task_id,
        from_agent="junior",
        to_agent="worker",
        reason=agentmsg.HandoffReason.CAPABILITY_LIMIT,
        context=TaskContext(
            task_id=task_id,
            task_type=task_type,
            priority=Priority.HIGH,
            metadata={"chapter": 3},
            dependencies=(),
            history=(),
        ),
        constraints=TaskConstraints(required_capabilities=()),
        deadline=runtime.now() + timedelta(minutes=5),
    )
