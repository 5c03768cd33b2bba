"""The one error table: what each protocol says for each of the hub's faults.

A row per `Kind`, a column per protocol, and no cell is missing (a test insists). Codes are the protocol documents'
own; chiffon's 5900-5902 are ours, from the range the document leaves free, for what it has no word for.

`http` is what the management API answers. Chiffon has its own column, because its interface fixes the statuses
it may use: a sender who is not who it says is 401 there, and everything the hub cannot do now is 503.

A fault's message may say what to do next, after a semicolon ("already in use; choose a new one") or in a sentence
of its own, which ends with a full stop. Where it does neither ("no such task"), `sentence` adds the kind's advice.
"""

# ruff: noqa: E501 - a table is read in columns

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.chiffon import errors as chiffon

TASK_CANCELLED = chiffon.TASK_CANCELLED
DEPENDENCY_FAILED = chiffon.DEPENDENCY_FAILED
WORK_FAILED = chiffon.WORK_FAILED


class Row(msgspec.Struct, frozen=True):
    """One fault in everybody's words."""

    chiffon: int
    chiffon_status: int
    agentmsg: str
    forge: str
    a2acp: str
    grpc: str
    http: int
    retryable: bool
    next: str


# fmt: off
TABLE: Mapping[Kind, Row] = {
    #                              chiffon     agentmsg                   forge                   a2acp                        grpc                   http retry
    Kind.INVALID:             Row(5003, 422, "VALIDATION_ERROR",         "INVALID_REQUEST",      "SCHEMA_MISMATCH",           "INVALID_ARGUMENT",    422, False, "Correct the message and send it again."),
    Kind.TOO_LARGE:           Row(5003, 413, "VALIDATION_ERROR",         "INVALID_REQUEST",      "SCHEMA_MISMATCH",           "RESOURCE_EXHAUSTED",  413, False, "Send less at a time, or split the output into chunks."),
    Kind.UNSUPPORTED_VERSION: Row(5006, 422, "VALIDATION_ERROR",         "INVALID_REQUEST",      "SCHEMA_MISMATCH",           "FAILED_PRECONDITION", 422, False, "Use one of the supported versions."),
    Kind.UNSUPPORTED_WORK:    Row(5006, 422, "VALIDATION_ERROR",         "INVALID_REQUEST",      "CAPABILITY_NOT_FOUND",      "UNIMPLEMENTED",       422, False, "Ask for a supported type of work, or start an agent that does it."),
    Kind.UNAUTHENTICATED:     Row(5004, 401, "AUTHENTICATION_ERROR",     "UNAUTHORIZED",         "AUTH_FAILED",               "UNAUTHENTICATED",     401, False, "Send the agent's token as Authorization: Bearer; `dragoman agent token ID` makes a new one."),
    Kind.FORBIDDEN:           Row(5004, 401, "AUTHENTICATION_ERROR",     "UNAUTHORIZED",         "SECURITY_POLICY_VIOLATION", "PERMISSION_DENIED",   403, False, "Speak only for the agent whose token you hold."),
    Kind.NOT_FOUND:           Row(5003, 404, "VALIDATION_ERROR",         "NOT_FOUND",            "CAPABILITY_NOT_FOUND",      "NOT_FOUND",           404, False, "Check the name or the id."),
    Kind.CONFLICT:            Row(5003, 409, "VALIDATION_ERROR",         "INVALID_REQUEST",      "CONTRACT_VIOLATION",        "FAILED_PRECONDITION", 409, False, "Look at its present state first."),
    Kind.MISMATCH:            Row(5003, 409, "VALIDATION_ERROR",         "INVALID_REQUEST",      "CONTRACT_VIOLATION",        "ALREADY_EXISTS",      409, False, "Use a new request id for new content."),
    Kind.CONTRACT:            Row(5003, 422, "VALIDATION_ERROR",         "INVALID_REQUEST",      "CONTRACT_VIOLATION",        "FAILED_PRECONDITION", 422, False, "Keep to the terms of the contract, or agree on new ones."),
    Kind.RATE_LIMITED:        Row(5005, 429, "RATE_LIMIT",               "INVALID_REQUEST",      "RATE_LIMIT_EXCEEDED",       "RESOURCE_EXHAUSTED",  429, True,  "Slow down and try again shortly."),
    Kind.OVERLOADED:          Row(5002, 503, "RESOURCE_EXHAUSTED",       "INTERNAL_ERROR",       "INTERNAL_ERROR",            "UNAVAILABLE",         503, True,  "Nothing was taken; send it again shortly."),
    Kind.UNAVAILABLE:         Row(5002, 503, "NETWORK_ERROR",            "INTERNAL_ERROR",       "TIMEOUT",                   "UNAVAILABLE",         503, True,  "Start the agent, or wait until it is back."),
    Kind.TIMEOUT:             Row(5001, 503, "TIMEOUT",                  "TIMEOUT",              "TIMEOUT",                   "DEADLINE_EXCEEDED",   504, True,  "Try again, or allow more time."),
    Kind.RESOURCES:           Row(5005, 503, "RESOURCE_EXHAUSTED",       "INTERNAL_ERROR",       "INTERNAL_ERROR",            "RESOURCE_EXHAUSTED",  503, True,  "Ask for less, or wait until the agent has room."),
    Kind.CANCELLED:           Row(TASK_CANCELLED, 409, "EXTERNAL_SERVICE_ERROR", "INVALID_REQUEST", "INTERNAL_ERROR",         "CANCELLED",           409, False, "Submit it again under a new request id if it is still wanted."),
    Kind.DEPENDENCY:          Row(DEPENDENCY_FAILED, 409, "EXTERNAL_SERVICE_ERROR", "INVALID_REQUEST", "CONTRACT_VIOLATION",  "FAILED_PRECONDITION", 424, False, "Repair what it depends on, then retry it."),
    Kind.WORK_FAILED:         Row(WORK_FAILED, 422, "EXTERNAL_SERVICE_ERROR", "INTERNAL_ERROR",  "INTERNAL_ERROR",            "UNKNOWN",             422, False, "Read its output for the reason."),
    Kind.INTERNAL:            Row(5002, 503, "INTERNAL_ERROR",           "INTERNAL_ERROR",       "INTERNAL_ERROR",            "INTERNAL",            500, True,  "Try again; if it stays, look into the hub's log."),
}
# fmt: on

