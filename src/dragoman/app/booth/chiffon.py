"""Chiffon in the booth."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.app.booth.tongue import Heard, Shelf, agent
from dragoman.bindings import chiffon
from dragoman.core.agents.model import Agent
from dragoman.core.delivery.model import Outgoing
from dragoman.core.ids import Instant
from dragoman.core.tasks.model import Event, Task
from dragoman.protocols.chiffon import codec

FOLLOWS = False


def hear(data: bytes, now: Instant) -> Heard:
    tree = codec.parse(data)
    message = codec.interpret(tree, data)
    named = message.x_custom_fields.get("agent_id") if message.type != "work_request" else None
    kind = message.from_agent
    speaker = agent(named, "chiffon", now, kind=kind) if isinstance(named, str) else agent(kind, "chiffon", now)
    return Heard(message.type, speaker, (chiffon.command_of(speaker, message, tree, data),))


def say(outgoing: Outgoing, receiver: Agent, now: Instant, files: Shelf) -> list[Any]:
    return [msgspec.json.decode(frame) for frame in chiffon.wire_of(outgoing, receiver, now)]


def follow(event: Event, task: Task, files: Shelf) -> list[Any]:
    return []
