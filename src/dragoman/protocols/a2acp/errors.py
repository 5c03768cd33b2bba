"""The eight error codes of A2ACP, and a peer's broken message as an exception that knows its answer.

`retry_after` follows from the code (D10, D16): 1 to 60 seconds where trying again can help, 0 where it cannot. An error
of a peer is read as it came, whatever it says there; what we send, or pass on, keeps the rule.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from dragoman.messages.faults import Kind
from dragoman.protocols.a2acp.types import Record, Seconds
from dragoman.wire.errors import RemoteProtocolError, Stage

LONGEST_WAIT = 60
"""Seconds; `retry_after` never says more (D16)."""


class Code(enum.StrEnum):
    CAPABILITY_NOT_FOUND = "CAPABILITY_NOT_FOUND"
    SCHEMA_MISMATCH = "SCHEMA_MISMATCH"
    AUTH_FAILED = "AUTH_FAILED"
    TIMEOUT = "TIMEOUT"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    RATE_LIMIT_EXCEEDED = "RATE_LIMIT_EXCEEDED"
    CONTRACT_VIOLATION = "CONTRACT_VIOLATION"
    SECURITY_POLICY_VIOLATION = "SECURITY_POLICY_VIOLATION"


class Rule(Struct, frozen=True):
    """Whether the same again can help, after how many seconds unless a refusal says it itself, and what to do next."""

    retry: bool
    after: int
    next: str


TABLE: dict[Code, Rule] = {
    Code.CAPABILITY_NOT_FOUND: Rule(False, 0, "Ask discover_capabilities who serves the intent, and check its name."),
    Code.SCHEMA_MISMATCH: Rule(False, 0, "Change the message as the details say and send it under a new id."),
    Code.AUTH_FAILED: Rule(False, 0, "Get a token at /auth/token for this source, target and capabilities."),
    Code.TIMEOUT: Rule(True, 1, "Send it again under a new message_id, or allow the intent more time."),
    Code.INTERNAL_ERROR: Rule(True, 1, "Send it again under a new message_id; if it stays, look into the log."),
    Code.RATE_LIMIT_EXCEEDED: Rule(True, 1, "Wait for retry_after seconds."),
    Code.CONTRACT_VIOLATION: Rule(False, 0, "Shake hands for a contract, name it, and keep to its terms."),
    Code.SECURITY_POLICY_VIOLATION: Rule(False, 0, "Ask whoever keeps the domain policies, or encrypt the payload."),
}


CODES: Mapping[Kind, Code] = {
    Kind.INVALID: Code.SCHEMA_MISMATCH,
    Kind.TOO_LARGE: Code.SCHEMA_MISMATCH,
    Kind.UNSUPPORTED_VERSION: Code.SCHEMA_MISMATCH,
    Kind.UNSUPPORTED_WORK: Code.CAPABILITY_NOT_FOUND,
    Kind.UNAUTHENTICATED: Code.AUTH_FAILED,
    Kind.FORBIDDEN: Code.SECURITY_POLICY_VIOLATION,
    Kind.NOT_FOUND: Code.CAPABILITY_NOT_FOUND,
    Kind.CONFLICT: Code.CONTRACT_VIOLATION,
    Kind.MISMATCH: Code.CONTRACT_VIOLATION,
    Kind.CONTRACT: Code.CONTRACT_VIOLATION,
    Kind.RATE_LIMITED: Code.RATE_LIMIT_EXCEEDED,
    Kind.OVERLOADED: Code.INTERNAL_ERROR,
    Kind.UNAVAILABLE: Code.TIMEOUT,
    Kind.TIMEOUT: Code.TIMEOUT,
    Kind.RESOURCES: Code.INTERNAL_ERROR,
    Kind.CANCELLED: Code.INTERNAL_ERROR,
    Kind.DEPENDENCY: Code.CONTRACT_VIOLATION,
    Kind.WORK_FAILED: Code.INTERNAL_ERROR,
    Kind.INTERNAL: Code.INTERNAL_ERROR,
}
"""What the hub says of each of its faults."""

KINDS: Mapping[Code, tuple[Kind, Kind]] = {
    #                               of a message           of an agent's work
    Code.CAPABILITY_NOT_FOUND:      (Kind.UNSUPPORTED_WORK, Kind.UNSUPPORTED_WORK),
    Code.SCHEMA_MISMATCH:           (Kind.INVALID,          Kind.INVALID),
    Code.AUTH_FAILED:               (Kind.UNAUTHENTICATED,  Kind.UNAUTHENTICATED),
    Code.TIMEOUT:                   (Kind.TIMEOUT,          Kind.WORK_FAILED),
    Code.INTERNAL_ERROR:            (Kind.OVERLOADED,       Kind.WORK_FAILED),
    Code.RATE_LIMIT_EXCEEDED:       (Kind.RATE_LIMITED,     Kind.RATE_LIMITED),
    Code.CONTRACT_VIOLATION:        (Kind.CONTRACT,         Kind.CONTRACT),
    Code.SECURITY_POLICY_VIOLATION: (Kind.FORBIDDEN,        Kind.FORBIDDEN),
}  # fmt: skip
"""What a code means: said by our own rules about a message, and by an agent about its work. The hub's own clocks say
TIMEOUT where it is to be tried again; an agent that says so has answered."""

NAMES: Mapping[Code, Kind] = {
    Code.TIMEOUT: Kind.TIMEOUT,
    Code.INTERNAL_ERROR: Kind.INTERNAL,
    Code.RATE_LIMIT_EXCEEDED: Kind.RATE_LIMITED,
}
"""What such a failure of an agent's work is called elsewhere. The others are called as they are treated."""


