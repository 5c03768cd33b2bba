"""Coven at the hub, outbound: what leaves for agents and callers. Pure.

    to an agent    from
    -------------  ----------------------------------------------------------
    SendMessage    the request; fields for programs, text for other readers
    Cancel         the end of the task, if the agent understands that

A caller's stream is the task's events, read from the store by number. Each event becomes any number of responses, all
but the last of which carry no cursor (0): a caller that resumes may read something twice, but misses nothing.

    event of the task              response
    -----------------------------  --------------------------------------------------------------------------
    progress                       text, thinking, tool_use, tool_result, file, with `progress` beside it
    paused, asked                  thinking: what is waited for
    attempt_failed                 thinking, with `fault`: the hub tries again
    completed                      done
    failed, cancelled              error, with `fault`
    everything else                nothing

Agents of other protocols report more at once than a message of coven may hold (D9). Then a caller gets (`fitted`)

    text             in several pieces
    done             a text that is its own result once; a text that is too long beside the result as `text` before it,
                     as far as it did not come yet (D8); of a result that is too long its beginning, which is no JSON
    file             only that it is there
    the rest         its beginning

Whatever is cut says so, and is kept whole with the task.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dragoman.core.ids import AgentId
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.messages import error_table
from dragoman.messages import tasks as messages
from dragoman.messages.brevity import in_short
from dragoman.messages.faults import Fault
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import Request, read_progress, read_request, read_result
from dragoman.protocols.coven import mapping, types
from dragoman.protocols.coven.mapping import PROTOCOL, as_json, as_text, fits_beside
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    MessageResponse,
    Progress,
    ResponseEvent,
    SendMessage,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from dragoman.server.content import reported_fault, task_context, traceparent

TEXTS = ("content", "prompt", "message", "text")
"""Fields of an input that are text for an agent, best first."""
ASIDE = 32 * 1024
"""Bytes for what stands beside an event that was too long, and for each short text in it."""


# --- work for an agent ---


def attachments_in(event: Event) -> tuple[FileRef, ...]:
    """The files that came with a request."""
    return tuple(read_request(event.body).attachments or ())


def attached(file: FileRef, data: bytes) -> FileData:
    """A file as the other side gets it; its name is only a name."""
    return FileData(shown_name(file.name), file.mime_type, data)


def message_of(outgoing: Outgoing, attachments: tuple[FileData, ...] = (), *, reads_input: bool = False) -> SendMessage:
    """The work of an outgoing message, for its agent. One that `reads_input` gets it in fields; any other reads it in
    `content`, and finds it in fields as well where they say more and are short (D9)."""
    task: Task = outgoing.task
    event: Event = outgoing.event
    request = read_request(event.body)
    fields = _fields(task, request) if reads_input else _text(task, request, outgoing.delivery.receiver)
    return SendMessage(
        request_id=task.request_id,
        thread_id=task.lineage.thread or task.id,
        sender=task.origin.principal,
        **fields,
        attachments=attachments,
        task_id=task.id,
        work_type=task.type,
        attempt=task.attempt.count,
        traceparent=traceparent(task, outgoing.delivery.id),
        unknown=_unknown(event),
    )


def reason_of(outgoing: Outgoing) -> str:
    """Why no caller waits any more for a task that an outgoing message ends."""
    return reported_fault(outgoing.task, outgoing.event).message


def _unknown(event: Event) -> bytes:
    """An event of coven as it came, where it had fields that the hub does not know."""
    return event.raw if event.protocol == PROTOCOL and event.raw is not None else b""


def _fields(task: Task, request: Request) -> dict[str, str]:
    """Work for a program: everything once, in a field of its own."""
    content, input_json = mapping.input_out(request.given or {})
    known: dict[str, object] = {"name": None if task.name == task.type else task.name, "description": task.description}
    known |= {"thread": task.lineage.thread, **task_context(task, request)}
    known |= {"handover": request.handover, "question": request.question}
    return {
        "content": content,
        "input_json": input_json,
        "answer_json": as_json(request.answer) if request.is_answered else "",
        "context_json": mapping.context_out(known),
    }


def _text(task: Task, request: Request, reader: AgentId) -> dict[str, str]:
    """Work for a reader of the document's fields."""
    content = _content(task, request, reader)
    given = request.given
    beside = {} if given == {"content": content} else {"input_json": as_json(given)}
    if request.is_answered:
        beside["answer_json"] = as_json(request.answer)
    return {"content": content, **{name: text for name, text in beside.items() if fits_beside(text)}}


