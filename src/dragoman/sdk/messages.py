"""The messages between an agent's engine and its link. They belong to no protocol.

    inbound                                       outbound
    --------------------------------------------  ---------------------------------------------------------
    Assignment       do this (also: the answer)   ProgressReport   how far it is; output as it comes
    Answer           where asking is a request    Question         to a person; the work waits
    Cancel           stop doing it                Outcome          how it ended: kept until the hub has it
    Pause, Resume                                 Decline          unknown work, unfit input: cannot begin
    IncomingMessage  of another agent             OutgoingMessage  to another agent, or about ourselves
    Proposal         to agree on terms            ProposalAnswer   whether we agree
    Welcomed         how often to send heartbeats
    Accepted         the hub has these, durably
    Refused          the hub does not take it
    Shutdown         end, for good

The `mapping` of each protocol turns them into its own messages and back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.messages import tasks
from dragoman.sdk.peers import HandshakeRequest


class Correlation(Struct, frozen=True, kw_only=True):
    """Which work a message is about: copied onto everything that is said about it."""

    task_id: str
    request_id: str
    trace_id: str
    sender: str
    about: dict[str, str] = {}
    """What else the protocol needs for an answer."""


PRIVATE = "private"
"""In `Correlation.about`: only the two agents can read messages about this work; the hub shows them to no person."""


class File(Struct, frozen=True):
    """A file that came with the work, or comes out of it. The name is for display: never a path to write to."""

    name: str
    mime_type: str
    data: bytes


class Attached(Struct, frozen=True):
    """A file that came with the work where the protocol carries only its name: the hub has it."""

    id: str
    name: str
    mime_type: str
    sha256: str


def attached(given: object) -> tuple[Attached, ...]:
    """The files that the hub names beside work; none, if a caller uses the field for something else."""
    try:
        return msgspec.convert(given, tuple[Attached, ...])
    except msgspec.ValidationError:
        return ()


class ToolUse(Struct, frozen=True):
    id: str
    name: str
    input: Any


class ToolResult(Struct, frozen=True):
    id: str
    output: str
    is_error: bool = False


class Assignment(Struct, frozen=True, kw_only=True):
    """Do this. `answer` is there when the work goes on after a question; `question` which one, if the hub says."""

    correlation: Correlation
    type: str
    input: dict[str, Any]
    receipt: str | None = None
    attempt: int | None = None
    traceparent: str | None = None
    attached: tuple[Attached, ...] = ()
    """What is still to be fetched; it is among the `files` when a handler sees them."""
    answer: Any | UnsetType = UNSET
    question: str | None = None
    files: tuple[File, ...] = ()
    terms: Terms | None = None
    is_new_round: bool = True
    """Whether a request of its own begins the task anew. If not, the answers so far hold for it, too."""


class Terms(Struct, frozen=True, kw_only=True):
    """What travels with a task where tasks go from agent to agent; plain values, as the hub said them."""

    priority: str = "normal"
    metadata: dict[str, Any] = {}
    dependencies: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = ()
    constraints: dict[str, Any] = {}
    handover: dict[str, Any] | None = None
    thread: str | None = None


def handed_over(said: object) -> Terms | None:
    """What the hub tells of a task that an agent of another protocol began, if that is what it is."""
    if not isinstance(said, dict) or not isinstance(said.get("from"), str) or "reason" not in said:
        return None
    metadata, constraints = said.get("metadata") or {}, said.get("constraints") or {}
    history = (*(said.get("history") or ()), *(said.get("story") or ()))
    return Terms(metadata=metadata, constraints=constraints, history=history, handover=said)


def around(given: object, handover: object = None, thread: object = None) -> Terms | None:
    """What the hub tells around work: `metadata` and `history`, from whom the work came, and its thread."""
    said = given if isinstance(given, dict) else {}
    terms = handed_over(said.get("handover") if handover is None else handover)
    thread = thread or said.get("thread")
    metadata, history = said.get("metadata"), said.get("history")
    if terms is None and not (metadata or history or thread):
        return None
    terms = terms or Terms()
    return msgspec.structs.replace(
        terms,
        metadata=(metadata if isinstance(metadata, dict) else {}) | terms.metadata,
        history=terms.history or (tuple(history) if isinstance(history, list) else ()),
        thread=thread if isinstance(thread, str) else None,
    )


class Cancel(Struct, frozen=True, kw_only=True):
    task_id: str
    reason: str
    receipt: str | None = None


class Pause(Struct, frozen=True, kw_only=True):
    task_id: str
    receipt: str | None = None


class Resume(Struct, frozen=True, kw_only=True):
    task_id: str
    receipt: str | None = None


class Accepted(Struct, frozen=True):
    """These messages of ours are safe with the hub, by their ids."""

    ids: tuple[str, ...]


class Refused(Struct, frozen=True, kw_only=True):
    """The hub refuses what we said about a request. Not `retryable`: the work is over, whatever we do. `message_id`: by
    which message we said it, where the hub names it."""

    request_id: str
    reason: str
    retryable: bool
    receipt: str | None = None
    message_id: str | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """A person answered the question with this id, while the work stood still. Without a receipt there is nothing to
    remember: asked again at the same place, the hub answers the same."""

    id: str
    task_id: str
    answer: Any
    receipt: str | None = None


class IncomingMessage(Struct, frozen=True, kw_only=True):
    """Another agent says something, or the hub on its behalf. `message` is the protocol's own, `tree` its JSON."""

    message: Any
    tree: dict[str, Any]
    receipt: str | None = None


