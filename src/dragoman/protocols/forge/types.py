"""Forge's messages as values: the base message, and a payload for each type.

Shape lives here, declared once; msgspec enforces it while it converts. Names on the wire are the document's, in
camel case. Of the payloads' fields those are required without which the message says nothing; the document marks
as optional only the filters of the two queries.

What the document does not have stands in the same tables, because on the wire it is the same: completion and
cancelling (D6), the answer to a question that did not block (D8), publish and subscribe (D12), and what a requester
needs to follow its task. An agent that does not know a notification ignores it, as it ignores any it does not know.

Unknown fields are accepted and kept (all-D6), not in these values but in the JSON object they came from, which every
event of the codec carries along. `Any` is JSON that an agent, a caller or a person wrote.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType, field

REQUEST_SECONDS = 30.0
"""How long a request waits for its response, unless it says otherwise (ask-user may, D8)."""
SHUTDOWN_GRACE_MS = 30_000
LIMIT_DEFAULT = 100
LIMIT_MOST = 1000
PROGRESS_DONE = 1.0

#: The roles the document names. Others are accepted where an agent has them.
ROLES = ("worker", "planner", "reviewer")
PLANNER = "planner"

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Timestamp: TypeAlias = Annotated[datetime, Meta(tz=True)]
Fraction: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Milliseconds: TypeAlias = Annotated[float, Meta(gt=0, le=1e12)]
Topic: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]

AgentStatus: TypeAlias = Literal[
    "initializing", "idle", "busy", "paused", "stopping", "stopped", "crashed", "unhealthy"
]
TaskStatus: TypeAlias = Literal[
    "pending", "queued", "assigned", "running", "completed", "failed", "cancelled", "retrying"
]
Level: TypeAlias = Literal["debug", "info", "warn", "error"]


class Encoding(enum.StrEnum):
    """How messages are written on a link; chosen by the WebSocket's subprotocol. Pipes speak JSON."""

    JSON = "forge.v1.json"
    MSGPACK = "forge.v1.msgpack"


class Family(enum.StrEnum):
    """The part of a type before the colon: who sends it, and whether an answer follows."""

    REQUEST = "request"
    EVENT = "event"
    RESPONSE = "response"
    NOTIFY = "notify"


class Payload(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a type of message carries."""


# -- requests ----------------------------------------------------------------------------------------------------


class QueryAgents(Payload, frozen=True, kw_only=True):
    role: str | None = None
    status: AgentStatus | None = None
    capabilities: tuple[str, ...] = ()


class QueryTasks(Payload, frozen=True, kw_only=True):
    status: TaskStatus | None = None
    required_role: str | None = None
    limit: Annotated[int, Meta(ge=1, le=LIMIT_MOST)] = LIMIT_DEFAULT


class Attachment(Payload, frozen=True, kw_only=True):
    """A file that comes with a task, or out of it; `data` is base64."""

    filename: Name
    data: str
    mime_type: str = "application/octet-stream"


class SubmitTask(Payload, frozen=True, kw_only=True):
    """`agent` or `kind` name the receiver; else it is any agent that has the role and all the capabilities."""

    type: Name
    name: str | None = None
    description: str | None = None
    payload: dict[str, Any] = {}
    required_role: Name | None = None
    required_capabilities: tuple[Name, ...] = ()
    dependencies: tuple[Id, ...] = ()
    priority: Annotated[int, Meta(ge=1, le=5)] = 3
    agent: Id | None = None
    kind: Name | None = None
    attachments: tuple[Attachment, ...] = ()
    parent_id: Id | None = None
    thread: str | None = None
    timeout: Milliseconds | None = None


class GetTask(Payload, frozen=True, kw_only=True):
    task_id: Id


class AskUser(Payload, frozen=True, kw_only=True):
    """`timeout` is in milliseconds and beats the request's own (D8). The default stands in when no person answers."""

    question: Text
    options: tuple[Any, ...] = ()
    timeout: Milliseconds | None = None
    default: Any = UNSET
    task_id: Id | None = None
    context: dict[str, Any] = {}


class UpdateTask(Payload, frozen=True, kw_only=True):
    """How a task stands (D6). `running` on a queued task claims it, and may bring a `file` of the work."""

    task_id: Id
    status: Literal["running", "completed", "failed"]
    result: Any = UNSET
    error: Any = None
    output: str | None = None
    progress: Fraction | None = None
    message: str | None = None
    retryable: bool = False
    file: Attachment | None = None


class CancelTask(Payload, frozen=True, kw_only=True):
    task_id: Id
    reason: str | None = None


class GetFile(Payload, frozen=True, kw_only=True):
    task_id: Id
    file_id: Id
    offset: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=1)] | None = None


