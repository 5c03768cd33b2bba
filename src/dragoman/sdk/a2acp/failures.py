"""A2acp's eight error codes as exceptions: what a client raises, and what a handler may raise to answer with.

    raise RateLimitExceeded("one report a minute", retry_after=30)

Whoever catches `TaskFailed` catches these, too. A handler that lets the failure of a call of its own pass does not
answer with that code: it was somebody else's request.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dragoman.protocols.a2acp.errors import TABLE, Code, ErrorBody, retry_after
from dragoman.sdk.errors import TaskFailed


class CallFailed(TaskFailed):
    """A request was answered by an error. `retry_after` is in seconds, 0 where trying again is no use."""

    CODE: ClassVar[Code] = Code.INTERNAL_ERROR

    def __init__(
        self,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
        task_id: str = "",
        by: str | None = None,
    ) -> None:
        super().__init__(message, task_id=task_id, kind=self.CODE.value, facts=details)
        self.code = self.CODE.value
        self.details = self.facts
        self.retry_after = _pause(self.CODE, retry_after)
        self.by = by
        self.args = (f"{self.code}: {message}",)

    @property
    def retryable(self) -> bool:
        """Whether the same again can help."""
        return TABLE[self.CODE].retry and self.details.get("retryable") is not False


class CapabilityNotFound(CallFailed):
    CODE = Code.CAPABILITY_NOT_FOUND


class SchemaMismatch(CallFailed):
    CODE = Code.SCHEMA_MISMATCH


class AuthFailed(CallFailed):
    CODE = Code.AUTH_FAILED


class TimedOut(CallFailed):
    CODE = Code.TIMEOUT


class InternalError(CallFailed):
    CODE = Code.INTERNAL_ERROR


class RateLimitExceeded(CallFailed):
    CODE = Code.RATE_LIMIT_EXCEEDED


class ContractViolation(CallFailed):
    CODE = Code.CONTRACT_VIOLATION


class SecurityPolicyViolation(CallFailed):
    CODE = Code.SECURITY_POLICY_VIOLATION


FAILURES: dict[Code, type[CallFailed]] = {
    kind.CODE: kind
    for kind in (
        CapabilityNotFound,
        SchemaMismatch,
        AuthFailed,
        TimedOut,
        InternalError,
        RateLimitExceeded,
        ContractViolation,
        SecurityPolicyViolation,
    )
}


def failure(error: ErrorBody, *, task_id: str = "", by: str | None = None) -> CallFailed:
    """What an error message says, as an exception."""
    return FAILURES[error.code](
        error.message, details=error.details, retry_after=float(error.retry_after), task_id=task_id, by=by
    )


def _pause(code: Code, seconds: float | None) -> float:
    return float(retry_after(code)) if seconds is None else seconds if TABLE[code].retry else 0.0
