"""What the hub tells becomes coven: work for an agent, and a task's events for a caller.

An agent hears of work, and of its cancellation if it said that it understands that. Coven has no words for the rest.

A caller's stream is a task's events, read from the store by number. Each event becomes any number of responses, all
but the last of which carry no cursor (0): who resumes may hear something twice, but misses nothing.

    event of the task              response
    -----------------------------  --------------------------------------------------------------------------
    progress                       text, thinking, tool_use, tool_result, file, with `progress` beside it
    paused, asked                  thinking: what is waited for
    attempt_failed                 thinking, with `fault`: the hub tries again
    completed                      done
    failed, cancelled              error, with `fault`
    everything else                nothing
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from dragoman.bindings import errormap
from dragoman.bindings.coven.exchange import PROTOCOL, answer_of, as_json, as_text, content_of, traceparent
from dragoman.bindings.coven.failures import fault_out
from dragoman.bindings.told import context_told, fault_told
from dragoman.core.ids import AgentId
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Task
from dragoman.messages import tasks as messages
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import Request, read_progress, read_request, read_result
from dragoman.protocols.coven import once
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

# --- to an agent ---


def attachments_in(event: Event) -> tuple[FileRef, ...]:
    """The files that came with a request."""
    return tuple(read_request(event.body).attachments or ())


def message_of(outgoing: Outgoing, attachments: tuple[FileData, ...] = (), *, reads_input: bool = False) -> SendMessage:
    """The work of an outgoing message, for its agent. One that `reads_input` gets it in fields; any other reads it in
    `content`, and finds it in fields as well where they say more and are short (D9)."""
    task: Task = outgoing.task
    event: Event = outgoing.event
    request = read_request(event.body)
    own = event.raw if event.protocol == PROTOCOL and event.raw is not None else b""
    fields = _fields(task, request) if reads_input else _text(task, request, outgoing.delivery.receiver)
    return SendMessage(
        request_id=task.request_id,
        thread_id=task.thread or task.id,
        sender=task.origin.principal,
        **fields,
        attachments=attachments,
        task_id=task.id,
        work_type=task.type,
        attempt=task.attempts,
        traceparent=traceparent(task, outgoing.delivery.id),
        unknown=own,
    )


def reason_of(outgoing: Outgoing) -> str:
    """Why nobody waits any more for what an outgoing message tells the end of."""
    return fault_told(outgoing.task, outgoing.event).message


def _fields(task: Task, request: Request) -> dict[str, str]:
    """Work for a program: everything once, in a field of its own."""
    given = dict(request.given or {})
    words = given.get("content")
    content = given.pop("content") if isinstance(words, str) and words else ""
    around: dict[str, object] = {"name": None if task.name == task.type else task.name, "description": task.description}
    around |= {"thread": task.thread, **context_told(task, request)}
    around |= {"handover": request.handover, "question": request.question}
    known = {name: value for name, value in around.items() if value}
    return {
        "content": content,
        "input_json": as_json(given) if given or not content else "",
        "answer_json": as_json(request.answer) if request.is_answered else "",
        "context_json": as_json(known) if known else "",
    }


def _text(task: Task, request: Request, reader: AgentId) -> dict[str, str]:
    """Work for a reader of the document's fields."""
    content = _content(task, request, reader)
    given = request.given
    beside = {} if given == {"content": content} else {"input_json": as_json(given)}
    if request.is_answered:
        beside["answer_json"] = as_json(request.answer)
    return {"content": content, **{name: text for name, text in beside.items() if once.fits_beside(text)}}


def _content(task: Task, request: Request, reader: AgentId) -> str:
    """What an agent reads. Who asked reads the answer alone. Behind work stands what is known around it, as JSON;
    where somebody else began it, all that is known of that; and what was asked and answered meanwhile."""
    if request.is_answered and request.asked_by in (None, reader):
        return answer_of(request)
    around, handover = context_told(task, request), request.handover
    behind = ({"context": around} if around else {}, {"handover": handover} if handover else {}, _answered(request))
    return "\n\n".join((content_of(task, request), *(as_json(it) for it in behind if it)))


def _answered(request: Request) -> dict[str, Any]:
    if not request.is_answered:
        return {}
    asked = {} if request.question is None else {"question": request.question}
    return {**asked, "answer": request.answer}


def attached(file: FileRef, data: bytes) -> FileData:
    """A file as the other side gets it; its name is only a name."""
    return FileData(shown_name(file.name), file.mime_type, data)


# --- to a caller ---


