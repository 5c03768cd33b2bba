"""Faults ⇄ agentmsg's ErrorReports, its one form for everything that goes wrong; and the refusal of an invalid message.

    a report of an agent → a fault   its type gives the kind; whether to try again is in `context.details.retryable`, or
                                     follows from the type. The fact `report` keeps what a fault has no field for
    such a fault → a report          the agent's own again: id, severity, recovery attempts, suggestions
    a fault of the hub → a report    by the hub, with advice in `suggested_actions`; `context.details` has the kind, the
                                     field and the facts

The facts of a fault and the details of a report are the same, so an exit code or a version arrives in every protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Json
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorReport, ErrorType, Level
from dragoman.protocols.agentmsg.types import HUB, MessageType
from dragoman.wire.errors import RemoteProtocolError, Stage


class Rule(Struct, frozen=True):
    """Whether trying again can help; the severity, unless the report has its own; what to do next."""

    retry: bool
    severity: Level
    action: str


TABLE: dict[ErrorType, Rule] = {
    ErrorType.TIMEOUT: Rule(True, "medium", "Send it again, or allow more time with metadata.ttl_ms."),
    ErrorType.RATE_LIMIT: Rule(True, "low", "Slow down and send it again shortly."),
    ErrorType.VALIDATION_ERROR: Rule(False, "medium", "Correct the message and send it under a new id."),
    ErrorType.NETWORK_ERROR: Rule(True, "medium", "Wait until the other side is back, then send it again."),
    ErrorType.AUTHENTICATION_ERROR: Rule(False, "high", "Speak only for the agent whose token you hold."),
    ErrorType.RESOURCE_EXHAUSTED: Rule(True, "high", "Ask for less, or wait until there is room."),
    ErrorType.INTERNAL_ERROR: Rule(True, "high", "Send it again; if it stays, look into the log of who reports it."),
    ErrorType.EXTERNAL_SERVICE_ERROR: Rule(False, "medium", "Read its details for what failed."),
}


TYPES: Mapping[Kind, ErrorType] = {
    Kind.INVALID: ErrorType.VALIDATION_ERROR,
    Kind.TOO_LARGE: ErrorType.VALIDATION_ERROR,
    Kind.UNSUPPORTED_VERSION: ErrorType.VALIDATION_ERROR,
    Kind.UNSUPPORTED_WORK: ErrorType.VALIDATION_ERROR,
    Kind.UNAUTHENTICATED: ErrorType.AUTHENTICATION_ERROR,
    Kind.FORBIDDEN: ErrorType.AUTHENTICATION_ERROR,
    Kind.NOT_FOUND: ErrorType.VALIDATION_ERROR,
    Kind.CONFLICT: ErrorType.VALIDATION_ERROR,
    Kind.MISMATCH: ErrorType.VALIDATION_ERROR,
    Kind.CONTRACT: ErrorType.VALIDATION_ERROR,
    Kind.RATE_LIMITED: ErrorType.RATE_LIMIT,
    Kind.OVERLOADED: ErrorType.RESOURCE_EXHAUSTED,
    Kind.UNAVAILABLE: ErrorType.NETWORK_ERROR,
    Kind.TIMEOUT: ErrorType.TIMEOUT,
    Kind.RESOURCES: ErrorType.RESOURCE_EXHAUSTED,
    Kind.CANCELLED: ErrorType.EXTERNAL_SERVICE_ERROR,
    Kind.DEPENDENCY: ErrorType.EXTERNAL_SERVICE_ERROR,
    Kind.WORK_FAILED: ErrorType.EXTERNAL_SERVICE_ERROR,
    Kind.INTERNAL: ErrorType.INTERNAL_ERROR,
}
"""The error type of each kind of fault."""

KINDS: Mapping[ErrorType, tuple[Kind, Kind]] = {
    #                          tried again       final
    ErrorType.TIMEOUT:                (Kind.TIMEOUT,     Kind.WORK_FAILED),
    ErrorType.RATE_LIMIT:             (Kind.RESOURCES,   Kind.RATE_LIMITED),
    ErrorType.VALIDATION_ERROR:       (Kind.UNAVAILABLE, Kind.INVALID),
    ErrorType.NETWORK_ERROR:          (Kind.UNAVAILABLE, Kind.WORK_FAILED),
    ErrorType.AUTHENTICATION_ERROR:   (Kind.UNAVAILABLE, Kind.UNAUTHENTICATED),
    ErrorType.RESOURCE_EXHAUSTED:     (Kind.RESOURCES,   Kind.WORK_FAILED),
    ErrorType.INTERNAL_ERROR:         (Kind.UNAVAILABLE, Kind.INTERNAL),
    ErrorType.EXTERNAL_SERVICE_ERROR: (Kind.UNAVAILABLE, Kind.WORK_FAILED),
}  # fmt: skip
"""The kind of fault that an agent's report becomes: the hub tries again by the kind, so there is one for each answer.
The fault keeps the report, and leaves the hub as that report again."""


NAMES: Mapping[ErrorType, Kind] = {
    ErrorType.TIMEOUT: Kind.TIMEOUT,
    ErrorType.RATE_LIMIT: Kind.RATE_LIMITED,
    ErrorType.RESOURCE_EXHAUSTED: Kind.RESOURCES,
    ErrorType.INTERNAL_ERROR: Kind.INTERNAL,
    ErrorType.EXTERNAL_SERVICE_ERROR: Kind.WORK_FAILED,
}
"""The kind by which other protocols name such a failure, where it differs from the kind that the hub acts on."""


NUMBERS = ("max_tokens", "budget_usd", "quality_threshold")
"""Constraints that are numbers in the hub, too."""
REQUIREMENTS = ("chain", "risk", "cpu", "memory")
"""Fields of a context's metadata that the hub obeys as constraints."""
LIMITS = ("max_memory_mb", "max_gpu_vram_mb")
"""Constraints of other protocols that a handed over task may have."""

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
"""Where the fields that a fault names are in a message."""
FIELDS_OF: Mapping[MessageType, Mapping[str, str]] = {
    MessageType.TASK_ASSIGNMENT: {
        "task_id": "payload.task.task_id",
        **{f"constraints.{name}": f"payload.task.constraints.{name}" for name in NUMBERS},
        **{f"constraints.{name}": f"payload.task.context.metadata.{name}" for name in REQUIREMENTS},
    },
    MessageType.TASK_HANDOFF: {
        "request_id": "metadata.correlation_id",
        "deadline": "payload.deadline",
        **{f"constraints.{name}": f"payload.constraints.{name}" for name in (*NUMBERS, *REQUIREMENTS, *LIMITS)},
    },
    MessageType.HELP_REQUEST: {"deadline": "payload.deadline"},
    MessageType.HELP_RESPONSE: {"request_id": "payload.request_id"},
}
"""Where they are instead in a message of this type."""

