"""Chiffon's error codes: the table, faults ⇄ `error` payloads, and the codec's exceptions.

An error has exactly the context that the document gives its code (D15).
Codes from 5007 to 5999 belong to the protocol but not to the document: a peer may send them, and they are never
retried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.chiffon.types import Correlation, ErrorPayload
from dragoman.wire.errors import RemoteProtocolError, Stage


class ErrorRule(Struct, frozen=True):
    """One row of the table: what the code is called, whether to try again, what its context holds."""

    name: str
    retry: bool
    context: tuple[str, ...]


TABLE: dict[int, ErrorRule] = {
    5001: ErrorRule("Timeout", True, ("attempted_retries", "last_attempt")),
    5002: ErrorRule("Agent Unavailable", True, ("agent_id", "last_heartbeat")),
    5003: ErrorRule("Invalid Message", False, ("validation_error", "field_name")),
    5004: ErrorRule("Authentication Failed", False, ("agent_id", "token_status")),
    5005: ErrorRule("Resource Limit Exceeded", True, ("limit_name", "available", "required")),
    5006: ErrorRule("Unsupported Work Type", False, ("work_type_requested", "supported_types")),
}
TASK_CANCELLED = 5900
DEPENDENCY_FAILED = 5901
WORK_FAILED = 5902
OWN_NAMES = {TASK_CANCELLED: "Task Cancelled", DEPENDENCY_FAILED: "Dependency Failed", WORK_FAILED: "Work Failed"}
"""Our codes, from the range that the document leaves free."""

KINDS: Mapping[int, Kind] = {
    5001: Kind.TIMEOUT,
    5002: Kind.UNAVAILABLE,
    5003: Kind.INVALID,
    5004: Kind.UNAUTHENTICATED,
    5005: Kind.RESOURCES,
    5006: Kind.UNSUPPORTED_WORK,
    TASK_CANCELLED: Kind.CANCELLED,
    DEPENDENCY_FAILED: Kind.DEPENDENCY,
    WORK_FAILED: Kind.WORK_FAILED,
}
"""What a code means, to the hub and to the SDK. One that is not there is a failure of the agent's work."""

CODES: Mapping[Kind, int] = {
    Kind.INVALID: 5003,
    Kind.TOO_LARGE: 5003,
    Kind.UNSUPPORTED_VERSION: 5006,
    Kind.UNSUPPORTED_WORK: 5006,
    Kind.UNAUTHENTICATED: 5004,
    Kind.FORBIDDEN: 5004,
    Kind.NOT_FOUND: 5003,
    Kind.CONFLICT: 5003,
    Kind.MISMATCH: 5003,
    Kind.CONTRACT: 5003,
    Kind.RATE_LIMITED: 5005,
    Kind.OVERLOADED: 5002,
    Kind.UNAVAILABLE: 5002,
    Kind.TIMEOUT: 5001,
    Kind.RESOURCES: 5005,
    Kind.CANCELLED: TASK_CANCELLED,
    Kind.DEPENDENCY: DEPENDENCY_FAILED,
    Kind.WORK_FAILED: WORK_FAILED,
    Kind.INTERNAL: 5002,
}
"""The code of each fault."""
UNDOCUMENTED = ErrorRule("Undocumented Error", False, ())

#: Seconds before attempts 1 to 4: one try and three retries, all with the same request_id (D7).
RETRY_DELAYS = (0, 1, 2, 4)


def rule(code: int) -> ErrorRule:
    """The row of `code`; a code the document does not define is an error that is not retried."""
    return TABLE.get(code, UNDOCUMENTED)


def is_retryable(code: int) -> bool:
    """Whether the sender of the failed message may send it again."""
    return rule(code).retry


def error(code: int, message: str | None = None, **context: Any) -> ErrorPayload:
    """An error of the document, with the context that `TABLE` names."""
    return ErrorPayload(error_code=code, error_message=message or TABLE[code].name, error_context=context)


# --- faults ---

FIELDS = {
    "id": "message_id",
    "task_id": "payload.task_id",
    "work_type": "payload.work_type",
    "output": "payload.output",
    "output_chunk": "payload.output_chunk",
    "step.output": "payload.step.output",
    "step.output_chunk": "payload.step.output_chunk",
    "agent": "x_custom_fields.agent_id",
    "parent": "x_custom_fields.parent_task_id",
    "dependencies": "x_custom_fields.dependencies",
}
"""Where the hub's fields stand in an envelope."""

ADVICE = {Kind.TIMEOUT: "Try again, or allow more time with hints.max_duration_seconds."}
"""What to do next, where chiffon has a field for it."""

UNKNOWN = "unknown"
"""In a context of the document's, what the agent that failed did not say."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST = 2**63 - 1


class ErrorSubject(Struct, frozen=True, kw_only=True):
    """What an error's context says of its task, where the fault itself does not."""

    at: datetime
    last_attempt: datetime
    agent_id: str
    task_id: str | None = None
    work_type: str = ""
    retries: int = 0


def fault_in(payload: ErrorPayload) -> Fault:
    """What an `error` means: whether the hub tries again follows from the code alone (D7)."""
    return Fault(
        kind=KINDS.get(payload.error_code, Kind.WORK_FAILED),
        message=payload.error_message or rule(payload.error_code).name,
        retryable=is_retryable(payload.error_code),
        facts={**payload.error_context, "code": payload.error_code},
    )


