"""Agentmsg's base message, and a payload for each type.

Ten types are the document's, five are ours (D2). Two types carry one of two payloads, and a field says which:

    type           payload                 is           and so
    -------------  ----------------------  -----------  ------------------------------------------------------------
    TASK_HANDOFF   has no `accepted`       a request
    TASK_HANDOFF   has `accepted`          a response   metadata.correlation_id must name the request's message (D2)
    STATE_QUERY    has no `entities`       a question
    STATE_QUERY    has `entities`          an answer    likewise, and only the hub gives one

`records` has the parts of the payloads.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Struct, field

from dragoman.protocols.agentmsg.records import (
    DEFAULT_RETRIES,
    AgentState,
    AgentStatus,
    Count,
    Date,
    ErrorReport,
    HealthMetrics,
    Id,
    Level,
    Name,
    Number,
    Percent,
    Priority,
    Record,
    ResourceReference,
    ResourceUsage,
    RetryOverrides,
    TaskConstraints,
    TaskContext,
    Usage,
    Uuid,
)

SUBPROTOCOL = "agentmsg.v1"

HUB = "hub"
"""The hub's own name in `from` and `to`."""
ANYONE = "*"
"""A handoff or a request for help to any agent that can."""

MAX_RETRIES = DEFAULT_RETRIES.max_attempts - 1
HEARTBEAT_SECONDS = 10.0
"""An agent that missed so many heartbeats is OFFLINE (D12)."""


class MessageType(enum.StrEnum):
    __hash__ = str.__hash__  # as in `records.Priority`
    TASK_ASSIGNMENT = "TASK_ASSIGNMENT"
    TASK_HANDOFF = "TASK_HANDOFF"
    TASK_UPDATE = "TASK_UPDATE"
    TASK_COMPLETE = "TASK_COMPLETE"
    TASK_FAILED = "TASK_FAILED"
    HELP_REQUEST = "HELP_REQUEST"
    HELP_RESPONSE = "HELP_RESPONSE"
    STATUS_UPDATE = "STATUS_UPDATE"
    HEARTBEAT = "HEARTBEAT"
    ERROR_REPORT = "ERROR_REPORT"
    # ours (D2)
    STATE_UPDATE = "STATE_UPDATE"
    STATE_QUERY = "STATE_QUERY"
    ACK = "ACK"
    REGISTER = "REGISTER"
    WELCOME = "WELCOME"


class HandoffReason(enum.StrEnum):
    CAPABILITY_LIMIT = "CAPABILITY_LIMIT"
    RATE_LIMIT = "RATE_LIMIT"
    ERROR_RECOVERY = "ERROR_RECOVERY"
    ESCALATION = "ESCALATION"
    LOAD_BALANCING = "LOAD_BALANCING"


class HelpType(enum.StrEnum):
    TECHNICAL_GUIDANCE = "TECHNICAL_GUIDANCE"
    DEBUGGING_ASSISTANCE = "DEBUGGING_ASSISTANCE"
    CODE_REVIEW = "CODE_REVIEW"
    ARCHITECTURE_ADVICE = "ARCHITECTURE_ADVICE"
    RESOURCE_SHARING = "RESOURCE_SHARING"


class HelpResponseType(enum.StrEnum):
    DIRECT_ANSWER = "DIRECT_ANSWER"
    RESOURCE_PROVISION = "RESOURCE_PROVISION"
    COLLABORATIVE_SESSION = "COLLABORATIVE_SESSION"
    ESCALATION = "ESCALATION"
    UNABLE_TO_HELP = "UNABLE_TO_HELP"


# -- tasks -------------------------------------------------------------------------------------------------------


class Assignment(Record, frozen=True, kw_only=True):
    """The task of a TASK_ASSIGNMENT (D2). `answer` answers the question of the last turn."""

    task_id: Id
    task_type: Name
    description: str | None = ""
    context: TaskContext | None = None
    constraints: TaskConstraints | None = None
    input: Any = UNSET
    attempt: Annotated[int, Meta(ge=1)] = 1
    answer: Any = UNSET


class TaskAssignment(Record, frozen=True, kw_only=True):
    task: Assignment


class TaskUpdate(Record, frozen=True, kw_only=True):
    """How a task goes: at least one field beside its id. `status: cancelled` from the hub stops its agent (B4)."""

    task_id: Id
    progress: Percent | None = None
    message: str | None = ""
    output: str | None = None
    status: Literal["pending", "in_progress", "paused", "completed", "failed", "cancelled"] | None = None


class TaskComplete(Record, frozen=True, kw_only=True):
    task_id: Id
    result: Any
    usage: Usage | None = None


class TaskFailed(Record, frozen=True, kw_only=True):
    task_id: Id
    error: ErrorReport
    usage: Usage | None = None


class TaskHandoffRequest(Record, frozen=True, kw_only=True):
    task_id: Id
    from_agent: Id
    to_agent: Id
    reason: HandoffReason
    context: TaskContext
    constraints: TaskConstraints
    deadline: Date
    error: ErrorReport | None = None

    @property
    def due(self) -> datetime:
        """The earlier of the two deadlines (D8)."""
        other = self.constraints.deadline
        return self.deadline if other is None else min(self.deadline, other)


class TaskHandoffResponse(Record, frozen=True, kw_only=True):
    """A refusal may leave out the three that only an acceptance needs (D8)."""

    accepted: bool
    agent_id: Id
    estimated_completion: Date | None = None
    requirements: tuple[str, ...] | None = None
    constraints: TaskConstraints | None = None
    error: str | None = None


# -- help --------------------------------------------------------------------------------------------------------


