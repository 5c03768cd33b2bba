"""Agentmsg's endpoints over a scripted hub and a scripted shared state, on a real port."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
import websockets
from tests.support.heads import task_head
from tests.support.scripted import NOW, ScriptedHub, elsewhere, soon
from tests.unit.server.agentmsg.samples import outgoing, task  # noqa: F401 - fixtures
from websockets.asyncio.client import ClientConnection

from dragoman.core.commands import OpenLink, RegisterAgent
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId, uuid7
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Delivery, DirectMessage, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.state import Change, Changed, Entity, Operation, Registry
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.core.queries.state import StateView
from dragoman.messages.faults import Kind, refuse
from dragoman.security.tokens import token_hash
from dragoman.server.agentmsg import http as agentmsg
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.memory import MemoryStore

TOKENS = {"ada": "0" * 31 + "1", "bob": "0" * 31 + "2", "chi": "0" * 31 + "3"}
ADMIN_TOKEN = "a" * 32
TASK = TaskId("550e8400-e29b-41d4-a716-446655440004")
WHEN = "2026-01-19T04:21:04Z"


class ScriptedState(StateView):
    """Entities by their ids, and a log of single changes; `first` is the oldest number it still has."""

    def __init__(self) -> None:
        self.entities: dict[str, Entity] = {}
        self.log: list[tuple[int, Change]] = []
        self.first = 1
        self.watchers = 0
        self.told = 0
        self._changed = asyncio.Condition()

    def in_words(self, explain: Any, recount: Any) -> StateView:
        return self

    def put(self, registry: Registry, name: str, **value: Any) -> Entity:
        known = self.entities.get(f"{registry.value}/{name}")
        entity = Entity(
            registry=registry,
            name=name,
            version=1 if known is None else known.version + 1,
            value=value,
            created_at=NOW,
            updated_at=NOW,
            created_by=AgentId("ada"),
            updated_by=AgentId("ada"),
        )
        self.entities[entity.id] = entity
        operation = Operation.CREATE if known is None else Operation.UPDATE
        change = Change(
            operation=operation,
            registry=registry,
            name=name,
            version=entity.version,
            changes=value,
            by=AgentId("ada"),
        )
        self.log.append((len(self.log) + 1, change))
        return entity

    async def change(self, registry: Registry, name: str, **value: Any) -> None:
        async with self._changed:
            self.put(registry, name, **value)
            self._changed.notify_all()

    async def whole(self, reader: AgentId | None = None, *, details: bool = True) -> dict[str, Any]:
        of: dict[str, dict[str, Any]] = {registry.value: {} for registry in Registry}
        for entity in self.entities.values():
            of[entity.registry.value][entity.name] = entity.value
        return {
            "task_registry": of["TASK"],
            "agent_registry": of["AGENT"],
            "resource_allocations": of["RESOURCE"],
            "policy_state": of["POLICY"].get("policy", {}),
            "last_updated": WHEN,
            "cursor": len(self.log),
        }

    async def one(
        self, registry: Registry, name: str, reader: AgentId | None = None, *, history: bool = True
    ) -> Entity | None:
        return self.entities.get(f"{registry.value}/{name}")

    async def changes(self, after: int, limit: int = 64) -> list[Changed]:
        if after + 1 < self.first:
            raise refuse(
                Kind.CONFLICT, "the log does not reach back so far", next="read the state again", field="cursor"
            )
        return [Changed(cursor=n, at=NOW, entries=(one,)) for n, one in self.log if n > after][:limit]

    async def watch(
        self,
        after: int | None,
        registry: Registry | None = None,
        name: str | None = None,
        reader: AgentId | None = None,
    ) -> AsyncGenerator[tuple[int, Change, Instant]]:
        at = len(self.log) if after is None else after
        self.watchers += 1
        try:
            while True:
                for number, one in self.log[at:]:
                    at = number
                    if registry in (None, one.registry) and name in (None, one.name):
                        self.told += 1
                        yield number, one, NOW
                async with self._changed:
                    while len(self.log) <= at:
                        await self._changed.wait()
        finally:
            self.watchers -= 1


class StatefulHub(ScriptedHub):
    def __init__(self, state: ScriptedState) -> None:
        super().__init__()
        self._state = state
        self.held_tasks: dict[str, list[TaskId]] = {}

    @property
    def state_cursor(self) -> int:
        return len(self._state.log)

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return self.held_tasks.get(id, [])


@pytest.fixture
def state() -> ScriptedState:
    return ScriptedState()


@pytest.fixture
def hub(state: ScriptedState) -> StatefulHub:
    hub = StatefulHub(state)
    for id, protocol in (("ada", "agentmsg"), ("bob", "agentmsg"), ("chi", "chiffon")):
        hub.known[AgentId(id)] = Agent(
            id=AgentId(id), protocol=protocol, created_at=NOW, token_hash=token_hash(TOKENS[id])
        )

    def register(command: RegisterAgent) -> Agent:
        agent = msgspec.structs.replace(hub.known[command.principal], capabilities=command.capabilities)
        hub.known[agent.id] = agent
        return agent

    hub.script[RegisterAgent] = register
    return hub


Open = Callable[..., Any]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def opened(hub: StatefulHub, state: ScriptedState, store: MemoryStore) -> Open:
    @asynccontextmanager
    async def make(**limits: Any) -> AsyncIterator[HttpServer]:
        bounds = Limits(**{"message_bytes": 100_000, **limits})
        handler = AgentmsgHandler(
            hub, store, state, limits=bounds, admin_hash=token_hash(ADMIN_TOKEN), heartbeat_seconds=7
        )
        endpoints = agentmsg.endpoints(handler)
        async with HttpServer(hub, endpoints, fallback=elsewhere, port=0, limits=bounds) as serving:
            yield serving

    return make


@pytest.fixture
async def serving(opened: Open) -> AsyncIterator[HttpServer]:
    async with opened() as serving:
        yield serving


class Client:
    """An agent over HTTP that is not ours."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def __call__(
        self, method: str, path: str, *, token: str | None = TOKENS["ada"], **more: Any
    ) -> httpx2.Response:
        headers = {**more.pop("headers", {}), **({"authorization": f"Bearer {token}"} if token else {})}
        return await soon(self.http.request(method, f"/agentmsg{path}", headers=headers, **more))

    async def send(self, message: dict[str, Any], **more: Any) -> httpx2.Response:
        return await self("POST", "/messages", json=message, **more)


