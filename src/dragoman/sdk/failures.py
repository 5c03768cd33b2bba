"""How a call fails, over every protocol alike: one exception for each kind of failure.

    kind (of the hub)       raised                     kind                    raised
    ----------------------  -------------------------  ----------------------  -------------------------
    work_failed             TaskFailed                 cancelled               TaskCancelled
    invalid                 SchemaMismatch             unauthenticated         AuthFailed
    timeout                 TimedOut                   forbidden               SecurityPolicyViolation
    unsupported_work        CapabilityNotFound         contract                ContractViolation
    rate_limited            RateLimitExceeded          internal                InternalError
    any other               TaskFailed

All of them are `TaskFailed`. Input that does not fit is a `SchemaMismatch`, and work that an agent does not do a
`CapabilityNotFound`, also where the hub refused it at once, so these two are a `RequestRefused`, too.

The same exceptions are what a handler may raise to answer with one of a2acp's codes:

    raise RateLimitExceeded("one report a minute", retry_after=30)

If a handler makes a call and lets its failure pass, it does not answer with that code: the code is another request's.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dragoman.protocols.a2acp.errors import TABLE, Code, ErrorBody, retry_after
from dragoman.sdk.errors import RequestRefused, TaskCancelled, TaskFailed


class CallFailed(TaskFailed):
    """A request was answered by an error. `retry_after` is in seconds, 0 where trying again is no use."""

    CODE: ClassVar[Code] = Code.INTERNAL_ERROR
    KIND: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
        task_id: str = "",
        by: str | None = None,
    ) -> None:
        super().__init__(message, task_id=task_id, kind=self.KIND, facts=details)
        self.code = self.CODE.value
        self.details = self.facts
        self.retry_after = _pause(self.CODE, retry_after)
        self.by = by
        self.args = (f"{self.code}: {message}",)

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return TABLE[self.CODE].retry and self.details.get("retryable") is not False


class CapabilityNotFound(CallFailed, RequestRefused):
    """The agent does no such work. The agent reports this, or the hub before any agent got the request."""

    CODE, KIND = Code.CAPABILITY_NOT_FOUND, "unsupported_work"


class SchemaMismatch(CallFailed, RequestRefused):
    """The input does not fit. The agent reports this, or the hub before any agent got the request."""

    CODE, KIND = Code.SCHEMA_MISMATCH, "invalid"


class AuthFailed(CallFailed):
    CODE, KIND = Code.AUTH_FAILED, "unauthenticated"


class TimedOut(CallFailed):
    CODE, KIND = Code.TIMEOUT, "timeout"


class InternalError(CallFailed):
    CODE, KIND = Code.INTERNAL_ERROR, "internal"


class RateLimitExceeded(CallFailed):
    CODE, KIND = Code.RATE_LIMIT_EXCEEDED, "rate_limited"


class ContractViolation(CallFailed):
    CODE, KIND = Code.CONTRACT_VIOLATION, "contract"


class SecurityPolicyViolation(CallFailed):
    CODE, KIND = Code.SECURITY_POLICY_VIOLATION, "forbidden"


_CLASSES: tuple[type[CallFailed], ...] = (
    CapabilityNotFound,
    SchemaMismatch,
    AuthFailed,
    TimedOut,
    InternalError,
    RateLimitExceeded,
    ContractViolation,
    SecurityPolicyViolation,
)
FAILURES: dict[Code, type[CallFailed]] = {kind.CODE: kind for kind in _CLASSES}
BY_KIND: dict[str, type[CallFailed]] = {kind.KIND: kind for kind in _CLASSES}
ALSO_REFUSED = {form.KIND: form for form in (SchemaMismatch, CapabilityNotFound)}
"""Failures that either an agent or the hub reports: one exception for both."""
CANCELLED = "cancelled"


def failed(
    message: str,
    *,
    task_id: str,
    kind: str | None,
    status: str = "failed",
    code: int | str | None = None,
    exit_code: object = None,
    output: str = "",
    facts: dict[str, Any] | None = None,
) -> TaskFailed:
    """The end of a task without success, as it is raised over every protocol."""
    exit_code = exit_code if type(exit_code) is int else None
    if CANCELLED in (status, kind):
        return TaskCancelled(
            message, task_id=task_id, status=CANCELLED, kind=CANCELLED, code=code, output=output, facts=facts
        )
    form = BY_KIND.get(kind or "")
    if form is None:
        return TaskFailed(
            message,
            task_id=task_id,
            status=status,
            kind=kind,
            code=code,
            exit_code=exit_code,
            output=output,
            facts=facts,
        )
    error = form(message, details=facts, task_id=task_id)
    error.status, error.exit_code, error.output = status, exit_code, output
    error.code = error.code if code is None else code
    error.args = (f"task {task_id} {status}: {message}",)
    return error


def refused(
    sentence: str, *, kind: str | None, message: object = None, facts: dict[str, Any] | None = None
) -> RequestRefused:
    """A request that the hub did not take, as it is raised over every protocol. `sentence` ends with what to do next;
    `message` is what went wrong, which says enough where that can also end a task."""
    form = ALSO_REFUSED.get(kind or "")
    if form is None:
        return RequestRefused(sentence, kind=kind, facts=facts)
    message = message if isinstance(message, str) and message else sentence
    error = form(message, details=facts)
    error.status, error.args = "refused", (message,)
    return error


def failure(error: ErrorBody, *, task_id: str = "", by: str | None = None) -> CallFailed:
    """The exception of an a2acp error message, by its code."""
    return FAILURES[error.code](
        error.message, details=error.details, retry_after=float(error.retry_after), task_id=task_id, by=by
    )


def _pause(code: Code, seconds: float | None) -> float:
    return float(retry_after(code)) if seconds is None else seconds if TABLE[code].retry else 0.0