def file_in(event: Event) -> FileRef | None:
    """The file that an event tells of: its bytes are needed to tell it on."""
    if event.kind is not EventKind.PROGRESS or b'"file"' not in bytes(event.body):
        return None
    return read_progress(event.body).file


def ends_in_pieces(event: Event) -> bool:
    """Whether an ending has only the last piece of its output: the whole is needed to tell it."""
    if event.kind is not EventKind.COMPLETED or b'"chunk"' not in bytes(event.body):
        return False
    return read_result(event.body).chunk is not None


def responses_of(
    event: Event, task: Task, *, request_id: str, data: bytes | None = None, whole: str | None = None
) -> tuple[MessageResponse, ...]:
    """An event of a task, for whoever asked for it. `data` are the bytes of its file, if it has one; `whole` is the
    whole output of one that ends in pieces.

    `task` was read after `event`: an ending that is not the task's outcome is one that somebody has undone.
    """
    content = event.content
    own = event.raw if event.protocol == PROTOCOL and event.raw is not None else b""

    def said(what: ResponseEvent | None, cursor: int = event.seq, **more: Any) -> MessageResponse:
        return MessageResponse(request_id=request_id, event=what, cursor=cursor, task_id=task.id, **more)

    if isinstance(content, messages.Progress) and event.kind is not EventKind.HELD_PIECE:
        parts = _parts(content, data)
        last = len(parts) - 1
        return tuple(
            said(part, event.seq if index == last else 0, progress=progress, unknown=own if index == last else b"")
            for index, (part, progress) in enumerate(parts)
        )
    if isinstance(content, messages.Question):
        return (said(Thinking(f"Waiting for {content.asked_of or 'a person'}: {content.question}")),)
    if isinstance(content, messages.AttemptFailed):
        fault = fault_told(task, event)
        return (said(Thinking(f"{errormap.sentence(fault)} Trying again."), fault=fault_out(fault)),)
    if not isinstance(content, messages.Result):
        return ()
    if not (task.final and event.seq == task.outcome):
        return (said(Thinking(f"The task was {event.kind.value}, and is done once more.")),)
    if event.kind is EventKind.COMPLETED:
        return (said(_done(content, whole), unknown=own),)
    fault = fault_told(task, event)
    return (said(Error(errormap.told(fault)), fault=fault_out(fault), unknown=own),)


def _done(content: messages.Result, whole: str | None) -> Done:
    output, result = whole or content.output, content.value
    if not output and isinstance(result, str):
        output = result
    text = str(output or "")
    is_text = result == text and not once.fits_beside(text)
    return once.done(text, "" if result is None or is_text else as_json(result))


def _parts(content: messages.Progress, data: bytes | None) -> list[tuple[ResponseEvent | None, Progress | None]]:
    """What one report says, as events; its figures ride beside the last one."""
    parts: list[ResponseEvent | None] = []
    if content.thinking is not None:
        parts.append(Thinking(content.thinking))
    if (used := content.tool_use) is not None:
        given = "" if used.input in (None, UNSET) else as_json(used.input)
        parts.append(ToolUse(used.id or "", used.name or "", given))
    if (gave := content.tool_result) is not None:
        output = "" if gave.output is UNSET else as_text(gave.output)
        parts.append(ToolResult(gave.id or "", output, bool(gave.is_error)))
    if content.file is not None:
        parts.append(attached(content.file, data or b""))
    if content.output is not None:
        parts.append(Text(content.output))
    progress = _progress(content)
    if progress is None:
        return [(part, None) for part in parts]
    if not parts or progress.message:
        parts.append(Thinking(progress.message or _words(progress)))
    elif isinstance(parts[-1], Thinking):
        parts.append(None)  # beside a thought, figures would make it look like words about them
    return [(part, progress if index == len(parts) - 1 else None) for index, part in enumerate(parts)]


def _progress(content: messages.Progress) -> Progress | None:
    percent, step = content.percent, content.named_step
    if percent is None and step is None and not content.message:
        return None
    step = step or messages.Step()
    return Progress(
        percent=None if percent is None else max(0, min(100, percent)),
        step=step.name or "",
        message=content.message or "",
        number=_count(step.number),
        total=_count(step.total),
    )


def _count(value: int | None) -> int:
    return max(0, min(value or 0, 2**32 - 1))


def _words(progress: Progress) -> str:
    """Progress for a reader who knows only the document."""
    said = [progress.step] if progress.step else []
    if progress.percent is not None:
        said.append(f"{progress.percent} %")
    return ", ".join(said)
