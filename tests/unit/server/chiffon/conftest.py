"""Chiffon's endpoints over a scripted hub: what is asked is recorded, what is answered is scripted, on a real port."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from tests.support.heads import task_head
from tests.support.scripted import NOW, ScriptedHub, elsewhere, soon

from dragoman.core.commands import RegisterAgent
from dragoman.core.ids import AgentId, DeliveryId, TaskId, uuid7
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.tasks import Event, EventKind, Origin, Status
from dragoman.security.tokens import token_hash
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.memory import MemoryStore

TOKENS = {"orch-1": "0" * 31 + "1", "infra-1": "0" * 31 + "2", "forge-1": "0" * 31 + "3"}
ADMIN_TOKEN = "a" * 32
TASK = TaskId("550e8400-e29b-41d4-a716-446655440004")


def _register(hub: ScriptedHub) -> Callable[[RegisterAgent], Agent]:
    def register(command: RegisterAgent) -> Agent:
        agent = msgspec.structs.replace(
            hub.known[command.principal],
            kind=command.kind,
            protocol_version=command.protocol_version,
            callback_url=command.callback_url,
        )
        hub.known[agent.id] = agent
        if hub.callback_changed is not None:
            hub.callback_changed(agent.id)
        return agent

    return register


@pytest.fixture
def hub() -> ScriptedHub:
    hub = ScriptedHub()
    for id, kind, protocol in (
        ("orch-1", "orchestrator", "chiffon"),
        ("infra-1", "infra", "chiffon"),
        ("forge-1", "code", "forge"),
    ):
        agent = Agent(id=AgentId(id), protocol=protocol, created_at=NOW, token_hash=token_hash(TOKENS[id]), kind=kind)
        hub.known[agent.id] = agent
    hub.script[RegisterAgent] = _register(hub)
    return hub


Open = Callable[..., Any]


@pytest.fixture
def opened(hub: ScriptedHub) -> Open:
    """`async with opened(limit=…) as serving`."""

    @asynccontextmanager
    async def make(*, networks: Sequence[Any] = (), **limits: Any) -> AsyncIterator[HttpServer]:
        bounds = Limits(**limits)
        handler = ChiffonHandler(hub, MemoryStore(), limits=bounds, admin_hash=token_hash(ADMIN_TOKEN))
        endpoints = chiffon.endpoints(handler, callback_networks=networks)
        async with HttpServer(hub, endpoints, fallback=elsewhere, port=0, limits=bounds) as serving:
            yield serving

    return make


@pytest.fixture
async def serving(opened: Open) -> AsyncIterator[HttpServer]:
    async with opened(message_bytes=100_000) as serving:
        yield serving


class Client:
    """A chiffon agent that is not ours."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def __call__(
        self, method: str, path: str, *, token: str | None = TOKENS["orch-1"], **more: Any
    ) -> httpx2.Response:
        headers = {**more.pop("headers", {}), **({"authorization": f"Bearer {token}"} if token else {})}
        return await soon(self._http.request(method, path, headers=headers, **more))

    async def send(self, message: dict[str, Any], **more: Any) -> httpx2.Response:
        return await self("POST", "/api/agent/message", json=message, **more)


@pytest.fixture
async def client(serving: HttpServer) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http:
        yield Client(http)


def message(type: str = "work_request", custom: dict[str, Any] | None = None, **payload: Any) -> dict[str, Any]:
    bodies: dict[str, dict[str, Any]] = {
        "work_request": {"task_id": TASK, "work_type": "run_playbook", "parameters": {"a": 1}},
        "work_status": {"task_id": TASK, "status": "running", "progress_percent": 50},
        "work_result": {"task_id": TASK, "status": "success", "exit_code": 0, "output": "done"},
        "error": {"error_code": 5005, "error_message": "no GPU", "error_context": {}},
    }
    worker = type != "work_request"
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "infra" if worker else "orchestrator",
        "to_agent": "orchestrator" if worker else "infra",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": str(uuid.uuid4()),
        "type": type,
        "payload": {**bodies[type], **payload},
        "x_custom_fields": custom or {},
    }


def outgoing(number: int = 1, kind: MessageKind = MessageKind.PROGRESS, task: TaskId = TASK) -> Outgoing:
    """What the hub delivers: progress of `number` percent."""
    raw = message("work_request" if kind is MessageKind.WORK else "work_status", **(
        {} if kind is MessageKind.WORK else {"progress_percent": number % 101}
    ))  # fmt: skip
    raw["payload"]["task_id"] = task
    head = task_head(
        id=task,
        type="run_playbook",
        status=Status.RUNNING,
        origin=Origin(principal=AgentId("orch-1"), protocol="chiffon", request_id=str(uuid.uuid4()), digest="-"),
        created_at=NOW,
        updated_at=NOW,
        route="infra",
        deadline=NOW,
        idle_limit=1,
        rank=0,
        trace_id="550e8400e29b41d4a716446655440002",
        kind="infra",
        owner=AgentId("infra-1"),
    )
    event = Event(task=task, seq=1, at=NOW, kind=EventKind.PROGRESS, protocol="chiffon", raw=json.dumps(raw).encode())
    delivery = Delivery(
        id=DeliveryId(uuid7(NOW, number)),
        task=task,
        receiver=AgentId("orch-1"),
        seq=number,
        kind=kind,
        event=1,
        rank=0,
        created_at=NOW,
    )
    return Outgoing(delivery, head, event)


def split_result() -> Outgoing:
    """A result of an agent of another protocol that is too long for one message."""
    said = outgoing(1, MessageKind.RESULT)
    body = msgspec.Raw(json.dumps({"output": "x" * 1_200_000}).encode())
    event = Event(task=TASK, seq=1, at=NOW, kind=EventKind.COMPLETED, protocol="forge", body=body)
    return Outgoing(said.delivery, said.task, event)


class Kit:
    """The makers above, for tests: importlib mode lets no test import its conftest."""

    message = staticmethod(message)
    outgoing = staticmethod(outgoing)
    split_result = staticmethod(split_result)
    soon = staticmethod(soon)
    tokens = TOKENS
    admin = ADMIN_TOKEN
    task = TASK


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
