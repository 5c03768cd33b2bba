"""A2ACP's errors and the hub's faults, both ways.

    an agent's error becomes a fault      its code says of which kind; code and details stay with it, so that a caller
                                          who speaks a2acp hears what the agent said. Whether to try again is that
                                          caller's decision (`retry_after`); for callers who speak anything else the
                                          hub itself comes back to an agent that has too much to do
    a fault of the hub becomes an error   `protocols.a2acp.errors` says which code; facts and field are the details

Details name places, never what stood there. Of personal work nothing that an agent wrote is repeated (D13): errors
travel in clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp import errors
from dragoman.protocols.a2acp.errors import A2acpError, Code, ErrorBody, Refusal
from dragoman.server.content import fault_fields
from dragoman.wire.errors import Stage

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
"""Where the hub's fields stand in a message."""

ADVICE: Mapping[Kind, str] = {
    Kind.TOO_LARGE: "Send less at a time.",
    Kind.FORBIDDEN: errors.TABLE[Code.SECURITY_POLICY_VIOLATION].next,
    Kind.MISMATCH: "Use a new message_id for new content.",
    Kind.CONTRACT: errors.TABLE[Code.CONTRACT_VIOLATION].next,
    Kind.TIMEOUT: errors.TABLE[Code.TIMEOUT].next,
    Kind.CANCELLED: "Send it again under a new message_id if it is still wanted.",
}
"""What to do next, where the hub's general advice is none for agents of this protocol."""

THE_HUBS = frozenset({Kind.TIMEOUT, Kind.UNAVAILABLE, Kind.DEPENDENCY, Kind.CONTRACT})
"""Ways for personal work to fail that the hub tells in its own words, whoever said so."""
MALFORMED = frozenset({Stage.DEPTH.value, Stage.JSON.value, Stage.SHAPE.value})
"""Checks whose refusal means 400: the message cannot be read."""
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
"""The fact under which an agent's own words stay with its fault."""

_encode = msgspec.json.Encoder().encode


# -- an agent's error --------------------------------------------------------------------------------------------


def fault_in(error: ErrorBody, *, personal: bool, agreed: bool) -> Fault:
    """What an agent's error means. `agreed`: the work was asked for under a contract, by somebody who knows the
    document's codes and can ask again."""
    said: dict[str, Any] = {"code": error.code.value}
    if error.retryable:
        said["retry_after"] = error.retry_after
    message = f"the agent answered {error.code.value}"
    if not personal:
        message = error.message or message
        said["message"] = message
        if error.details and len(_encode(error.details)) <= MOST_DETAILS:
            said["details"] = error.details
    kind = errors.KINDS[error.code][1]
    if kind is Kind.RATE_LIMITED and not agreed:
        kind = Kind.RESOURCES
    facts: dict[str, Any] = {ERROR: said}
    if kind is Kind.RESOURCES:
        facts["retry_after"] = error.retry_after  # it is the hub who comes back
    code = error.details.get("exit_code")
    if type(code) is int:
        facts["exit_code"] = code  # where other protocols look for it
    return Fault(kind=kind, message=message, retryable=error.retryable, facts=facts, named=errors.NAMES.get(error.code))


# -- a message that is refused -----------------------------------------------------------------------------------


def fault_of(error: A2acpError) -> Fault:
    """A message that the codec refused, as a fault."""
    kind = errors.KINDS[error.code][0]
    if error.stage is Stage.SIZE:
        kind = Kind.TOO_LARGE
    elif error.field == "protocol_version" and error.stage is Stage.MEANING:
        kind = Kind.UNSUPPORTED_VERSION
    facts = {"stage": error.stage.value, **error.details}
    return Fault(kind=kind, message=error.what, field=error.field, retryable=error.retryable, facts=facts)


def refused(refusal: Refusal) -> Refused:
    """What the document's own rules refuse, to be raised."""
    facts = dict(refusal.details)
    field = facts.pop("field", None)
    if refusal.after is not None:
        facts["retry_after"] = refusal.after
    kind = errors.KINDS[refusal.code][0]
    retryable = errors.TABLE[refusal.code].retry
    return Refused(Fault(kind=kind, message=refusal.message, field=field, retryable=retryable, facts=facts))


# -- a fault, told ------------------------------------------------------------------------------------------------


def code_of(fault: Fault) -> Code:
    said = fault.facts.get(ERROR)
    own = str(said.get("code")) if type(said) is dict else ""
    if own in Code.__members__:
        return Code(own)
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return Code.CAPABILITY_NOT_FOUND  # nobody of that name is known, rather than not here now
    return errors.CODES[fault.named or fault.kind]


def refusal_of(fault: Fault, *, personal: bool = False) -> Refusal:
    """A fault in a2acp's words. `personal`: it is about work whose contents must not show."""
    facts = dict(fault.facts)
    own = facts.pop(ERROR, None)
    if type(own) is dict and own.get("code") in Code.__members__:
        words = str(own.get("message") or error_table.sentence(fault, ADVICE.get(fault.kind)))
        return Refusal(
            code=Code(own["code"]), message=words, details=own.get("details") or {}, after=own.get("retry_after")
        )
    after = facts.pop("retry_after", None)
    words = error_table.told(fault, ADVICE.get(fault.kind))
    if personal and fault.kind not in THE_HUBS:  # in another protocol an agent may say anything
        what = "The work failed; its reason is personal and not told in clear."
        if fault.kind is Kind.CANCELLED:
            what = f"It was cancelled; the reason is personal and not told in clear. {ADVICE[Kind.CANCELLED]}"
        words, facts = what, {}
    details: dict[str, Any] = {**facts, "kind": fault.kind.value}
    if facts or not personal or fault.kind in THE_HUBS:
        details["fault"] = fault_fields(fault)
    code = code_of(fault)
    if fault.kind is Kind.CANCELLED:
        details["retryable"] = False  # of the document's codes the nearest wants a `retry_after`
    if fault.field is not None and not error_table.over_budget(fault):
        read = "stage" in facts  # the codec's words: it knows where a field stands
        details["field"] = fault.field if read else FIELDS.get(fault.field, fault.field)
    return Refusal(code=code, message=words, details=details, after=after if isinstance(after, int | float) else None)


def status_of(fault: Fault) -> int:
    """The HTTP status that goes with a fault."""
    if fault.kind is Kind.TOO_LARGE:
        return 413
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind in (Kind.CONFLICT, Kind.MISMATCH, Kind.CANCELLED):
        return 409
    if (fault.kind is Kind.WORK_FAILED and ERROR not in fault.facts) or error_table.over_budget(fault):
        return 422
    return STATUS[code_of(fault)]
