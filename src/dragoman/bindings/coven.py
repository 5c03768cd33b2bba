"""Coven at the hub: what agents and callers say becomes commands, and deliveries become coven.

`protocols.coven.mapping` says what each wire type means; here it meets what the hub knows of its sender and its task.

    from an agent     command                 to an agent    from
    ----------------  ----------------------  -------------  ----------------------------------------------------------
    an event          ReportProgress          SendMessage    the request; fields for programs, text for other readers
    done              Finish                  Cancel         the end of the task, if the agent understands that
    done + question   ReportProgress, asking
    error             ReportFault

A caller's message is a `Submit`. Its stream is the task's events, read from the store by number. Each event becomes any
number of responses, all but the last of which carry no cursor (0): a caller that resumes may read something twice, but
misses nothing.

    event of the task              response
    -----------------------------  --------------------------------------------------------------------------
    progress                       text, thinking, tool_use, tool_result, file, with `progress` beside it
    paused, asked                  thinking: what is waited for
    attempt_failed                 thinking, with `fault`: the hub tries again
    completed                      done
    failed, cancelled              error, with `fault`
    everything else                nothing

The wire's own bytes are kept only where they hold fields that the hub does not know (all-D6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from dragoman.core import commands
from dragoman.core.commands import Finish, Lineage, Reply, ReportFault, ReportProgress, Routing, Submit
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Priority, Task
from dragoman.messages import error_table
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, owned_by, refuse
from dragoman.messages.files import FileRef, shown_name
from dragoman.messages.tasks import Request, read_progress, read_request, read_result
from dragoman.protocols.coven import mapping
from dragoman.protocols.coven.events import Completed
from dragoman.protocols.coven.mapping import CHAT, PROTOCOL, as_json, as_text, fits_beside
from dragoman.protocols.coven.measure import in_measure
from dragoman.protocols.coven.types import (
    Done,
    Error,
    FileData,
    MessageResponse,
    Progress,
    RegisterAgent,
    ResponseEvent,
    SendMessage,
    Thinking,
)
from dragoman.server.content import reported_fault, task_context
from dragoman.wire.errors import RemoteProtocolError, Stage

TEXTS = ("content", "prompt", "message", "text")
"""Fields of an input that are text for an agent, best first."""

_PRIORITIES = {"": Priority.NORMAL} | {priority.value: priority for priority in Priority}
_uuid = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch
_trace = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}").fullmatch
_canonical = msgspec.json.Encoder(order="deterministic").encode


# --- an agent introduces itself ---


def speaks_for_itself(agent: Agent, said: RegisterAgent) -> None:
    """Raises `Refused` unless the credential is this agent's, and for this protocol (all-D1, D4)."""
    if agent.protocol != PROTOCOL:
        what = f"{agent.id} was added to speak {agent.protocol}; use that protocol's endpoints"
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=agent.id)
    if said.agent_id != agent.id:
        what = owned_by(agent.id, said.agent_id)
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=agent.id)


def registration_of(agent: AgentId, said: RegisterAgent) -> commands.RegisterAgent:
    """One seat: an agent does one thing at a time per stream (D5), and the hub keeps the rest."""
    return commands.RegisterAgent(
        principal=agent,
        protocol=PROTOCOL,
        name=said.name or None,
        version=said.version or None,
        work_types=said.work_types or None,
        capabilities=said.capabilities,
        max_concurrent=1,
        details={"extensions": list(said.extensions)} if said.extensions else {},
    )


# --- an agent's events ---


def progress_of(agent: AgentId, task: TaskId, message: MessageResponse, file: FileRef | None = None) -> ReportProgress:
    """An event that does not end the request. `file` is where the bytes of a file event were kept."""
    content = mapping.progress_in(message, file)
    step = content.named_step
    return ReportProgress(
        principal=agent,
        protocol=PROTOCOL,
        task_id=task,
        content=content,
        raw=message.unknown or None,
        percent=content.percent,
        step=None if step is None else step.name or None,
        output=content.output or "",
        files=() if file is None else (file,),
    )


def text_of(agent: AgentId, task: TaskId, text: str) -> ReportProgress:
    """Several pieces of text that came one after the other, as one."""
    content = messages.Progress(status="running", output=text)
    return ReportProgress(principal=agent, protocol=PROTOCOL, task_id=task, content=content, output=text)


