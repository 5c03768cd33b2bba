"""The translator's adapter for agentmsg."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.app.translator.adapter import Adapter, Decoded, Files, agent
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.protocols.agentmsg import codec
from dragoman.server.agentmsg.inbound import commands_of
from dragoman.server.agentmsg.outbound import wire_of


def decode(data: bytes, now: Instant) -> Decoded:
    tree = codec.parse(data)
    message = codec.interpret(tree)
    sender = agent(message.sender, "agentmsg", now)
    return Decoded(message.type.value, sender, commands_of(sender, message, tree, data, now=now))


def encode(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(wire_of(outgoing, receiver, now)[0])]


ADAPTER = Adapter(decode, encode)
