"""A message of a forge agent becomes a command of the hub.

The codec has checked its shape. `tree` is the JSON object as it came, unknown fields included: neither the digest nor
what is kept of a message may depend on which fields this version knows.

    message                                  command
    ---------------------------------------  ----------------------------------------------------------
    request:submit-task                      Submit, idempotent by the request's id
    request:update-task running              ReportProgress, after a Claim if the task is queued
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
from msgspec import UNSET

from dragoman.core.commands import (
    AskPerson,
    Cancel,
    Claim,
    Command,
    Finish,
    Lineage,
    RegisterAgent,
    ReportFault,
    ReportProgress,
    Routing,
    Submit,
    Timing,
)
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Priority, QuestionDetails
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, Refused, owned_by, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import mapping
from dragoman.protocols.forge.errors import fault_in
from dragoman.protocols.forge.mapping import PRIORITIES, PRIORITIES_IN, PROTOCOL
from dragoman.protocols.forge.types import (
    EVENTS,
    PLANNER,
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

_traceparent = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def command_of(
    agent: Agent,
    message: Message,
    tree: dict[str, Any],
    files: tuple[FileRef, ...] = (),
    request_seconds: float = REQUEST_SECONDS,
) -> Command | None:
    """The command of a message of `agent`, or None where it changes nothing; raises `Refused`.

    `files` are those that came in the message and were kept before. A request that waits for a person waits for
    `request_seconds`, unless it has a time of its own.
    """
    match message.payload:
        case SubmitTask() as submitted:
            return _submit(agent, message, submitted, tree, files)
        case UpdateTask() as update:
            return _update(agent, message, update, tree, files)
        case Progress() as progress:
            return _progress(agent, message, progress, tree, files)
        case ErrorEvent(recoverable=False, task_id=str() as task_id) as error:
            return _fault(agent, message, task_id, fault_in(error.error, stack=error.stack), tree)
        case AskUser() | QuestionEvent() as asked:
            return AskPerson(
                principal=agent.id,
                protocol=PROTOCOL,
                request_id=message.id,
                ask=mapping.ask_in(asked, request_seconds),
                task_id=None if asked.task_id is None else TaskId(asked.task_id),
                blocking=isinstance(asked, AskUser),
                details=QuestionDetails(context=asked.context or None),
            )
        case CancelTask() as cancel:
            return Cancel(
                principal=agent.id,
                protocol=PROTOCOL,
                task_id=TaskId(cancel.task_id),
                reason=cancel.reason or "cancelled on request",
                message_id=message.id,
                digest=digest(("cancel-task", tree["payload"])),
            )
        case Register() as register:
            return _register(agent, register)
        case _:
            return None


def claim(agent: Agent, task_id: TaskId) -> Claim:
    """The command of `running` on a queued task."""
    return Claim(principal=agent.id, protocol=PROTOCOL, task_id=task_id)


def digest(content: object) -> str:
    """The same for the same content, however it is written."""
    return hashlib.sha256(_canonical(content)).hexdigest()


def _submit(
    agent: Agent, message: Message, submitted: SubmitTask, tree: dict[str, Any], files: tuple[FileRef, ...]
) -> Submit:
    seconds = None if submitted.timeout is None else submitted.timeout / 1000
    trace = _traceparent(str(message.meta.get("traceparent", "")))
    priority = PRIORITIES_IN[submitted.priority]
    return Submit(
        principal=agent.id,
        protocol=PROTOCOL,
        request_id=message.id,
        digest=digest(("submit-task", tree["payload"])),
        type=submitted.type,
        content=messages.Request(input=submitted.payload, attachments=files if submitted.attachments else None),
        raw=_raw(tree, without="attachments" if submitted.attachments else None),
        name=submitted.name,
        description=submitted.description,
        priority=Priority(priority),
        own_priority=None if PRIORITIES[priority] == submitted.priority else submitted.priority,
        files=files,
        routing=Routing(
            kind=submitted.kind,
            pinned=None if submitted.agent is None else AgentId(submitted.agent),
            required_role=submitted.required_role,
            required_capabilities=submitted.required_capabilities,
            kept_for_anybody=True,
        ),
        timing=Timing(idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(
            dependencies=tuple(map(TaskId, submitted.dependencies)),
            parent=None if submitted.parent_id is None else TaskId(submitted.parent_id),
            thread=submitted.thread,
            trace_id=None if trace is None else trace[1],
        ),
    )


def _update(
    agent: Agent, message: Message, update: UpdateTask, tree: dict[str, Any], files: tuple[FileRef, ...]
) -> Command:
    """The status of a task of the agent's own (D6)."""
    if update.status == "running":
        progress = Progress(
            task_id=update.task_id, progress=update.progress, message=update.message, output=update.output
        )
        return _progress(agent, message, progress, tree, files)
    if update.file is not None:
        raise _file_at_the_end()
    fault = None
    if update.status == "failed":
        fault = fault_in(update.error or update.message, retryable=update.retryable)
        if fault.retryable or mapping.result_in(update) == messages.Result():
            return _fault(agent, message, update.task_id, fault, tree)
    return _finish(agent, message, update, tree, update.status, fault)