def retry_after(code: Code, seconds: float | None = None) -> int:
    """What to write into `retry_after`: whole seconds, rounded up."""
    rule = TABLE[code]
    if not rule.retry:
        return 0
    return min(LONGEST_WAIT, max(1, rule.after if seconds is None else math.ceil(seconds)))


class ErrorBody(Record, frozen=True, kw_only=True, omit_defaults=False):
    """`payload.error`. The three that the document insists on are required."""

    code: Code
    message: str
    retry_after: Seconds
    details: dict[str, Any] = field(default_factory=dict)
    correlation_id: str | None = None

    @property
    def retryable(self) -> bool:
        """Whether trying again can help: the table's word, and not what the peer's `retry_after` hints at."""
        return TABLE[self.code].retry


class Refusal(Struct, frozen=True, kw_only=True):
    """An error that is not yet a message: no id, no author, no credential. `after` is in seconds."""

    code: Code
    message: str
    details: dict[str, Any] = {}
    after: float | None = None

    def payload(self, correlation_id: str | None) -> dict[str, Any]:
        """The payload of the error message; the correlation id stands in both places (D9)."""
        error: dict[str, Any] = {
            "code": self.code.value,
            "message": self.message,
            "details": self.details,
            "retry_after": retry_after(self.code, self.after),
        }
        if correlation_id is None:
            return {"error": error}
        return {"error": {**error, "correlation_id": correlation_id}, "correlation_id": correlation_id}


class A2acpError(RemoteProtocolError):
    """A peer's message was refused. `about` is its id, `thread` its correlation id, where they can be read."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        field: str | None = None,
        code: Code = Code.SCHEMA_MISMATCH,
        about: str | None = None,
        thread: str | None = None,
        details: dict[str, Any] | None = None,
        after: float | None = None,
    ) -> None:
        super().__init__(what, stage=stage, field=field, retryable=TABLE[code].retry)
        self.code = code
        self.about = about
        self.thread = thread
        self.details = details or {}
        self.after = after

    @property
    def answer(self) -> Refusal:
        """What to tell the sender; all-D3: the field is named."""
        details: dict[str, Any] = {"stage": self.stage.value, **self.details}
        if self.field is not None:
            details["field"] = self.field
        return Refusal(code=self.code, message=str(self), details=details, after=self.after)
