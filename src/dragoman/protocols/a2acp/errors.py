"""A2acp's eight error codes, as the protocol defines them and as the hub's faults.

    an agent's error is a fault      its code says of which kind. Code and details stay with the fault, so that a caller
                                     that speaks a2acp gets what the agent sent. Such a caller decides itself whether to
                                     try again (`retry_after`); for callers of other protocols the hub does
    a fault of the hub is an error   `CODES` says which code; facts and field are the details

`retry_after` follows from the code (D10, D16): 1 to 60 seconds where trying again can help, 0 where it cannot. An error
of a peer is read as it came; what this side sends, or passes on, keeps the rule.

Details name places, never the content there. The hub repeats nothing that an agent wrote about personal work (D13):
errors travel in clear.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from dragoman.messages import error_table
from dragoman.messages.error_table import fault_fields
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp.types import Agent, Record, Seconds
from dragoman.wire.errors import RemoteProtocolError, Stage

LONGEST_WAIT = 60
"""Seconds; the most in `retry_after` (D16)."""


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
    Code.SECURITY_POLICY_VIOLATION: Rule(False, 0, "Ask the hub's operator to allow it, or encrypt the payload."),
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
"""The code of each of the hub's faults."""

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
"""The fault that a code means where this protocol's rules refuse a message, and where an agent reports it of its work.
The hub's own clocks say TIMEOUT where the task is tried again; an agent that says so has answered."""

NAMES: Mapping[Code, Kind] = {
    Code.TIMEOUT: Kind.TIMEOUT,
    Code.INTERNAL_ERROR: Kind.INTERNAL,
    Code.RATE_LIMIT_EXCEEDED: Kind.RATE_LIMITED,
}
"""What other protocols call such a failure of an agent's work, where that differs from how the hub treats it."""


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
        """Whether trying again can help. The table decides, not the peer's `retry_after`."""
        return TABLE[self.code].retry


class Refusal(Struct, frozen=True, kw_only=True):
    """An error that is not yet a message: no id, no author, no credential. `after` is in seconds; `message` ends with
    `next`, what to do about it."""

    code: Code
    message: str
    next: str = ""
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
    """A peer's message is refused. `about` is its id, `thread` its correlation id, `sender` its source, where they can
    be read."""

    def __init__(
        self,
        what: str,
        *,
        stage: Stage,
        field: str | None = None,
        code: Code = Code.SCHEMA_MISMATCH,
        about: str | None = None,
        thread: str | None = None,
        sender: Agent | None = None,
        is_about_error: bool = False,
        details: dict[str, Any] | None = None,
        after: float | None = None,
        next: str = "",
    ) -> None:
        super().__init__(what, stage=stage, field=field, retryable=TABLE[code].retry, next=next)
        self.code = code
        self.about = about
        self.thread = thread
        self.sender = sender
        self.is_about_error = is_about_error
        self.details = details or {}
        self.after = after

    @property
    def answer(self) -> Refusal:
        """The error for the sender; it names the field (all-D3)."""
        details: dict[str, Any] = {"stage": self.stage.value, **self.details}
        if self.field is not None:
            details["field"] = self.field
        return Refusal(code=self.code, message=str(self), next=self.next, details=details, after=self.after)


# -- errors and faults -------------------------------------------------------------------------------------------

FIELDS = {
    "task_id": "payload.correlation_id",
    "to_agent": "target_agent.agent_id",
    "request_id": "message_id",
    "work_type": "intent",
    "contract_id": "payload.contract_id",
    "collaboration_id": "payload.collaboration_id",
    "correlation_id": "payload.correlation_id",
    "target_agent_id": "payload.target_agent_id",
    "requested_intent": "payload.requested_intent",
    "target_version": "payload.target_version",
    "request_schema": "payload.request_schema",
    "response_schema": "payload.response_schema",
    "public_key": "payload.public_key",
    "mode": "payload.mode",
}
"""The place in a message of each field that the hub names."""

ADVICE: Mapping[Kind, str] = {
    Kind.TOO_LARGE: "Send less at a time.",
    Kind.FORBIDDEN: TABLE[Code.SECURITY_POLICY_VIOLATION].next,
    Kind.MISMATCH: "Use a new message_id for new content.",
    Kind.CONTRACT: TABLE[Code.CONTRACT_VIOLATION].next,
    Kind.TIMEOUT: TABLE[Code.TIMEOUT].next,
    Kind.CANCELLED: "Send it again under a new message_id if it is still wanted.",
}
"""What to do next, where the table's advice does not fit agents of this protocol."""

SHOWN_OF_PERSONAL_WORK = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.DEPENDENCY, Kind.CONTRACT})
"""Faults of personal work whose message is the hub's own, and is shown."""
MALFORMED = frozenset({Stage.DEPTH.value, Stage.JSON.value, Stage.SHAPE.value})
"""Checks whose refusal is 400: the message cannot be read."""
STATUS: Mapping[Code, int] = {
    Code.CAPABILITY_NOT_FOUND: 404,
    Code.SCHEMA_MISMATCH: 422,
    Code.AUTH_FAILED: 401,
    Code.TIMEOUT: 504,
    Code.INTERNAL_ERROR: 503,
    Code.RATE_LIMIT_EXCEEDED: 429,
    Code.CONTRACT_VIOLATION: 422,
    Code.SECURITY_POLICY_VIOLATION: 403,
}