def end_of(agent: AgentId, task: TaskId, ended: Completed) -> Finish | ReportFault | ReportProgress:
    """The event that ends the request."""
    message, event, raw = ended.message, ended.message.event, ended.message.unknown or None
    if isinstance(event, Error):
        fault = mapping.fault_in(message)
        content = messages.Failure(fault=fault)
        return ReportFault(principal=agent, protocol=PROTOCOL, fault=fault, task_id=task, content=content, raw=raw)
    assert isinstance(event, Done)
    if event.question is not None and event.question.question:
        # The turn ends with a question (B3). An answer that was not streamed goes along with it.
        output = "" if ended.streamed else event.full_response
        return ReportProgress(
            principal=agent,
            protocol=PROTOCOL,
            task_id=task,
            content=messages.Progress(status="paused", message=event.question.question, output=output or None),
            raw=raw,
            output=output,
            paused=True,
            ask=mapping.ask_in(event.question),
        )
    result = mapping.result_in(event, ended.text)
    return Finish(
        principal=agent,
        protocol=PROTOCOL,
        task_id=task,
        digest=_digest(("done", msgspec.to_builtins(result), event.full_response)),
        content=result,
        raw=raw,
        output="" if ended.streamed else (ended.text or ""),
    )


# --- a caller's message ---


def submit_of(
    principal: AgentId,
    message: SendMessage,
    files: Sequence[FileRef],
    *,
    find: Callable[[AgentId], Agent | None],
    request_id: str,
    traceparent: str | None = None,
) -> Submit:
    """Have this done; raises `Refused`. `find` says whether `to_agent` is an agent's own name or a kind."""
    if message.sender and message.sender != principal:
        what = owned_by(principal, message.sender)
        raise refuse(Kind.FORBIDDEN, what, field="sender", agent_id=principal)
    if message.task_id and not _uuid(message.task_id):
        raise refuse(Kind.INVALID, "expected a UUID, or nothing", field="task_id")
    if message.priority not in _PRIORITIES:
        raise refuse(Kind.INVALID, "expected low, normal, high or critical", field="priority")
    try:
        given = mapping.request_in(message, strict=True).given
    except RemoteProtocolError as error:
        raise refuse(Kind.INVALID, error.what, field="input_json") from None
    except TypeError as error:
        raise refuse(Kind.INVALID, str(error), field="input_json") from None
    work_type, to = message.work_type or CHAT, message.to_agent
    pinned = AgentId(to) if to and find(AgentId(to)) is not None else None
    names = [(file.name, file.sha256) for file in files]
    return Submit(
        principal=principal,
        protocol=PROTOCOL,
        request_id=request_id,
        digest=_digest(("send", to, work_type, message.thread_id, given, names)),
        type=work_type,
        content=Request(input=given, attachments=tuple(files) or None),
        task_id=TaskId(message.task_id.lower()) if message.task_id else None,
        raw=message.unknown or None,
        priority=_PRIORITIES[message.priority],
        files=tuple(files),
        routing=Routing(
            kind=None if pinned or not to else to, pinned=pinned, required_capabilities=() if to else (work_type,)
        ),
        lineage=Lineage(thread=message.thread_id or None, trace_id=trace_in(message.traceparent, traceparent)),
        reply=Reply(follows=True),
    )


def trace_in(*candidates: str | None) -> str | None:
    """The trace id of the first good traceparent (all-D7)."""
    for text in candidates:
        found = _trace(text) if text else None
        if found is not None and int(found[1], 16):
            return found[1]
    return None


def traceparent(task: Task, span: str) -> str:
    return f"00-{task.trace_id}-{span.replace('-', '')[16:]}-01"


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


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
    """Why no caller waits any more for what an outgoing message tells the end of."""
    return reported_fault(outgoing.task, outgoing.event).message


def _fields(task: Task, request: Request) -> dict[str, str]:
    """Work for a program: everything once, in a field of its own."""
    given = dict(request.given or {})
    words = given.get("content")
    content = given.pop("content") if isinstance(words, str) and words else ""
    around: dict[str, object] = {"name": None if task.name == task.type else task.name, "description": task.description}
    around |= {"thread": task.thread, **task_context(task, request)}
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
    """What an agent reads of work. Programs take the input from `input_json` instead."""
    given = request.given
    if isinstance(given, dict):
        for name in TEXTS:
            words = given.get(name)
            if isinstance(words, str):
                rest = {key: value for key, value in given.items() if key != name}
                return f"{words}\n\n{as_text(rest)}" if rest else words
    called = None if task.name == task.type else task.name
    head = ": ".join(part for part in (task.type, called, task.description) if part)
    return f"{head}\n\n{as_text({} if given is None else given)}"


