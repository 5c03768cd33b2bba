"""Agentmsg in the booth."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.app.booth.tongue import Heard, Shelf, agent
from dragoman.bindings import agentmsg
from dragoman.core.agents.model import Agent
from dragoman.core.delivery.model import Outgoing
from dragoman.core.ids import Instant
from dragoman.core.tasks.model import Event, Task
from dragoman.protocols.agentmsg import codec

FOLLOWS = False


def hear(data: bytes, now: Instant) -> Heard:
    tree = codec.parse(data)
    message = codec.interpret(tree)
    speaker = agent(message.sender, "agentmsg", now)
    return Heard(message.type.value, speaker, agentmsg.commands_of(speaker, message, tree, data, now=now))


def say(outgoing: Outgoing, receiver: Agent, now: Instant, files: Shelf) -> list[Any]:
    return [msgspec.json.decode(agentmsg.wire_of(outgoing, receiver, now)[0])]


def follow(event: Event, task: Task, files: Shelf) -> list[Any]:
    return []
