"""Messages, agents, tasks and outgoing messages to map from and to chiffon."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.support.heads import task_head

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.protocols.chiffon import codec
from dragoman.server.chiffon.inbound import command_of

NOW = Instant(1_768_796_464_000_000)  # 2026-01-19T04:21:04Z
TASK = "550e8400-e29b-41d4-a716-446655440004"
REQUEST = "550e8400-e29b-41d4-a716-446655440003"
TRACE = "550e8400-e29b-41d4-a716-446655440002"
DELIVERY = "01a1e135-5828-73d3-96c2-ab61ababb946"

PAYLOADS: dict[str, dict[str, Any]] = {
    "work_request": {"task_id": TASK, "work_type": "run_playbook", "parameters": {"playbook": "deploy.yml"}},
    "work_status": {"task_id": TASK, "status": "running", "progress_percent": 50},
    "work_result": {"task_id": TASK, "status": "success", "exit_code": 0, "output": "done"},
    "error": {"error_code": 5005, "error_message": "no GPU", "error_context": {"limit_name": "gpu_vram_mb"}},
}


def agent(id: str = "orch-1", kind: str | None = "orchestrator", **more: Any) -> Agent:
    return Agent(id=AgentId(id), protocol="chiffon", created_at=NOW, token_hash="-", kind=kind, **more)


@pytest.fixture
def orchestrator() -> Agent:
    return agent()


@pytest.fixture
def infra() -> Agent:
    return agent("infra-1", "infra", protocol_version="1.0")


@pytest.fixture
def envelope() -> Callable[..., dict[str, Any]]:
    def make(type: str = "work_request", custom: dict[str, Any] | None = None, **payload: Any) -> dict[str, Any]:
        worker = type != "work_request"
        return {
            "protocol_version": "1.0",
            "message_id": "550e8400-e29b-41d4-a716-446655440001",
            "from_agent": "infra" if worker else "orchestrator",
            "to_agent": "orchestrator" if worker else "infra",
            "timestamp": "2026-01-19T04:21:04Z",
            "trace_id": TRACE,
            "request_id": REQUEST,
            "type": type,
            "payload": {**PAYLOADS[type], **payload},
            "x_custom_fields": custom or {},
        }

    return make


@pytest.fixture
def command_from() -> Callable[..., Any]:
    """The command that an agent's message becomes."""

    def make(sender: Agent, message: dict[str, Any], **more: Any) -> Command:
        raw = json.dumps(message).encode()
        tree = codec.parse(raw)
        return command_of(sender, codec.interpret(tree, raw), tree, raw, **more)

    return make


@pytest.fixture
def task() -> Task:
    return task_head(
        id=TaskId(TASK),
        type="run_playbook",
        status=Status.RUNNING,
        origin=Origin(principal=AgentId("orch-1"), protocol="chiffon", request_id=REQUEST, digest="-"),
        created_at=NOW,
        updated_at=NOW,
        route="infra",
        deadline=NOW,
        idle_limit=1,
        rank=0,
        trace_id=TRACE.replace("-", ""),
        kind="infra",
        owner=AgentId("infra-1"),
        attempts=4,
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
    ) -> Outgoing:
        event = Event(
            task=of.id,
            seq=1,
            at=NOW,
            kind=kind,
            agent=AgentId(by) if by else None,
            body=msgspec.Raw(msgspec.json.encode(body or {})),
            protocol=protocol or ("chiffon" if raw else "api"),
            raw=json.dumps(raw).encode() if raw else None,
        )
        delivery = Delivery(
            id=DeliveryId(DELIVERY),
            task=of.id,
            receiver=AgentId("somebody"),
            seq=1,
            kind=message_kind,
            event=1,
            rank=0,
            created_at=NOW,
        )
        return Outgoing(delivery, of, event)

    return make
