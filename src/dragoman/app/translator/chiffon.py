"""The translator's adapter for chiffon."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.app.translator.adapter import Adapter, Decoded, Files, agent
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.protocols.chiffon import codec
from dragoman.server.chiffon import inbound, outbound


def decode(data: bytes, now: Instant) -> Decoded:
    tree = codec.parse(data)
    message = codec.interpret(tree, data)
    named = message.x_custom_fields.get("agent_id") if message.type != "work_request" else None
    kind = message.from_agent
    sender = agent(named, "chiffon", now, kind=kind) if isinstance(named, str) else agent(kind, "chiffon", now)
    return Decoded(message.type, sender, (inbound.command_of(sender, message, tree, data),))


def encode(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    return [msgspec.json.decode(frame) for frame in outbound.wire_of(outgoing, receiver, now)]


ADAPTER = Adapter(decode, encode)