class Register(Payload, frozen=True, kw_only=True):
    """What an agent is and can do; optional. An agent that names its id is refused if the token is not its own."""

    agent_id: Name | None = None
    name: str | None = None
    role: Name | None = None
    capabilities: tuple[Name, ...] | None = None
    work_types: tuple[Name, ...] | None = None
    version: str | None = None
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class Subscribe(Payload, frozen=True, kw_only=True):
    """A topic, or with a final `*` every topic that begins so."""

    topic: Topic


class Unsubscribe(Payload, frozen=True, kw_only=True):
    topic: Topic


class Publish(Payload, frozen=True, kw_only=True):
    topic: Topic
    data: Any = None


# -- events ------------------------------------------------------------------------------------------------------


class Step(Payload, frozen=True, kw_only=True):
    number: Annotated[int, Meta(ge=0)] = 0
    name: str = ""
    total: Annotated[int, Meta(ge=0)] | None = None


class ToolUse(Payload, frozen=True, kw_only=True):
    id: str
    name: str
    input: Any = None


class ToolResult(Payload, frozen=True, kw_only=True):
    id: str
    output: str = ""
    is_error: bool = False


class Progress(Payload, frozen=True, kw_only=True):
    """With progress 1 and a `result` the task is done (D6). `output` is a piece of its answer, `file` a file of it."""

    task_id: Id
    progress: Fraction | None = None
    message: str | None = None
    result: Any = UNSET
    output: str | None = None
    thinking: str | None = None
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None
    step: Step | None = None
    file: Attachment | None = None


class LogEvent(Payload, frozen=True, kw_only=True):
    level: Level
    message: str
    context: dict[str, Any] = {}
    task_id: Id | None = None


class ErrorEvent(Payload, frozen=True, kw_only=True):
    """With `recoverable: false` the task has failed (D6); otherwise it is reported and the work goes on."""

    error: str
    task_id: Id | None = None
    stack: str | None = None
    recoverable: bool = True


class QuestionEvent(Payload, frozen=True, kw_only=True):
    """A question that does not hold up the work; its answer is a `notify:question-answered` (D8)."""

    question: Text
    context: dict[str, Any] = {}
    options: tuple[Any, ...] = ()
    timeout: Milliseconds | None = None
    default: Any = UNSET
    task_id: Id | None = None


# -- what responses and assignments show ---------------------------------------------------------------------------


class FileView(Payload, frozen=True, kw_only=True, omit_defaults=False):
    id: str = ""
    name: str = ""
    mime_type: str = ""
    size: int = 0
    sha256: str = ""


class FilePiece(FileView, frozen=True, kw_only=True):
    """Bytes of a file, from `offset` on; `data` is base64."""

    data: str
    offset: int = 0
    length: int = 0


