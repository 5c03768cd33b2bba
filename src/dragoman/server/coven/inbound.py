"""Coven at the hub, inbound: what agents and callers send becomes commands. Pure.

`protocols.coven.mapping` says what each wire type means; here it meets what the hub knows of its sender.

    from an agent     command                      from a caller   command
    ----------------  ---------------------------  --------------  -------
    an event          ReportProgress               SendMessage     Submit
    done              Finish
    done + question   ReportProgress with an `ask`
    error             ReportFault

The wire's own bytes are kept only where they hold fields that the hub does not know (all-D6).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

import msgspec

from dragoman.core import commands
from dragoman.core.commands import Finish, Lineage, Reply, ReportFault, ReportProgress, Routing, Submit
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Priority
from dragoman.messages.faults import Fault, Kind, owned_by, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Failure, Progress, Request
from dragoman.protocols.coven import mapping
from dragoman.protocols.coven.connection import Completed
from dragoman.protocols.coven.mapping import CHAT, PROTOCOL
from dragoman.protocols.coven.types import Done, Error, MessageResponse, RegisterAgent, SendMessage
from dragoman.server.content import trace_id_in
from dragoman.wire.errors import RemoteProtocolError, Stage

_PRIORITIES = {"": Priority.NORMAL} | {priority.value: priority for priority in Priority}
_uuid = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}").fullmatch
_canonical = msgspec.json.Encoder(order="deterministic").encode


# --- an agent registers ---


def check_registration(agent: Agent, registration: RegisterAgent) -> None:
    """Raises `Refused` unless the credential is this agent's, and for this protocol (all-D1, D4)."""
    if agent.protocol != PROTOCOL:
        raise refuse(
            Kind.FORBIDDEN,
            f"{agent.id} was added to speak {agent.protocol}",
            next="use that protocol's endpoints",
            field="agent_id",
            agent_id=agent.id,
        )
    if registration.agent_id != agent.id:
        what = owned_by(agent.id, registration.agent_id)
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=agent.id)


def registration_of(agent: AgentId, registration: RegisterAgent) -> commands.RegisterAgent:
    """An agent has one task at a time on its stream (D5); the hub keeps the rest."""
    return commands.RegisterAgent(
        principal=agent,
        protocol=PROTOCOL,
        name=registration.name or None,
        version=registration.version or None,
        work_types=registration.work_types or None,
        capabilities=registration.capabilities,
        max_concurrent=1,
        details={"extensions": list(registration.extensions)} if registration.extensions else {},
    )


# --- an agent reports ---


def progress_of(agent: AgentId, task: TaskId, message: MessageResponse, file: FileRef | None = None) -> ReportProgress:
    """An event that does not end the request. `file` is where the hub keeps the bytes of a file event."""
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
    content = Progress(status="running", output=text)
    return ReportProgress(principal=agent, protocol=PROTOCOL, task_id=task, content=content, output=text)


def end_of(agent: AgentId, task: TaskId, ended: Completed) -> Finish | ReportFault | ReportProgress:
    """The event that ends the request."""
    message, event, raw = ended.message, ended.message.event, ended.message.unknown or None
    if isinstance(event, Error):
        fault = mapping.fault_in(message)
        content = Failure(fault=fault)
        return ReportFault(principal=agent, protocol=PROTOCOL, fault=fault, task_id=task, content=content, raw=raw)
    assert isinstance(event, Done)
    if event.question is not None and event.question.question:
        # The turn ends with a question (B3). An answer that was not streamed goes along with it.
        output = "" if ended.streamed else event.full_response
        return ReportProgress(
            principal=agent,
            protocol=PROTOCOL,
            task_id=task,
            content=Progress(status="paused", message=event.question.question, output=output or None),
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
    """A caller's message as a command; raises `Refused`. `find` tells an agent's own name in `to_agent` from a kind."""
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
        lineage=Lineage(thread=message.thread_id or None, trace_id=trace_id_in(message.traceparent, traceparent)),
        reply=Reply(follows=True),
    )


def fault_of(error: RemoteProtocolError) -> Fault:
    """What the codec or the connection refused, as a fault."""
    kind = Kind.TOO_LARGE if error.stage is Stage.SIZE else Kind.INVALID
    facts = {"stage": error.stage.value}
    return Fault(kind=kind, message=error.what, next=error.next, field=error.field, facts=facts)


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
