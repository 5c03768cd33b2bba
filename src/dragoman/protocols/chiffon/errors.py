"""Chiffon's error codes: the table, a builder for each row, and the exceptions that become one.

The builders write exactly the context the document gives each code (D15), so nobody composes an error by hand.
Codes from 5007 to 5999 belong to the protocol but not to the document: a peer may send them, and they are never
retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from dragoman.messages.faults import Kind
from dragoman.protocols.chiffon.types import Correlation, ErrorPayload
from dragoman.wire.errors import RemoteProtocolError, Stage


class ErrorRule(Struct, frozen=True):
    """One row of the table: what the code is called, whether to try again, what its context holds."""

    name: str
    retry: bool
    context: tuple[str, ...]
    counts_for_breaker: bool = False


TABLE: dict[int, ErrorRule] = {
    5001: ErrorRule("Timeout", True, ("attempted_retries", "last_attempt"), counts_for_breaker=True),
    5002: ErrorRule("Agent Unavailable", True, ("agent_id", "last_heartbeat"), counts_for_breaker=True),
    5003: ErrorRule("Invalid Message", False, ("validation_error", "field_name")),
    5004: ErrorRule("Authentication Failed", False, ("agent_id", "token_status")),
    5005: ErrorRule("Resource Limit Exceeded", True, ("limit_name", "available", "required")),
    5006: ErrorRule("Unsupported Work Type", False, ("work_type_requested", "supported_types")),
}
TASK_CANCELLED = 5900
DEPENDENCY_FAILED = 5901
WORK_FAILED = 5902

KINDS: Mapping[int, Kind] = {
    5001: Kind.TIMEOUT,
    5002: Kind.UNAVAILABLE,
    5003: Kind.INVALID,
    5004: Kind.UNAUTHENTICATED,
    5005: Kind.RESOURCES,
    5006: Kind.UNSUPPORTED_WORK,
    TASK_CANCELLED: Kind.CANCELLED,
    DEPENDENCY_FAILED: Kind.DEPENDENCY,
    WORK_FAILED: Kind.WORK_FAILED,
}
"""What a code means, to the hub and to the SDK. One that is not there is a failure of the agent's own making. The last
three are ours, from the range that the document leaves free."""

CODES: Mapping[Kind, int] = {
    Kind.INVALID: 5003,
    Kind.TOO_LARGE: 5003,
    Kind.UNSUPPORTED_VERSION: 5006,
    Kind.UNSUPPORTED_WORK: 5006,
    Kind.UNAUTHENTICATED: 5004,
    Kind.FORBIDDEN: 5004,
    Kind.NOT_FOUND: 5003,
    Kind.CONFLICT: 5003,
    Kind.MISMATCH: 5003,
    Kind.CONTRACT: 5003,
    Kind.RATE_LIMITED: 5005,
    Kind.OVERLOADED: 5002,
    Kind.UNAVAILABLE: 5002,
    Kind.TIMEOUT: 5001,
    Kind.RESOURCES: 5005,
    Kind.CANCELLED: TASK_CANCELLED,
    Kind.DEPENDENCY: DEPENDENCY_FAILED,
    Kind.WORK_FAILED: WORK_FAILED,
    Kind.INTERNAL: 5002,
}
"""What the hub says of each of its faults."""
UNDOCUMENTED = ErrorRule("Undocumented Error", False, ())

#: Seconds before attempts 1 to 4: one try and three retries, all with the same request_id (D7).
RETRY_DELAYS = (0, 1, 2, 4)


def rule(code: int) -> ErrorRule:
    """The row of `code`; a code the document does not define is an error that is not retried."""
    return TABLE.get(code, UNDOCUMENTED)


def is_retryable(code: int) -> bool:
    """Whether the sender of the failed message may send it again."""
    return rule(code).retry


def timeout(*, attempted_retries: int, last_attempt: datetime, message: str | None = None) -> ErrorPayload:
    """5001: nobody answered in time."""
    return _payload(5001, message, attempted_retries=attempted_retries, last_attempt=_utc(last_attempt))


def unavailable(*, agent_id: str, last_heartbeat: datetime | None, message: str | None = None) -> ErrorPayload:
    """5002: the agent is not connected."""
    heartbeat = _utc(last_heartbeat) if last_heartbeat is not None else None
    return _payload(5002, message, agent_id=agent_id, last_heartbeat=heartbeat)


def invalid_message(*, validation_error: str, field_name: str | None, message: str | None = None) -> ErrorPayload:
    """5003: the message cannot be understood; `field_name` is a dotted path."""
    return _payload(5003, message, validation_error=validation_error, field_name=field_name)


def authentication_failed(*, agent_id: str, token_status: str, message: str | None = None) -> ErrorPayload:
    """5004: the token does not prove what the message claims."""
    return _payload(5004, message, agent_id=agent_id, token_status=token_status)


def resource_limit(*, limit_name: str, available: int, required: int, message: str | None = None) -> ErrorPayload:
    """5005: the work needs more than there is."""
    return _payload(5005, message, limit_name=limit_name, available=available, required=required)


def unsupported_work(
    *,
    work_type_requested: str,
    supported_types: Iterable[str],
    supported_versions: Iterable[str] | None = None,
    message: str | None = None,
) -> ErrorPayload:
    """5006: nobody does this work, or, with `supported_versions`, nobody speaks this version (D9)."""
    extra = {} if supported_versions is None else {"supported_versions": list(supported_versions)}
    return _payload(
        5006,
        message,
        work_type_requested=work_type_requested,
        supported_types=list(supported_types),
        **extra,
    )


def _payload(code: int, message: str | None, /, **context: Any) -> ErrorPayload:
    return ErrorPayload(error_code=code, error_message=message or TABLE[code].name, error_context=context)


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


class ChiffonError(RemoteProtocolError):
    """A peer's message was refused. `answer` is what to send back, `about` what it answers, where readable."""

    answer: ErrorPayload

    def __init__(self, what: str, *, stage: Stage, field: str | None = None, about: Correlation | None = None) -> None:
        super().__init__(what, stage=stage, field=field)
        self.about = about


class InvalidMessage(ChiffonError):
    """5003 as an exception."""

    def __init__(
        self,
        validation_error: str,
        field_name: str | None = None,
        *,
        stage: Stage = Stage.MEANING,
        about: Correlation | None = None,
    ) -> None:
        super().__init__(validation_error, stage=stage, field=field_name, about=about)
        self.validation_error = validation_error
        self.field_name = field_name
        self.answer = invalid_message(validation_error=validation_error, field_name=field_name)


class UnsupportedVersion(ChiffonError):
    """5006 as an exception: a message or an agent of a version that we do not speak (D9)."""

    def __init__(
        self,
        versions: Iterable[str],
        supported_versions: Iterable[str],
        *,
        subject: str,
        about: Correlation | None = None,
    ) -> None:
        self.versions = tuple(versions)
        self.supported_versions = tuple(supported_versions)
        what = f"no common protocol version: got {', '.join(self.versions) or 'none'}"
        super().__init__(what, stage=Stage.MEANING, field="protocol_version", about=about)
        self.answer = unsupported_work(
            work_type_requested=subject,
            supported_types=(),
            supported_versions=self.supported_versions,
            message="Unsupported protocol version",
        )
