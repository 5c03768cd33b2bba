"""What the translator needs of a protocol. The sender is whom the message names: here nobody has a token."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID, uuid5

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, Instant, instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.model.tasks import Event, Task
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef
from dragoman.wire import guard

SENDER, RECEIVER = AgentId("speaker"), AgentId("listener")
TASKS = UUID("8c4c1c6c-6f6a-5d32-8d0e-64726167eeee")
"""Namespace of the tasks that a message means by a name of its own."""
ONLY_FOR_THE_HUB = "it is between its agent and the hub; nobody else hears of it"
LIMITS = guard.Limits(bytes=16 * 1024 * 1024)


Files: TypeAlias = Mapping[str, bytes]
"""Files by their ids."""


class Decoded(NamedTuple):
    """What a message says: its kind in its own words, who says it, and what that means to the hub."""

    kind: str
    sender: Agent
    commands: Sequence[Command]
    contract: Contract | None = None
    files: Files = MappingProxyType({})
    """What it brought: a hub would have kept it."""


class Adapter(NamedTuple):
    """A protocol as the translator uses it: `ADAPTER` of the protocol's module in this package.

    `decode` raises `RemoteProtocolError` for bytes that are no message, `Refused` for a message that means nothing.
    `encode` returns what arrives, as JSON. `encode_event` is for protocols whose callers read the events of a task
    themselves.
    """

    decode: Callable[[bytes, Instant], Decoded]
    encode: Callable[[Outgoing, Agent, Instant, Files], list[Any]]
    encode_event: Callable[[Event, Task, Files], list[Any]] | None = None


def adapter_of(protocol: str) -> Adapter:
    adapter: Adapter = import_module(f"dragoman.app.translator.{protocol}").ADAPTER
    return adapter


def agent(id: str, protocol: str, now: Instant, **more: Any) -> Agent:
    return Agent(id=AgentId(id), protocol=protocol, created_at=now, token_hash=f"translator:{id}", **more)


def file_ref(name: str, mime_type: str, data: bytes) -> FileRef:
    """A file as the hub would know it, had it been kept."""
    digest = hashlib.sha256(data).hexdigest()
    return FileRef(id=str(uuid5(TASKS, digest)), name=name, mime_type=mime_type, size=len(data), sha256=digest)


def tree_of(data: bytes) -> dict[str, Any]:
    tree = guard.check(data, LIMITS)
    if not isinstance(tree, dict):
        raise refuse(Kind.INVALID, "a message is a JSON object")
    return tree


def sent_at(tree: Mapping[str, Any], now: Instant) -> Instant:
    """When a message was said, by its own word: what it says of times is meant from there."""
    text = tree.get("timestamp")
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
        return now if at is None or at.tzinfo is None else instant(at)
    except (ValueError, OverflowError):
        return now
