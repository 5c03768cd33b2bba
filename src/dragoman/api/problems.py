"""Refusals as RFC 9457 problem details.

A program reads `kind`, `reason`, `field`, `facts` and `next`; a person reads `detail`, which is composed here of the
same facts and ends with what to do next. The status of a fault and its general advice come from the one error table
(`messages.error_table`); here are the titles, and the advice for the holder of the admin token.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from dragoman.core.model.agents import CONSTRAINTS
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind, new_fault
from dragoman.server.asgi import retry_after
from dragoman.wire.misfit import advice, misfit

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dragoman:problem:"

TITLES: Mapping[Kind, str] = {
    Kind.INVALID: "Invalid request",
    Kind.TOO_LARGE: "Request too large",
    Kind.UNSUPPORTED_VERSION: "Unsupported version",
    Kind.UNSUPPORTED_WORK: "Unsupported work type",
    Kind.UNAUTHENTICATED: "No valid credential",
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


class Reason(enum.StrEnum):
    """What the API refuses before it asks the core. Any other problem has its `kind` as its reason."""

    NO_ROUTE = "no_route"
    WRONG_METHOD = "wrong_method"
    INVALID_QUERY = "invalid_query"  # `field` is a parameter of the query
    INVALID_BODY = "invalid_body"  # `field` is a dotted path in the body
    AMBIGUOUS_ID = "ambiguous_id"  # `facts.matches` are the ids


class Next(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to do next: for a person, as a request to this API, and as a command of `dragoman`."""

    text: str
    request: str | None = None
    command: str | None = None


class Resource(msgspec.Struct, frozen=True):
    """The commands for one collection of the API: how to list it, and how to show one of it."""

    list: str
    show: str | None = None


RESOURCES: Mapping[str, Resource] = {
    "agents": Resource("dragoman agent ls", "dragoman agent show"),
    "tasks": Resource("dragoman task ls", "dragoman task show"),
    "questions": Resource("dragoman ask ls --status all"),
    "deadletters": Resource("dragoman dlq ls"),
    "contracts": Resource("dragoman contract ls", "dragoman contract show"),
    "files": Resource("dragoman file ls"),
    "policies/domains": Resource("dragoman policy ls"),
    "users": Resource("dragoman user ls"),
}
"""By the path below /api/v1."""
BASE = "/api/v1/"


def list_of(path: str) -> Next:
    """Advice to list what there is of a collection."""
    request = f"GET {BASE}{path}"
    return Next(f"list them with {request}", request, RESOURCES[path].list)


USE_NEXT = Next("use `next` of the page before, as it is")