MOST_DETAILS = 8 * 1024
ERROR = "error"
"""The fact under which an agent's own error stays with its fault."""

_encode = msgspec.json.Encoder().encode


def fault_in(error: ErrorBody, *, personal: bool, agreed: bool) -> Fault:
    """The fault that an agent reports. `agreed`: the work is under a contract, so its caller speaks a2acp and can ask
    again itself."""
    own: dict[str, Any] = {"code": error.code.value}
    if error.retryable:
        own["retry_after"] = error.retry_after
    message = f"the agent answered {error.code.value}"
    if not personal:
        message = error.message or message
        own["message"] = message
        if error.details and len(_encode(error.details)) <= MOST_DETAILS:
            own["details"] = error.details
    kind = KINDS[error.code][1]
    if kind is Kind.RATE_LIMITED and not agreed:
        kind = Kind.RESOURCES
    facts: dict[str, Any] = {ERROR: own}
    if kind is Kind.RESOURCES:
        facts["retry_after"] = error.retry_after  # the hub tries again
    code = error.details.get("exit_code")
    if type(code) is int:
        facts["exit_code"] = code  # where other protocols look for it
    return Fault(kind=kind, message=message, retryable=error.retryable, facts=facts, named=NAMES.get(error.code))


def fault_of(error: A2acpError) -> Fault:
    """The fault of a message that the codec refused."""
    kind = KINDS[error.code][0]
    if error.stage is Stage.SIZE:
        kind = Kind.TOO_LARGE
    elif error.field == "protocol_version" and error.stage is Stage.MEANING:
        kind = Kind.UNSUPPORTED_VERSION
    facts = {"stage": error.stage.value, **error.details}
    return Fault(
        kind=kind, message=error.what, next=error.next, field=error.field, retryable=error.retryable, facts=facts
    )


def refused(refusal: Refusal) -> Refused:
    """A refusal by this protocol's rules, to be raised."""
    facts = dict(refusal.details)
    place = facts.pop("field", None)
    if refusal.after is not None:
        facts["retry_after"] = refusal.after
    kind, retryable = KINDS[refusal.code][0], TABLE[refusal.code].retry
    return Refused(
        Fault(kind=kind, message=refusal.message, next=refusal.next, field=place, retryable=retryable, facts=facts)
    )


def code_of(fault: Fault) -> Code:
    own = fault.facts.get(ERROR)
    code = str(own.get("code")) if type(own) is dict else ""
    if code in Code.__members__:
        return Code(code)
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return Code.CAPABILITY_NOT_FOUND  # the hub knows no agent of that name
    return CODES[fault.named or fault.kind]


def refusal_of(fault: Fault, *, personal: bool = False) -> Refusal:
    """The error of a fault. `personal`: it is about work whose content must not show."""
    facts = dict(fault.facts)
    own = facts.pop(ERROR, None)
    advice = ADVICE.get(fault.kind)
    if type(own) is dict and own.get("code") in Code.__members__:
        message = str(own.get("message") or error_table.sentence(fault, advice))
        details, after = own.get("details") or {}, own.get("retry_after")
        return Refusal(code=Code(own["code"]), message=message, details=details, after=after)
    after = facts.pop("retry_after", None)
    message = error_table.failure_sentence(fault, advice)
    shown = not personal or fault.kind in SHOWN_OF_PERSONAL_WORK
    if not shown:  # an agent of another protocol may have written anything there
        message, facts = "The work failed; its reason is personal and not sent in clear.", {}
        if fault.kind is Kind.CANCELLED:
            message = f"It was cancelled; the reason is personal and not sent in clear. {advice}"
    details = {**facts, "kind": fault.kind.value}
    if shown:
        details["fault"] = fault_fields(fault)
    if fault.kind is Kind.CANCELLED:
        details["retryable"] = False  # the nearest code of the document wants a `retry_after`
    if fault.field is not None and not error_table.over_budget(fault):
        is_place = "stage" in facts  # the codec names places of the message itself
        details["field"] = fault.field if is_place else FIELDS.get(fault.field, fault.field)
    seconds = after if isinstance(after, int | float) else None
    return Refusal(code=code_of(fault), message=message, details=details, after=seconds)


def status_of(fault: Fault) -> int:
    """The HTTP status of a fault."""
    if fault.kind is Kind.TOO_LARGE:
        return 413
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind in (Kind.CONFLICT, Kind.MISMATCH, Kind.CANCELLED):
        return 409
    if (fault.kind is Kind.WORK_FAILED and ERROR not in fault.facts) or error_table.over_budget(fault):
        return 422
    return STATUS[code_of(fault)]