@pytest.fixture
async def client(serving: HttpServer) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http:
        yield Client(http)


def message(type: str, payload: dict[str, Any] | None = None, *, to: str = "hub", **metadata: Any) -> dict[str, Any]:
    bodies: dict[str, dict[str, Any]] = {
        "TASK_UPDATE": {"task_id": TASK, "progress": 50},
        "TASK_COMPLETE": {"task_id": TASK, "result": 42},
        "TASK_ASSIGNMENT": {"task": {"task_id": TASK, "task_type": "review", "input": {"a": 1}}},
        "HEARTBEAT": {"agent_id": "ada"},
        "STATUS_UPDATE": {
            "agent_id": "ada",
            "status": {
                "state": "IDLE",
                "capability_level": 90,
                "error_rate": 0,
                "avg_response_time_ms": 10,
                "last_heartbeat": WHEN,
            },
            "current_tasks": [],
            "resource_usage": {
                "tokens_used": 1,
                "tokens_remaining": 9,
                "cost_usd": 0,
                "cpu_usage": 1,
                "memory_usage": 1,
            },
            "health_metrics": {"uptime_seconds": 1, "success_rate": 1, "avg_latency_ms": 1, "error_count": 0},
        },
        "STATE_UPDATE": {
            "operation": "CREATE",
            "entity_type": "RESOURCE",
            "entity_id": "ada:tokens",
            "changes": {"limit": 5},
            "version": 0,
            "timestamp": WHEN,
        },
        "REGISTER": {"agent_id": "ada", "capabilities": ["review"]},
        "STATE_QUERY": {},
        "ACK": {},
    }
    return {
        "id": str(uuid.uuid4()),
        "timestamp": WHEN,
        "from": "ada",
        "to": to,
        "type": type,
        "payload": {**bodies.get(type, {}), **(payload or {})},
        "metadata": {"priority": "normal", "retry_count": 0, "max_retries": 3, **metadata},
    }


