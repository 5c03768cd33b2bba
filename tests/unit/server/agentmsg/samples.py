"""Messages, agents, tasks and outgoing messages to try the agentmsg binding with: `ada` assigned a task, and `bob` does
it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.conformance.agentmsg import samples
from tests.support.heads import task_head

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Delivery, DirectMessage, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.protocols.agentmsg import codec
from dragoman.protocols.agentmsg.connection import Connection, Received
from dragoman.server.agentmsg.inbound import commands_of
from dragoman.server.agentmsg.inbound.message import Inbound
from dragoman.server.agentmsg.outbound import wire_of
from dragoman.wire import Role

NOW = Instant(1_772_366_400_000_000)  # 2026-03-01T12:00:00Z, when the samples were written
TASK = "550e8400-e29b-41d4-a716-446655440004"
DELIVERY = "01a1e135-5828-73d3-96c2-ab61ababb946"
TRACE = "550e8400e29b41d4a716446655440002"


def agent(id: str, **more: Any) -> Agent:
    return Agent(id=AgentId(id), protocol="agentmsg", created_at=NOW, token_hash="-", **more)


ADA, BOB = agent("ada"), agent("bob")


def message(name: str, *, to: str | None = None, payload: dict[str, Any] | None = None, **metadata: Any) -> Any:
    """A sample as JSON, with some fields of its payload and metadata changed."""
    tree = copy.deepcopy(samples.tree(name, **metadata))
    tree["payload"] = {**tree["payload"], **(payload or {})}
    if to is not None:
        tree["to"] = to
        if "to_agent" in tree["payload"]:
            tree["payload"]["to_agent"] = to if to != "hub" else "*"
    return tree


def commands_from(tree: dict[str, Any], *, by: Agent = ADA, now: Instant = NOW, **more: Any) -> tuple[Command, ...]:
    """The commands that an agent's message becomes."""
    data = json.dumps(tree).encode()
    parsed = codec.parse(data)
    return commands_of(Inbound(by, codec.interpret(parsed), parsed, data, now, **more))


def encoded(outgoing: Outgoing, receiver: Agent = ADA) -> dict[str, Any]:
    """The message of an outgoing message, which a strict agent takes."""
    frame, id = wire_of(outgoing, receiver, NOW)
    (event,) = Connection(Role.AGENT, receiver.id).receive(frame)
    assert isinstance(event, Received), event
    assert event.message.id == id
    told: dict[str, Any] = json.loads(frame)
    assert told["metadata"]["delivery_id"] == outgoing.delivery.id
    return told


def delivered(message_kind: MessageKind, task: Any, event: Any, **more: Any) -> Outgoing:
    delivery = Delivery(
        id=DeliveryId(DELIVERY),
        task=TaskId(TASK),
        receiver=AgentId("ada"),
        seq=1,
        kind=message_kind,
        event=1,
        rank=0,
        created_at=NOW,
        **{"attempt": 1, **more},
    )
    return Outgoing(delivery, task, event)


def direct_message_of(tree: dict[str, Any], **more: Any) -> DirectMessage:
    return DirectMessage(
        sender=AgentId(tree["from"]),
        message_id=tree["id"],
        kind=tree["type"],
        digest="-",
        raw=msgspec.Raw(json.dumps(tree).encode()),
        protocol="agentmsg",
        **more,
    )


@pytest.fixture
def task() -> Task:
    return task_head(
        id=TaskId(TASK),
        type="review",
        status=Status.RUNNING,
        origin=Origin(principal=AgentId("ada"), protocol="agentmsg", request_id="r-1", digest="-", called="t-1"),
        created_at=NOW,
        updated_at=NOW,
        route="-",
        deadline=Instant(NOW + 3_600_000_000),
        idle_limit=1,
        rank=0,
        trace_id=TRACE,
        owner=AgentId("bob"),
        attempts=2,
    )


@pytest.fixture
def outgoing(task: Task) -> Callable[..., Outgoing]:
    def make(
        message_kind: MessageKind,
        kind: EventKind = EventKind.SUBMITTED,
        body: dict[str, Any] | None = None,
        *,
        raw: dict[str, Any] | None = None,
        protocol: str | None = None,
        of: Task = task,
        by: str | None = None,
        **more: Any,
    ) -> Outgoing:
        event = Event(
            task=of.id,
            seq=1,
            at=NOW,
            kind=kind,
            agent=AgentId(by) if by else None,
            body=msgspec.Raw(msgspec.json.encode(body or {})),
            protocol=protocol or ("agentmsg" if raw else "api"),
            raw=json.dumps(raw).encode() if raw else None,
        )
        return delivered(message_kind, of, event, **more)

    return make
