"""The one error table: for each of the hub's faults its status, whether to ask again, and what to do next.

There is a row per `Kind`, and no cell is missing (a test checks it). The protocol's code for a fault is in its own
package (`protocols/X/errors.py`), in both directions, so that the hub and the SDK read the same table.

`api` is the HTTP status of the management API. `agents` is that of the endpoints for agents, whose interface fixes the
statuses they may use: a sender that claims another id is 401 there, and everything the hub cannot do now is 503.

A fault's message may end with what to do next ("already in use; choose a new one"): then the fault has that in `next`,
too. Where it has none ("no such task"), `sentence` adds the kind's advice.
"""

# ruff: noqa: E501 - a table is read in columns

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.messages.faults import Fault, Kind


class Row(msgspec.Struct, frozen=True):
    """One fault, in any protocol."""

    grpc: str
    agents: int
    api: int
    retryable: bool
    next: str


# fmt: off
TABLE: Mapping[Kind, Row] = {
    #                             gRPC               agents API  retry
    Kind.INVALID:             Row("INVALID_ARGUMENT",    422, 422, False, "Correct the message and send it again."),
    Kind.TOO_LARGE:           Row("RESOURCE_EXHAUSTED",  413, 413, False, "Send less at a time, or split the output into chunks."),
    Kind.UNSUPPORTED_VERSION: Row("FAILED_PRECONDITION", 422, 422, False, "Use one of the supported versions."),
    Kind.UNSUPPORTED_WORK:    Row("UNIMPLEMENTED",       422, 422, False, "Ask for a supported type of work, or start an agent that does it."),
    Kind.UNAUTHENTICATED:     Row("UNAUTHENTICATED",     401, 401, False, "Send the agent's token as Authorization: Bearer; `dragoman agent token ID` makes a new one."),
    Kind.FORBIDDEN:           Row("PERMISSION_DENIED",   401, 403, False, "Speak only for the agent whose token you hold."),
    Kind.NOT_FOUND:           Row("NOT_FOUND",           404, 404, False, "Check the name or the id."),
    Kind.CONFLICT:            Row("FAILED_PRECONDITION", 409, 409, False, "Look at its present state first."),
    Kind.MISMATCH:            Row("ALREADY_EXISTS",      409, 409, False, "Use a new request id for new content."),
    Kind.CONTRACT:            Row("FAILED_PRECONDITION", 422, 422, False, "Keep to the terms of the contract, or agree on new ones."),
    Kind.RATE_LIMITED:        Row("RESOURCE_EXHAUSTED",  429, 429, True,  "Slow down and try again shortly."),
    Kind.OVERLOADED:          Row("UNAVAILABLE",         503, 503, True,  "Nothing was taken; send it again shortly."),
    Kind.UNAVAILABLE:         Row("UNAVAILABLE",         503, 503, True,  "Start the agent, or wait until it is back."),
    Kind.TIMEOUT:             Row("DEADLINE_EXCEEDED",   503, 504, True,  "Try again, or allow more time."),
    Kind.RESOURCES:           Row("RESOURCE_EXHAUSTED",  503, 503, True,  "Ask for less, or wait until the agent has room."),
    Kind.CANCELLED:           Row("CANCELLED",           409, 409, False, "Submit it again under a new request id if it is still wanted."),
    Kind.DEPENDENCY:          Row("FAILED_PRECONDITION", 409, 424, False, "Repair what it depends on, then retry it."),
    Kind.WORK_FAILED:         Row("UNKNOWN",             422, 422, False, "Read its output for the reason."),
    Kind.INTERNAL:            Row("INTERNAL",            503, 500, True,  "Try again; if it stays, look into the hub's log."),
}
# fmt: on


def over_budget(fault: Fault) -> bool:
    """Whether a task asks for more than it may have (`core.budgets.budget`): the same request would fail later, too.
    Most protocols have no field for it."""
    if fault.kind is not Kind.RESOURCES:
        return False
    return "whose" in fault.facts or (fault.field or "").startswith("constraints.")


def retryable(fault: Fault) -> bool:
    """Whether asking again can help: as the fault says, else as is usual for its kind."""
    return fault.retryable or (TABLE[fault.kind].retryable and not over_budget(fault))


def opening(fault: Fault) -> str:
    """The fault's message as a sentence."""
    message = fault.message.strip()
    is_word = message.partition(" ")[0].rstrip(",;:.").isalpha()
    named = any(type(name) is str and name and message.startswith(name) for name in fault.facts.values())
    if is_word and not named and not (fault.field and message.startswith(f"{fault.field}:")):
        message = f"{message[:1].upper()}{message[1:]}"  # an id or a field at the beginning stays as it is written
    return message if message.endswith(".") else f"{message}."


def sentence(fault: Fault, advice: str | None = None) -> str:
    """The fault as a text that ends with what to do next: `advice`, where a protocol knows better than the table. An
    agent's own report stays as it is."""
    if fault.reported and fault.message.strip():
        return fault.message
    return opening(fault) if fault.next else f"{opening(fault)} {advice or TABLE[fault.kind].next}"


def failure_sentence(fault: Fault, advice: str | None = None) -> str:
    """Why a task failed, for its caller: for failed work, the agent's own message."""
    return fault.message if fault.kind is Kind.WORK_FAILED and fault.message else sentence(fault, advice)


def fault_fields(fault: Fault) -> dict[str, Any]:
    """A fault for programs, in a field that Dragoman adds beside the protocol's own error."""
    fields: dict[str, Any] = {"kind": fault.kind.value, "message": fault.message}
    code = fault.facts.get("exit_code")
    return fields | ({"exit_code": code} if type(code) is int else {})
