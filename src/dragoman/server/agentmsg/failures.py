"""ErrorReports and the hub's faults, both ways: agentmsg has one form for everything that goes wrong.

    a report of an agent becomes a fault      its type says of which kind; whether it is tried again is the report's own
                                              word (`context.details.retryable`), or its type's. What the fault has no
                                              field for stays with it, in its fact `report`.
    such a fault becomes a report             the agent's own again: id, severity, recovery attempts, suggestions
    a fault of the hub becomes a report       by the hub; `suggested_actions` says what to do next, and
                                              `context.details` has the kind, the field and the facts

The facts of a fault and the details of a report are the same thing, so that an exit code or a version is found by
whoever hears of it in whichever protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeGuard, get_args

import msgspec

from dragoman.core.commands import Severity
from dragoman.core.ids import EPOCH, AgentId, Instant, rfc3339
from dragoman.core.model.agents import CONSTRAINTS
from dragoman.core.model.tasks import Task
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.agentmsg import errors
from dragoman.protocols.agentmsg.errors import AgentmsgError
from dragoman.protocols.agentmsg.records import ErrorReport, ErrorType, Level
from dragoman.protocols.agentmsg.types import HUB, MessageType
from dragoman.server.agentmsg.names import called, derived_v4, doer
from dragoman.server.agentmsg.names import task_id as hubs_id
from dragoman.server.agentmsg.views import NUMBERS, REQUIREMENTS
from dragoman.wire.errors import Stage

MALFORMED = frozenset({Stage.DEPTH, Stage.JSON, Stage.SHAPE})
"""Checks whose refusal means 400: the message cannot be read. One that reads well but makes no sense is 422."""

TTL = "metadata.ttl_ms"
FIELDS = {
    "task_id": "payload.task_id",
    "to_agent": "to",
    "request_id": "id",
    "message_id": "metadata.correlation_id",
    "work_type": "payload.task.task_type",
    "dependencies": "payload.task.context.dependencies",
    "parent": "payload.task.context.metadata.parent_task_id",
    "deadline": "payload.task.constraints.deadline",
    "entity_id": "payload.entity_id",
    "version": "payload.version",
    "changes": "payload.changes",
    "operation": "payload.operation",
}
"""Where the hub's fields stand in a message."""
_FIELDS_IN = {place: name for name, place in FIELDS.items()}

FIELDS_OF: Mapping[MessageType, Mapping[str, str]] = {
    MessageType.TASK_ASSIGNMENT: {
        "task_id": "payload.task.task_id",
        **{f"constraints.{name}": f"payload.task.constraints.{name}" for name in NUMBERS},
        **{f"constraints.{name}": f"payload.task.context.metadata.{name}" for name in REQUIREMENTS},
    },
    MessageType.TASK_HANDOFF: {
        "request_id": "metadata.correlation_id",
        "deadline": "payload.deadline",
        **{f"constraints.{name}": f"payload.constraints.{name}" for name in (*NUMBERS, *REQUIREMENTS, *CONSTRAINTS)},
    },
    MessageType.HELP_REQUEST: {"deadline": "payload.deadline"},
    MessageType.HELP_RESPONSE: {"request_id": "payload.request_id"},
}
"""Where they stand otherwise in a message of this type."""

STATUS: Mapping[Kind, int] = {kind: row.agents for kind, row in error_table.TABLE.items()} | {Kind.FORBIDDEN: 403}
"""The interface fixes the same statuses for the two, and one more here: who is known and not allowed is 403."""

LONGEST_REPORT = 32 * 1024
"""Bytes of a report that stay with a fault: it is a part of the task's row, which is written again and again. The whole
one is kept word for word with the task's events."""
LONGEST_STACK = 8 * 1024
MOST_ITEMS = 20

_encode = msgspec.json.Encoder().encode
_severities = frozenset(get_args(Level))
_kinds = {kind.value: kind for kind in Kind}
_advice = {kind: (row.next if row.next.endswith(".") else f"{row.next}.") for kind, row in error_table.TABLE.items()}


# -- an agent's report -------------------------------------------------------------------------------------------


