"""The parts of agentmsg's payloads: tasks and their context, agents and their health, errors, retries, shared state.

Every interface of the document that is not itself a payload is here under its own name; `types` has the message and the
payloads. msgspec enforces the shape. A field is required exactly where the document has no `?`. `Date` is an RFC 3339
time with an offset, `Map` a JSON object (D1), `number` any JSON number.

Unknown fields are accepted and kept (all-D6): not in these structs, but in the JSON object that they came in.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

# Any version of RFC 4122 and its successor. `$` alone would let a final newline through.
UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$(?!\\n)"

Uuid: TypeAlias = Annotated[str, Meta(pattern=UUID_PATTERN)]
Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Date: TypeAlias = Annotated[datetime, Meta(tz=True)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Number: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)]
Fraction: TypeAlias = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)] | Annotated[float, Meta(ge=0, le=100)]

Level: TypeAlias = Literal["low", "medium", "high", "critical"]
"""The urgency of a request for help, the severity of an error; the priority of a message has `normal` instead."""
TaskStatus: TypeAlias = Literal["pending", "in_progress", "completed", "failed", "cancelled"]
Resource: TypeAlias = Literal["tokens", "cpu", "memory", "budget"]


class Priority(enum.StrEnum):
    """From the least to the most urgent; `routing` orders them."""

    __hash__ = str.__hash__  # tables are keyed by it with every message; an enum's own hash is slow
    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"


class AgentState(enum.StrEnum):
    IDLE = "IDLE"
    BUSY = "BUSY"
    ERROR = "ERROR"
    OFFLINE = "OFFLINE"
    MAINTENANCE = "MAINTENANCE"


class ErrorType(enum.StrEnum):
    TIMEOUT = "TIMEOUT"
    RATE_LIMIT = "RATE_LIMIT"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    NETWORK_ERROR = "NETWORK_ERROR"
    AUTHENTICATION_ERROR = "AUTHENTICATION_ERROR"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    EXTERNAL_SERVICE_ERROR = "EXTERNAL_SERVICE_ERROR"


class Record(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message. Optional fields without a value are not written."""


# -- tasks -------------------------------------------------------------------------------------------------------


class TaskEvent(Record, frozen=True, kw_only=True):
    timestamp: Date
    event_type: Name
    details: dict[str, Any]
    agent_id: Id | None = None


class TaskContext(Record, frozen=True, kw_only=True):
    """What is known of a task; it goes along when another agent takes the task over."""

    task_id: Id
    task_type: Name
    priority: Priority
    metadata: dict[str, Any]
    dependencies: tuple[Id, ...]
    history: tuple[TaskEvent, ...]


class TaskConstraints(Record, frozen=True, kw_only=True):
    required_capabilities: tuple[Name, ...]
    max_tokens: Number | None = None
    deadline: Date | None = None
    budget_usd: Number | None = None
    quality_threshold: Number | None = None


class ResourceReference(Record, frozen=True, kw_only=True):
    type: Literal["documentation", "code", "api", "example", "tool"]
    url: str
    title: str
    description: str | None = None


# -- agents ------------------------------------------------------------------------------------------------------


class AgentStatus(Record, frozen=True, kw_only=True):
    state: AgentState
    capability_level: Percent
    error_rate: Fraction
    avg_response_time_ms: Number
    last_heartbeat: Date


class ResourceUsage(Record, frozen=True, kw_only=True):
    tokens_used: Number
    tokens_remaining: Number
    cost_usd: Number
    cpu_usage: Percent
    memory_usage: Percent


class Usage(Record, frozen=True, kw_only=True):
    """What one task used (ours): as much of a ResourceUsage as its agent knows."""

    tokens_used: Number | None = None
    tokens_remaining: Number | None = None
    cost_usd: Number | None = None
    cpu_usage: Percent | None = None
    memory_usage: Percent | None = None


class HealthMetrics(Record, frozen=True, kw_only=True):
    uptime_seconds: Number
    success_rate: Fraction
    avg_latency_ms: Number
    error_count: Count
    last_error: Date | None = None


