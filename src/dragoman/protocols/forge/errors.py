"""The six codes of forge, and faults ⇄ errors.

A code says what to do about it; `details` says what exactly. Rate limiting has no code of its own: it is an
INVALID_REQUEST whose `details.reason` is RATE_LIMITED (D9).

    wire                                    value     read by    written by
    --------------------------------------  --------  ---------  ----------
    response:error, `error` of a task       Fault     caller     hub
    `error` of update-task, event:error     Fault     hub        agent
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Failure
from dragoman.protocols.forge.types import ErrorBody, Payload, SubmitTask


class Code(enum.StrEnum):
    INVALID_REQUEST = "INVALID_REQUEST"
    INVALID_MESSAGE_TYPE = "INVALID_MESSAGE_TYPE"
    UNAUTHORIZED = "UNAUTHORIZED"
    NOT_FOUND = "NOT_FOUND"
    TIMEOUT = "TIMEOUT"
    INTERNAL_ERROR = "INTERNAL_ERROR"


RETRYABLE = frozenset({Code.TIMEOUT, Code.INTERNAL_ERROR})


CODES: Mapping[Kind, Code] = {
    Kind.INVALID: Code.INVALID_REQUEST,
    Kind.TOO_LARGE: Code.INVALID_REQUEST,
    Kind.UNSUPPORTED_VERSION: Code.INVALID_REQUEST,
    Kind.UNSUPPORTED_WORK: Code.INVALID_REQUEST,
    Kind.UNAUTHENTICATED: Code.UNAUTHORIZED,
    Kind.FORBIDDEN: Code.UNAUTHORIZED,
    Kind.NOT_FOUND: Code.NOT_FOUND,
    Kind.CONFLICT: Code.INVALID_REQUEST,
    Kind.MISMATCH: Code.INVALID_REQUEST,
    Kind.CONTRACT: Code.INVALID_REQUEST,
    Kind.RATE_LIMITED: Code.INVALID_REQUEST,
    Kind.OVERLOADED: Code.INTERNAL_ERROR,
    Kind.UNAVAILABLE: Code.INTERNAL_ERROR,
    Kind.TIMEOUT: Code.TIMEOUT,
    Kind.RESOURCES: Code.INTERNAL_ERROR,
    Kind.CANCELLED: Code.INVALID_REQUEST,
    Kind.DEPENDENCY: Code.INVALID_REQUEST,
    Kind.WORK_FAILED: Code.INTERNAL_ERROR,
    Kind.INTERNAL: Code.INTERNAL_ERROR,
}
"""The code of each fault of the hub."""

RATE_LIMITED = "RATE_LIMITED"
LONGEST_STACK = 32 * 1024

FIELDS = {
    "task_id": "payload.taskId",
    "request_id": "id",
    "dependencies": "payload.dependencies",
    "parent": "payload.parentId",
    "work_type": "payload.type",
    "to_agent": "payload.agent",
    "agent": "payload.agent",
    "question": "payload.question",
}
"""The hub's names for fields, as forge writes them."""
_FIELDS_BY_KIND = {**FIELDS, "to_agent": "payload.kind"}

_NOT_BEGUN = {kind.value: kind for kind in (Kind.INVALID, Kind.UNSUPPORTED_WORK)}
"""Why an agent may not have begun: `details.reason`."""
_INTERNAL_FACTS = frozenset({"stage"})
"""Facts that mean nothing outside the hub."""


def fields_of(payload: Payload) -> Mapping[str, str]:
    """The hub's names for fields, as this payload has them: a receiver is named as an agent or as a kind."""
    by_kind = isinstance(payload, SubmitTask) and payload.agent is None and payload.kind is not None
    return _FIELDS_BY_KIND if by_kind else FIELDS


