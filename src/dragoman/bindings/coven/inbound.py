"""What came over coven becomes commands of the hub: an agent's events, a caller's message.

    event          command            in the hub's form
    -------------  -----------------  -------------------------------------------------------------
    thinking       ReportProgress     `thinking`, or `message` where progress rides beside it
    text           ReportProgress     `output`: a piece of the answer
    tool_use       ReportProgress     `tool_use`
    tool_result    ReportProgress     `tool_result`
    file           ReportProgress     `file`: what is known of it; its bytes were kept before
    done           Finish             `output`: the whole answer (D8); `result` where one came as JSON
    done, asking   ReportProgress     paused, with a question to a person (B3)
    error          ReportFault        `fault`

The wire's own bytes are kept only where they hold something we do not know (all-D6): everything else is in the body.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.bindings.coven.exchange import CHAT, PROTOCOL, from_json, strict_json, trace_in
from dragoman.bindings.coven.failures import fault_in
from dragoman.core.commands import Ask, Finish, ReportFault, ReportProgress, Submit
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Priority
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Kind, owned_by, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.coven import once
from dragoman.protocols.coven.events import Completed
from dragoman.protocols.coven.types import (
    Done,
    Error,
    MessageResponse,
    Progress,
    Question,
    SendMessage,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
)
from dragoman.wire.errors import RemoteProtocolError

_PRIORITIES = {"": Priority.NORMAL} | {priority.value: priority for priority in Priority}
_uuid = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch
_canonical = msgspec.json.Encoder(order="deterministic").encode


# --- an agent's events ---


def progress_of(agent: AgentId, task: TaskId, message: MessageResponse, file: FileRef | None = None) -> ReportProgress:
    """An event that does not end the request. `file` is where the bytes of a file event were kept."""
    event, progress = message.event, message.progress
    content = messages.Progress(status="running", file=file)
    match event:
        case Text():
            content = replace(content, output=event.text)
        case Thinking() if progress is None:
            content = replace(content, thinking=event.text)
        case ToolUse():
            given = from_json(event.input_json or "null")
            content = replace(content, tool_use=messages.ToolUse(id=event.id, name=event.name, input=given))
        case ToolResult():
            came = messages.ToolResult(id=event.id, output=event.output, is_error=event.is_error)
            content = replace(content, tool_result=came)
    if progress is not None:
        content = _with_figures(content, progress, event)
    return ReportProgress(
        principal=agent,
        protocol=PROTOCOL,
        task_id=task,
        content=content,
        raw=message.unknown or None,
        percent=content.percent,
        step=(progress.step or None) if progress is not None else None,
        output=content.output or "",
        files=() if file is None else (file,),
    )


def _with_figures(content: messages.Progress, progress: Progress, event: object) -> messages.Progress:
    step = None
    if progress.step or progress.number:
        step = messages.Step(number=progress.number, name=progress.step, total=progress.total or None)
    words = progress.message or (event.text if isinstance(event, Thinking) else "")
    return replace(content, percent=progress.percent, step=step, message=words or None)


def text_of(agent: AgentId, task: TaskId, text: str) -> ReportProgress:
    """Several pieces of text that came one after the other, as one."""
    content = messages.Progress(status="running", output=text)
    return ReportProgress(principal=agent, protocol=PROTOCOL, task_id=task, content=content, output=text)


def end_of(agent: AgentId, task: TaskId, ended: Completed) -> Finish | ReportFault | ReportProgress:
    """The event that ends the request."""
    message, event = ended.message, ended.message.event
    if isinstance(event, Error):
        fault = fault_in(message)
        return ReportFault(
            principal=agent,
            protocol=PROTOCOL,
            fault=fault,
            task_id=task,
            content=messages.Failure(fault=fault),
            raw=message.unknown or None,
        )
    assert isinstance(event, Done)
    if event.question is not None and event.question.question:
        return _asking(agent, task, ended, event, event.question)
    result = once.result_json(event, ended.text or "")
    content = messages.Result(output=ended.text, result=from_json(result) if result else msgspec.UNSET)
    return Finish(
        principal=agent,
        protocol=PROTOCOL,
        task_id=task,
        digest=_digest(("done", msgspec.to_builtins(content), event.full_response)),
        content=content,
        raw=message.unknown or None,
        output="" if ended.streamed else (ended.text or ""),
    )


def _asking(agent: AgentId, task: TaskId, ended: Completed, done: Done, asked: Question) -> ReportProgress:
    """The turn ends with a question (B3). An answer that was not streamed is told along with it."""
    output = done.full_response if not ended.streamed else ""
    options = from_json(asked.options_json) if asked.options_json else []
    ask = Ask(
        question=asked.question,
        options=tuple(options) if isinstance(options, list) else (options,),
        timeout_seconds=asked.timeout_seconds if 0 < asked.timeout_seconds < 1e9 else None,
        default=from_json(asked.default_json) if asked.default_json else None,
        has_default=bool(asked.default_json),
    )
    return ReportProgress(
        principal=agent,
        protocol=PROTOCOL,
        task_id=task,
        content=messages.Progress(status="paused", message=asked.question, output=output or None),
        raw=ended.message.unknown or None,
        output=output,
        paused=True,
        ask=ask,
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
    given = _input(message)
    work_type = message.work_type or CHAT
    to = message.to_agent
    pinned = AgentId(to) if to and find(AgentId(to)) is not None else None
    names = [(file.name, file.sha256) for file in files]
    return Submit(
        principal=principal,
        protocol=PROTOCOL,
        request_id=request_id,
        digest=_digest(("send", to, work_type, message.thread_id, given, names)),
        type=work_type,
        content=messages.Request(input=given, attachments=tuple(files) or None),
        task_id=TaskId(message.task_id.lower()) if message.task_id else None,
        raw=message.unknown or None,
        kind=None if pinned or not to else to,
        pinned=pinned,
        required_capabilities=() if to else (work_type,),
        priority=_PRIORITIES[message.priority],
        thread=message.thread_id or None,
        trace_id=trace_in(message.traceparent, traceparent),
        files=tuple(files),
        follows=True,
    )


def _input(message: SendMessage) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if message.input_json:
        try:
            value = strict_json(message.input_json)
        except RemoteProtocolError as error:
            raise refuse(Kind.INVALID, error.what, field="input_json") from None
        if not isinstance(value, dict):
            raise refuse(Kind.INVALID, "expected a JSON object", field="input_json")
        given |= value
    if message.content or not message.input_json:
        given["content"] = message.content
    return given


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