def _content(task: Task, request: Request, reader: AgentId) -> str:
    """The answer alone for the agent that asked (B3). Else the work; what is known around it, or of a former owner's
    work; and what was asked and answered meanwhile."""
    if request.is_answered and request.asked_by in (None, reader):
        return "(nobody answered)" if request.expired else as_text(request.answer)
    parts: list[dict[str, Any]] = []
    if around := task_context(task, request):
        parts.append({"context": around})
    if request.handover is not None:
        parts.append({"handover": request.handover})
    if request.is_answered:
        asked = {} if request.question is None else {"question": request.question}
        parts.append({**asked, "answer": request.answer})
    return "\n\n".join((content_of(task, request), *map(as_json, parts)))


def content_of(task: Task, request: Request) -> str:
    """The text of a request for an agent. Programs take the input from `input_json` instead."""
    given = request.given
    if isinstance(given, dict):
        for name in TEXTS:
            text = given.get(name)
            if isinstance(text, str):
                rest = {key: value for key, value in given.items() if key != name}
                return f"{text}\n\n{as_text(rest)}" if rest else text
    called = None if task.name == task.type else task.name
    head = ": ".join(part for part in (task.type, called, task.description) if part)
    return f"{head}\n\n{as_text({} if given is None else given)}"


# --- a task's events for its caller ---


def file_in(event: Event) -> FileRef | None:
    """The file of an event, whose bytes a response must carry."""
    if event.kind is not EventKind.PROGRESS or b'"file"' not in bytes(event.body):
        return None
    return read_progress(event.body).file


def ends_in_pieces(event: Event) -> bool:
    """Whether an end holds only the last piece of its output, so that the whole must be read."""
    if event.kind is not EventKind.COMPLETED or b'"chunk"' not in bytes(event.body):
        return False
    return read_result(event.body).chunk is not None


def responses_of(
    event: Event, task: Task, *, request_id: str, data: bytes | None = None, whole: str | None = None
) -> tuple[MessageResponse, ...]:
    """An event of a task, for its caller. `data` are the bytes of its file, if it has one; `whole` is the whole output
    of one that ends in pieces.

    `task` was read after `event`: an end that is not the task's outcome has been undone since.
    """
    content = event.content
    unknown = _unknown(event)

    def response(what: ResponseEvent | None, cursor: int = event.seq, **more: Any) -> MessageResponse:
        return MessageResponse(request_id=request_id, event=what, cursor=cursor, task_id=task.id, **more)

    match content:
        case messages.Progress() if event.kind is not EventKind.HELD_PIECE:
            events, figures = _events(content, data)
            before = (response(one, 0) for one in events[:-1])
            return (*before, *(response(one, progress=figures, unknown=unknown) for one in events[-1:]))
        case messages.Question():
            return (response(Thinking(f"Waiting for {content.asked_of or 'a person'}: {content.question}")),)
        case messages.AttemptFailed():
            fault = reported_fault(task, event)
            return (response(Thinking(f"{error_table.sentence(fault)} Trying again."), fault=fault_out(fault)),)
        case messages.Result() if not (task.final and event.seq == task.outcome.event):
            return (response(Thinking(f"The task was {event.kind.value}, and is done once more.")),)
        case messages.Result() if event.kind is EventKind.COMPLETED:
            return (response(_done(content, whole), unknown=unknown),)
        case messages.Result():
            fault = reported_fault(task, event)
            return (response(Error(error_table.failure_sentence(fault)), fault=fault_out(fault), unknown=unknown),)
    return ()