class HelpContext(Record, frozen=True, kw_only=True):
    current_state: str
    attempted_solutions: tuple[str, ...]
    error_details: str | None = None


class HelpRequest(Record, frozen=True, kw_only=True):
    requester_id: Id
    task_id: Id
    help_type: HelpType
    description: str
    context: HelpContext
    urgency: Level
    deadline: Date | None = None


class HelpResponse(Record, frozen=True, kw_only=True):
    """`request_id` is the id of the HELP_REQUEST message; `estimated_effort` is in minutes."""

    responder_id: Id
    request_id: Id
    response_type: HelpResponseType
    content: str
    follow_up_required: bool
    estimated_effort: Number
    resources: tuple[ResourceReference, ...] | None = None


# -- status ------------------------------------------------------------------------------------------------------


class StatusUpdate(Record, frozen=True, kw_only=True):
    agent_id: Id
    status: AgentStatus
    current_tasks: tuple[Id, ...]
    resource_usage: ResourceUsage
    health_metrics: HealthMetrics
    next_available: Date | None = None


class Heartbeat(Record, frozen=True, kw_only=True):
    agent_id: Id
    state: AgentState | None = None


# -- shared state ------------------------------------------------------------------------------------------------

Operation: TypeAlias = Literal["CREATE", "UPDATE", "DELETE"]
EntityType: TypeAlias = Literal["TASK", "AGENT", "RESOURCE", "POLICY"]


class StateUpdate(Record, frozen=True, kw_only=True):
    """To the hub: a change to make, where `version` is the one that the writer read. From the hub: what has changed,
    where `version` is the new one and `cursor` where a watch resumes."""

    operation: Operation
    entity_type: EntityType
    entity_id: Id
    changes: dict[str, Any]
    version: Count
    timestamp: Date
    cursor: Count | None = None


class StateQuery(Record, frozen=True, kw_only=True):
    """Everything, one registry, or one entity. With `watch` the changes follow, from after `cursor` if one is given."""

    entity_type: EntityType | None = None
    entity_id: Id | None = None
    watch: bool = False
    cursor: Count | None = None


class Entity(Record, frozen=True, kw_only=True):
    entity_type: EntityType
    entity_id: Id
    version: Count
    value: dict[str, Any]


class StateAnswer(Record, frozen=True, kw_only=True):
    entities: tuple[Entity, ...]
    last_updated: Date
    cursor: Count | None = None


# -- the link ----------------------------------------------------------------------------------------------------


class Ack(Record, frozen=True, kw_only=True):
    """The messages that arrived: `metadata.correlation_id` and these. `version` is the new one after a StateUpdate."""

    message_ids: tuple[Id, ...] = ()
    version: Count | None = None


class Register(Record, frozen=True, kw_only=True):
    """What an agent can do. Registering is optional: an agent may send other messages at once."""

    agent_id: Id
    name: str | None = None
    capabilities: tuple[Name, ...] | None = None
    task_types: tuple[Name, ...] | None = None
    version: str | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Welcome(Record, frozen=True, kw_only=True, omit_defaults=False):
    agent_id: Id
    heartbeat_interval_ms: Number = int(HEARTBEAT_SECONDS * 1000)
    protocol: str = SUBPROTOCOL


BODIES: dict[MessageType, tuple[type[Record], ...]] = {
    MessageType.TASK_ASSIGNMENT: (TaskAssignment,),
    MessageType.TASK_HANDOFF: (TaskHandoffRequest, TaskHandoffResponse),
    MessageType.TASK_UPDATE: (TaskUpdate,),
    MessageType.TASK_COMPLETE: (TaskComplete,),
    MessageType.TASK_FAILED: (TaskFailed,),
    MessageType.HELP_REQUEST: (HelpRequest,),
    MessageType.HELP_RESPONSE: (HelpResponse,),
    MessageType.STATUS_UPDATE: (StatusUpdate,),
    MessageType.HEARTBEAT: (Heartbeat,),
    MessageType.ERROR_REPORT: (ErrorReport,),
    MessageType.STATE_UPDATE: (StateUpdate,),
    MessageType.STATE_QUERY: (StateQuery, StateAnswer),
    MessageType.ACK: (Ack,),
    MessageType.REGISTER: (Register,),
    MessageType.WELCOME: (Welcome,),
}
TYPE_OF: dict[type[Record], MessageType] = {body: kind for kind, bodies in BODIES.items() for body in bodies}
ANSWERS_WITH: dict[MessageType, str] = {MessageType.TASK_HANDOFF: "accepted", MessageType.STATE_QUERY: "entities"}
"""The field that makes it the second of a type's two payloads."""


class MessageMetadata(Record, frozen=True, kw_only=True):
    """Ours: `traceparent` (all-D7), `delivery_id` by which the receiver acknowledges, `retry_config` with the delays
    that the sender wants between attempts."""

    priority: Priority
    retry_count: Count
    max_retries: Count
    correlation_id: Id | None = None
    ttl_ms: Number | None = None
    traceparent: str | None = None
    delivery_id: str | None = None
    retry_config: RetryOverrides | None = None


class Message(Struct, frozen=True, kw_only=True):
    """`payload` is one of the structs above."""

    id: Uuid
    timestamp: Date
    sender: Id = field(name="from")
    to: Id
    type: MessageType
    payload: Any
    metadata: MessageMetadata

    @property
    def answers(self) -> str | None:
        """The message this one is about."""
        return self.metadata.correlation_id


class Stamp(NamedTuple):
    """The new id (a UUID of version 4) and the time of a message: a pure layer cannot make them."""

    id: str
    timestamp: datetime