class Proposal(Struct, frozen=True, kw_only=True):
    """Another agent wants to come to terms with us: `request` is what its handler sees."""

    id: str
    request: HandshakeRequest
    receipt: str | None = None


class Welcomed(Struct, frozen=True):
    """The hub wants a sign of life of the agent every so many seconds."""

    interval: float


class Shutdown(Struct, frozen=True, kw_only=True):
    """The program that started us ends us: running tasks may end within `grace` seconds, or within our own time. If not
    `hears`, it reads no more, so nothing will be acknowledged."""

    reason: str
    grace: float | None = None
    hears: bool = True


Inbound: TypeAlias = (
    Assignment
    | Answer
    | Cancel
    | Pause
    | Resume
    | IncomingMessage
    | Proposal
    | Welcomed
    | Accepted
    | Refused
    | Shutdown
)


class ProgressReport(Struct, frozen=True, kw_only=True):
    """How far the work is. `output` is what is new since the last report; the rest is said beside the answer."""

    id: str
    at: datetime
    correlation: Correlation
    status: Literal["running", "step_completed", "paused"] = "running"
    percent: int = 0
    step: str | None = None
    number: int = 0
    total: int | None = None
    output: str = ""
    thinking: str = ""
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None
    file: File | None = None
    brought: str = ""
    """The id of a file that the hub has already, where the protocol only names it."""

    @property
    def content(self) -> tasks.Progress:
        """What it says, in the hub's language: the mapping of each protocol writes that. A file goes beside it."""
        use, gave = self.tool_use, self.tool_result
        return tasks.Progress(
            status=self.status,
            percent=self.percent,
            step=tasks.Step(number=self.number, name=self.step, total=self.total) if self.step else None,
            output=self.output or None,
            thinking=self.thinking or None,
            tool_use=None if use is None else tasks.ToolUse(id=use.id, name=use.name, input=use.input),
            tool_result=None
            if gave is None
            else tasks.ToolResult(id=gave.id, output=gave.output, is_error=gave.is_error),
        )

    @property
    def has_content(self) -> bool:
        """Whether there is more to it than that the work goes on: then it must arrive."""
        return bool(self.output or self.thinking or self.tool_use or self.tool_result or self.file or self.brought)


class Question(Struct, frozen=True, kw_only=True):
    """A question to a person."""

    id: str
    at: datetime
    correlation: Correlation
    question: str
    options: tuple[Any, ...] = ()
    timeout_seconds: float | None = None
    default: Any | UnsetType = UNSET
    percent: int = 0

    @property
    def ask(self) -> tasks.Ask:
        """What it asks, in the hub's language."""
        return tasks.Ask(
            question=self.question,
            options=self.options,
            timeout_seconds=self.timeout_seconds,
            default=self.default,
            has_default=self.default is not UNSET,
        )


NO_RESULT = msgspec.Raw()
"""msgspec cannot read "raw JSON or nothing" (`Raw | None`), so nothing is written as no JSON at all."""


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"correlation": "errand"}):
    """How the work ended. `result` is JSON or `NO_RESULT`; `error` names what went wrong beside the text in `output`.

    It has its own id and time, so that saying it again is saying the same.
    """

    id: str
    at: datetime
    correlation: Correlation
    exit_code: int
    output: str = ""
    result: msgspec.Raw = NO_RESULT
    error: dict[str, Any] | None = None
    seconds: int = 0
    usage: dict[str, float] | None = None


class Decline(Struct, frozen=True, kw_only=True):
    """The work cannot be begun. Never remembered: the same request may fit another time."""

    id: str
    at: datetime
    correlation: Correlation
    kind: Literal["invalid", "unsupported"]
    message: str
    field: str | None = None
    work_type: str = ""
    supported: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Why, with the field as the handler calls it: the same text in every protocol."""
        field = (self.field or "").removeprefix("parameters").removeprefix(".")
        return f"{field}: {self.message}" if field else self.message


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """Something for another agent, or for the hub about ourselves, where agents converse. `payload` is the protocol's
    own; `beside` what it has no field for."""

    id: str
    at: datetime
    correlation: Correlation
    to: str
    payload: Any
    correlation_id: str | None = None
    priority: str | None = None
    ttl_ms: float | None = None
    retry: Any = None
    beside: dict[str, Any] = {}


class ProposalAnswer(Struct, frozen=True, kw_only=True):
    """Our answer to a proposal."""

    id: str
    at: datetime
    correlation: Correlation
    proposal: str
    accepted: bool
    reason: str = ""


Outbound: TypeAlias = ProgressReport | Question | Outcome | Decline | OutgoingMessage | ProposalAnswer


def part(id: str, number: int) -> str:
    """The id of a piece of what goes in several messages: always the same one, and as good a UUID as the whole's."""
    return f"{id[:-12]}{(int(id[-12:], 16) + number) % 16**12:012x}"
