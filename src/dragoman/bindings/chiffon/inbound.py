"""A message of a chiffon agent becomes a command of the hub.

The codec has checked shape and meaning; here the message meets what the hub knows of its sender. `tree` is the
parsed JSON, unknown fields included: what identifies the content, and what is kept of it, must not depend on
which fields we happen to know.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.bindings.chiffon.exchange import OURS, PROTOCOL, task_id_in, task_ids_in, wire_name
from dragoman.core.commands import (
    Command,
    Finish,
    Lineage,
    Reply,
    ReportFault,
    ReportProgress,
    Routing,
    Span,
    Submit,
    Timing,
)
from dragoman.core.ids import AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Priority
from dragoman.core.policy.replay import marks_of
from dragoman.messages import tasks as messages
from dragoman.messages.faults import Fault, Kind, owned_by, refuse
from dragoman.messages.files import FileRef
from dragoman.messages.tasks import Ask
from dragoman.protocols.chiffon import chunks, codec, mapping
from dragoman.protocols.chiffon.types import (
    Envelope,
    ErrorPayload,
    Payload,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.server.content import resource_needs

MARK = 16
"""Hexadecimal digits by which the last statuses of a task are told apart."""
MOST_FILES = 100
LONGEST_QUESTION = 2000

TERMS = ("dependencies", "files", "parent_task_id", "priority")
"""Custom fields that are part of what a request asks for."""
PASSING = frozenset({"agent_id", "token", "traceparent"})
"""Custom fields that are no part of what a status says: they may change when it is said again."""

_PRIORITIES = {priority.value: priority for priority in Priority}

_KNOWN = {
    "envelope": frozenset(Envelope.__struct_fields__),
    "payload": frozenset(WorkRequest.__struct_fields__),
    "custom": OURS,
}
"""The fields of a request that the hub has words for, by their place."""

_traceparent = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}").fullmatch
_encode = msgspec.json.Encoder().encode
_canonical = msgspec.json.Encoder(order="deterministic").encode


def command_of(
    agent: Agent, message: Envelope[Payload], tree: dict[str, Any], raw: bytes, *, traceparent: str | None = None
) -> Command:
    """What `agent` asks by this message; raises `Refused`.

    `raw` is the message word for word and `tree` its JSON (`codec.parse`). `traceparent` is the transport's, if it
    has one: it goes on in the body, where every transport can carry it (all-D7), unless the body has one already.
    """
    if message.from_agent != agent.called:
        if message.from_agent == agent.id:
            what = f"agent {agent.id!r} was added with a kind, and sends under that: as {agent.called!r}"
        else:
            what = f"{owned_by(agent.id, message.from_agent)}; it sends as {wire_name(agent)!r}"
        raise refuse(Kind.FORBIDDEN, what, field="from_agent", agent_id=agent.id)
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
        what = f"this token belongs to agent {agent.id!r}, and the message speaks for another; send it as {agent.id!r}"
        raise refuse(Kind.FORBIDDEN, what, field="x_custom_fields.agent_id", agent_id=agent.id)
    if type(payload) is WorkStatus:
        return _status(agent, message, payload, tree, raw)
    if type(payload) is WorkResult:
        return _result(agent, message, payload, tree["payload"], raw)
    assert type(payload) is ErrorPayload
    return _error(agent, message, payload, raw)


def files_named(message: Envelope[Payload]) -> Sequence[str]:
    """The ids of the files that a message brings; they were kept before (`/api/agent/files`). Raises `Refused`."""
    custom = message.x_custom_fields
    if message.type == "work_request" and (many := custom.get("files")) is not None:
        if type(many) is not list or len(many) > MOST_FILES or not all(type(id) is str for id in many):
            raise refuse(Kind.INVALID, f"expected a list of {MOST_FILES} ids at most", field="x_custom_fields.files")
        return many
    if message.type == "work_status" and (one := custom.get("file")) is not None:
        if type(one) is not str:
            raise refuse(Kind.INVALID, "expected the id of a file", field="x_custom_fields.file")
        return (one,)
    return ()


def with_files(command: Command, files: tuple[FileRef, ...]) -> Command:
    """The same command, with its files."""
    if isinstance(command, Submit):
        return replace(command, files=files, content=replace(command.content, attachments=files))
    assert isinstance(command, ReportProgress)
    return replace(command, files=files, content=replace(command.content, file=files[0]))


def _submit(agent: Agent, message: Envelope[Payload], work: WorkRequest, tree: dict[str, Any], raw: bytes) -> Submit:
    custom = message.x_custom_fields
    said: dict[str, Any] = tree["payload"]
    pinned = custom.get("agent_id")
    if pinned is not None and type(pinned) is not str:
        raise refuse(Kind.INVALID, "expected the id of an agent", field="x_custom_fields.agent_id")
    seconds = work.hints.max_duration_seconds if work.hints is not None else None
    content = messages.Request(
        input=said["parameters"],
        hints=None if work.hints is None else said["hints"],
        beyond=_beyond(tree, custom) or None,
    )
    digest = _digest(("work_request", message.to_agent, pinned, said, *_terms(custom)))
    return Submit(
        principal=agent.id,
        protocol=PROTOCOL,
        protocol_version=message.protocol_version,
        message=marks_of(agent.id, message.message_id, message.request_id, digest),
        request_id=message.request_id,
        digest=digest,
        type=work.work_type,
        task_id=TaskId(work.task_id),
        content=content,
        raw=raw,
        priority=_priority(custom.get("priority")),
        constraints=_constraints(work),
        answer=_encode(work.parameters["answer"]) if "answer" in work.parameters else None,
        routing=Routing(kind=message.to_agent, pinned=AgentId(pinned) if pinned else None),
        timing=Timing(idle_seconds=seconds, total_seconds=seconds),
        lineage=Lineage(
            dependencies=task_ids_in(custom, "dependencies"),
            own_dependencies=True,
            parent=task_id_in(custom, "parent_task_id"),
            trace_id=message.trace_id.replace("-", ""),
        ),
        reply=Reply(forgets_errors=True),
    )


def _terms(custom: dict[str, Any]) -> list[tuple[str, Any]]:
    """What a request asks for beside its payload: with another of these it is another request. One that says nothing of
    them has the digest that it always had."""
    return [(name, custom[name]) for name in TERMS if name in custom]


def _priority(said: object) -> Priority:
    known = _PRIORITIES.get(said) if type(said) is str else None
    if known is None and said is not None:
        raise refuse(Kind.INVALID, f"expected one of {', '.join(_PRIORITIES)}", field="x_custom_fields.priority")
    return known or Priority.NORMAL


def _constraints(work: WorkRequest) -> dict[str, Any]:
    """The hints for the scheduler that say who may be given it."""
    if work.hints is None:
        return {}
    return {name: amount for name, amount in resource_needs(msgspec.structs.asdict(work.hints)).items() if amount}


def _beyond(tree: dict[str, Any], custom: dict[str, Any]) -> dict[str, Any]:
    """What nobody here has a word for, by its place. The first round of a task leaves in the bytes it came in; later
    ones are messages of the hub, and have it from here (all-D6)."""
    places = {"envelope": tree, "payload": tree["payload"], "custom": custom}
    return {
        part: {name: place[name] for name in place if name not in _KNOWN[part]}
        for part, place in places.items()
        if not place.keys() <= _KNOWN[part]
    }


def _status(
    agent: Agent, message: Envelope[Payload], status: WorkStatus, tree: dict[str, Any], raw: bytes
) -> ReportProgress:
    step, custom, paused = status.step, message.x_custom_fields, status.status == "paused"
    content = mapping.progress_in(status, custom)
    ask = _ask(custom) if paused else None
    if ask is not None and content.message is None:
        content = replace(content, message=ask.question)  # the caller is to know what the task waits for
    elif ask is None and paused:
        ask = Ask(question=_waits_for(agent, step), implied=True)
    digest = _mark(tree)
    return ReportProgress(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        task_id=TaskId(status.task_id),
        message_id=message.message_id,
        request_id=message.request_id,
        digest=digest,
        content=content,
        raw=raw,
        percent=status.progress_percent,
        step=step.name if step is not None else None,
        output=content.output or "",
        stream=content.stream or "",
        span=None if content.chunk is None else Span(*content.chunk),
        paused=paused,
        ask=ask,
    )


def _ask(custom: dict[str, Any]) -> Ask | None:
    try:
        return mapping.ask_in(custom)
    except msgspec.ValidationError as error:
        raise refuse(Kind.INVALID, str(error), field="x_custom_fields.question") from None


def _waits_for(agent: Agent, step: Step | None) -> str:
    """What an agent that pauses says of it, where it has no word for a question (B3)."""
    said = "" if step is None else step.output.strip() or step.name.strip()
    return said[-LONGEST_QUESTION:] or f"{agent.id} has paused and waits for an answer"


def _result(
    agent: Agent, message: Envelope[Payload], result: WorkResult, said: dict[str, Any], raw: bytes
) -> Finish | ReportProgress:
    if not chunks.is_last(result):
        return _piece(agent, message, result, said, raw)
    used = None if result.resources_used is None else said["resources_used"]
    content = mapping.result_in(result, message.x_custom_fields, used)
    fault = None
    if result.exit_code:
        fault = Fault(
            kind=Kind.WORK_FAILED,
            message=_reason(result.output) or f"the work failed with exit code {result.exit_code}",
            facts={"exit_code": result.exit_code},
        )
    digest = _digest(("work_result", said))
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
    """Why the work failed, as far as one line can say: programs say it last."""
    lines = output[-4096:].split("\n")
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _piece(
    agent: Agent, message: Envelope[Payload], result: WorkResult, said: dict[str, Any], raw: bytes
) -> ReportProgress:
    content = mapping.piece_in(result)
    assert content.chunk is not None
    digest = _mark({"payload": said})
    return ReportProgress(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        task_id=TaskId(result.task_id),
        message_id=message.message_id,
        request_id=message.request_id,
        digest=digest,
        content=content,
        raw=raw,
        percent=100,
        output=result.output,
        stream=mapping.RESULT_STREAM,
        span=Span(*content.chunk),
    )


def _error(agent: Agent, message: Envelope[Payload], error: ErrorPayload, raw: bytes) -> ReportFault:
    fault = mapping.fault_in(error)
    digest = _digest(("error", message.request_id, fault))
    return ReportFault(
        principal=agent.id,
        protocol=PROTOCOL,
        message=marks_of(agent.id, message.message_id, digest),
        fault=fault,
        task_id=task_id_in(message.x_custom_fields, "task_id"),
        request_id=message.request_id,
        message_id=message.message_id,
        digest=digest,
        content=messages.Failure(fault=fault),
        raw=raw,
    )


def _mark(tree: dict[str, Any]) -> str:
    """What a status says, in a few digits: its task remembers the last ones, so that another one under a used message
    id is refused."""
    custom = {name: said for name, said in (tree.get("x_custom_fields") or {}).items() if name not in PASSING}
    return _digest((tree["payload"], custom))[:MARK]


def _digest(content: object) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()