def error_out(fault: Fault, refusal: ErrorBody | None = None, fields: Mapping[str, str] | None = None) -> ErrorBody:
    """The code, a sentence that ends with what to do next, and the facts. `refusal` is the codec's answer to a message
    that it could not read; `fields` are the names of `fields_of`."""
    details: dict[str, Any] = {
        name: value for name, value in fault.facts.items() if value is not None and name not in _INTERNAL_FACTS
    }
    if fault.kind is Kind.RATE_LIMITED:
        details["reason"] = RATE_LIMITED
    else:
        details.setdefault("reason", fault.kind.value)
    if fault.field is not None and not error_table.over_budget(fault):
        details["field"] = (fields or FIELDS).get(fault.field, fault.field)
    details["retryable"] = error_table.retryable(fault)
    details["fault"] = error_table.fault_fields(fault)
    if refusal is not None:
        sentence = error_table.sentence(replace(fault, message=refusal.message))
        return ErrorBody(code=refusal.code, message=sentence, details=details | refusal.details)
    return ErrorBody(code=code_of(fault), message=error_table.failure_sentence(fault), details=details)


def code_of(fault: Fault) -> Code:
    """The code of a fault. Where no agent has the name or the kind that a task is for, the document's word is
    NOT_FOUND, even though trying again may help: the agent may be added yet."""
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return Code.NOT_FOUND
    return CODES[Kind.TIMEOUT if fault.named is Kind.TIMEOUT else fault.kind]


def fault_in(error: Any, *, stack: str | None = None, retryable: bool = False) -> Fault:
    """Why an agent's work failed: a sentence, or an object with a message and perhaps a code (Any: agents write what
    they like). What the agent calls retryable is tried again; a TIMEOUT is by its nature."""
    facts: dict[str, Any] = {}
    message, code = "", ""
    if type(error) is dict:
        message = str(error.get("message") or "")
        code = str(error.get("code") or "")
        details = error.get("details")
        facts = dict(details) if type(details) is dict else {}
        retryable = retryable or error.get("retryable") is True or facts.get("retryable") is True
        stack = stack or (error["stack"] if type(error.get("stack")) is str else None)
    elif error is not None:
        message = str(error)
    reason = _NOT_BEGUN.get(str(facts.pop("reason", "")))
    if reason is None and code == Code.INVALID_REQUEST:
        reason = Kind.INVALID
    if code:
        facts["code"] = code
    if stack:
        facts["stack"] = stack[:LONGEST_STACK]
    kind = Kind.TIMEOUT if code == Code.TIMEOUT else Kind.UNAVAILABLE if retryable else reason or Kind.WORK_FAILED
    return Fault(
        kind=kind,
        message=message or "the work failed",
        retryable=retryable or kind is Kind.TIMEOUT,
        facts=facts,
    )


def failure_out(failure: Failure) -> dict[str, Any]:
    """The `error` of an agent whose work failed: the last line of its output, and the rest as details."""
    report = failure.report or {}
    message = (failure.output or "").rstrip().rpartition("\n")[2] or str(report.get("message") or "the work failed")
    return {"message": message, "details": {"type": report.get("type"), "exit_code": failure.exit_code}}


def decline_out(fault: Fault, sentence: str) -> dict[str, Any]:
    """The `error` of an agent that does not begin; `fault_in` reads its reason."""
    field = {"field": fault.field.replace("parameters", "payload", 1)} if fault.field else {}
    details = {"reason": fault.kind.value, **field, **fault.facts}
    return {"code": Code.INVALID_REQUEST, "message": sentence, "details": details}


class TaskError(Struct, frozen=True):
    """Why a task failed, for its caller. `kind` is the hub's, where it names one."""

    message: str
    kind: str | None
    facts: dict[str, Any]


def task_error_in(error: Mapping[str, Any]) -> TaskError:
    """The `error` of a task that failed."""
    details = error.get("details")
    facts = {**(details if isinstance(details, dict) else {}), "code": error.get("code")}
    fault = facts.pop("fault", None)
    fault = fault if isinstance(fault, dict) else {}
    kind = fault.get("kind") or facts.get("reason")
    message = str(fault.get("message") or error.get("message") or "no reason given")
    return TaskError(message, kind if isinstance(kind, str) else None, facts)


def is_retryable(error: ErrorBody) -> bool:
    """Whether the same request can succeed later. An unknown code is not retried."""
    if error.details.get("reason") == RATE_LIMITED:
        return True
    retryable = error.details.get("retryable")
    if type(retryable) is bool:
        return retryable
    return error.code in RETRYABLE
