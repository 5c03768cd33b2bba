"""The messages about a task, and what the hub records of it: one struct for each kind of event.

    Request        do this: the first round of a task, and every later one
    Progress       how far it is: output, a step, a thought, a tool, a file
    Result         it is done
    Failure        it failed or was cancelled, perhaps with a partial result
    Question       an agent asks a person, or another agent; `Ask` is its content
    Answer         their answer, while the agent waits
    Handoff        another agent shall go on with it
    Assigned, AttemptFailed, ErrorReported, LogLines, DeadLettered, Nothing: what the hub itself records

The JSON of these structs is what the store keeps and what the management API shows. So a missing field is left out: it
is None, or `UNSET` where null is a value of its own. Reading is forgiving: a store has what agents of earlier versions
wrote, and one field that does not fit must not make the others unreadable (`read`).

`extra` has fields of a protocol that have no field here, `beyond` the same by their place in a message, and `envelope`
the ids that a ciphertext is bound to. The wire message itself is beside the event, in `raw`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from dragoman.messages.faults import Fault
from dragoman.messages.files import FileRef

Json: TypeAlias = dict[str, Any]
"""A JSON object whose fields belong to agents: the hub carries it and does not look inside."""

Place: TypeAlias = tuple[int, int, int | None]
"""The place of a piece of output: its first byte, the byte behind it, and the length of the whole if that is known."""


class Context(Struct, frozen=True, gc=False, kw_only=True):
    """The context that a caller sends with a task."""

    metadata: Json = {}
    history: Sequence[Any] = ()  # Any: events in the form of the agents that wrote them
    dependencies: Sequence[Any] = ()  # Any: the same, names of tasks


class Handoff(
    Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True, rename={"source": "from", "hub_history": "story"}
):
    """A task changes its owner, or shall: who gives it away, why, and all that is known of it.

    `metadata`, `history`, `dependencies`, `constraints` and `error` are the last owner's; `hub_history` is what the hub
    saw, and `parts` are the subtasks of former owners.
    """

    source: str | None = None
    to: str | None = None
    reason: str | None = None
    deadline: str | None = None
    fault: Fault | None = None
    metadata: Json | None = None
    history: Sequence[Any] | None = None  # Any: see `Context`
    dependencies: Sequence[Any] | None = None
    constraints: Json | None = None
    error: Json | None = None
    recovery_attempts: Any = UNSET  # Any: as the agent wrote it
    hub_history: Sequence[Any] | None = None  # Any: see `Context`
    parts: Sequence[Json] | None = None

    @property
    def whole_history(self) -> tuple[Any, ...]:
        """The history that the last owner knew, then what the hub saw."""
        return (*(self.history or ()), *(self.hub_history or ()))


class Request(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Do this. Later rounds also have the answer, or who handed the task over."""

    input: Any = UNSET  # Any: the caller's own JSON
    hints: Json | None = None
    attachments: Sequence[FileRef] | None = None
    context: Context | None = None
    handover: Handoff | None = None
    beyond: dict[str, Json] | None = None
    extra: Json | None = None
    envelope: Json | None = None
    answer: Any = UNSET  # Any: the person's own JSON
    asked_by: str | None = None
    question: str | None = None
    expired: bool | None = None

    @property
    def given(self) -> Any:
        """The input; an empty object where there is none."""
        return {} if self.input is UNSET else self.input

    @property
    def is_answered(self) -> bool:
        return self.answer is not UNSET

    def next_round(self, **changes: Any) -> Request:
        """The request for the next round: without the answer of this one."""
        return Request(
            **{
                "input": self.given,
                "hints": self.hints or None,
                "attachments": self.attachments or None,
                "context": self.context,
                "handover": self.handover,
                "beyond": self.beyond or None,
                "extra": self.extra or None,
                "envelope": self.envelope or None,
                **changes,
            }
        )