AGENTMSG_KINDS: Mapping[str, tuple[Kind, Kind]] = {
    #                          tried again       final
    "TIMEOUT":                (Kind.TIMEOUT,     Kind.WORK_FAILED),
    "RATE_LIMIT":             (Kind.RESOURCES,   Kind.RATE_LIMITED),
    "VALIDATION_ERROR":       (Kind.UNAVAILABLE, Kind.INVALID),
    "NETWORK_ERROR":          (Kind.UNAVAILABLE, Kind.WORK_FAILED),
    "AUTHENTICATION_ERROR":   (Kind.UNAVAILABLE, Kind.UNAUTHENTICATED),
    "RESOURCE_EXHAUSTED":     (Kind.RESOURCES,   Kind.WORK_FAILED),
    "INTERNAL_ERROR":         (Kind.UNAVAILABLE, Kind.INTERNAL),
    "EXTERNAL_SERVICE_ERROR": (Kind.UNAVAILABLE, Kind.WORK_FAILED),
}  # fmt: skip
"""What an agentmsg agent means by a type: whether the hub tries again follows from the kind, so there is one for each
answer. The word itself is kept with the fault, and goes out as it came in."""


AGENTMSG_NAMES: Mapping[str, Kind] = {
    "TIMEOUT": Kind.TIMEOUT,
    "RATE_LIMIT": Kind.RATE_LIMITED,
    "RESOURCE_EXHAUSTED": Kind.RESOURCES,
    "INTERNAL_ERROR": Kind.INTERNAL,
    "EXTERNAL_SERVICE_ERROR": Kind.WORK_FAILED,
}
"""What such a type is called elsewhere. The others are called as they are treated."""


def over_budget(fault: Fault) -> bool:
    """Whether a task asks for more than it may have (`core.budgets.budget`): as it stands, that is no better later. Most
    protocols have no field for it."""
    if fault.kind is not Kind.RESOURCES:
        return False
    return "whose" in fault.facts or (fault.field or "").startswith("constraints.")


def retryable(fault: Fault) -> bool:
    """Whether asking again can help: the fault's own word, else what is usual for its kind."""
    return fault.retryable or (TABLE[fault.kind].retryable and not over_budget(fault))


def agentmsg_kind(error_type: str, *, retryable: bool) -> Kind:
    """The hub's word for a type of error that an agent reported."""
    again, final = AGENTMSG_KINDS[error_type]
    return again if retryable else final


def sentence(fault: Fault, advice: str | None = None) -> str:
    """The fault in words that end with what to do next: `advice`, where a protocol knows better than the table. What an
    agent said of its work stays as it said it."""
    message = fault.message.strip()
    if fault.reported and message:
        return fault.message
    is_word = message.partition(" ")[0].rstrip(",;:.").isalpha()
    if is_word and not any(type(name) is str and name and message.startswith(name) for name in fault.facts.values()):
        message = f"{message[:1].upper()}{message[1:]}"  # an id or a field at the beginning stays as it is written
    if message.endswith("."):
        return message
    return f"{message}." if "; " in message else f"{message}. {advice or TABLE[fault.kind].next}"


def told(fault: Fault, advice: str | None = None) -> str:
    """How a task failed, to whoever asked for it: work that failed speaks for itself, in the agent's own words."""
    return fault.message if fault.kind is Kind.WORK_FAILED and fault.message else sentence(fault, advice)
