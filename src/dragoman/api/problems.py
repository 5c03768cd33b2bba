"""Refusals as RFC 9457 problem details.

The status of a fault and what to do next come from the one error table (`messages.error_table`); here are only the
titles, and the advice that reads differently for the holder of the admin token. `detail` ends with what to do next, so
that a program that only prints `detail` still helps its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from dragoman.core.model.agents import CONSTRAINTS
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.server.asgi import retry_after
from dragoman.wire.misfit import misfit, with_choices

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dragoman:problem:"

TITLES: Mapping[Kind, str] = {
    Kind.INVALID: "Invalid request",
    Kind.TOO_LARGE: "Request too large",
    Kind.UNSUPPORTED_VERSION: "Unsupported version",
    Kind.UNSUPPORTED_WORK: "Unsupported work type",
    Kind.UNAUTHENTICATED: "Admin token needed",
    Kind.FORBIDDEN: "Not allowed",
    Kind.NOT_FOUND: "Not found",
    Kind.CONFLICT: "Conflict",
    Kind.MISMATCH: "Idempotency key reused",
    Kind.CONTRACT: "Against the contract",
    Kind.RATE_LIMITED: "Too many requests",
    Kind.OVERLOADED: "The hub is overloaded",
    Kind.UNAVAILABLE: "No agent available",
    Kind.TIMEOUT: "Timed out",
    Kind.RESOURCES: "Resources missing",
    Kind.CANCELLED: "Cancelled",
    Kind.DEPENDENCY: "Dependency failed",
    Kind.WORK_FAILED: "Work failed",
    Kind.INTERNAL: "Internal error",
}

NEXT: Mapping[Kind, str] = {
    Kind.UNAUTHENTICATED: "Send the admin token as `Authorization: Bearer …`.",
    Kind.FORBIDDEN: "Ask the hub's administrator.",
    Kind.MISMATCH: "Use a new Idempotency-Key for a new request.",
}


FIELDS: Mapping[str, str] = {
    "constraints.budget_usd": "budget",
    "constraints.max_tokens": "budget.max_tokens",
    "constraints.cpu": "budget.cpu",
    "constraints.memory": "budget.memory",
    **{f"constraints.{name}": f"hints.{name}" for name in sorted(CONSTRAINTS)},
    "to_agent": "agent",
    "contract_id": "agent",
    "work_type": "type",
    "payload": "input",
    "request_id": "Idempotency-Key",
}
"""The core's name of a field → its name in this API. The API itself asks under no contract."""

MESSAGES: Mapping[str, str] = {"request_id": "this Idempotency-Key was used before with other content"}
"""By the core's name of a field: where the core's sentence speaks of a field that this API does not have."""

ADVICE: Mapping[str, str] = {"contract_id": "`dragoman call --via a2acp` makes a contract first."}
"""Likewise, what to do where its own advice is for agents."""


def status_of(kind: Kind) -> int:
    return error_table.TABLE[kind].api


def status_for(fault: Fault) -> int:
    """As the table says; but a task over its budget stays so (`core.budgets.budget`), and an unknown agent will not
    come."""
    if error_table.over_budget(fault):
        return status_of(Kind.INVALID)
    if fault.field is None:
        return status_of(fault.kind)
    instead = {Kind.RESOURCES: Kind.INVALID, Kind.UNAVAILABLE: Kind.NOT_FOUND}
    return status_of(instead.get(fault.kind, fault.kind))


RETRY_AFTER = {429: 1, 503: 2}
"""Seconds, where the refusal names none."""


class ProblemOut(msgspec.Struct, frozen=True, kw_only=True):
    """RFC 9457, with the hub's `kind`, the offending `field`, and the fault's `facts`. `message` is what went wrong,
    without the advice that `detail` ends with."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    kind: str
    message: str = ""
    field: str | None = None
    facts: dict[str, Any] = {}


class Problem(Exception):
    """Refused by the API, before it became a command. `next` and `status` override the table's row."""

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        field: str | None = None,
        next: str | None = None,
        status: int | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.fault = Fault(kind=kind, message=message, field=field, facts=facts)
        self.next = next
        self.status = status


PATTERNS: Mapping[str, str] = {
    "._:@+-": "letters, digits and . _ : @ + -, the first a letter or a digit, at most 128 of them",
    "[A-Za-z_][A-Za-z0-9_]": "names of letters, digits and _, of which the first is no digit",
    "^/": "an absolute path",
}
"""What a pattern asks for, by a part of the pattern."""


def misshapen(error: msgspec.ValidationError, *, where: str, type: Any) -> Problem:
    """A shape that msgspec refused, with the dotted path of the field."""
    found = misfit(error)
    what = found.what
    if "matching regex" in what:
        what = next((f"expected {words}" for part, words in PATTERNS.items() if part in what), what)
    what = with_choices(what, type, found.field)
    return Problem(Kind.INVALID, f"{where}: {what}", field=found.field or None)


def detail(fault: Fault, next: str | None) -> str:
    """The fault in sentences, the last of which says what to do. As in the error table, a message that ends with a
    full stop is taken to say it itself, unless there is better advice."""
    field = fault.field or ""
    advice = next or ADVICE.get(field) or NEXT.get(fault.kind)
    if advice is None:
        return error_table.sentence(fault)
    message = MESSAGES.get(field, fault.message).strip().rstrip(".")
    return f"{error_table.sentence(msgspec.structs.replace(fault, message=f'{message}.'))} {advice}"


def problem(
    fault: Fault,
    instance: str,
    *,
    next: str | None = None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    code = status or status_for(fault)
    content = ProblemOut(
        type=TYPE_PREFIX + fault.kind.value,
        title=TITLES[fault.kind],
        status=code,
        detail=detail(fault, next),
        instance=instance,
        kind=fault.kind.value,
        message=fault.message,
        field=FIELDS.get(fault.field, fault.field) if fault.field else None,
        facts=fault.facts,
    )
    extra = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    if code == 401:
        extra["WWW-Authenticate"] = 'Bearer realm="dragoman"'
    if code in RETRY_AFTER:
        extra.setdefault("Retry-After", str(retry_after(fault, RETRY_AFTER[code])))
    return Response(msgspec.json.encode(content), status_code=code, headers=extra, media_type=MEDIA_TYPE)
