"""A chiffon message, together with what the hub knows of its sender, becomes a command.

The codec has checked shape and meaning. `tree` is the parsed JSON, unknown fields included: what identifies the
content, and what is kept of it, must not depend on which fields the hub knows.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from dragoman.core.commands import (
    Cancel,
    Command,
    Finish,
    Lineage,
    Pause,
    RegisterAgent,
    Reply,
    ReportFault,
    ReportProgress,
    Resume,
    Routing,
    Span,
    Submit,
    Timing,
)
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.model.agents import GPU_MEMORY, MEMORY, Agent, Resource
from dragoman.core.model.tasks import Priority
from dragoman.core.policy.replay import marks_of
from dragoman.messages.faults import Fault, Kind, owned_by, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask, Failure, Progress
from dragoman.protocols.chiffon import chunks, codec, mapping, requests
from dragoman.protocols.chiffon.errors import fault_in
from dragoman.protocols.chiffon.mapping import PROTOCOL
from dragoman.protocols.chiffon.types import (
    Envelope,
    ErrorPayload,
    Payload,
    Registration,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.server.content import resource_needs

MARK = 16
"""Hexadecimal digits of a status's digest: they tell the last statuses of a task apart."""
LONGEST_QUESTION = 2000
MOST_CONCURRENT = 10_000
MOST_MEMORY = 1 << 40
"""Megabytes that all tasks of an agent together may have."""

UNMARKED = frozenset({"agent_id", "token", "traceparent"})
"""Custom fields that are no part of a status's content: they may change when the agent sends it again."""

VERBS = ("cancel", "pause", "resume")

_traceparent = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def command_of(
    agent: Agent, message: Envelope[Payload], tree: dict[str, Any], raw: bytes, *, traceparent: str | None = None
) -> Command:
    """The command that a message of `agent` asks for; raises `Refused`.

    `raw` is the message as it came and `tree` its JSON (`codec.parse`). `traceparent` is the transport's, if it has
    one: it goes on in the body, where every transport can carry it (all-D7), unless the body has one already.
    """
    if message.from_agent != agent.called:
        if message.from_agent == agent.id:
            what, next = f"agent {agent.id!r} was added with a kind, and sends under that: as {agent.called!r}", ""
        else:
            what, next = owned_by(agent.id, message.from_agent), f"it sends as {agent.called!r}"
        raise refuse(Kind.FORBIDDEN, what, next=next, field="from_agent", agent_id=agent.id)
    spoken = agent.protocol_version
    if spoken is not None and message.protocol_version != spoken:
        raise refuse(
            Kind.UNSUPPORTED_VERSION,
            f"this agent registered to speak {spoken}, not {message.protocol_version}",
            field="protocol_version",
            supported_versions=[spoken],
            work_type_requested=str(tree["payload"].get("work_type", message.type)),
        )
    custom = message.x_custom_fields
    if "token" in custom:
        raw = codec.reissue(raw, {}, {"token": None})
    if traceparent is not None and "traceparent" not in custom and _traceparent(traceparent):
        raw = codec.reissue(raw, {}, {"traceparent": traceparent})
    payload = message.payload
    if type(payload) is WorkRequest:
        return _submit(agent, message, payload, tree, raw)
    if custom.get("agent_id", agent.id) != agent.id:
        raise refuse(
            Kind.FORBIDDEN,
            f"this token belongs to agent {agent.id!r}, and the message speaks for another",
            next=f"send it as {agent.id!r}",
            field="x_custom_fields.agent_id",
            agent_id=agent.id,
        )
    if type(payload) is WorkStatus:
        return _status(agent, message, payload, tree, raw)
    if type(payload) is WorkResult:
        return _result(agent, message, payload, tree["payload"], raw)
    assert type(payload) is ErrorPayload
    return _error(agent, message, payload, raw)


def with_files(command: Command, files: tuple[FileRef, ...]) -> Command:
    """The command with the files that its message names."""
    if isinstance(command, Submit):
        return replace(command, files=files, content=replace(command.content, attachments=files))
    assert isinstance(command, ReportProgress)
    return replace(command, files=files, content=replace(command.content, file=files[0]))