NEXT: Mapping[Kind, Next] = {
    Kind.UNAUTHENTICATED: Next("send the admin token as `Authorization: Bearer …`"),
    Kind.FORBIDDEN: Next("ask the hub's administrator"),
    Kind.MISMATCH: Next("use a new Idempotency-Key for a new request"),
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

MESSAGES: Mapping[tuple[Kind, str | None], str] = {
    (Kind.MISMATCH, "request_id"): "this Idempotency-Key was used before with other content"
}
"""By kind and the core's name of a field: where the core's message names a field that this API does not have."""

ADVICE: Mapping[str, Next] = {
    "contract_id": Next("make a contract first: `dragoman call --via a2acp` does", command="dragoman call --via a2acp")
}
"""By the core's name of a field: where the core's own advice is for agents."""


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
    """RFC 9457, with what a program wants to know. `message` is what went wrong, without the advice that `detail` ends
    with; `next` is there where the hub knows more than the kind's general advice."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    kind: str
    reason: str
    message: str = ""
    field: str | None = None
    facts: dict[str, Any] = {}
    next: Next | None = None


class Problem(Exception):
    """Refused by the API, before it became a command. `next` and `status` override the table's row; the message ends
    with `advice`."""

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        reason: Reason | None = None,
        field: str | None = None,
        next: Next | None = None,
        status: int | None = None,
        advice: str = "",
        **facts: Any,
    ) -> None:
        super().__init__(message)
        self.fault = new_fault(kind, message, next=advice, field=field, facts=facts)
        self.reason = reason
        self.next = next
        self.status = status


PATTERNS: Mapping[str, str] = {
    "._:@+-": "letters, digits and . _ : @ + -, the first a letter or a digit, at most 128 of them",
    "[A-Za-z_][A-Za-z0-9_]": "names of letters, digits and _, of which the first is no digit",
    "^/": "an absolute path",
}
"""What a pattern asks for, by a part of the pattern."""


def misshapen(error: msgspec.ValidationError, *, reason: Reason, type: Any) -> Problem:
    """A shape that msgspec refused, with the dotted path of the field."""
    found = misfit(error)
    what, name = found.what, found.field.rpartition(".")[2]
    sort = "parameter" if reason is Reason.INVALID_QUERY else "field"
    if found.is_unknown:
        what = f"unknown {sort} `{name}`"
    elif found.is_missing:
        what = f"the {sort} `{name}` is missing"
    elif found.breaks_pattern:
        what = next((f"expected {words}" for part, words in PATTERNS.items() if part in what), what)
    message = f"{what[:1].lower()}{what[1:]}"
    choices = advice(what, type, found.field)
    return Problem(Kind.INVALID, message, reason=reason, field=found.field or None, advice=choices)


PLACES = {Reason.INVALID_QUERY: "query", Reason.INVALID_BODY: "body"}
"""What the detail of a misshapen request begins with."""


def detail(fault: Fault, advice: Next | None = None, reason: Reason | None = None) -> str:
    """The fault in sentences, the last of which says what to do: `advice`, if there is better than the fault's own or
    its kind's."""
    if reason in PLACES:
        fault = msgspec.structs.replace(fault, message=f"{PLACES[reason]}: {fault.message}")
    if advice is None:
        return error_table.sentence(fault)
    return f"{error_table.opening(fault)} {advice.text[:1].upper()}{advice.text[1:]}."


def _advice(fault: Fault) -> Next | None:
    """Advice that replaces that of the error table in the detail."""
    return ADVICE.get(fault.field or "") or NEXT.get(fault.kind)


def _related(fault: Fault, status: int, instance: str) -> Next | None:
    """Where to look for what the request was about. It comes beside the advice of the error table."""
    general = error_table.TABLE[fault.kind].next.rstrip(".")
    if fault.kind is Kind.UNAVAILABLE and fault.field:  # the agent that was asked for is missing
        return Next(general, f"GET {BASE}agents", RESOURCES["agents"].list)
    collection, _, rest = instance.removeprefix(BASE).partition("/")
    resource = RESOURCES.get(collection)
    if resource is None or not instance.startswith(BASE) or status not in (404, 409):
        return None
    id = rest.partition("/")[0]
    if status == 409 and id and resource.show:
        return Next(general, f"GET {BASE}{collection}/{id}", f"{resource.show} {id}")
    return Next(general, f"GET {BASE}{collection}", resource.list)


def problem(
    fault: Fault,
    instance: str,
    *,
    reason: Reason | None = None,
    next: Next | None = None,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    code = status or status_for(fault)
    content = problem_out(fault, instance, reason=reason, next=next, status=code)
    extra = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(headers or {})}
    if code == 401:
        extra["WWW-Authenticate"] = 'Bearer realm="dragoman"'
    if code in RETRY_AFTER:
        extra.setdefault("Retry-After", str(retry_after(fault, RETRY_AFTER[code])))
    return Response(msgspec.json.encode(content), status_code=code, headers=extra, media_type=MEDIA_TYPE)


def problem_out(
    fault: Fault,
    instance: str,
    *,
    reason: Reason | None = None,
    next: Next | None = None,
    status: int | None = None,
) -> ProblemOut:
    code = status or status_for(fault)
    shown = msgspec.structs.replace(fault, message=MESSAGES.get((fault.kind, fault.field), fault.message))
    advice = next or _advice(fault)
    return ProblemOut(
        type=TYPE_PREFIX + fault.kind.value,
        title=TITLES[fault.kind],
        status=code,
        detail=detail(shown, advice, reason),
        instance=instance,
        kind=fault.kind.value,
        reason=reason or fault.kind.value,
        message=shown.message,
        field=FIELDS.get(fault.field, fault.field) if fault.field else None,
        facts=fault.facts,
        next=advice or _related(fault, code, instance),
    )
