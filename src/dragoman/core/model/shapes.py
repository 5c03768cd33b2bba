"""The shapes of shared values. Fields that a shape does not name are kept as they are (all-D6); those that it names
must fit.

Times are kept as RFC 3339 in UTC, the same for every reader.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dragoman.core.ids import instant, rfc3339
from dragoman.core.model.state import AgentState, Registry
from dragoman.core.model.tasks import Priority
from dragoman.messages.faults import Kind, refuse
from dragoman.wire.misfit import misfit

Amount = Annotated[float, Meta(ge=0)]
Delay = Annotated[float, Meta(ge=0, le=1e12)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Time = Annotated[datetime, Meta(tz=True)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class EventShape(msgspec.Struct, kw_only=True):
    timestamp: Time
    event_type: Name
    details: dict[str, Any]
    agent_id: Name | None = None


class ContextShape(msgspec.Struct, kw_only=True):
    task_id: Name | None = None
    task_type: Name | None = None
    priority: Priority | None = None
    metadata: dict[str, Any] = {}
    dependencies: list[Name] = []
    history: list[EventShape] = []


class AttemptShape(msgspec.Struct, kw_only=True):
    attempt_number: Annotated[int, Meta(ge=0)]
    timestamp: Time
    strategy: str
    outcome: Literal["success", "failure", "partial"]
    details: str


class ErrorShape(msgspec.Struct, kw_only=True):
    """A whole ErrorReport: readers of the task read it."""

    error_id: Name
    agent_id: Name
    error_type: Literal[
        "TIMEOUT", "RATE_LIMIT", "VALIDATION_ERROR", "NETWORK_ERROR", "AUTHENTICATION_ERROR", "RESOURCE_EXHAUSTED",
        "INTERNAL_ERROR", "EXTERNAL_SERVICE_ERROR",
    ]  # fmt: skip
    severity: Literal["low", "medium", "high", "critical"]
    message: str
    context: dict[str, Any]
    recovery_attempts: list[AttemptShape]
    suggested_actions: list[str]
    task_id: Name | None = None
    stack_trace: str | None = None


class TaskShape(msgspec.Struct, kw_only=True):
    """A task that agents keep among themselves. They may write it bit by bit, so no field is required: missing ones are
    added on reading (`tasks.in_full`)."""

    status: Literal["pending", "in_progress", "completed", "failed", "cancelled"] = "pending"
    id: Name | None = None
    assigned_agent: Name | None = None
    created_at: Time | None = None
    updated_at: Time | None = None
    context: ContextShape = msgspec.field(default_factory=ContextShape)
    error: ErrorShape | None = None


class AgentShape(msgspec.Struct, kw_only=True):
    state: AgentState = AgentState.IDLE
    capability_level: Annotated[float, Meta(ge=0, le=100)] = 100
    error_rate: Fraction = 0
    avg_response_time_ms: Amount = 0
    last_heartbeat: Time | None = None
    next_available: Time | None = None
    current_tasks: list[str] = []
    resource_usage: dict[str, Any] = {}
    health_metrics: dict[str, Any] = {}


class ResourceShape(msgspec.Struct, kw_only=True):
    agent_id: Name
    resource_type: Literal["tokens", "cpu", "memory", "budget"]
    allocated: Amount = 0
    consumed: Amount = 0
    limit: Amount | None = None
    expires_at: Time | None = None


class Risk(msgspec.Struct, kw_only=True):
    low: Fraction = 0
    high: Fraction = 1


class Limits(msgspec.Struct, kw_only=True):
    per_task: Amount | None = None
    per_agent: Amount | None = None
    total: Amount | None = None


class BreakerShape(msgspec.Struct, kw_only=True):
    error_threshold: Annotated[int, Meta(ge=1)] = 1
    timeout_ms: Annotated[float, Meta(gt=0)] = 1
    reset_timeout_ms: Annotated[float, Meta(gt=0)] = 1


class RetryShape(msgspec.Struct, kw_only=True):
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    base_delay_ms: Delay | None = None
    max_delay_ms: Delay | None = None
    backoff_multiplier: Annotated[float, Meta(ge=1, le=1000)] | None = None
    jitter: bool | None = None


class PolicyShape(msgspec.Struct, kw_only=True):
    version: str = ""
    enabled_chains: list[Name] = []
    risk_thresholds: Risk = msgspec.field(default_factory=Risk)
    budget_limits: Limits = msgspec.field(default_factory=Limits)
    circuit_breaker_config: BreakerShape = msgspec.field(default_factory=BreakerShape)
    retry_config: RetryShape | None = None


SHAPES: dict[Registry, type[Any]] = {
    Registry.TASK: TaskShape,
    Registry.AGENT: AgentShape,
    Registry.RESOURCE: ResourceShape,
    Registry.POLICY: PolicyShape,
}

TIMES: dict[Registry, tuple[str, ...]] = {
    Registry.TASK: ("created_at", "updated_at"),
    Registry.AGENT: ("last_heartbeat", "next_available"),
    Registry.RESOURCE: ("expires_at",),
}


def fitted(registry: Registry, value: dict[str, Any]) -> dict[str, Any]:
    """The value, if it fits its shape. Refused with INVALID and the field if not."""
    try:
        shape = msgspec.convert(value, SHAPES[registry])
    except msgspec.ValidationError as error:
        found = misfit(error)
        field = f"changes.{found.field}" if found.field else "changes"
        raise refuse(Kind.INVALID, f"{found.field or 'the value'} does not fit: {found.what}", field=field) from None
    if isinstance(shape, PolicyShape) and shape.risk_thresholds.low > shape.risk_thresholds.high:
        raise refuse(Kind.INVALID, "low must not be above high", field="changes.risk_thresholds.low")
    for name in TIMES.get(registry, ()):
        if isinstance(at := getattr(shape, name), datetime):
            value = value | {name: _in_utc(at, name)}
    return value


def _in_utc(at: datetime, name: str) -> str:
    try:
        return rfc3339(instant(at))
    except OverflowError:  # the first or the last day of the calendar, in a zone where it is the day outside
        raise refuse(Kind.INVALID, f"{name} is a time that no calendar has in UTC", field=f"changes.{name}") from None