def letter(number: int = 1, *, once: bool = False, **fields: Any) -> Outgoing:
    """A message of bob's for ada."""
    said = {**message("TASK_COMPLETE", to="ada"), "from": "bob", **fields}
    letter = DirectMessage(
        sender=AgentId("bob"),
        message_id=said["id"],
        kind=said["type"],
        digest="-",
        raw=msgspec.Raw(json.dumps(said).encode()),
        protocol="agentmsg",
        once=once,
    )
    return Outgoing(_delivery(number, MessageKind.DIRECT_MESSAGE, letter), None, letter)


def work(number: int = 1) -> Outgoing:
    """An assignment of the hub's for ada."""
    return Outgoing(_delivery(number, MessageKind.WORK), _task(), _event(1, EventKind.SUBMITTED, {"input": {"a": 1}}))


def pieces() -> tuple[list[Event], Outgoing]:
    """A result whose output came in three pieces; and the outgoing message that tells of its end."""
    places = [{"output": text, "chunk": [at, at + 1, 3], "stream": "result"} for at, text in enumerate("abc")]
    kinds = (EventKind.PROGRESS, EventKind.PROGRESS, EventKind.COMPLETED)
    events = [_event(1, EventKind.SUBMITTED, {"input": {}})]
    events += [_event(seq, kind, body) for seq, (kind, body) in enumerate(zip(kinds, places, strict=True), 2)]
    return events, Outgoing(_delivery(9, MessageKind.RESULT), _task(), events[-1])


def _event(seq: int, kind: EventKind, body: dict[str, Any]) -> Event:
    return Event(
        task=TASK, seq=seq, at=NOW, kind=kind, body=msgspec.Raw(json.dumps(body, separators=(",", ":")).encode())
    )


def _task() -> Task:
    return task_head(
        id=TASK,
        type="review",
        status=Status.ASSIGNED,
        origin=Origin(principal=AgentId("bob"), protocol="agentmsg", request_id=str(uuid.uuid4()), digest="-"),
        created_at=NOW,
        updated_at=NOW,
        route="ada",
        deadline=NOW,
        idle_limit=1,
        rank=0,
        trace_id="550e8400e29b41d4a716446655440002",
        owner=AgentId("ada"),
    )


def _delivery(number: int, kind: MessageKind, letter: DirectMessage | None = None) -> Delivery:
    return Delivery(
        id=DeliveryId(uuid7(NOW, number)),
        task=TASK,
        receiver=AgentId("ada"),
        seq=number,
        kind=kind,
        event=1,
        rank=0,
        created_at=NOW,
        attempt=1,
        direct_message=letter,
    )


class Peer:
    """An agent over a WebSocket that is not ours."""

    def __init__(self, socket: ClientConnection, hub: StatefulHub) -> None:
        self.socket = socket
        self._hub = hub

    async def say(self, *messages: dict[str, Any]) -> None:
        for one in messages:
            await soon(self.socket.send(json.dumps(one)))

    async def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(await soon(self.socket.recv()))
        return heard

    async def link(self) -> Any:
        """The hub's end."""
        await self._hub.until(lambda: bool(self._hub.asked_for(OpenLink)))
        return self._hub.ends[self._hub.asked_for(OpenLink)[-1].session]


Connect = Callable[..., Any]


@pytest.fixture
def connect(serving: HttpServer, hub: StatefulHub) -> Connect:
    @asynccontextmanager
    async def make(
        token: str | None = TOKENS["ada"], to: HttpServer = serving, query: str = "", **more: Any
    ) -> AsyncIterator[Peer]:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        url = f"{to.url.replace('http', 'ws')}/agentmsg/ws{query}"
        async with websockets.connect(url, additional_headers=headers, proxy=None, **more) as socket:
            yield Peer(socket, hub)

    return make


class Kit:
    """The makers above, for tests: importlib mode lets no test import its conftest."""

    message = staticmethod(message)
    direct_message = staticmethod(letter)
    work = staticmethod(work)
    pieces = staticmethod(pieces)
    soon = staticmethod(soon)
    tokens = TOKENS
    admin = ADMIN_TOKEN
    task = TASK
    when = WHEN


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