# --- a task's events for its caller ---


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
    """An event of a task, for its caller. `data` are the bytes of its file, if it has one; `whole` is the whole output
    of one that ends in pieces.

    `task` was read after `event`: an ending that is not the task's outcome has been undone since.
    """
    content = event.content
    own = event.raw if event.protocol == PROTOCOL and event.raw is not None else b""

    def said(what: ResponseEvent | None, cursor: int = event.seq, **more: Any) -> MessageResponse:
        return MessageResponse(request_id=request_id, event=what, cursor=cursor, task_id=task.id, **more)

    match content:
        case messages.Progress() if event.kind is not EventKind.HELD_PIECE:
            parts = _parts(content, data)
            last = len(parts) - 1
            return tuple(
                said(part, event.seq if index == last else 0, progress=progress, unknown=own if index == last else b"")
                for index, (part, progress) in enumerate(parts)
            )
        case messages.Question():
            return (said(Thinking(f"Waiting for {content.asked_of or 'a person'}: {content.question}")),)
        case messages.AttemptFailed():
            fault = reported_fault(task, event)
            return (said(Thinking(f"{error_table.sentence(fault)} Trying again."), fault=_fault_out(fault)),)
        case messages.Result() if not (task.final and event.seq == task.outcome):
            return (said(Thinking(f"The task was {event.kind.value}, and is done once more.")),)
        case messages.Result() if event.kind is EventKind.COMPLETED:
            return (said(_done(content, whole), unknown=own),)
        case messages.Result():
            fault = reported_fault(task, event)
            return (said(Error(error_table.told(fault)), fault=_fault_out(fault), unknown=own),)
    return ()


def _done(content: messages.Result, whole: str | None) -> Done:
    output, result = whole or content.output, content.value
    if not output and isinstance(result, str):
        output = result
    text = output or ""
    is_text = result == text and not fits_beside(text)
    return mapping.result_out(text, "" if result is None or is_text else as_json(result))


def _parts(content: messages.Progress, data: bytes | None) -> list[tuple[ResponseEvent | None, Progress | None]]:
    """What one report says, as events; its figures ride beside the last one."""
    if content.file is not None:
        content = msgspec.structs.replace(
            content, file=msgspec.structs.replace(content.file, name=shown_name(content.file.name))
        )
    parts: list[ResponseEvent | None] = list(mapping.events_out(content, data))
    progress = mapping.figures_out(content)
    if progress is None:
        return [(part, None) for part in parts]
    if not parts or progress.message:
        parts.append(Thinking(progress.message or _words(progress)))
    elif isinstance(parts[-1], Thinking):
        parts.append(None)  # beside a thought, figures would make it look like words about them
    return [(part, progress if index == len(parts) - 1 else None) for index, part in enumerate(parts)]


def _words(progress: Progress) -> str:
    """Progress for a reader who knows only the document."""
    said = [progress.step] if progress.step else []
    if progress.percent is not None:
        said.append(f"{progress.percent} %")
    return ", ".join(said)


# --- faults ---


def _fault_out(fault: Fault) -> Any:
    return mapping.fault_out(fault, retryable=error_table.retryable(fault))


def status_of(fault: Fault) -> tuple[str, str]:
    """The name of the gRPC status that goes with a fault, and its sentence, which is all there is to name a field."""
    words = error_table.sentence(fault)
    named = fault.field is None or fault.field in words or error_table.over_budget(fault)
    return error_table.TABLE[fault.kind].grpc, words if named else f"{fault.field}: {words}"


def fault_of(error: RemoteProtocolError) -> Fault:
    """What the codec or the connection refused, as a fault."""
    kind = Kind.TOO_LARGE if error.stage is Stage.SIZE else Kind.INVALID
    return Fault(kind=kind, message=error.what, field=error.field, facts={"stage": error.stage.value})


__all__ = [
    "CHAT", "PROTOCOL", "attached", "attachments_in", "end_of", "ends_in_pieces", "fault_of", "file_in", "in_measure",
    "message_of", "progress_of", "reason_of", "registration_of", "responses_of", "speaks_for_itself", "status_of",
    "submit_of", "text_of", "traceparent",
]  # fmt: skip
