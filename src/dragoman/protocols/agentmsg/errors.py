"""The eight error types of agentmsg, and a peer's broken message as an exception that knows its answer.

The protocol has one form for every failure, the ErrorReport. A refusal becomes one with `report`, which is given
who reports and under which id: a pure layer has neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from dragoman.messages.faults import Kind
from dragoman.protocols.agentmsg.records import ErrorContext, ErrorReport, ErrorType, Level
from dragoman.wire.errors import RemoteProtocolError, Stage


class Rule(Struct, frozen=True):
    """Whether sending the same again can help, how bad it is unless the report says so itself, and what to do next."""

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
"""What the hub calls each of its faults."""

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
"""What an agentmsg agent means by a type: whether the hub tries again follows from the kind, so there is one for each
answer. The word itself is kept with the fault, and goes out as it came in."""


NAMES: Mapping[ErrorType, Kind] = {
    ErrorType.TIMEOUT: Kind.TIMEOUT,
    ErrorType.RATE_LIMIT: Kind.RATE_LIMITED,
    ErrorType.RESOURCE_EXHAUSTED: Kind.RESOURCES,
    ErrorType.INTERNAL_ERROR: Kind.INTERNAL,
    ErrorType.EXTERNAL_SERVICE_ERROR: Kind.WORK_FAILED,
}
"""What such a type is called elsewhere. The others are called as they are treated."""


def kind_of(error_type: ErrorType, *, retryable: bool) -> Kind:
    """The hub's kind for a type of error that an agent reported."""
    again, final = KINDS[error_type]
    return again if retryable else final


def name_of(error_type: ErrorType) -> Kind:
    """What a caller calls a failure of this type, whatever protocol it speaks."""
    return NAMES.get(error_type) or KINDS[error_type][1]


def is_retryable(report: ErrorReport) -> bool:
    """Whether trying again can help: the report's own word if it has one, else the table's."""
    said = report.context.details.get("retryable")
    return said if type(said) is bool else TABLE[report.error_type].retry


class Refusal(Struct, frozen=True, kw_only=True):
    """An error report that lacks its id and its author."""

    error_type: ErrorType
    message: str
    details: dict[str, Any] = {}
    task_id: str | None = None

    def report(self, error_id: str, agent_id: str) -> ErrorReport:
        """The whole report; `agent_id` is who reports."""
        rule = TABLE[self.error_type]
        return ErrorReport(
            error_id=error_id,
            agent_id=agent_id,
            error_type=self.error_type,
            severity=rule.severity,
            message=self.message,
            context=ErrorContext(details=self.details),
            recovery_attempts=(),
            suggested_actions=(rule.action,),
            task_id=self.task_id,
        )


class AgentmsgError(RemoteProtocolError):
    """A peer's message was refused. `about` is its id where one can be read: an answer names it."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        field: str | None = None,
        about: str | None = None,
        error_type: ErrorType = ErrorType.VALIDATION_ERROR,
        task_id: str | None = None,
    ) -> None:
        super().__init__(what, stage=stage, field=field, retryable=TABLE[error_type].retry)
        self.about = about
        self.error_type = error_type
        self.task_id = task_id

    @property
    def answer(self) -> Refusal:
        """What to tell the sender; all-D3: the field is named."""
        details = {"stage": self.stage.value}
        if self.field is not None:
            details["field"] = self.field
        return Refusal(error_type=self.error_type, message=str(self), details=details, task_id=self.task_id)
