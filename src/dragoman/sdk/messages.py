"""The messages between an agent's engine and its link. They belong to no protocol.

    from the hub                                  to the hub
    --------------------------------------------  ---------------------------------------------------------------
    Assignment       work, or the answer to it    Report           progress of the work; output as it comes
    Answer           to a question that waits     Question         to a person; the work waits
    Cancel           stop the work                Outcome          how the work ended: kept until the hub has it
    Pause, Resume                                 Decline          the work cannot begin
    IncomingMessage  of another agent             OutgoingMessage  to another agent, or about this one
    Proposal         to agree on terms            ProposalAnswer   whether the agent agrees
    Welcomed         how often to send heartbeats
    Accepted         the hub has these, durably
    Refused          the hub does not take it
    Shutdown         end, for good

A message about work is an envelope (id, time, correlation) around a content of `messages.tasks`, the language that the
hub speaks. The `mapping` of each protocol turns that content into the protocol's own messages and back, for both.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeAlias

from msgspec import UNSET, Struct

from dragoman.messages import tasks
from dragoman.messages.faults import Fault, Kind
from dragoman.sdk.peers import HandshakeRequest


class Correlation(Struct, frozen=True, kw_only=True):
    """Which work a message is about: copied onto every message about it."""

    task_id: str
    request_id: str
    trace_id: str
    sender: str
    about: dict[str, str] = {}
    """Further fields that the protocol needs for an answer."""


PRIVATE = "private"
"""In `Correlation.about`: only the two agents can read messages about this work; the hub shows them to no person."""


class File(Struct, frozen=True):
    """A file that came with the work, or comes out of it. The name is for display: never a path to write to."""

    name: str
    mime_type: str
    data: bytes


class Assignment(Struct, frozen=True, kw_only=True):
    """The hub assigns work. `request` has the input, and the answer where the work goes on after a question."""

    correlation: Correlation
    type: str
    request: tasks.Request
    receipt: str | None = None
    attempt: int | None = None
    traceparent: str | None = None
    thread: str | None = None
    priority: str = "normal"
    constraints: dict[str, Any] = {}
    """Priority and constraints go along when the agent hands the task over (agentmsg)."""
    files: tuple[File, ...] = ()
    """The files that came with the request, as far as they are fetched; `request.attachments` names the others."""
    is_new_round: bool = True
    """Whether another request about the same task begins it again. If not, the answers so far hold for it, too."""

    @property
    def input(self) -> dict[str, Any]:
        """The input as the arguments of a handler: a value that is no object is the argument `input`."""
        given = self.request.given
        return given if isinstance(given, dict) else {} if given is None else {"input": given}


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
    """The hub has stored these messages of the agent, by their ids."""

    ids: tuple[str, ...]


class Refused(Struct, frozen=True, kw_only=True):
    """The hub refuses a message about a request: `message_id`, where the hub names it. If it is not `retryable`, the
    work is over."""

    request_id: str
    reason: str
    retryable: bool
    receipt: str | None = None
    message_id: str | None = None


class Answer(Struct, frozen=True, kw_only=True):
    """A person answered the question with this id, while the work waited. Without a receipt the agent need not remember
    it: asked again at the same place, the hub gives the same answer."""

    id: str
    task_id: str
    answer: Any
    receipt: str | None = None


class IncomingMessage(Struct, frozen=True, kw_only=True):
    """A message of another agent, or of the hub on its behalf. `message` is the protocol's own, `tree` its JSON."""

    message: Any
    tree: dict[str, Any]
    receipt: str | None = None


class Proposal(Struct, frozen=True, kw_only=True):
    """Another agent proposes a contract to this one: `request` is what the handler sees."""

    id: str
    request: HandshakeRequest
    receipt: str | None = None


class Welcomed(Struct, frozen=True):
    """The hub wants a sign of life of the agent every so many seconds."""

    interval: float


class Shutdown(Struct, frozen=True, kw_only=True):
    """The program that started the agent ends it: running tasks may end within `grace` seconds, or within the agent's
    own time. If not `hears`, it reads no more, so nothing will be acknowledged."""

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


class Report(Struct, frozen=True, kw_only=True):
    """The agent reports on its work. `data` are the bytes of `content.file` where the protocol carries them; else the
    hub has the file already, under the id that `content.file` names."""

    id: str
    at: datetime
    correlation: Correlation
    content: tasks.Progress
    number: int = 0
    """Counts the steps of the task, also those without a name."""
    data: bytes | None = None

    @property
    def has_content(self) -> bool:
        """Whether the report has more than bare progress: then it must arrive."""
        content = self.content
        return bool(content.output or content.thinking or content.tool_use or content.tool_result or content.file)


class Question(Struct, frozen=True, kw_only=True):
    """The agent asks a person; the work waits for the answer."""

    id: str
    at: datetime
    correlation: Correlation
    ask: tasks.Ask
    percent: int = 0


class Outcome(Struct, frozen=True, kw_only=True):
    """The work has ended. `content.result` is UNSET or the JSON of the handler's value, as `msgspec.Raw`.

    An outcome that is sent again has the same id and time.
    """

    id: str
    at: datetime
    correlation: Correlation
    content: tasks.Result | tasks.Failure
    seconds: int = 0

    @property
    def failure(self) -> tasks.Failure | None:
        return self.content if isinstance(self.content, tasks.Failure) else None

    @property
    def output(self) -> str:
        return self.content.output or ""

    @property
    def result_json(self) -> bytes:
        """The JSON of the handler's value; empty if the handler returned text or nothing."""
        return b"" if self.content.result is UNSET else bytes(self.content.result)


def failure(
    output: str, error: dict[str, Any], *, exit_code: int = 1, usage: dict[str, float] | None = None
) -> tasks.Failure:
    """The content of an outcome without success: a text for people, and the error as `report`."""
    facts: dict[str, Any] = {"exit_code": exit_code}
    if "type" in error:
        facts["type"] = error["type"]
    fault = Fault(kind=Kind.WORK_FAILED, message=output or f"exit code {exit_code}", facts=facts)
    return tasks.Failure(output=output or None, exit_code=exit_code, usage=usage, fault=fault, report=error)


class Decline(Struct, frozen=True, kw_only=True):
    """The agent cannot begin the work: its type is unknown, or its input does not fit. The journal does not keep it,
    because the same request may fit another time.

    The kind of `fault` is INVALID, or UNSUPPORTED_WORK with the facts `work_type_requested` and `supported_types`. Its
    field begins with `parameters` where it is a part of the input.
    """

    id: str
    at: datetime
    correlation: Correlation
    fault: Fault

    @property
    def sentence(self) -> str:
        """Why, with the field as the handler calls it: the same text in every protocol."""
        field = (self.fault.field or "").removeprefix("parameters").removeprefix(".")
        return f"{field}: {self.fault.message}" if field else self.fault.message


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """A message to another agent, or to the hub about this agent, where agents converse. `payload` is the protocol's
    own; `beside` are fields that it does not have."""

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
    """The agent's answer to a proposal."""

    id: str
    at: datetime
    correlation: Correlation
    proposal: str
    accepted: bool
    reason: str = ""


Outbound: TypeAlias = Report | Question | Outcome | Decline | OutgoingMessage | ProposalAnswer


def part(id: str, number: int) -> str:
    """The id of one of several messages that carry one content: it follows from the whole's id, and is a UUID."""
    return f"{id[:-12]}{(int(id[-12:], 16) + number) % 16**12:012x}"
