"""The translator's adapter for forge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.app.translator.adapter import SENDER, Adapter, Decoded, Files, agent, file_ref
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.protocols.forge import codec, mapping
from dragoman.protocols.forge.codec import EventReceived, Invalid, RequestReceived
from dragoman.protocols.forge.types import Attachment, Message, Progress, SubmitTask, UpdateTask
from dragoman.server.forge.inbound import command_of
from dragoman.server.forge.outbound import messages_of
from dragoman.wire.role import Role


def decode(data: bytes, now: Instant) -> Decoded:
    found = codec.read(data, Role.HUB)
    received = found[0] if found else None
    if isinstance(received, Invalid):
        raise refuse(Kind.INVALID, received.what, field=received.field)
    if not isinstance(received, RequestReceived | EventReceived):
        raise refuse(Kind.INVALID, "no message of a forge agent, whose `type` is `request:…` or `event:…`")
    sender = agent(received.message.agent_id or SENDER, "forge", now)
    brought = _brought(received.message)
    refs = tuple(map(_file_ref, brought))
    files = {ref.id: mapping.data_in(file.data) for ref, file in zip(refs, brought, strict=True)}
    command = command_of(sender, received.message, received.tree, refs)
    return Decoded(received.tree["type"], sender, () if command is None else (command,), files=files)


def _brought(message: Message) -> Sequence[Attachment]:
    match message.payload:
        case SubmitTask(attachments=attached):
            return attached
        case UpdateTask(file=Attachment() as file) | Progress(file=Attachment() as file):
            return (file,)
    return ()


def _file_ref(file: Attachment) -> FileRef:
    try:
        return file_ref(file.filename, file.mime_type, mapping.data_in(file.data))
    except ValueError:
        raise refuse(Kind.INVALID, f"the data of {file.filename!r} is no base64", field="data") from None


def encode(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(codec.write(message)) for message in messages_of(outgoing, now)]


ADAPTER = Adapter(decode, encode)
