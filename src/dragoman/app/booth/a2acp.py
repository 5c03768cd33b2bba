"""A2acp in the booth: whoever speaks has a contract with whoever hears, and nobody is held to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import msgspec

from dragoman.app.booth.tongue import LISTENER, NOBODY_ELSE, TASKS, Heard, Shelf, agent
from dragoman.bindings import a2acp
from dragoman.core.agents.model import Agent, Offer
from dragoman.core.contracts.model import Contract
from dragoman.core.contracts.model import Party as Side
from dragoman.core.delivery.model import Outgoing
from dragoman.core.ids import HOUR, Instant, TaskId
from dragoman.core.tasks.model import Event, Task
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.types import BROKER_ID, RESERVED, MessageType
from dragoman.protocols.a2acp.types import Agent as Party

FOLLOWS = False
TOKEN = "…"
BROKER = Party(agent_id=BROKER_ID, domain="a_domain", version="1.0.0")
WITH_THE_BROKER = frozenset({intents.DISCOVER, intents.INITIATE, intents.ACCEPT, intents.TERMINATE, intents.ROTATE})


def hear(data: bytes, now: Instant) -> Heard:
    tree = codec.parse(data)
    message = codec.interpret(tree)
    by = message.source_agent
    speaker = agent(by.agent_id, "a2acp", now, domain=by.domain, version=by.version)
    kind = f"{message.message_type.value} {message.intent or ''}".strip()
    if message.intent in WITH_THE_BROKER:
        raise refuse(Kind.UNSUPPORTED_WORK, f"{kind}: {NOBODY_ELSE}")
    if message.security.encryption != "none":
        raise refuse(Kind.FORBIDDEN, "its payload is sealed; only whoever has the key can say what it means")
    asks, named = message.message_type is MessageType.REQUEST, message.correlation_id
    if not asks and named is None:
        raise refuse(Kind.INVALID, "missing; it says which request is meant", field="payload.correlation_id")
    contract = _contract(speaker, message.intent, now) if asks and message.intent is not None else None
    content = {name: value for name, value in (message.payload or {}).items() if name not in RESERVED}
    task = None if named is None else TaskId(named if _is_uuid(named) else str(uuid5(TASKS, named)))
    said = a2acp.Said(speaker, message, tree, now, contract=contract, content=content, task=task)
    return Heard(kind, speaker, (a2acp.command_of(said),), contract)


def say(outgoing: Outgoing, receiver: Agent, now: Instant, files: Shelf) -> list[Any]:
    voice = a2acp.Voice(
        broker=BROKER,
        party=lambda one: Party(agent_id=one, domain="default", version="1.0.0"),
        called=lambda task: task.id,
        token=lambda one: TOKEN,
        shut=_never,
        grant=lambda contract, one: None,
    )
    return [msgspec.json.decode(a2acp.wire_of(outgoing, receiver.id, now, voice, None))]


def follow(event: Event, task: Task, files: Shelf) -> list[Any]:
    return []


def _never(contract: Contract) -> Any:
    raise AssertionError("nothing is sealed in the booth")


def _contract(speaker: Agent, intent: str, now: Instant) -> Contract:
    domain = speaker.domain or "default"
    return Contract(
        id="contract", collaboration="collaboration", source=Side(speaker.id, domain, "1.0.0"),
        target=Side(LISTENER, domain, "1.0.0"), offer=Offer(intent=intent), created_at=now,
        expires_at=Instant(now + HOUR), since=now,
    )  # fmt: skip


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False
