"""Coven's messages as values: what travels on an agent's stream, and what callers send.

Everything is a value of ours; the generated protobuf classes never leave `codec`. The document's fields come first,
our extensions after them: they have defaults, because a peer need not know them.

Presence counts (D7): an empty `text` is an event, a response without any event is not.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

CONTROL = "coven.CovenControl"
CLIENT = "coven.CovenClient"
AGENT_STREAM = f"/{CONTROL}/AgentStream"
SEND = f"/{CLIENT}/Send"
FOLLOW = f"/{CLIENT}/Follow"
CANCEL = f"/{CLIENT}/Cancel"

DEFAULT_PORT = 50051

TASK_ID_KEY = "dragoman-task-id"
"""Metadata of a caller's stream, initial and trailing: which task to follow if the stream breaks off before its first
event. A client that learns of the end before it read the beginning may have lost that (gRPC's for Python does)."""
FAULT_KEY, RETRYABLE_KEY, MESSAGE_KEY = "dragoman-fault", "dragoman-retryable", "dragoman-message-bin"
"""Trailing metadata of a refused call: the kind of the fault, "1" or "0", and the fault's message without advice."""

CANCEL_EXTENSION, INPUT_EXTENSION = "cancel", "input"
"""In `RegisterAgent.extensions`: the agent understands `Cancel`; it takes its input from `input_json`."""


# --- the seven events of a response ---


class Thinking(Struct, frozen=True, gc=False):
    """What the agent is doing, for people; not part of its answer."""

    text: str


class Text(Struct, frozen=True, gc=False):
    """A piece of the answer."""

    text: str


class ToolUse(Struct, frozen=True, gc=False):
    """The agent uses a tool. `input_json` is the agent's own: it need not be valid JSON."""

    id: str
    name: str = ""
    input_json: str = ""


class ToolResult(Struct, frozen=True, gc=False):
    """What a tool gave."""

    id: str
    output: str = ""
    is_error: bool = False


class FileData(Struct, frozen=True, gc=False):
    """A file: an output of an agent, or an attachment to a message. The name is only for display."""

    filename: str
    mime_type: str = ""
    data: bytes = b""


class Question(Struct, frozen=True, gc=False, kw_only=True):
    """A question to a person that ends the turn; the answer is the next message in the thread."""

    question: str
    options_json: str = ""
    timeout_seconds: float = 0.0
    default_json: str = ""


class Done(Struct, frozen=True, gc=False, kw_only=True):
    """The request is complete."""

    full_response: str = ""
    result_json: str = ""
    question: Question | None = None
    is_json: bool = False


class Error(Struct, frozen=True, gc=False):
    """The request has failed, and is complete."""

    message: str


ResponseEvent: TypeAlias = Thinking | Text | ToolUse | ToolResult | FileData | Done | Error

TERMINAL: tuple[type[ResponseEvent], ...] = (Done, Error)
"""The events after which a request is over."""


class Progress(Struct, frozen=True, gc=False, kw_only=True):
    """How far the work is; rides beside any event, or alone."""

    percent: int | None = None
    step: str = ""
    message: str = ""
    number: int = 0
    total: int = 0


class Fault(Struct, frozen=True, gc=False, kw_only=True):
    """What an `error` means, for programs."""

    kind: str
    message: str = ""
    retryable: bool = False
    facts_json: str = ""


# --- agent to gateway ---


class RegisterAgent(Struct, frozen=True, gc=False, kw_only=True):
    """The first message of a stream."""

    agent_id: str
    name: str = ""
    capabilities: tuple[str, ...] = ()
    work_types: tuple[str, ...] = ()
    version: str = ""
    extensions: tuple[str, ...] = ()


class MessageResponse(Struct, frozen=True, gc=False, kw_only=True):
    """One event about a request.

    `unknown` holds the message as it came, where it has fields that we do not know (all-D6), without a file's data.
    """

    request_id: str
    event: ResponseEvent | None = None
    progress: Progress | None = None
    fault: Fault | None = None
    cursor: int = 0
    task_id: str = ""
    unknown: bytes = b""

    @property
    def empty(self) -> bool:
        """Nothing in it that we know (D1)."""
        return self.event is None and self.progress is None

    @property
    def last(self) -> bool:
        """Whether the request is over with this."""
        return isinstance(self.event, TERMINAL)


class Heartbeat(Struct, frozen=True, gc=False):
    """The agent is there."""

    timestamp_ms: int


AgentMessage: TypeAlias = RegisterAgent | MessageResponse | Heartbeat


# --- gateway to agent ---


class Welcome(Struct, frozen=True, gc=False, kw_only=True):
    """The registration stands."""

    server_id: str
    agent_id: str


class SendMessage(Struct, frozen=True, gc=False, kw_only=True):
    """Do this; from a caller: have this done."""

    request_id: str
    thread_id: str = ""
    sender: str = ""
    content: str = ""
    attachments: tuple[FileData, ...] = ()
    task_id: str = ""
    work_type: str = ""
    input_json: str = ""
    answer_json: str = ""
    attempt: int = 0
    traceparent: str = ""
    to_agent: str = ""
    priority: str = ""
    context_json: str = ""
    unknown: bytes = b""


class Shutdown(Struct, frozen=True, gc=False):
    """Finish what is under way, then leave."""

    reason: str


class Cancel(Struct, frozen=True, gc=False, kw_only=True):
    """Stop working on a request (extension). It still ends with `done` or `error`, which the hub ignores."""

    request_id: str
    reason: str = ""


ServerMessage: TypeAlias = Welcome | SendMessage | Shutdown | Cancel


# --- callers ---


class FollowRequest(Struct, frozen=True, gc=False, kw_only=True):
    """Tell me what happens to a task, after the event of this number."""

    task_id: str
    after: int = 0


class CancelRequest(Struct, frozen=True, gc=False, kw_only=True):
    """Stop a task."""

    task_id: str
    reason: str = ""


class CancelReply(Struct, frozen=True, gc=False, kw_only=True):
    """What became of it."""

    task_id: str
    status: str = ""