def fault_in(report: ErrorReport, said: Mapping[str, Any]) -> Fault:
    """What an agent's report means. `said` is the JSON object that it came as, with all its fields."""
    retryable = errors.is_retryable(report)
    details = dict(report.context.details)
    named = _kinds.get(str(details.pop("kind", "")))
    field = details.pop("field", None)
    details.pop("retryable", None)
    kind = errors.kind_of(report.error_type, retryable=retryable)
    own = report.agent_id == HUB and named is not None and errors.TYPES[named] is report.error_type
    if own and named is not None:  # the hub's own word, which somebody hands back to it
        return Fault(
            kind=named,
            message=report.message,
            field=_FIELDS_IN.get(field, field) if type(field) is str else None,
            retryable=retryable,
            facts=details,
        )
    if field is not None:
        details["field"] = field
    if named is not None:
        details["kind"] = named.value
    if kind is Kind.INVALID and named is Kind.UNSUPPORTED_WORK:
        kind = named
    return Fault(
        kind=kind,
        message=report.message or "the work failed",
        retryable=retryable,
        facts={**details, "report": _kept(said)},
        named=errors.NAMES.get(report.error_type),
    )


def severity_of(report: ErrorReport) -> Severity:
    return Severity(report.severity)


def _kept(said: Mapping[str, Any]) -> dict[str, Any]:
    """A report without what the fault itself says, and within bounds."""
    context = said.get("context")
    rest = {name: value for name, value in context.items() if name != "details"} if type(context) is dict else {}
    report = {name: value for name, value in said.items() if name not in ("message", "context")}
    if rest:
        report["context"] = rest
    if len(_encode(report)) <= LONGEST_REPORT:
        return report
    report = {name: value for name, value in report.items() if name in _REPORT}
    if type(report.get("stack_trace")) is str:
        report["stack_trace"] = report["stack_trace"][:LONGEST_STACK]
    report["recovery_attempts"] = said.get("recovery_attempts", [])[-MOST_ITEMS:]
    report["suggested_actions"] = said.get("suggested_actions", [])[:MOST_ITEMS]
    report["shortened"] = True
    if len(_encode(report)) > LONGEST_REPORT:
        report["recovery_attempts"] = []
        report["suggested_actions"] = [action[:500] for action in report["suggested_actions"]]
    return report


_REPORT = frozenset(ErrorReport.__struct_fields__) - {"message", "context"}


# -- a fault, told ------------------------------------------------------------------------------------------------


def report(
    fault: Fault,
    *,
    error_id: str,
    task_id: str | None = None,
    agent_id: str = HUB,
    severity: str | None = None,
    said: MessageType | None = None,
) -> dict[str, Any]:
    """A fault as an ErrorReport, in JSON. `task_id` is what its reader calls the task, `agent_id` who reports, unless
    the fault says who did. `said` is what was refused, where it was a message: so its fields have their places
    (all-D3)."""
    facts = dict(fault.facts)
    own = facts.pop("report", None)
    if _is_report(own):
        return _agents_own(fault, own, facts, task_id)
    error_type = errors.TYPES[fault.named or fault.kind].value
    details: dict[str, Any] = {**facts, "kind": fault.kind.value, "retryable": fault.retryable}
    if fault.field is not None:
        details["field"] = _place(fault.field, said)
    if task_id is not None and details.get("task_id") == hubs_id(task_id):
        details["task_id"] = task_id
    told: dict[str, Any] = {
        "error_id": error_id,
        "agent_id": agent_id,
        "error_type": error_type,
        "severity": severity if severity in _severities else errors.TABLE[ErrorType(error_type)].severity,
        "message": fault.message,
        "context": {"details": details},
        "recovery_attempts": [],
        "suggested_actions": [] if fault.reported else [advice(fault)],
    }
    if task_id is not None:
        told["task_id"] = task_id
    return told


def error_of(task: Task, fault: Fault, agent: AgentId | None) -> dict[str, Any]:
    """Why a task failed, as its TaskState has it: the very report that its caller gets. `agent` is who said so."""
    seen = derived_v4(f"{task.id}/{task.outcome or task.seq}")
    return report(fault, error_id=seen, task_id=called(task), agent_id=doer(agent or HUB))


