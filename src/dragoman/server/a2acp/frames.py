"""A message of the hub to an a2acp agent: its envelope, its names, and how large it may be. Pure.

`outbound` decides what stands in it; what it needs and cannot make (tokens, keys, names of others) is in a `Broker`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.core.ids import AgentId, DeliveryId, Instant, rfc3339
from dragoman.core.model.contracts import Contract
from dragoman.core.model.tasks import Task
from dragoman.messages.tasks import Json
from dragoman.protocols.a2acp.sealing import KeyGrant
from dragoman.protocols.a2acp.types import (
    MESSAGE_BYTES,
    PAYLOAD_BYTES,
    PROTOCOL_VERSION,
    Agent,
)

_slices = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
_is_version_4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}").fullmatch
Shut = Callable[[bytes, Callable[[str], bytes]], dict[str, str]]
"""Seals a payload; what it is bound to depends on the key's name."""


class Broker(msgspec.Struct, frozen=True, kw_only=True):
    """What a message needs and a pure layer cannot make or know: names, tokens, keys."""

    agent: Agent
    party: Callable[[AgentId], Agent]
    """An agent as others see it; the broker itself for people."""
    called: Callable[[Task], str]
    """The correlation id by which a task's owner knows it."""
    token: Callable[[str], str]
    """The broker's token for one receiver."""
    shut: Callable[[Contract], Shut]
    grant: Callable[[Contract, AgentId], KeyGrant | None]


def message_id(delivery: str) -> str:
    """The id of the message that carries a delivery: of version 4 by its form, and it can be turned back."""
    return f"{delivery[:14]}4{delivery[15:]}"


def delivery_named(message_id: str) -> DeliveryId:
    """The delivery that a message of the hub carried, by the message's id or its own."""
    return DeliveryId(f"{message_id[:14]}7{message_id[15:]}" if _is_version_4(message_id) else message_id)


def thread_of(task: Task) -> str:
    """The correlation id by which a task's caller knows it."""
    return task.origin.called or task.origin.request_id


def oversize(message: bytes, added: int = 0) -> dict[str, int]:
    """The limit that a message exceeds (D10), and its size; empty if it exceeds none."""
    if len(message) <= PAYLOAD_BYTES:
        return {}
    size = len(_slices(message)["payload"])
    if size > PAYLOAD_BYTES + added:
        return {"limit": PAYLOAD_BYTES, "size": size}
    return {"limit": MESSAGE_BYTES, "size": len(message)} if len(message) > MESSAGE_BYTES else {}


def frame(
    kind: str, intent: str | None, payload: Mapping[str, Any], *, id: str, now: Instant, source: Agent, target: Agent,
    token: str, encryption: str = "none", extra: Mapping[str, Any] | None = None,
) -> bytes:  # fmt: skip
    """A message of the hub; `extra` are fields beside the protocol's own."""
    message: Json = dict(extra or {})
    message |= {
        "protocol_version": PROTOCOL_VERSION,
        "message_id": id,
        "timestamp": rfc3339(now),
        "source_agent": source,
        "target_agent": target,
        "message_type": kind,
    }
    if intent is not None:
        message["intent"] = intent
    message["payload"] = payload
    message["security"] = {"auth_token": token, "encryption": encryption}
    return _encode(message)