LONGEST_REPORT = 32 * 1024
"""Bytes of a report that stay with a fault, which is a part of the task's row. The task's events have all of it."""
LONGEST_STACK = 8 * 1024
MOST_ITEMS = 20

_REPORT = frozenset(ErrorReport.__struct_fields__) - {"message", "context"}
_FIELD_AT = {place: name for name, place in FIELDS.items()}
_KINDS = {kind.value: kind for kind in Kind}
_encode = msgspec.json.Encoder().encode


# -- reports -----------------------------------------------------------------------------------------------------


def new_report(
    error_type: ErrorType,
    message: str,
    *,
    error_id: str,
    agent_id: str,
    task_id: str | None = None,
    details: Json | None = None,
) -> ErrorReport:
    """A report with the severity and the advice that the table has for its type."""
    rule = TABLE[error_type]
    return ErrorReport(
        error_id=error_id,
        agent_id=agent_id,
        error_type=error_type,
        severity=rule.severity,
        message=message,
        context=ErrorContext(details=details or {}),
        recovery_attempts=(),
        suggested_actions=(rule.action,),
        task_id=task_id,
    )


def agent_report(fault: Fault, *, error_id: str, agent_id: str, task_id: str) -> ErrorReport:
    """Why an agent cannot do a task, or failed in it."""
    details: Json = {"kind": fault.kind.value, "retryable": fault.retryable}
    if fault.field:
        details["field"] = fault.field
    return new_report(
        TYPES[fault.named or fault.kind],
        fault.message,
        error_id=error_id,
        agent_id=agent_id,
        task_id=task_id,
        details=details | fault.facts,
    )


def is_retryable(report: ErrorReport) -> bool:
    """Whether trying again can help: as the report itself says, else as the table does."""
    own = report.context.details.get("retryable")
    return own if type(own) is bool else TABLE[report.error_type].retry


def kind_of(error_type: ErrorType, *, retryable: bool) -> Kind:
    again, final = KINDS[error_type]
    return again if retryable else final


def name_of(error_type: ErrorType) -> Kind:
    """The kind by which callers of any protocol name a failure of this type."""
    return NAMES.get(error_type) or KINDS[error_type][1]


def fault_in(report: ErrorReport, tree: Mapping[str, Any]) -> Fault:
    """The fault that a report means. `tree` is its JSON object with all fields."""
    retryable = is_retryable(report)
    details = dict(report.context.details)
    named = _KINDS.get(str(details.pop("kind", "")))
    field = details.pop("field", None)
    details.pop("retryable", None)
    if named is not None and report.agent_id == HUB and TYPES[named] is report.error_type:
        return Fault(  # a report of the hub's own, which an agent sends back
            kind=named,
            message=report.message,
            field=_FIELD_AT.get(field, field) if type(field) is str else None,
            retryable=retryable,
            facts=details,
        )
    if field is not None:
        details["field"] = field
    if named is not None:
        details["kind"] = named.value
    kind = kind_of(report.error_type, retryable=retryable)
    return Fault(
        kind=named if kind is Kind.INVALID and named is Kind.UNSUPPORTED_WORK else kind,
        message=report.message or "the work failed",
        retryable=retryable,
        facts={**details, "report": _kept(tree)},
        named=NAMES.get(report.error_type),
    )