def is_reported(fault: Fault) -> bool:
    """Whether an agent reported it: then its message stays as it is."""
    return fault.reported or "code" in fault.facts


def error_out(fault: Fault, subject: ErrorSubject) -> ErrorPayload:
    """The error for a fault, with exactly the context of the document (D15). Facts may come from an agent, and so be
    any JSON: here they get the document's form."""
    code, facts, reported = CODES[fault.kind], fault.facts, is_reported(fault)
    message = fault.message if reported else error_table.sentence(fault, ADVICE.get(fault.kind))
    agent_id = str(facts.get("agent_id") or facts.get("agent") or subject.agent_id)
    context: dict[str, Any]
    match code:
        case 5001:
            context = {
                "attempted_retries": max(0, _whole(facts.get("attempted_retries", subject.retries))),
                "last_attempt": _time(facts.get("last_attempt"), subject.last_attempt),
            }
        case 5002:
            seen = facts.get("last_heartbeat")
            context = {"agent_id": agent_id, "last_heartbeat": None if seen is None else _time(seen, subject.at)}
        case 5003:
            field = FIELDS.get(fault.field, fault.field) if fault.field else None
            context = {"validation_error": fault.message, "field_name": field}
        case 5004:
            of_hub = "valid" if fault.kind is Kind.FORBIDDEN else "invalid"
            status = facts.get("token_status", UNKNOWN if reported else of_hub)
            context = {"agent_id": agent_id, "token_status": str(status)}
        case 5005:
            limit = facts.get("limit_name") or facts.get("resource") or (UNKNOWN if reported else "requests")
            context = {
                "limit_name": str(limit),
                "available": _whole(facts.get("available", facts.get("remaining"))),
                "required": _whole(facts.get("required", facts.get("asked")), math.ceil),
            }
        case 5006:
            requested = facts.get("work_type_requested") or facts.get("work_type") or subject.work_type
            context = {
                "work_type_requested": str(requested),
                "supported_types": _texts(facts.get("supported_types")) or [],
            }
            if (versions := _texts(facts.get("supported_versions"))) is not None:
                context["supported_versions"] = versions
        case _:
            context = {"task_id": subject.task_id or facts.get("task_id"), "reason": fault.message}
            if fault.kind is Kind.DEPENDENCY and "dependency" in facts:
                context["dependency"] = facts["dependency"]
            # behind the name, the message begins as it was written and not as a sentence does
            message = f"{OWN_NAMES[code]}: {fault.message.strip()[:1]}{message[1:]}"
    return ErrorPayload(error_code=code, error_message=message, error_context=context)


def _time(value: object, otherwise: datetime) -> str:
    """A time in the document's form: `value` is text, or microseconds since 1970."""
    moment = otherwise
    try:
        if isinstance(value, str):
            given = datetime.fromisoformat(value)
            moment = otherwise if given.tzinfo is None else given.astimezone(UTC)
        elif type(value) is int:
            moment = _EPOCH + timedelta(microseconds=value)
    except (ValueError, OverflowError):
        pass
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _texts(value: object) -> list[str] | None:
    return [str(one) for one in value] if isinstance(value, list | tuple) else None


def _whole(value: object, to: Callable[[float], int] = math.floor) -> int:
    """A number as the document has it: whole (USD come in cents), and not longer than any peer can read."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return max(-_LARGEST, min(to(value), _LARGEST))


# --- what the codec raises ---


class ChiffonError(RemoteProtocolError):
    """A peer's message was refused. `about` has the ids that the answer copies, where they could be read."""

    def __init__(self, what: str, *, stage: Stage, field: str | None = None, about: Correlation | None = None) -> None:
        super().__init__(what, stage=stage, field=field)
        self.about = about

    @property
    def answer(self) -> ErrorPayload:
        """The error to send back."""
        return error(5003, validation_error=self.what, field_name=self.field)

    @property
    def fault(self) -> Fault:
        kind = Kind.TOO_LARGE if self.stage is Stage.SIZE else Kind.INVALID
        facts = {"stage": self.stage.value}
        return Fault(kind=kind, message=self.what, next=self.next, field=self.field, facts=facts)


class InvalidMessage(ChiffonError):
    """5003 as an exception."""

    def __init__(
        self, what: str, field: str | None = None, *, stage: Stage = Stage.MEANING, about: Correlation | None = None
    ) -> None:
        super().__init__(what, stage=stage, field=field, about=about)


class UnsupportedVersion(ChiffonError):
    """5006 as an exception: a message or an agent of a version that we do not speak (D9)."""

    def __init__(
        self,
        versions: Iterable[str],
        supported_versions: Iterable[str],
        *,
        subject: str,
        about: Correlation | None = None,
    ) -> None:
        self.supported_versions = tuple(supported_versions)
        self._subject = subject
        what = f"no common protocol version: got {', '.join(versions) or 'none'}"
        super().__init__(what, stage=Stage.MEANING, field="protocol_version", about=about)

    @property
    def answer(self) -> ErrorPayload:
        return error(
            5006,
            "Unsupported protocol version",
            work_type_requested=self._subject,
            supported_types=[],
            supported_versions=list(self.supported_versions),
        )

    @property
    def fault(self) -> Fault:
        facts = {"supported_versions": list(self.supported_versions), **self.answer.error_context}
        return Fault(kind=Kind.UNSUPPORTED_VERSION, message=self.what, field=self.field, facts=facts)
