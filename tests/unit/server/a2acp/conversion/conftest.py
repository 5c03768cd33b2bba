"""Agents, contracts, messages and outgoing messages to try the a2acp binding with: `ada` asks, `bob` serves."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.conformance.a2acp import samples
from tests.support.heads import task_head

from dragoman.core.commands import Command
from dragoman.core.ids import SECOND, AgentId, DeliveryId, Instant, QuestionId, TaskId, instant
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract, Party, Secret
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import (
    Asking,
    Event,
    EventKind,
    Origin,
    Question,
    QuestionDetails,
    QuestionStatus,
    Status,
    Task,
)
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.intents import misspoken
from dragoman.protocols.a2acp.sealing import KeyGrant
from dragoman.server.a2acp.contracts import party_of
from dragoman.server.a2acp.frames import Broker
from dragoman.server.a2acp.inbound import InboundMessage, command_of
from dragoman.server.a2acp.outbound import wire_of
from dragoman.wire import Role

NOW = instant(samples.START)
TASK = TaskId("550e8400-e29b-41d4-a716-446655440004")
DELIVERY = DeliveryId("01a1e135-5828-73d3-96c2-ab61ababb946")
TRACE = "550e8400e29b41d4a716446655440002"
REQUEST_ID = "11111111-1111-4111-8111-111111111111"


def agent(id: str, domain: str, version: str, **more: Any) -> Agent:
    fields: dict[str, Any] = {"protocol": "a2acp", "domain": domain, "version": version, **more}
    return Agent(id=AgentId(id), created_at=NOW, token_hash="-", **fields)


ADA = agent("ada", "lab", "1.2.3")
BOB = agent("bob", "ward", "2.1.0")
OFFER = Offer(
    intent="provision",
    input_schema=samples.CAPABILITY.input_schema,
    output_schema=samples.CAPABILITY.output_schema,
    version="1.4.0",
    required_capabilities=("write:datasets",),
)


def contract(**more: Any) -> Contract:
    fields: dict[str, Any] = {
        "id": "c-1",
        "collaboration": "l-1",
        "source": Party(AgentId("ada"), "lab", "1.2.3"),
        "target": Party(AgentId("bob"), "ward", "2.1.0"),
        "offer": OFFER,
        "created_at": NOW,
        "expires_at": Instant(NOW + 3600 * SECOND),
        "since": NOW,
        **more,
    }
    return Contract(**fields)


SECRET = Secret(kid="k-1", locked="-", source_key="A" * 43, target_key="B" * 43)


def command_from(
    kind: str = "request", *, by: Agent = ADA, known: dict[str, Any] | None = None, **replaced: Any
) -> Command:
    """The command that an agent's message becomes, with what the hub knows of it."""
    tree = samples.tree(kind, **replaced)
    message = codec.interpret(codec.parse(json.dumps(tree).encode()))
    return command_of(InboundMessage(by, message, tree, NOW, **(known or {})))


def task(**more: Any) -> Task:
    origin = Origin(
        principal=AgentId("ada"), protocol="a2acp", request_id=REQUEST_ID, digest="-", called=more.pop("called", "k-1")
    )
    fields: dict[str, Any] = {
        "type": "provision",
        "status": Status.ASSIGNED,
        "origin": origin,
        "contract": "c-1",
        **more,
    }
    return task_head(
        id=TASK, created_at=NOW, updated_at=NOW, route="bob", deadline=NOW, idle_limit=1, rank=0, trace_id=TRACE,
        owner=AgentId("bob"), **fields,
    )  # fmt: skip


def outgoing(
    message_kind: MessageKind, body: dict[str, Any], kind: EventKind = EventKind.SUBMITTED, **more: Any
) -> Outgoing:
    event = Event(
        task=TASK, seq=1, at=NOW, kind=kind, agent=more.pop("agent", None), protocol=more.pop("protocol", None),
        body=msgspec.Raw(json.dumps(body).encode()),
    )  # fmt: skip
    return Outgoing(delivery(message_kind), task(**more), event)


def news(message_kind: MessageKind, about: Any, **more: Any) -> Outgoing:
    """What belongs to no task."""
    return Outgoing(delivery(message_kind, **more), None, about)


def delivery(message_kind: MessageKind, **more: Any) -> Delivery:
    fields = {"created_at": NOW, **more}
    return Delivery(
        id=DELIVERY, task=TASK, receiver=AgentId("bob"), seq=1, kind=message_kind, event=1, rank=0, **fields
    )


def question(answer: Any = None, **more: Any) -> Question:
    fields: dict[str, Any] = {
        "status": QuestionStatus.WITH_AGENT if answer is None else QuestionStatus.ANSWERED,
        **more,
    }
    details = QuestionDetails(contract=contract(encrypted=True, secret=SECRET), correlation_id="h-1")
    return Question(
        id=QuestionId("q-1"), task=None, agent=AgentId("ada"), question="?", created_at=NOW, request_id=REQUEST_ID,
        answer=answer, about=Asking.HANDSHAKE, asked_of=AgentId("bob"), details=details, **fields,
    )  # fmt: skip


def broker() -> Broker:
    known = {one.id: one for one in (ADA, BOB)}
    return Broker(
        agent=samples.BROKER,
        party=lambda name: party_of(known[name]) if name in known else samples.BROKER,
        called=lambda task: task.id,
        token=lambda receiver: f"for-{receiver}",
        shut=lambda row: lambda plain, bound: {
            "alg": "A256GCM", "kid": "k-1", "nonce": "N" * 16, "ciphertext": f"{len(plain + bound('k-1'))}{'c' * 22}",
        },
        grant=lambda row, receiver: KeyGrant(kid="k-1", public_key="P" * 43) if row.secret else None,
    )  # fmt: skip


def encoded(outgoing: Outgoing, to: Agent = BOB, row: Contract | None = None, **more: Any) -> dict[str, Any]:
    """The message of an outgoing message, which a strict agent takes."""
    frame = wire_of(outgoing, to.id, NOW, broker(), row, **more)
    assert misspoken(codec.decode(frame), Role.HUB, party_of(to), samples.BROKER) is None
    return dict(json.loads(frame))


class Kit:
    agent = staticmethod(agent)
    contract = staticmethod(contract)
    command_from = staticmethod(command_from)
    task = staticmethod(task)
    outgoing = staticmethod(outgoing)
    news = staticmethod(news)
    question = staticmethod(question)
    encoded = staticmethod(encoded)
    ada, bob, secret, offer, now = ADA, BOB, SECRET, OFFER, NOW
    task_id, delivery_id, request_id = TASK, DELIVERY, REQUEST_ID


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
