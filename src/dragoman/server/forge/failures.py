"""The hub's faults in forge's six codes, and an agent's errors as faults. `messages.error_table` has the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.messages import error_table
from dragoman.messages.error_table import fault_fields
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.forge.errors import CODES, RATE_LIMITED, Code
from dragoman.protocols.forge.types import ErrorBody, SubmitTask

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
BY_KIND = {**FIELDS, "to_agent": "payload.kind"}
"""Where whom a task is for was said as a kind."""

LONGEST_STACK = 32 * 1024

REASONS = {kind.value: kind for kind in (Kind.INVALID, Kind.UNSUPPORTED_WORK)}
"""Why an agent may say that it did not begin: `details.reason`."""

_OURS = frozenset({"stage"})
"""Facts that say nothing outside the hub."""


def fields_in(payload: Any) -> Mapping[str, str]:
    """The hub's names for fields, as they stand in this payload."""
    return BY_KIND if isinstance(payload, SubmitTask) and payload.agent is None and payload.kind is not None else FIELDS


def error_of(fault: Fault, said: ErrorBody | None = None, fields: Mapping[str, str] | None = None) -> ErrorBody:
    """What an agent is told of a fault: the code, a sentence that says what to do next, and the facts. `said` is what
    the codec has to say of a message that it could not read; `fields` is what this one calls them (`fields_in`)."""
    details: dict[str, Any] = {
        name: value for name, value in fault.facts.items() if value is not None and name not in _OURS
    }
    if fault.kind is Kind.RATE_LIMITED:
        details["reason"] = RATE_LIMITED
    else:
        details.setdefault("reason", fault.kind.value)
    if fault.field is not None and not error_table.over_budget(fault):
        details["field"] = (fields or FIELDS).get(fault.field, fault.field)
    details["retryable"] = error_table.retryable(fault)
    details["fault"] = fault_fields(fault)
    if said is None:
        kind = Kind.TIMEOUT if fault.named is Kind.TIMEOUT else fault.kind
        return ErrorBody(code=CODES[kind], message=error_table.told(fault), details=details)
    words = error_table.sentence(msgspec.structs.replace(fault, message=said.message))
    return ErrorBody(code=said.code, message=words, details=details | said.details)


def fault_in(said: Any, *, stack: str | None = None, retryable: bool = False) -> Fault:
    """Why an agent says that its work failed: words, or an object with a message and perhaps a code.

    What it calls retryable is tried again; a TIMEOUT is by its nature.
    """
    facts: dict[str, Any] = {}
    message, code = "", ""
    if type(said) is dict:
        message = str(said.get("message") or "")
        code = str(said.get("code") or "")
        details = said.get("details")
        facts = dict(details) if type(details) is dict else {}
        retryable = retryable or said.get("retryable") is True or facts.get("retryable") is True
        stack = stack or (said["stack"] if type(said.get("stack")) is str else None)
    elif said is not None:
        message = str(said)
    reason = REASONS.get(str(facts.pop("reason", "")))
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