def _progress(
    agent: Agent, message: Message, progress: Progress, tree: dict[str, Any], files: tuple[FileRef, ...]
) -> ReportProgress | Finish:
    if progress.progress == PROGRESS_DONE and progress.result is not UNSET:
        if progress.file is not None:
            raise _file_at_the_end()
        return _finish(agent, message, progress, tree)
    content = mapping.progress_in(progress, progress.output, files[0] if files else None)
    # No event is answered, so no agent repeats one: an id that was there before is that of another event, of a program
    # that counts its events, or was started again.
    is_event = message.type in EVENTS
    return ReportProgress(
        principal=agent.id,
        protocol=PROTOCOL,
        task_id=TaskId(progress.task_id),
        message_id=None if is_event else message.id,
        digest="" if is_event else digest(("update-task", tree["payload"]))[:16],
        content=content,
        raw=_raw(tree, without="file" if files else None),
        percent=content.percent,
        step=None if progress.step is None else progress.step.name,
        output=progress.output or "",
        files=files,
    )


def _finish(
    agent: Agent,
    message: Message,
    reported: UpdateTask | Progress,
    tree: dict[str, Any],
    status: str = "completed",
    fault: Fault | None = None,
) -> Finish:
    content = mapping.result_in(reported)
    return Finish(
        principal=agent.id,
        protocol=PROTOCOL,
        task_id=TaskId(reported.task_id),
        digest=digest((status, msgspec.to_builtins(content), None if fault is None else fault.message)),
        message_id=message.id,
        content=content,
        raw=_encode(tree),
        output=reported.output or "",
        fault=fault,
    )


def _fault(agent: Agent, message: Message, task_id: str, fault: Fault, tree: dict[str, Any]) -> ReportFault:
    return ReportFault(
        principal=agent.id,
        protocol=PROTOCOL,
        fault=fault,
        task_id=TaskId(task_id),
        message_id=message.id,
        content=messages.Failure(fault=fault),
        raw=_encode(tree),
    )


def _register(agent: Agent, register: Register) -> RegisterAgent:
    """What an agent is and can do. It may fill in what is open, never change who it is (all-D1).

    A role decides what an agent sees (D5), so a person gives it where the agent is added: an agent that names its role
    must name that one, and none makes itself a planner.
    """
    if register.agent_id not in (None, agent.id):
        message = owned_by(agent.id, register.agent_id)
        raise refuse(Kind.FORBIDDEN, message, field="payload.agentId", agent_id=agent.id)
    role = register.role
    if role is not None and role != agent.role and (agent.role is not None or role == PLANNER):
        given = f"was added as {agent.role!r}" if agent.role else "was added without a role"
        raise refuse(
            Kind.FORBIDDEN,
            f"{agent.id} {given} and cannot register as {role!r}",
            next="a role is given with `dragoman agent add`",
            field="payload.role",
            agent_id=agent.id,
        )
    return RegisterAgent(
        principal=agent.id,
        protocol=PROTOCOL,
        name=register.name,
        role=role,
        version=register.version,
        work_types=register.work_types if register.work_types is not None else agent.work_types,
        capabilities=register.capabilities,
        max_concurrent=register.max_concurrent or agent.max_concurrent,
        callback_url=agent.callback_url,
        details=agent.details,
    )


def _raw(tree: dict[str, Any], *, without: str | None = None) -> bytes:
    """The message as it came, without the field of its payload whose files are kept elsewhere."""
    if without is None:
        return _encode(tree)
    return _encode({**tree, "payload": {name: value for name, value in tree["payload"].items() if name != without}})


def _file_at_the_end() -> Refused:
    next = "send it with `running`, or with progress"
    return refuse(Kind.INVALID, "a file comes before the end of its task", next=next, field="payload.file")