def _place(field: str, said: MessageType | None) -> str:
    if said is MessageType.STATE_UPDATE and field.startswith("changes."):
        return f"payload.{field}"
    place = None if said is None else FIELDS_OF.get(said, {}).get(field)
    return place or FIELDS.get(field, field)


def _is_report(own: Any) -> TypeGuard[dict[str, Any]]:
    """Whether it is what `_kept` kept. An agent of another protocol may call anything a report."""
    try:
        msgspec.convert({"context": {}, **own, "message": ""}, ErrorReport)
    except (TypeError, msgspec.ValidationError):
        return False
    return True


def _agents_own(fault: Fault, own: dict[str, Any], details: dict[str, Any], task_id: str | None) -> dict[str, Any]:
    """A report again as its agent wrote it; only the task is called as its reader calls it."""
    if errors.TABLE[ErrorType(own["error_type"])].retry is not fault.retryable:
        details["retryable"] = fault.retryable
    context = dict(own.get("context", {}))
    if details:
        context["details"] = details
    told = {**own, "message": fault.message, "context": context}
    if task_id is not None and "task_id" in own:
        told["task_id"] = task_id
    return told


def advice(fault: Fault) -> str:
    """What to do next: the fault's own advice after a semicolon, or its kind's."""
    _, found, after = fault.message.rpartition("; ")
    if not found:
        return _advice[fault.kind]
    after = after.strip().rstrip(".")
    return f"{after[:1].upper()}{after[1:]}."


def report_of(fault: Fault, *, error_id: str, task_id: str | None = None) -> bytes:
    """The bare report that is the body of an HTTP refusal."""
    return _encode(report(fault, error_id=error_id, task_id=task_id))


def refusal(
    fault: Fault,
    *,
    to: str,
    now: Instant,
    message_id: str,
    about: str | None = None,
    task_id: str | None = None,
    said: MessageType | None = None,
) -> bytes:
    """The ERROR_REPORT that answers a message which was refused; `about` is that message's id, where it can be read."""
    return _encode(
        {
            "id": message_id,
            "timestamp": rfc3339(now),
            "from": HUB,
            "to": to,
            "type": "ERROR_REPORT",
            "payload": report(fault, error_id=message_id, task_id=task_id, said=said),
            "metadata": {
                **({} if about is None else {"correlation_id": about}),
                "priority": "critical",
                "retry_count": 0,
                "max_retries": 0,
            },
        }
    )


def status_of(fault: Fault) -> int:
    """The HTTP status that goes with a fault."""
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return 404  # nobody of that name is known, rather than not here now
    if fault.kind is Kind.TIMEOUT and fault.field == TTL:
        return 422  # its time was over before it came: sent again as it is, it would be again
    if fault.kind is Kind.RESOURCES and not fault.retryable:
        return 422  # likewise: it asks for more than there is
    return STATUS[fault.kind]


def fault_of(error: AgentmsgError) -> Fault:
    """A message that the codec or the connection refused, as a fault."""
    kind = Kind.INVALID
    if error.stage is Stage.SIZE:
        kind = Kind.TOO_LARGE
    elif error.error_type is ErrorType.AUTHENTICATION_ERROR:
        kind = Kind.FORBIDDEN
    elif error.error_type is ErrorType.RESOURCE_EXHAUSTED:
        kind = Kind.OVERLOADED
    elif error.stage is Stage.ORDER:
        kind = Kind.MISMATCH
    retryable = kind is Kind.OVERLOADED
    return Fault(
        kind=kind, message=error.what, field=error.field, retryable=retryable, facts={"stage": error.stage.value}
    )


def outlived(kind: str, message_id: str, ttl_ms: float) -> Fault:
    """A message came, or waited, until its time to live was over (D6)."""
    return Fault(
        kind=Kind.TIMEOUT,
        message=f"{kind} {message_id} was not delivered within its {ttl_ms:g} ms; send it anew, with more time",
        field=TTL,
        facts={"message_id": message_id, "ttl_ms": ttl_ms},
    )


def moment(now: Instant) -> Any:
    """The instant as a datetime, for the protocol's own functions."""
    return EPOCH + timedelta(microseconds=now)
