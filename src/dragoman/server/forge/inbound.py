"""A message of a forge agent becomes a command of the hub.

The codec has checked its shape. `tree` is the JSON object as it came, unknown fields included: what identifies the
content, and what is kept of it, must not depend on which fields we happen to know.

    message                                  command
    ---------------------------------------  ----------------------------------------------------------
    request:submit-task                      Submit, idempotent by the request's id
    request:update-task running              ReportProgress, after a Claim if the task stands in the queue
    request:update-task completed            Finish
    request:update-task failed               ReportFault, or Finish where it came with a result
    request:cancel-task                      Cancel
    request:ask-user                         AskPerson; the answer is the response, whenever it comes
    request:register                         RegisterAgent
    event:progress                           ReportProgress; with progress 1 and a result Finish (D6)
    event:error, not recoverable             ReportFault (D6)
    event:question                           AskPerson, without waiting

The other requests only read, and the other events are lines of a log: they are no commands.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgspec

from dragoman.core.commands import (
    AskPerson,
    Cancel,
    Claim,
    Command,
    Finish,
    Lineage,
    ReportFault,
    ReportProgress,
    Routing,
    Submit,
    Timing,
)
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask
from dragoman.protocols.forge import mapping
from dragoman.protocols.forge.types import (
    EVENTS,
    PROGRESS_DONE,
    REQUEST_SECONDS,
    AskUser,
    CancelTask,
    ErrorEvent,
    Message,
    Progress,
    QuestionEvent,
    Register,
    SubmitTask,
    UpdateTask,
)
from dragoman.server.forge.failures import fault_in
from dragoman.server.forge.registration import registration_of
from dragoman.server.forge.vocabulary import PRIORITY_IN, PRIORITY_OUT, PROTOCOL

FILE_AT_THE_END = "a file comes before the end of its task; send it with `running`, or with progress"
_traceparent = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def command_of(
    agent: Agent, message: Message, tree: dict[str, Any], request_seconds: float = REQUEST_SECONDS
) -> Command | None:
    """What `agent` asks by this message, or None where it asks for nothing that changes anything; raises `Refused`. A
    request that waits for a person waits for `request_seconds`, unless it has a time of its own."""
    match message.payload:
        case SubmitTask():
            return submission(agent, message, tree)
        case UpdateTask() as said:
            return update(agent, message, said, tree)
        case Progress() as said:
            return progress(agent, message, said, tree)
        case ErrorEvent() as said if not said.recoverable and said.task_id is not None:
            return _lost(agent, message, said, tree)
        case AskUser() | QuestionEvent() as said:
            return _question(agent, message, said, request_seconds)
        case CancelTask():
            return cancellation(agent, message, tree)
        case Register() as said:
            return registration_of(agent, said)
        case _:
            return None


def cancellation(agent: Agent, message: Message, tree: dict[str, Any]) -> Cancel:
    said: CancelTask = message.payload
    return Cancel(
        principal=agent.id,
        protocol=PROTOCOL,
        task_id=TaskId(said.task_id),
        reason=said.reason or "cancelled on request",
        message_id=message.id,
        digest=digest(("cancel-task", tree["payload"])),
    )


def submission(agent: Agent, message: Message, tree: dict[str, Any], files: tuple[FileRef, ...] = ()) -> Submit:
    """A new task. Its attachments were kept before; where they lay in the message, `files` stands for them."""
    said: SubmitTask = message.payload
    raw = tree
    if said.attachments:
        told = {name: value for name, value in tree["payload"].items() if name != "attachments"}
        raw = {**tree, "payload": told}
    seconds = None if said.timeout is None else said.timeout / 1000
    trace = _traceparent(str(message.meta.get("traceparent", "")))
    return Submit(
        principal=agent.id,
        protocol=PROTOCOL,
        request_id=message.id,
        digest=digest(("submit-task", tree["payload"])),
        type=said.type,
        content=messages.Request(input=said.payload, attachments=files if said.attachments else None),
        raw=_encode(raw),
        name=said.name,
        description=said.description,
        priority=PRIORITY_IN[said.priority],
        own_priority=None if PRIORITY_OUT[PRIORITY_IN[said.priority]] == said.priority else said.priority,
        files=files,
        routing=Routing(
            kind=said.kind,
            pinned=None if said.agent is None else AgentId(said.agent),
            required_role=said.required_role,
            required_capabilities=said.required_capabilities,
            kept_for_anybody=True,
        ),
        timing=Timing(idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(
            dependencies=tuple(map(TaskId, said.dependencies)),
            parent=None if said.parent_id is None else TaskId(said.parent_id),
            thread=said.thread,
            trace_id=None if trace is None else trace[1],
        ),
    )


def update(
    agent: Agent, message: Message, said: UpdateTask, tree: dict[str, Any], file: FileRef | None = None
) -> Command:
    """How the agent says a task of its own stands (D6). Its file was kept before."""
    task_id = TaskId(said.task_id)
    if said.status == "running":
        went = Progress(task_id=said.task_id, progress=said.progress, message=said.message, output=said.output)
        return progress(agent, message, went, tree, file)
    if said.file is not None:
        raise refuse(Kind.INVALID, FILE_AT_THE_END, field="payload.file")
    content = mapping.result_in(said)
    fault = None
    if said.status == "failed":
        fault = fault_in(said.error or said.message, retryable=said.retryable)
        if fault.retryable or content == messages.Result():
            return _fault(agent, message, task_id, fault, tree)
    return _finish(agent, message, said, said.status, content, tree, fault)


def claim(agent: Agent, task_id: TaskId) -> Claim:
    """`running` on a task that stands in the queue."""
    return Claim(principal=agent.id, protocol=PROTOCOL, task_id=task_id)


def progress(
    agent: Agent, message: Message, said: Progress, tree: dict[str, Any], file: FileRef | None = None
) -> ReportProgress | Finish:
    """What the agent tells of its work. A file was kept before; where it lay in the message, `file` stands for it."""
    if said.progress == PROGRESS_DONE and said.result is not msgspec.UNSET:
        if said.file is not None:
            raise refuse(Kind.INVALID, FILE_AT_THE_END, field="payload.file")
        content = mapping.result_in(said)
        return _finish(agent, message, said, "completed", content, tree)
    told = mapping.progress_in(said, file)
    raw = tree
    if file is not None:
        raw = {**tree, "payload": {name: value for name, value in tree["payload"].items() if name != "file"}}
    return ReportProgress(
        principal=agent.id,
        protocol=PROTOCOL,
        task_id=TaskId(said.task_id),
        # Nobody says an event again, since none is answered: one with an id that was there before is another one, of a
        # program that counts its events, or began anew.
        message_id=None if message.type in EVENTS else message.id,
        digest="" if message.type in EVENTS else digest(("update-task", tree["payload"]))[:16],
        content=told,
        raw=_encode(raw),
        percent=told.percent,
        step=None if said.step is None else said.step.name,
        output=said.output or "",
        files=() if file is None else (file,),
    )


def _finish(
    agent: Agent,
    message: Message,
    said: UpdateTask | Progress,
    status: str,
    content: messages.Result,
    tree: dict[str, Any],
    fault: Fault | None = None,
) -> Finish:
    return Finish(
        principal=agent.id,
        protocol=PROTOCOL,
        task_id=TaskId(said.task_id),
        digest=digest((status, msgspec.to_builtins(content), None if fault is None else fault.message)),
        message_id=message.id,
        content=content,
        raw=_encode(tree),
        output=said.output or "",
        fault=fault,
    )


def _lost(agent: Agent, message: Message, said: ErrorEvent, tree: dict[str, Any]) -> ReportFault:
    assert said.task_id is not None
    return _fault(agent, message, TaskId(said.task_id), fault_in(said.error, stack=said.stack), tree)


def _fault(agent: Agent, message: Message, task_id: TaskId, fault: Any, tree: dict[str, Any]) -> ReportFault:
    return ReportFault(
        principal=agent.id,
        protocol=PROTOCOL,
        fault=fault,
        task_id=task_id,
        message_id=message.id,
        content=messages.Failure(fault=fault),
        raw=_encode(tree),
    )


def _question(agent: Agent, message: Message, said: AskUser | QuestionEvent, request_seconds: float) -> AskPerson:
    has_default = said.default is not msgspec.UNSET
    seconds = None if said.timeout is None else said.timeout / 1000
    if isinstance(said, AskUser):
        seconds = seconds or request_seconds  # a request like any other, unless it has a time of its own (D8)
    return AskPerson(
        principal=agent.id,
        protocol=PROTOCOL,
        request_id=message.id,
        ask=Ask(
            question=said.question,
            options=said.options,
            timeout_seconds=seconds,
            default=said.default if has_default else None,
            has_default=has_default,
        ),
        task_id=None if said.task_id is None else TaskId(said.task_id),
        blocking=isinstance(said, AskUser),
        details={"context": said.context} if said.context else {},
    )


def digest(content: object) -> str:
    """What tells the same content again from another."""
    return hashlib.sha256(_canonical(content)).hexdigest()
