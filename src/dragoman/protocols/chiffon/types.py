"""Chiffon's messages as values: the envelope, its four payloads, registration.

Shape lives here, declared once; msgspec enforces it while it parses. Meaning (does the exit code fit the status?)
lives in `codec`. The document marks as required only the fields of the envelope; of the payloads' fields we require
every one the document lists, save those with a natural "none": hints, step, resources, the error's context.

Fields that the document does not name are accepted and kept (all-D6), not in these values but in the bytes
they came from: the receiver of a message holds its bytes, and `codec.reissue` carries them on.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Meta, Struct, field

PROTOCOL_VERSION = "1.0"
SUPPORTED: tuple[str, ...] = (PROTOCOL_VERSION,)
"""The versions that the hub and the SDK speak."""
SUBPROTOCOL = "chiffon.v1"

MessageType: TypeAlias = Literal["work_request", "work_status", "work_result", "error"]

# Any version of RFC 4122 and its successor (chiffon-D1). `$` alone would let a final newline through.
UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$(?!\\n)"

Uuid: TypeAlias = Annotated[str, Meta(pattern=UUID_PATTERN)]
TRACE_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$(?!\\n)"
"""A trace id without its dashes is a W3C trace id, whose bits need not be those of an RFC 4122 UUID (all-D7)."""
TraceId: TypeAlias = Annotated[str, Meta(pattern=TRACE_PATTERN)]
Timestamp: TypeAlias = Annotated[datetime, Meta(tz=True)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
Code: TypeAlias = Annotated[int, Meta(ge=5001, le=5999)]


class Hints(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the requester expects of the work; `max_duration_seconds` moves both clocks (D6).

    The document has no hint for GPU memory, but calls its limit and its use `gpu_vram_mb`. A name without `max_` means
    the same, as it does in the limits of a registration."""

    max_duration_seconds: Annotated[int, Meta(ge=1)] | None = None
    max_memory_mb: Count | None = None
    max_gpu_vram_mb: Count | None = None
    memory_mb: Count | None = None
    gpu_vram_mb: Count | None = None


class WorkRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Do this work."""

    task_id: Uuid
    work_type: Name
    parameters: dict[str, Any]
    hints: Hints | None = None


class Step(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the work is. `output_chunk` places a block of a split output (D3), `total` counts the steps (D14)."""

    number: Count
    name: str
    output: str = field(default_factory=str)  # written also where it is empty, as a default would not be
    output_chunk: str | None = None
    total: Count | None = None


class WorkStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the work goes. `paused` means that the agent waits for a person (D13)."""

    task_id: Uuid
    status: Literal["running", "step_completed", "paused"]
    progress_percent: Percent
    step: Step | None = None


class ResourcesUsed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the work cost."""

    duration_seconds: Count | None = None
    gpu_vram_mb: Count | None = None
    cpu_time_ms: Count | None = None
    memory_mb: Count | None = None


class WorkResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the work ended. A split output arrives as several of these, each with its `output_chunk` (D4)."""

    task_id: Uuid
    status: Literal["success", "failed"]
    exit_code: int
    output: str
    output_chunk: str | None = None
    resources_used: ResourcesUsed | None = None


class ErrorPayload(Struct, frozen=True, kw_only=True):
    """Something kept the exchange from going on; build one with `errors`."""

    error_code: Code
    error_message: str
    error_context: dict[str, Any] = {}


Payload: TypeAlias = WorkRequest | WorkStatus | WorkResult | ErrorPayload
P = TypeVar("P", bound=Payload, covariant=True)

TYPE_OF: dict[type, MessageType] = {
    WorkRequest: "work_request",
    WorkStatus: "work_status",
    WorkResult: "work_result",
    ErrorPayload: "error",
}


class Envelope(Struct, Generic[P], frozen=True, kw_only=True):
    """The one wrapper of every message. `codec.envelope` makes one whose `type` fits its payload."""

    protocol_version: str
    message_id: Uuid
    from_agent: Name
    to_agent: Name
    timestamp: Timestamp
    trace_id: TraceId
    request_id: Uuid
    type: MessageType
    payload: P
    x_custom_fields: dict[str, Any] = {}


class Stamp(NamedTuple):
    """What a message needs and a pure layer cannot make: a fresh id and the time."""

    message_id: str
    timestamp: datetime


class Correlation(NamedTuple):
    """What an answer copies from what it answers (D11). `message_id`: which message that was, where a refusal says so
    (many may have the same request id)."""

    request_id: str
    trace_id: str
    message_id: str | None = None


class Registration(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent introduces itself (D9)."""

    agent_id: Name
    agent_type: Name
    supported_versions: Annotated[tuple[str, ...], Meta(min_length=1, max_length=100)]
    work_types: tuple[Name, ...] = ()
    limits: dict[str, Any] = {}
    callback_url: str | None = None


class Registered(Struct, frozen=True, kw_only=True):
    """The hub's answer: who the agent is here, and which version is spoken from now on."""

    agent_id: str
    agent_type: str
    protocol_version: str
    status: Literal["registered"] = "registered"


class Acknowledgment(Struct, frozen=True):
    """Over a WebSocket, instead of an envelope: an agent has these deliveries."""

    ack: tuple[str, ...]


class Receipt(Struct, frozen=True):
    """The same from the hub: it has these messages, durably."""

    accepted: tuple[str, ...]
