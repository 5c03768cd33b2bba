"""Forge in the booth."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.app.booth.tongue import SPEAKER, Heard, agent
from dragoman.bindings import forge
from dragoman.core.agents.model import Agent
from dragoman.core.delivery.model import Parcel
from dragoman.core.errors import Kind, refuse
from dragoman.core.ids import Instant
from dragoman.core.tasks.model import Event, Task
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.events import EventReceived, Invalid, RequestReceived
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
    command = forge.command_of(speaker, said.message, said.tree)
    return Heard(said.tree["type"], speaker, () if command is None else (command,))


def say(parcel: Parcel, receiver: Agent, now: Instant) -> list[Any]:
    return [msgspec.json.decode(codec.write(message)) for message in forge.messages_of(parcel, receiver, now)]


def follow(event: Event, task: Task) -> list[Any]:
    return []