class TaskView(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """A task. What follows `attempt` is there only where it has a value: `payload` to `output_truncated` for those who
    may know what went in and out, `request_id` and the rest for the agent that is to do it."""

    id: str = ""
    type: str = ""
    name: str | None = None
    description: str | None = None
    status: str = ""
    priority: int = 3
    required_role: str | None = None
    required_capabilities: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    assigned_to: str | None = None
    submitted_by: str | None = None
    progress: float | None = None
    error: dict[str, Any] | None = None
    created_at: str = ""
    updated_at: str = ""
    attempt: int | None = None
    waiting_for: str | UnsetType = UNSET
    parent_id: str | UnsetType = UNSET
    thread: str | UnsetType = UNSET
    files: tuple[FileView, ...] | UnsetType = UNSET
    payload: Any = UNSET
    result: Any = UNSET
    output: str | UnsetType = UNSET
    output_truncated: bool | UnsetType = UNSET
    request_id: str | UnsetType = UNSET
    answer: Any = UNSET
    question: str | UnsetType = UNSET
    context: dict[str, Any] | UnsetType = UNSET
    handover: dict[str, Any] | UnsetType = UNSET
    limits: dict[str, Any] | UnsetType = UNSET


class AgentView(Payload, frozen=True, kw_only=True):
    """An agent. `current_task` is a task it holds, if the asker may know of it."""

    id: str
    role: str | None
    status: AgentStatus
    capabilities: tuple[str, ...]
    current_task: str | None
    name: str | None = None
    kind: str | None = None
    version: str | None = None
    work_types: tuple[str, ...] | None = None


# -- notifications -----------------------------------------------------------------------------------------------


class TaskAssigned(Payload, frozen=True, kw_only=True):
    """`task` is what get-task would say, where that is small: then an agent need not ask."""

    task_id: str
    message: str
    task: dict[str, Any] | None = None


class TaskCancelled(Payload, frozen=True, kw_only=True):
    task_id: str
    reason: str


class TaskPaused(Payload, frozen=True, kw_only=True):
    task_id: str
    reason: str = ""


class TaskResumed(Payload, frozen=True, kw_only=True):
    task_id: str


class TaskUpdated(Payload, frozen=True, kw_only=True):
    """How a task stands, for the agent that submitted it; nothing follows a `final` one."""

    task_id: str
    status: TaskStatus
    final: bool
    progress: float | None = None
    message: str | None = None
    output: str | None = None
    result: Any = UNSET
    error: dict[str, Any] | None = None
    thinking: str | None = None
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None
    step: Step | None = None
    file: dict[str, Any] | None = None


class Shutdown(Payload, frozen=True, kw_only=True, omit_defaults=False):
    """`grace_period` is in milliseconds."""

    grace_period: int = SHUTDOWN_GRACE_MS
    reason: str = "Orchestrator stopping"


class QuestionAnswered(Payload, frozen=True, kw_only=True):
    """The answer to an `event:question`, whose id is `question_id`; `timed_out` if no person gave one."""

    question_id: str
    question: str
    answer: Any = UNSET
    task_id: str | None = None
    answered_at: str | None = None
    timed_out: bool = False


class Published(Payload, frozen=True, kw_only=True):
    """An agent published on a topic. The hub sets `publisher`; `missed` counts what this reader lost before."""

    topic: str
    publisher: str
    data: Any = UNSET
    missed: int = 0


REQUESTS: dict[str, type[Payload]] = {
    "request:query-agents": QueryAgents,
    "request:query-tasks": QueryTasks,
    "request:submit-task": SubmitTask,
    "request:get-task": GetTask,
    "request:ask-user": AskUser,
    "request:update-task": UpdateTask,
    "request:cancel-task": CancelTask,
    "request:get-file": GetFile,
    "request:register": Register,
    "request:subscribe": Subscribe,
    "request:unsubscribe": Unsubscribe,
    "request:publish": Publish,
}
EVENTS: dict[str, type[Payload]] = {
    "event:progress": Progress,
    "event:log": LogEvent,
    "event:error": ErrorEvent,
    "event:question": QuestionEvent,
}
NOTICES: dict[str, type[Payload]] = {
    "notify:task-assigned": TaskAssigned,
    "notify:task-cancelled": TaskCancelled,
    "notify:task-paused": TaskPaused,
    "notify:task-resumed": TaskResumed,
    "notify:task-updated": TaskUpdated,
    "notify:shutdown": Shutdown,
    "notify:question-answered": QuestionAnswered,
    "notify:published": Published,
}
SUCCESS = "response:success"
ERROR = "response:error"

BODIES: dict[str, type[Payload]] = {**REQUESTS, **EVENTS, **NOTICES}
TYPE_OF: dict[type[Payload], str] = {body: name for name, body in BODIES.items()}


class ErrorBody(Struct, frozen=True, kw_only=True, omit_defaults=True):
    code: str
    message: str
    details: dict[str, Any] = {}


class Message(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Everything but a response. `payload` is one of the values above."""

    type: str
    id: Id
    timestamp: Timestamp
    payload: Any
    agent_id: str | None = None
    meta: dict[str, Any] = field(default_factory=dict, name="_meta")


class Success(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type", tag=SUCCESS):
    id: Id
    correlation_id: Id
    timestamp: Timestamp
    payload: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict, name="_meta")


class Failure(Struct, frozen=True, kw_only=True, rename="camel", tag_field="type", tag=ERROR):
    """`correlation_id` is None only where the request's own id could not be read."""

    id: Id
    correlation_id: str | None
    timestamp: Timestamp
    error: ErrorBody


Response: TypeAlias = Success | Failure
AnyMessage: TypeAlias = Message | Success | Failure


class Stamp(NamedTuple):
    """What a message of ours needs from the outside: its own id and the time."""

    id: str
    timestamp: datetime