# -- errors ------------------------------------------------------------------------------------------------------


class RecoveryAttempt(Record, frozen=True, kw_only=True):
    attempt_number: Count
    timestamp: Date
    strategy: str
    outcome: Literal["success", "failure", "partial"]
    details: str


class ErrorContext(Record, frozen=True, kw_only=True):
    """`details` is ours: the facts of a refusal, such as the field and the numbers."""

    input_data: Any = None
    configuration: Any = None
    environment: Any = None
    details: dict[str, Any] = {}


class ErrorReport(Record, frozen=True, kw_only=True):
    """A payload of its own, and why a task failed."""

    error_id: Id
    agent_id: Id
    error_type: ErrorType
    severity: Level
    message: str
    context: ErrorContext
    recovery_attempts: tuple[RecoveryAttempt, ...]
    suggested_actions: tuple[str, ...]
    task_id: Id | None = None
    stack_trace: str | None = None


# -- retries -------------------------------------------------------------------------------------------------------

Attempts: TypeAlias = Annotated[int, Meta(ge=1)]
Milliseconds: TypeAlias = (
    Annotated[int, Meta(ge=0, le=1_000_000_000_000)] | Annotated[float, Meta(ge=0, le=1_000_000_000_000)]
)
Factor: TypeAlias = Annotated[int, Meta(ge=1, le=1000)] | Annotated[float, Meta(ge=1, le=1000)]


class RetryConfig(Struct, frozen=True, kw_only=True):
    """When a message that is not acknowledged is sent again. Attempts are retries and the first one (D7)."""

    max_attempts: Attempts = 4
    base_delay_ms: Milliseconds = 1000
    max_delay_ms: Milliseconds = 30_000
    backoff_multiplier: Factor = 2
    jitter: bool = True


DEFAULT_RETRIES = RetryConfig()


class RetryOverrides(Record, frozen=True, kw_only=True):
    """The fields of a RetryConfig that a message sets itself."""

    max_attempts: Attempts | None = None
    base_delay_ms: Milliseconds | None = None
    max_delay_ms: Milliseconds | None = None
    backoff_multiplier: Factor | None = None
    jitter: bool | None = None


# -- shared state ------------------------------------------------------------------------------------------------


class TaskState(Record, frozen=True, kw_only=True):
    id: Id
    status: TaskStatus
    created_at: Date
    updated_at: Date
    context: TaskContext
    assigned_agent: Id | None = None
    result: Any = None
    error: ErrorReport | None = None


class ResourceAllocation(Record, frozen=True, kw_only=True):
    agent_id: Id
    resource_type: Resource
    allocated: Number
    consumed: Number
    limit: Number
    expires_at: Date | None = None

    @property
    def id(self) -> str:
        """What a StateUpdate calls it (D9)."""
        return f"{self.agent_id}:{self.resource_type}"


class RiskThresholds(Record, frozen=True, kw_only=True):
    low: Fraction
    high: Fraction


class BudgetLimits(Record, frozen=True, kw_only=True):
    """In USD."""

    per_task: Number
    per_agent: Number
    total: Number


class BreakerConfig(Record, frozen=True, kw_only=True):
    """`error_threshold` counts failures in a row (D11)."""

    error_threshold: Annotated[int, Meta(ge=1)]
    timeout_ms: Number
    reset_timeout_ms: Number


class PolicyState(Record, frozen=True, kw_only=True):
    """`retry_config` is ours: as much of a RetryConfig as differs from the hub's settings."""

    version: str
    enabled_chains: tuple[Name, ...]
    risk_thresholds: RiskThresholds
    budget_limits: BudgetLimits
    circuit_breaker_config: BreakerConfig
    retry_config: dict[str, Any] | None = None


class SharedState(Record, frozen=True, kw_only=True):
    """Allocations are named `agent_id:resource_type` (D9)."""

    task_registry: dict[str, TaskState]
    agent_registry: dict[str, AgentStatus]
    resource_allocations: dict[str, ResourceAllocation]
    policy_state: PolicyState
    last_updated: Date
