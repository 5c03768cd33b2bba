"""Forge in the booth."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.app.booth.tongue import SPEAKER, Heard, Shelf, agent, kept
from dragoman.bindings import forge
from dragoman.bindings.forge.inbound import progress, update
from dragoman.core.agents.model import Agent
from dragoman.core.commands import Command
from dragoman.core.delivery.model import Outgoing
from dragoman.core.ids import Instant
from dragoman.core.tasks.model import Event, Task
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.events import EventReceived, Invalid, RequestReceived
from dragoman.protocols.forge.types import Attachment, Message, Progress, SubmitTask, UpdateTask
from dragoman.wire.role import Role

FOLLOWS = False


def hear(data: bytes, now: Instant) -> Heard:
    found = codec.read(data, Role.HUB)
    said = found[0] if found else None
    if isinstance(said, Invalid):
        raise refuse(Kind.INVALID, said.what, field=said.field)
    if not isinstance(said, RequestReceived | EventReceived):
        raise refuse(Kind.INVALID, "no message of a forge agent, whose `type` is `request:…` or `event:…`")
    speaker = agent(said.message.agent_id or SPEAKER, "forge", now)
    command = _command(speaker, said.message, said.tree)
    files = {_kept(file).id: base64.b64decode(file.data) for file in _brought(said.message)}
    return Heard(said.tree["type"], speaker, () if command is None else (command,), files=files)


def _command(speaker: Agent, message: Message, tree: dict[str, Any]) -> Command | None:
    """What it asks for, with its files as if they had been kept."""
    match message.payload:
        case SubmitTask(attachments=attached) if attached:
            return forge.submission(speaker, message, tree, tuple(map(_kept, attached)))
        case UpdateTask(file=Attachment() as file, status="running") as said:
            return update(speaker, message, said, tree, _kept(file))
        case Progress(file=Attachment() as file) as said:
            return progress(speaker, message, said, tree, _kept(file))
    return forge.command_of(speaker, message, tree)


def _brought(message: Message) -> Sequence[Attachment]:
    match message.payload:
        case SubmitTask(attachments=attached):
            return attached
        case UpdateTask(file=Attachment() as file) | Progress(file=Attachment() as file):
            return (file,)
    return ()


def _kept(file: Attachment) -> FileRef:
    try:
        return kept(file.filename, file.mime_type, base64.b64decode(file.data, validate=True))
    except ValueError:
        raise refuse(Kind.INVALID, f"the data of {file.filename!r} is no base64", field="data") from None


def say(outgoing: Outgoing, receiver: Agent, now: Instant, files: Shelf) -> list[Any]:
    return [msgspec.json.decode(codec.write(message)) for message in forge.messages_of(outgoing, receiver, now)]


def follow(event: Event, task: Task, files: Shelf) -> list[Any]:
    return []
