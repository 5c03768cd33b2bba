"""The translator's adapter for a2acp: the sender has a contract with the receiver, and nobody is held to it."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid5

import msgspec

from dragoman.app.translator.adapter import ONLY_FOR_THE_HUB, RECEIVER, TASKS, Adapter, Decoded, Files, agent
from dragoman.core.ids import HOUR, Instant, TaskId
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract
from dragoman.core.model.contracts import Party as Side
from dragoman.core.model.deliveries import Outgoing
from dragoman.messages.faults import Kind, refuse
from dragoman.protocols.a2acp import codec, intents
from dragoman.protocols.a2acp.types import BROKER_ID, RESERVED, MessageType
from dragoman.protocols.a2acp.types import Agent as Party
from dragoman.server.a2acp import outbound
from dragoman.server.a2acp.builder import Voice
from dragoman.server.a2acp.inbound import command_of
from dragoman.server.a2acp.said import Said

TOKEN = "…"
BROKER = Party(agent_id=BROKER_ID, domain="a_domain", version="1.0.0")
WITH_THE_BROKER = frozenset({intents.DISCOVER, intents.INITIATE, intents.ACCEPT, intents.TERMINATE, intents.ROTATE})


def decode(data: bytes, now: Instant) -> Decoded:
    tree = codec.parse(data)
    message = codec.interpret(tree)
    by = message.source_agent
    sender = agent(by.agent_id, "a2acp", now, domain=by.domain, version=by.version)
    kind = f"{message.message_type.value} {message.intent or ''}".strip()
    if message.intent in WITH_THE_BROKER:
        raise refuse(Kind.UNSUPPORTED_WORK, f"{kind}: {ONLY_FOR_THE_HUB}")
    if message.security.encryption != "none":
        raise refuse(Kind.FORBIDDEN, "its payload is encrypted, and the translator has no key")
    asks, named = message.message_type is MessageType.REQUEST, message.correlation_id
    if not asks and named is None:
        raise refuse(Kind.INVALID, "missing; it says which request is meant", field="payload.correlation_id")
    contract = _contract(sender, message.intent, now) if asks and message.intent is not None else None
    content = {name: value for name, value in (message.payload or {}).items() if name not in RESERVED}
    task = None if named is None else TaskId(named if _is_uuid(named) else str(uuid5(TASKS, named)))
    known = Said(sender, message, tree, now, contract=contract, content=content, task=task)
    return Decoded(kind, sender, (command_of(known),), contract)


def encode(outgoing: Outgoing, receiver: Agent, now: Instant, files: Files) -> list[Any]:
    voice = Voice(
        broker=BROKER,
        party=lambda one: Party(agent_id=one, domain="default", version="1.0.0"),
        called=lambda task: task.id,
        token=lambda one: TOKEN,
        shut=_never,
        grant=lambda contract, one: None,
    )
    return [msgspec.json.decode(outbound.wire_of(outgoing, receiver.id, now, voice, None))]


def _never(contract: Contract) -> Any:
    raise AssertionError("the translator seals nothing")


def _contract(sender: Agent, intent: str, now: Instant) -> Contract:
    domain = sender.domain or "default"
    return Contract(
        id="contract", collaboration="collaboration", source=Side(sender.id, domain, "1.0.0"),
        target=Side(RECEIVER, domain, "1.0.0"), offer=Offer(intent=intent), created_at=now,
        expires_at=Instant(now + HOUR), since=now,
    )  # fmt: skip


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


ADAPTER = Adapter(decode, encode)
