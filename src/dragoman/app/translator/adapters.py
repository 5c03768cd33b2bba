"""The five protocols as the translator uses them: a message → commands, and an outgoing message → JSON.

Each adapter is its protocol's codec and the hub's own inbound and outbound side. The sender is the agent that the
message names: the translator has no tokens. Of a2acp, the sender has a contract with the receiver that allows
everything. Coven's messages are in protobuf's JSON form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeAlias
from uuid import UUID, uuid5

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import HOUR, AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract
from dragoman.core.model.contracts import Party as Side
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, Task
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.a2acp import codec as a2acp_codec
from dragoman.protocols.a2acp import intents
from dragoman.protocols.a2acp.types import BROKER_ID, RESERVED, MessageType
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.protocols.agentmsg import codec as agentmsg_codec
from dragoman.protocols.chiffon import codec as chiffon_codec
from dragoman.protocols.coven import json_form
from dragoman.protocols.coven.connection import Completed
from dragoman.protocols.coven.types import Cancel, Done, FileData, SendMessage
from dragoman.protocols.forge import codec as forge_codec
from dragoman.protocols.forge import mapping as forge_mapping
from dragoman.protocols.forge.types import Attachment, Progress, SubmitTask, UpdateTask
from dragoman.server.a2acp import inbound as a2acp_inbound
from dragoman.server.a2acp import outbound as a2acp_outbound
from dragoman.server.a2acp.frames import Broker
from dragoman.server.a2acp.inbound import InboundMessage
from dragoman.server.agentmsg import inbound as agentmsg_inbound
from dragoman.server.agentmsg import outbound as agentmsg_outbound
from dragoman.server.agentmsg.inbound.message import Inbound
from dragoman.server.chiffon import inbound as chiffon_inbound
from dragoman.server.chiffon import outbound as chiffon_outbound
from dragoman.server.coven import inbound as coven_inbound
from dragoman.server.coven import outbound as coven_outbound
from dragoman.server.forge import inbound as forge_inbound
from dragoman.server.forge import outbound as forge_outbound
from dragoman.wire import guard
from dragoman.wire.role import Role

SENDER, RECEIVER = AgentId("speaker"), AgentId("listener")
TASKS = UUID("8c4c1c6c-6f6a-5d32-8d0e-64726167eeee")
"""Namespace of the tasks that a message names without an id."""
ONLY_FOR_THE_HUB = "it is between its agent and the hub; nobody else hears of it"
LIMITS = guard.Limits(bytes=16 * 1024 * 1024)

Files: TypeAlias = Mapping[str, bytes]
"""The contents of files, by their ids."""


class Decoded(NamedTuple):
    """A message: its kind as its protocol calls it, its sender, the commands that it means, and the files it brings."""

    kind: str
    sender: Agent
    commands: Sequence[Command]
    contract: Contract | None = None
    files: Files = MappingProxyType({})


class Adapter(NamedTuple):
    """`decode` raises `RemoteProtocolError` for bytes that are no message, `Refused` for a message without a command.
    `encode` returns JSON. `encode_event` is for protocols whose callers read the events of a task themselves."""

    decode: Callable[[bytes, Instant], Decoded]
    encode: Callable[[Outgoing, Agent, Instant, Files], list[Any]]
    encode_event: Callable[[Event, Task, Files], list[Any]] | None = None


def agent(id: str, protocol: str, now: Instant, **more: Any) -> Agent:
    return Agent(id=AgentId(id), protocol=protocol, created_at=now, token_hash=f"translator:{id}", **more)


def tree_of(data: bytes) -> dict[str, Any]:
    tree = guard.check(data, LIMITS)
    if not isinstance(tree, dict):
        raise refuse(Kind.INVALID, "a message is a JSON object")
    return tree


def _file_ref(name: str, mime_type: str, data: bytes) -> FileRef:
    """A file as the hub would know it, had an agent uploaded it."""
    digest = hashlib.sha256(data).hexdigest()
    return FileRef(id=str(uuid5(TASKS, digest)), name=name, mime_type=mime_type, size=len(data), sha256=digest)


# -- chiffon


def _chiffon_in(data: bytes, now: Instant) -> Decoded:
    tree = chiffon_codec.parse(data)
    message = chiffon_codec.interpret(tree, data)
    named = message.x_custom_fields.get("agent_id") if message.type != "work_request" else None
    kind = message.from_agent
    sender = agent(named, "chiffon", now, kind=kind) if isinstance(named, str) else agent(kind, "chiffon", now)
    return Decoded(message.type, sender, (chiffon_inbound.command_of(sender, message, tree, data),))


def _chiffon_out(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(frame) for frame in chiffon_outbound.wire_of(outgoing, receiver, now)]


# -- agentmsg


def _agentmsg_in(data: bytes, now: Instant) -> Decoded:
    tree = agentmsg_codec.parse(data)
    message = agentmsg_codec.interpret(tree)
    sender = agent(message.sender, "agentmsg", now)
    inbound = Inbound(sender, message, tree, data, now)
    return Decoded(message.type.value, sender, agentmsg_inbound.commands_of(inbound))


def _agentmsg_out(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(agentmsg_outbound.wire_of(outgoing, receiver, now)[0])]


# -- forge


def _forge_in(data: bytes, now: Instant) -> Decoded:
    found = forge_codec.read(data, Role.HUB)
    received = found[0] if found else None
    if isinstance(received, forge_codec.Invalid):
        raise refuse(Kind.INVALID, received.what, field=received.field)
    if not isinstance(received, forge_codec.RequestReceived | forge_codec.EventReceived):
        raise refuse(Kind.INVALID, "no message of a forge agent, whose `type` is `request:…` or `event:…`")
    message = received.message
    sender = agent(message.agent_id or SENDER, "forge", now)
    brought: Sequence[Attachment] = ()
    match message.payload:
        case SubmitTask(attachments=attached):
            brought = attached
        case UpdateTask(file=Attachment() as file) | Progress(file=Attachment() as file):
            brought = (file,)
    contents = [_forge_data(file) for file in brought]
    refs = [_file_ref(file.filename, file.mime_type, data) for file, data in zip(brought, contents, strict=True)]
    command = forge_inbound.command_of(sender, message, received.tree, tuple(refs))
    files = {ref.id: data for ref, data in zip(refs, contents, strict=True)}
    return Decoded(received.tree["type"], sender, () if command is None else (command,), files=files)


def _forge_data(file: Attachment) -> bytes:
    try:
        return forge_mapping.data_in(file.data)
    except ValueError:
        raise refuse(Kind.INVALID, f"the data of {file.filename!r} is no base64", field="data") from None


def _forge_out(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(forge_codec.write(message)) for message in forge_outbound.messages_of(outgoing, now)]


# -- coven


def _coven_in(data: bytes, now: Instant) -> Decoded:
    message = json_form.read(tree_of(data))
    request = message.request_id or str(uuid5(TASKS, "request"))
    if isinstance(message, SendMessage):
        sender = agent(message.sender or SENDER, "coven", now)
        refs = [_coven_file(file) for file in message.attachments]
        command: Command = coven_inbound.submit_of(sender.id, message, refs, find=lambda one: None, request_id=request)
        contents = {ref.id: file.data for ref, file in zip(refs, message.attachments, strict=True)}
        return Decoded("SendMessage", sender, (command,), files=contents)
    sender = agent(SENDER, "coven", now)
    task = TaskId(message.task_id or str(uuid5(TASKS, request)))
    files = {}
    if message.last:
        text = message.event.full_response if isinstance(message.event, Done) else None
        command = coven_inbound.end_of(sender.id, task, Completed(message, text or None, False))
    elif isinstance(message.event, FileData):
        file = _coven_file(message.event)
        files = {file.id: message.event.data}
        command = coven_inbound.progress_of(sender.id, task, message, file)
    else:
        command = coven_inbound.progress_of(sender.id, task, message)
    return Decoded("MessageResponse", sender, (command,), files=files)


def _coven_file(file: FileData) -> FileRef:
    return _file_ref(file.filename, file.mime_type, file.data)


def _coven_out(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    if outgoing.delivery.kind is MessageKind.WORK:
        refs = coven_outbound.attachments_in(outgoing.event)
        attached = tuple(coven_outbound.attached(file, files.get(file.id, b"")) for file in refs)
        return [json_form.written(coven_outbound.message_of(outgoing, attached))]
    if outgoing.delivery.kind is MessageKind.CANCEL:  # to agents that declare the extension
        reason = coven_outbound.reason_of(outgoing)
        return [json_form.written(Cancel(request_id=outgoing.task.request_id, reason=reason))]
    return []


def _coven_event(event: Event, task: Task, files: Files) -> list[Any]:
    file = coven_outbound.file_in(event)
    data = None if file is None else files.get(file.id, b"")
    answers = coven_outbound.responses_of(event, task, request_id=task.origin.request_id, data=data)
    return [json_form.written(one) for one in answers]


# -- a2acp

BROKER = Party(agent_id=BROKER_ID, domain="a_domain", version="1.0.0")
WITH_THE_BROKER = frozenset({intents.DISCOVER, intents.INITIATE, intents.ACCEPT, intents.TERMINATE, intents.ROTATE})


def _a2acp_in(data: bytes, now: Instant) -> Decoded:
    tree = a2acp_codec.parse(data)
    message = a2acp_codec.interpret(tree)
    by = message.source_agent
    sender = agent(by.agent_id, "a2acp", now, domain=by.domain, version=by.version)
    kind = f"{message.message_type.value} {message.intent or ''}".strip()
    if message.intent in WITH_THE_BROKER:
        raise refuse(Kind.UNSUPPORTED_WORK, f"{kind}: {ONLY_FOR_THE_HUB}")
    if message.security.encryption != "none":
        raise refuse(Kind.FORBIDDEN, "its payload is encrypted, and the translator has no key")
    asks, named = message.message_type is MessageType.REQUEST, message.correlation_id
    if not asks and named is None:
        raise refuse(Kind.INVALID, "missing", next="it says which request is meant", field="payload.correlation_id")
    contract = _contract(sender, message.intent, now) if asks and message.intent is not None else None
    content = {name: value for name, value in (message.payload or {}).items() if name not in RESERVED}
    task = None if named is None else TaskId(named if _is_uuid(named) else str(uuid5(TASKS, named)))
    known = InboundMessage(sender, message, tree, now, contract=contract, content=content, task=task)
    return Decoded(kind, sender, (a2acp_inbound.command_of(known),), contract)


def _contract(sender: Agent, intent: str, now: Instant) -> Contract:
    domain = sender.domain or "default"
    return Contract(
        id="contract", collaboration="collaboration", source=Side(sender.id, domain, "1.0.0"),
        target=Side(RECEIVER, domain, "1.0.0"), offer=Offer(intent=intent), created_at=now,
        expires_at=Instant(now + HOUR), since=now,
    )  # fmt: skip


def _a2acp_out(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    broker = Broker(
        agent=BROKER,
        party=lambda one: Party(agent_id=one, domain="default", version="1.0.0"),
        called=lambda task: task.id,
        token=lambda one: "…",
        shut=_seal,
        grant=lambda contract, one: None,
    )
    return [msgspec.json.decode(a2acp_outbound.wire_of(outgoing, receiver.id, now, broker, None))]


def _seal(contract: Contract) -> NoReturn:
    raise AssertionError("the translator seals nothing")


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


ADAPTERS: Mapping[str, Adapter] = {
    "chiffon": Adapter(_chiffon_in, _chiffon_out),
    "coven": Adapter(_coven_in, _coven_out, _coven_event),
    "forge": Adapter(_forge_in, _forge_out),
    "agentmsg": Adapter(_agentmsg_in, _agentmsg_out),
    "a2acp": Adapter(_a2acp_in, _a2acp_out),
}