def _kept(tree: Mapping[str, Any]) -> Json:
    """A report without what the fault itself has, and within bounds."""
    context = tree.get("context")
    rest = {name: value for name, value in context.items() if name != "details"} if type(context) is dict else {}
    report = {name: value for name, value in tree.items() if name not in ("message", "context")}
    if rest:
        report["context"] = rest
    if len(_encode(report)) <= LONGEST_REPORT:
        return report
    report = {name: value for name, value in report.items() if name in _REPORT}
    if type(report.get("stack_trace")) is str:
        report["stack_trace"] = report["stack_trace"][:LONGEST_STACK]
    report["recovery_attempts"] = tree.get("recovery_attempts", [])[-MOST_ITEMS:]
    report["suggested_actions"] = tree.get("suggested_actions", [])[:MOST_ITEMS]
    report["shortened"] = True
    if len(_encode(report)) > LONGEST_REPORT:
        report["recovery_attempts"] = []
        report["suggested_actions"] = [action[:500] for action in report["suggested_actions"]]
    return report


def report_out(
    fault: Fault,
    *,
    error_id: str,
    task_id: str | None = None,
    hub_task_id: str | None = None,
    agent_id: str = HUB,
    refused: MessageType | None = None,
) -> Json:
    """A fault as an ErrorReport. `task_id` is the name by which its reader knows the task, `hub_task_id` the id in the
    fault's facts; `agent_id` is the agent that reports, unless the fault has a report of its own. `refused` is the type
    of the message that was refused, if one was: its fields are named by their places (all-D3)."""
    facts = dict(fault.facts)
    own = facts.pop("report", None)
    if _is_report(own):
        return _own_report(fault, own, facts, task_id)
    error_type = TYPES[fault.named or fault.kind]
    details: Json = {**facts, "kind": fault.kind.value, "retryable": fault.retryable}
    if fault.field is not None:
        details["field"] = _place(fault.field, refused)
    if hub_task_id is not None and details.get("task_id") == hub_task_id:
        details["task_id"] = task_id
    report: Json = {
        "error_id": error_id,
        "agent_id": agent_id,
        "error_type": error_type.value,
        "severity": TABLE[error_type].severity,
        "message": fault.message,
        "context": {"details": details},
        "recovery_attempts": [],
        "suggested_actions": [] if fault.reported else [advice(fault)],
    }
    if task_id is not None:
        report["task_id"] = task_id
    return report


def _place(field: str, refused: MessageType | None) -> str:
    if refused is MessageType.STATE_UPDATE and field.startswith("changes."):
        return f"payload.{field}"
    place = None if refused is None else FIELDS_OF.get(refused, {}).get(field)
    return place or FIELDS.get(field, field)


def _is_report(own: Any) -> TypeGuard[Json]:
    """Whether it is what `_kept` kept: agents of other protocols may have a fact of that name, too."""
    try:
        msgspec.convert({"context": {}, **own, "message": ""}, ErrorReport)
    except (TypeError, msgspec.ValidationError):
        return False
    return True


def _own_report(fault: Fault, own: Json, details: Json, task_id: str | None) -> Json:
    """A report as its agent wrote it, with the task's name for its reader."""
    if TABLE[ErrorType(own["error_type"])].retry is not fault.retryable:
        details["retryable"] = fault.retryable
    context = dict(own.get("context", {}))
    if details:
        context["details"] = details
    report = {**own, "message": fault.message, "context": context}
    if task_id is not None and "task_id" in own:
        report["task_id"] = task_id
    return report


def advice(fault: Fault) -> str:
    """What to do next: the fault's own advice, or its kind's."""
    return f"{fault.next[:1].upper()}{fault.next[1:]}." if fault.next else error_table.TABLE[fault.kind].next


# -- refusals ----------------------------------------------------------------------------------------------------


class AgentmsgError(RemoteProtocolError):
    """A peer's message was refused. `about` is its id where one can be read: the answer names it."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        field: str | None = None,
        about: str | None = None,
        error_type: ErrorType = ErrorType.VALIDATION_ERROR,
        next: str = "",
    ) -> None:
        super().__init__(what, stage=stage, field=field, retryable=TABLE[error_type].retry, next=next)
        self.about = about
        self.error_type = error_type

    def report(self, error_id: str, agent_id: str) -> ErrorReport:
        """The report that answers the message; all-D3: the field is named."""
        details = {"stage": self.stage.value}
        if self.field is not None:
            details["field"] = self.field
        return new_report(self.error_type, str(self), error_id=error_id, agent_id=agent_id, details=details)

    @property
    def fault(self) -> Fault:
        kind = Kind.INVALID
        if self.stage is Stage.SIZE:
            kind = Kind.TOO_LARGE
        elif self.error_type is ErrorType.AUTHENTICATION_ERROR:
            kind = Kind.FORBIDDEN
        elif self.error_type is ErrorType.RESOURCE_EXHAUSTED:
            kind = Kind.OVERLOADED
        elif self.stage is Stage.ORDER:
            kind = Kind.MISMATCH
        return Fault(
            kind=kind,
            message=self.what,
            next=self.next,
            field=self.field,
            retryable=kind is Kind.OVERLOADED,
            facts={"stage": self.stage.value},
        )