class Step(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    number: int | None = None
    name: str | None = None
    total: int | None = None


class ToolUse(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str | None = None
    name: str | None = None
    input: Any = UNSET  # Any: the tool's own JSON


class ToolResult(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    id: str | None = None
    output: Any = UNSET  # Any: the tool's own JSON
    is_error: bool | None = None


class Progress(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """How far a task is. `chunk` and `stream` place a piece of a longer output; `event` is an event of the agent's own
    protocol, for callers whose protocol has none."""

    status: str | None = None
    percent: int | None = None
    step: Step | str | None = None
    output: str | None = None
    chunk: Place | None = None
    stream: str | None = None
    message: str | None = None
    thinking: str | None = None
    tool_use: ToolUse | None = None
    tool_result: ToolResult | None = None
    file: FileRef | None = None
    usage: Json | None = None
    event: Any = UNSET  # Any: the agent's own JSON
    extra: Json | None = None
    envelope: Json | None = None

    @property
    def named_step(self) -> Step | None:
        """The step; one with only a name, as a step of that name."""
        return Step(name=self.step) if isinstance(self.step, str) else self.step


class Result(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The work is done. `value_in` names the field of `result` that holds what the agent returned, where its protocol
    allows only objects; empty, it returned nothing."""

    output: str | None = None
    exit_code: int | None = None
    result: Any = UNSET  # Any: the agent's own JSON
    value_in: str | UnsetType | None = UNSET
    usage: Json | None = None
    chunk: Place | None = None
    stream: str | None = None
    extra: Json | None = None
    envelope: Json | None = None

    @property
    def value(self) -> Any:
        """The result; None where there is only output."""
        return None if self.result is UNSET else self.result

    @property
    def content(self) -> Any:
        """The result, or the output where there is no other."""
        return self.output if self.result is UNSET else self.result


class Failure(Result, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The task failed or was cancelled. `report` is the agent's own account of it."""

    fault: Fault | None = None
    report: Json | None = None
    reason: str | None = None


class Question(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A question to a person, or to the agent `asked_of`. `escalated` is the escalation of the agent that was asked
    before."""

    question_id: str = ""
    question: str = ""
    options: Sequence[Any] | None = None  # Any: the agent's own JSON
    asked_of: str | None = None
    escalated: Json | None = None


class Ask(Struct, frozen=True, gc=False, kw_only=True):
    """What an agent asks a person, during its work or at the end of its turn."""

    question: str
    options: tuple[Any, ...] = ()  # Any: the agent's own JSON
    timeout_seconds: float | None = None
    default: Any = None  # Any: the agent's own JSON
    has_default: bool = False
    implied: bool = False
    """The agent reported only that it waits (B3). A person may answer; it keeps its seat, and may go on by itself."""


class Answer(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    question_id: str = ""
    answer: Any = UNSET  # Any: the person's own JSON


class Assigned(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    agent: str | None = None
    attempt: int | None = None
    sandbox: str | None = None


class AttemptFailed(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`retry_at` is a number where an early version wrote it."""

    fault: Fault | None = None
    attempt: int | None = None
    retry_at: str | int | None = None


class ErrorReported(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An agent reports an error and goes on, or its report ended the task."""

    report: Json | None = None
    severity: str | None = None


class LogEntry(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A log line of an agent."""

    at: int
    level: str
    message: str
    context: Json = {}


class LogLines(Struct, frozen=True, gc=False, kw_only=True):
    lines: Sequence[LogEntry] = ()


class DeadLettered(
    Struct, frozen=True, gc=False, kw_only=True, rename={"dead_letter": "letter", "message_kind": "cargo"}
):
    fault: Fault | None = None
    dead_letter: str = ""
    message_kind: str = ""


class Nothing(Struct, frozen=True, gc=False):
    """The kind of the event is all there is."""


Content: TypeAlias = (
    Request
    | Progress
    | Result
    | Failure
    | Question
    | Answer
    | Handoff
    | Assigned
    | AttemptFailed
    | ErrorReported
    | LogLines
    | DeadLettered
    | Nothing
)
"""The content of an event."""

NOTHING: Final = Nothing()

_T = TypeVar("_T", bound=Struct)
_PARTS = frozenset({Context, Handoff, Step, ToolUse, ToolResult})
_encode = msgspec.json.Encoder().encode
_tree = msgspec.json.Decoder().decode


def written(content: Content) -> msgspec.Raw:
    """The JSON of an event's content, as the store keeps it."""
    return msgspec.Raw(_encode(content))


def reader(form: type[_T]) -> Callable[[bytes | msgspec.Raw], _T]:
    """A function that decodes the JSON of this kind of content."""
    decode = msgspec.json.Decoder(form).decode

    def read(body: bytes | msgspec.Raw) -> _T:
        try:
            return decode(body)
        except msgspec.ValidationError:
            tree = _tree(body)
            return _salvaged(form, tree) if isinstance(tree, dict) else form()

    return read


def _salvaged(form: type[_T], tree: Json) -> _T:
    """The fields that fit, of a content of which not all do: an earlier version, or another program, wrote it."""
    fit: dict[str, Any] = {}
    for field in msgspec.structs.fields(form):
        value = tree.get(field.encode_name, UNSET)
        if value is UNSET:
            continue
        try:
            fit[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError:
            inner = next((part for part in get_args(field.type) if part in _PARTS), None)
            if inner is not None and isinstance(value, dict):
                fit[field.name] = _salvaged(inner, value)
    return form(**fit)


read_request: Final = reader(Request)
read_progress: Final = reader(Progress)
read_result: Final = reader(Result)
read_failure: Final = reader(Failure)
read_question: Final = reader(Question)
read_handoff: Final = reader(Handoff)
_read_answer = reader(Answer)


def read_answered(body: bytes | msgspec.Raw) -> Request | Answer:
    """An answer that is the next round of a task, or one that its agent waits for."""
    request = read_request(body)
    return _read_answer(body) if request.input is UNSET else request


def fitting(form: type[_T], value: object) -> _T | None:
    """An object in this form, as far as it fits; None for anything else: agents may write what they like there."""
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError:
        return _salvaged(form, value)


def handoff_in(value: object) -> Handoff | None:
    """The handoff that a hub writes beside work; None for an object of the caller's own with that name."""
    if not isinstance(value, dict) or not isinstance(value.get("from"), str) or "reason" not in value:
        return None
    return fitting(Handoff, value)


READERS: Mapping[str, Callable[[bytes | msgspec.Raw], Content]] = {
    "submitted": read_request,
    "assigned": reader(Assigned),
    "progress": read_progress,
    "paused": read_progress,
    "resumed": lambda _: NOTHING,
    "log": reader(LogLines),
    "held_piece": read_progress,
    "error_reported": reader(ErrorReported),
    "handover_asked": read_handoff,
    "handed_over": read_request,
    "asked": read_question,
    "answered": read_answered,
    "attempt_failed": reader(AttemptFailed),
    "released": lambda _: NOTHING,
    "completed": read_result,
    "failed": read_failure,
    "cancelled": read_failure,
    "retried": read_request,
    "dead_lettered": reader(DeadLettered),
}
"""The type of the content for each kind of event. A test checks that no kind is missing."""