def _done(content: messages.Result, whole: str | None) -> Done:
    output, result = whole or content.output, content.value
    if not output and isinstance(result, str):
        output = result
    text = output or ""
    is_text = result == text and not fits_beside(text)
    return mapping.result_out(text, "" if result is None or is_text else as_json(result))


def _events(content: messages.Progress, data: bytes | None) -> tuple[list[ResponseEvent | None], Progress | None]:
    """The events of one report, and its figures, which ride beside the last one."""
    if content.file is not None:
        content = replace(content, file=replace(content.file, name=shown_name(content.file.name)))
    events: list[ResponseEvent | None] = list(mapping.events_out(content, data))
    figures = mapping.figures_out(content)
    if figures is not None:
        if not events or figures.message:
            percent = None if figures.percent is None else f"{figures.percent} %"
            events.append(Thinking(figures.message or ", ".join(part for part in (figures.step, percent) if part)))
        elif isinstance(events[-1], Thinking):
            events.append(None)  # figures beside a thought would make it look like a sentence about them
    return events, figures


# --- responses that no message holds ---


def fitted(response: MessageResponse, most: int, sent: str) -> tuple[MessageResponse, ...]:
    """A response that is longer than `most` bytes, as several that are not; only the last has its cursor. `sent` is the
    text that the caller has already. Unknown fields are left out."""
    beside = replace(response, unknown=b"")
    if response.progress is not None:
        step, message = (in_short(text, ASIDE) for text in (response.progress.step, response.progress.message))
        beside = replace(beside, progress=replace(response.progress, step=step, message=message))
    *before, last = _fitted_events(response.event, most - 8 * ASIDE, sent)
    first = (MessageResponse(request_id=beside.request_id, event=one, task_id=beside.task_id) for one in before)
    return (*first, replace(beside, event=last))


def _fitted_events(event: ResponseEvent | None, most: int, sent: str) -> list[ResponseEvent | None]:
    match event:
        case Text(text=text):
            return _pieces(text, most)
        case Thinking(text=text):
            return [Thinking(in_short(text, most))]
        case ToolUse():
            return [
                ToolUse(in_short(event.id, ASIDE), in_short(event.name, ASIDE), _short_json(event.input_json, most))
            ]
        case ToolResult():
            return [ToolResult(in_short(event.id, ASIDE), in_short(event.output, most), event.is_error)]
        case FileData(filename=name, data=data):
            what = f"The file {name!r} has {len(data)} bytes, which no message holds; it is kept with the task."
            return [Thinking(what)]
        case Done(full_response=text, is_json=is_json):
            result = "" if text and event.result_json == as_json(text) else _short_json(event.result_json, most)
            room = most - len(result.encode())
            if len(text.encode()) <= room:
                return [Done(full_response=text, result_json=result, is_json=is_json)]
            if not text.startswith(sent):
                return [Done(full_response=in_short(text, room), result_json=result)]
            return [*_pieces(text.removeprefix(sent), most), Done(result_json=result, is_json=is_json)]
    return [event]


def _pieces(text: str, most: int) -> list[ResponseEvent | None]:
    size = most // 4  # characters: one of them has four bytes at most
    return [Text(text[start : start + size]) for start in range(0, len(text), size)]


def _short_json(text: str, most: int) -> str:
    """JSON as it is, or its beginning as a JSON string, which may have twice its bytes."""
    return text if len(text.encode()) <= most else as_json(in_short(text, most // 2))


# --- faults ---


def fault_out(fault: Fault) -> types.Fault:
    return mapping.fault_out(fault, retryable=error_table.retryable(fault))


def status_of(fault: Fault) -> tuple[str, str]:
    """The name of the gRPC status that goes with a fault, and its sentence, which alone can name a field."""
    sentence = error_table.sentence(fault)
    is_named = fault.field is None or fault.field in sentence or error_table.over_budget(fault)
    return error_table.TABLE[fault.kind].grpc, sentence if is_named else f"{fault.field}: {sentence}"