def _submit(agent: Agent, message: Envelope[Payload], work: WorkRequest, tree: dict[str, Any], raw: bytes) -> Submit:
    custom = message.x_custom_fields
    pinned = requests.agent_in(custom)
    seconds = work.hints.max_duration_seconds if work.hints is not None else None
    digest = _digest(("work_request", message.to_agent, pinned, tree["payload"], *requests.content_fields(custom)))
    return Submit(
        principal=agent.id,
        protocol=PROTOCOL,
        protocol_version=message.protocol_version,
        message=marks_of(agent.id, message.message_id, message.request_id, digest),
        request_id=message.request_id,
        digest=digest,
        type=work.work_type,
        task_id=TaskId(work.task_id),
        content=requests.request_in(work, tree, custom),
        raw=raw,
        priority=Priority(requests.priority_in(custom)),
        constraints=_constraints(work),
        answer=_encode(work.parameters["answer"]) if "answer" in work.parameters else None,
        routing=Routing(kind=message.to_agent, pinned=AgentId(pinned) if pinned else None),
        timing=Timing(idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(
            dependencies=tuple(map(TaskId, requests.dependencies_in(custom))),
            own_dependencies=True,
            parent=_task_id(requests.parent_in(custom)),
            trace_id=message.trace_id.replace("-", ""),
        ),
        reply=Reply(forgets_errors=True),
    )


def _constraints(work: WorkRequest) -> dict[str, Any]:
    """The hints that decide which agents may be given the work."""
    if work.hints is None:
        return {}
    return {name: amount for name, amount in resource_needs(msgspec.structs.asdict(work.hints)).items() if amount}


def _task_id(id: str | None) -> TaskId | None:
    return None if id is None else TaskId(id)


def _status(
    agent: Agent, message: Envelope[Payload], status: WorkStatus, tree: dict[str, Any], raw: bytes
) -> ReportProgress:
    step, custom, paused = status.step, message.x_custom_fields, status.status == "paused"
    content = mapping.progress_in(status, custom)
    ask = mapping.ask_in(custom) if paused else None
    if ask is not None and content.message is None:
        content = replace(content, message=ask.question)  # the caller is to know what the task waits for
    elif ask is None and paused:
        ask = Ask(question=_waits_for(agent, step), implied=True)
    return _report(agent, message, status.task_id, content, _mark(tree), raw, step=step, paused=paused, ask=ask)


def _report(
    agent: Agent,
    message: Envelope[Payload],
    task_id: str,
    content: Progress,
    digest: str,
    raw: bytes,
    *,
    step: Step | None = None,
    paused: bool = False,
    ask: Ask | None = None,
) -> ReportProgress:
    return ReportProgress(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        task_id=TaskId(task_id),
        message_id=message.message_id,
        request_id=message.request_id,
        digest=digest,
        content=content,
        raw=raw,
        percent=content.percent,
        step=step.name if step is not None else None,
        output=content.output or "",
        stream=content.stream or "",
        span=None if content.chunk is None else Span(*content.chunk),
        paused=paused,
        ask=ask,
    )


def _waits_for(agent: Agent, step: Step | None) -> str:
    """The question of an agent that pauses without asking one (B3)."""
    text = "" if step is None else step.output.strip() or step.name.strip()
    return text[-LONGEST_QUESTION:] or f"{agent.id} has paused and waits for an answer"


def _result(
    agent: Agent, message: Envelope[Payload], result: WorkResult, payload: dict[str, Any], raw: bytes
) -> Finish | ReportProgress:
    if not chunks.is_last(result):
        digest = _mark({"payload": payload})
        return _report(agent, message, result.task_id, mapping.piece_in(result), digest, raw)
    used = None if result.resources_used is None else payload["resources_used"]
    content = mapping.result_in(result, message.x_custom_fields, used)
    fault = None
    if result.exit_code:
        fault = Fault(
            kind=Kind.WORK_FAILED,
            message=_reason(result.output) or f"the work failed with exit code {result.exit_code}",
            facts={"exit_code": result.exit_code},
        )
    digest = _digest(("work_result", payload))
    return Finish(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        task_id=TaskId(result.task_id),
        digest=digest,
        message_id=message.message_id,
        request_id=message.request_id,
        content=content,
        raw=raw,
        output=result.output,
        span=None if content.chunk is None else Span(*content.chunk),
        fault=fault,
    )


def _reason(output: str) -> str:
    """Why the work failed: the last line of its output, where programs write it."""
    lines = output[-4096:].split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _error(agent: Agent, message: Envelope[Payload], error: ErrorPayload, raw: bytes) -> ReportFault:
    fault = fault_in(error)
    digest = _digest(("error", message.request_id, fault))
    return ReportFault(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        fault=fault,
        task_id=_task_id(requests.task_id_in(message.x_custom_fields)),
        request_id=message.request_id,
        message_id=message.message_id,
        digest=digest,
        content=Failure(fault=fault),
        raw=raw,
    )


def _mark(tree: dict[str, Any]) -> str:
    """The content of a status, in a few digits. Its task remembers the last ones, so that the hub refuses another
    content under a used message id."""
    custom = {name: value for name, value in (tree.get("x_custom_fields") or {}).items() if name not in UNMARKED}
    return _digest((tree["payload"], custom))[:MARK]


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


# -- registration and steering


def registration_of(
    agent: Agent, sent: Registration, *, negotiation: Literal["lowest", "highest"] = "lowest"
) -> RegisterAgent:
    """An agent registers (D9) as what the hub knows it to be (all-D1); raises `Refused` or `UnsupportedVersion`."""
    if sent.agent_id != agent.id:
        what = owned_by(agent.id, sent.agent_id)
        raise refuse(Kind.FORBIDDEN, what, field="agent_id", agent_id=sent.agent_id)
    kind = None if sent.agent_type == agent.id else sent.agent_type  # its own name claims no kind
    if agent.kind is not None and kind not in (None, agent.kind):
        raise refuse(
            Kind.FORBIDDEN,
            f"{agent.id} was added as {agent.kind!r} and cannot register as {kind!r}",
            next="a kind is given with `dragoman agent add --kind`",
            field="agent_type",
            agent_id=agent.id,
        )
    version = codec.negotiate(sent.supported_versions, negotiation=negotiation)
    details: dict[str, Any] = {"supported_versions": list(sent.supported_versions)}
    if sent.limits:
        details["limits"] = sent.limits
    return RegisterAgent(
        principal=agent.id,
        protocol=PROTOCOL,
        kind=kind,
        work_types=sent.work_types or None,
        max_concurrent=_limit(sent.limits, mapping.CONCURRENCY, 1, MOST_CONCURRENT),
        memory_mb=_resource(sent.limits, MEMORY),
        gpu_vram_mb=_resource(sent.limits, GPU_MEMORY),
        protocol_version=version,
        callback_url=sent.callback_url,
        details=details,
    )


def _resource(limits: dict[str, Any], resource: Resource) -> int | None:
    return _limit(limits, resource.names, resource.least, MOST_MEMORY)


def _limit(limits: dict[str, Any], names: tuple[str, ...], least: int, most: int) -> int | None:
    for name in names:
        value = limits.get(name)
        if value is None:
            continue
        if type(value) is not int or not least <= value <= most:
            what = f"expected a whole number from {least} to {most}"
            raise refuse(Kind.INVALID, what, field=f"limits.{name}")
        return value
    return None


def steering_of(verb: str, principal: AgentId, task: TaskId, body: dict[str, Any]) -> Command:
    """`POST /api/tasks/ID/VERB`."""
    protocol = "api" if principal == ADMIN else PROTOCOL
    if verb == "cancel":
        reason = body.get("reason")
        if type(reason) is str and reason:
            return Cancel(principal=principal, protocol=protocol, task_id=task, reason=reason)
        return Cancel(principal=principal, protocol=protocol, task_id=task)
    if verb == "pause":
        return Pause(principal=principal, protocol=protocol, task_id=task)
    return Resume(
        principal=principal, protocol=protocol, task_id=task, answer=body.get("answer"), has_answer="answer" in body
    )
