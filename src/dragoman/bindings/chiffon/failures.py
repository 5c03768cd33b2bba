"""Faults in chiffon's words: `error` payloads with exactly the contexts of the document (D15), and the way back.

What a context needs and a fault does not say comes from the task, where there is one. Facts may be an agent's own
words, and so anything that JSON can say: what is said to others has the document's form all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from dragoman.bindings.chiffon.exchange import HUB_NAME
from dragoman.core.ids import EPOCH, Instant, instant
from dragoman.core.model.tasks import Task
from dragoman.messages import error_table
from dragoman.messages.error_table import fault_fields
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.chiffon import codec, errors
from dragoman.protocols.chiffon.errors import ChiffonError, UnsupportedVersion
from dragoman.protocols.chiffon.types import Correlation, ErrorPayload, Stamp
from dragoman.wire.errors import Stage

MALFORMED = frozenset({Stage.DEPTH, Stage.JSON, Stage.SHAPE})
"""Checks whose refusal means 400: the message cannot be read. One that reads well but makes no sense is 422."""

OURS = {
    errors.TASK_CANCELLED: "Task Cancelled",
    errors.DEPENDENCY_FAILED: "Dependency Failed",
    errors.WORK_FAILED: "Work Failed",
}
"""What we call the codes that the document does not have."""

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

REFUSED = "refused_message_id"
UNKNOWN = "unknown"
"""In a context of the document's, what the agent that failed did not say: the hub makes nothing up."""

LARGEST = 2**63 - 1

ADVICE = {Kind.TIMEOUT: "Try again, or allow more time with hints.max_duration_seconds."}
"""What to do next, where this protocol has a word for it."""


def fault_of(error: ChiffonError) -> Fault:
    """A message that the codec refused, as a fault."""
    if isinstance(error, UnsupportedVersion):
        facts: dict[str, Any] = {"supported_versions": list(error.supported_versions), **error.answer.error_context}
        return Fault(kind=Kind.UNSUPPORTED_VERSION, message=error.what, field=error.field, facts=facts)
    kind = Kind.TOO_LARGE if error.stage is Stage.SIZE else Kind.INVALID
    return Fault(kind=kind, message=error.what, field=error.field, facts={"stage": error.stage.value})


def status_of(fault: Fault) -> int:
    """The HTTP status that goes with a fault."""
    if fault.kind is Kind.INVALID and fault.facts.get("stage") in MALFORMED:
        return 400
    if fault.kind is Kind.UNAVAILABLE and fault.field == "to_agent":
        return 404  # nobody of that name is known, rather than not here now
    return error_table.TABLE[fault.kind].agents


def payload_of(fault: Fault, at: Instant, *, task: Task | None = None) -> ErrorPayload:
    """What to say about a fault."""
    code = errors.CODES[fault.kind]
    facts = fault.facts
    words = fault.message if is_told(fault) else error_table.sentence(fault, ADVICE.get(fault.kind))
    agent_id = str(facts.get("agent_id") or facts.get("agent") or _agent_of(task))
    match code:
        case 5001:
            retries = facts.get("attempted_retries", task.attempts - 1 if task else 0)
            return errors.timeout(
                attempted_retries=max(0, _whole(retries)),
                last_attempt=_when(facts.get("last_attempt"), at if task is None else task.last_attempt),
                message=words,
            )
        case 5002:
            seen = facts.get("last_heartbeat")
            heartbeat = None if seen is None else _when(seen, at)
            return errors.unavailable(agent_id=agent_id, last_heartbeat=heartbeat, message=words)
        case 5003:
            field = FIELDS.get(fault.field, fault.field) if fault.field else None
            return errors.invalid_message(validation_error=fault.message, field_name=field, message=words)
        case 5004:
            ours = "valid" if fault.kind is Kind.FORBIDDEN else "invalid"
            status = facts.get("token_status", UNKNOWN if is_told(fault) else ours)
            return errors.authentication_failed(agent_id=agent_id, token_status=str(status), message=words)
        case 5005:
            return errors.resource_limit(
                limit_name=str(
                    facts.get("limit_name") or facts.get("resource") or (UNKNOWN if is_told(fault) else "requests")
                ),
                available=_whole(facts.get("available", facts.get("remaining"))),
                required=_whole(facts.get("required", facts.get("asked")), math.ceil),
                message=words,
            )
        case 5006:
            requested = facts.get("work_type_requested") or facts.get("work_type") or (task.type if task else "")
            return errors.unsupported_work(
                work_type_requested=str(requested),
                supported_types=_texts(facts.get("supported_types")) or (),
                supported_versions=_texts(facts.get("supported_versions")),
                message=words,
            )
        case _:
            context: dict[str, Any] = {"task_id": task.id if task else facts.get("task_id"), "reason": fault.message}
            if fault.kind is Kind.DEPENDENCY and "dependency" in facts:
                context["dependency"] = facts["dependency"]
            words = f"{OURS[code]}: {fault.message.strip()[:1]}{words[1:]}"  # in the middle of it, as it was written
            return ErrorPayload(error_code=code, error_message=words, error_context=context)


def is_told(fault: Fault) -> bool:
    """Whether an agent said so itself: then its words stay as they are."""
    return fault.reported or "code" in fault.facts


def refusal(fault: Fault, *, to_agent: str, now: Instant, message_id: str, about: Correlation | None = None) -> bytes:
    """The `error` envelope that answers a message which was refused.

    It copies the ids of what it answers (D11), and names the message itself in `x_custom_fields.refused_message_id`:
    over a WebSocket many of one request may be under way. What could not be read its own id stands in for.
    """
    stamp = Stamp(message_id, EPOCH + timedelta(microseconds=now))
    answer = codec.envelope(
        payload_of(fault, now),
        stamp,
        about or Correlation(message_id, message_id),
        from_agent=HUB_NAME,
        to_agent=to_agent,
        x_custom_fields={"fault": fault_fields(fault)}
        | ({REFUSED: about.message_id} if about is not None and about.message_id else {}),
    )
    return codec.encode(answer)


def _agent_of(task: Task | None) -> str:
    return HUB_NAME if task is None else (task.owner or task.pinned or task.kind or HUB_NAME)


def _when(value: object, at: Instant) -> datetime:
    try:
        if isinstance(value, str):
            value = instant(datetime.fromisoformat(value))
        if type(value) is int:
            return EPOCH + timedelta(microseconds=value)
    except (ValueError, OverflowError):
        pass
    return EPOCH + timedelta(microseconds=at)


def _texts(value: object) -> list[str] | None:
    return [str(one) for one in value] if isinstance(value, list | tuple) else None


def _whole(value: object, to: Callable[[float], int] = math.floor) -> int:
    """A number as the document has it: whole (USD come in cents), and not longer than any peer can read."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return max(-LARGEST, min(to(value), LARGEST))
