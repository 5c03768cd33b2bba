"""A2acp's endpoints over a scripted hub, on a real port: `ada` asks, `bob` serves, under contracts of the test's
choice."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import msgspec
import pytest
import websockets
from tests.support.heads import task_head
from tests.support.scripted import NOW, ScriptedHub, elsewhere, soon
from websockets.asyncio.client import ClientConnection

from dragoman.core.commands import OpenLink
from dragoman.core.ids import EPOCH, SECOND, AgentId, DeliveryId, Instant, TaskId, uuid7
from dragoman.core.model.agents import Agent, Offer
from dragoman.core.model.contracts import Contract, Party
from dragoman.core.model.deliveries import Delivery, MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.model.policy import default
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.core.ports import StoreFailed
from dragoman.core.rules import Rules
from dragoman.protocols.a2acp.types import Agent as Peer
from dragoman.security.jwt import Authority
from dragoman.security.keys import KeyRing, new_key
from dragoman.security.tokens import token_hash
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.session import A2acpWebSocket
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.memory import MemoryStore

SECRETS = {"ada": "0" * 31 + "1", "bob": "0" * 31 + "2", "chi": "0" * 31 + "3"}
BROKER = Peer(agent_id="protocol-broker-agent", domain="a_domain", version="1.0.0")
WHEN = (EPOCH + timedelta(microseconds=NOW)).isoformat().replace("+00:00", "Z")
OFFER = Offer(intent="provision", input_schema={"type": "object", "required": ["rows"]}, required_capabilities=("w",))


class BrokerHub(ScriptedHub):
    """Has contracts. With `slow`, reading one waits until it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.contracts: dict[str, Contract] = {}
        self.policy = default(Rules())
        self.slow: asyncio.Event | None = None
        self.fails = False

    async def contract(self, id: str) -> Contract | None:
        if self.fails:
            raise StoreFailed("no disk")
        if self.slow is not None:
            await self.slow.wait()
        return self.contracts.get(id)


class Vault:
    """Keeps things as they are."""

    def lock(self, data: bytes, about: Mapping[str, str]) -> bytes:
        return data

    def unlock(self, record: bytes, about: Mapping[str, str]) -> bytes:
        return record


@pytest.fixture
def vault() -> Vault:
    return Vault()


@pytest.fixture
def hub() -> BrokerHub:
    hub = BrokerHub()
    for id, protocol in (("ada", "a2acp"), ("bob", "a2acp"), ("chi", "chiffon")):
        hub.known[AgentId(id)] = Agent(
            id=AgentId(id), protocol=protocol, created_at=NOW, token_hash=token_hash(SECRETS[id]), domain="lab",
            version="1.0.0", capabilities=("w",), offers=(OFFER,) if id == "bob" else (),
        )  # fmt: skip
    hub.contracts["c-1"] = contract()
    return hub


def contract(id: str = "c-1", **more: Any) -> Contract:
    fields: dict[str, Any] = {
        "collaboration": "l-1", "source": Party(AgentId("ada"), "lab", "1.0.0"),
        "target": Party(AgentId("bob"), "lab", "1.0.0"), "offer": OFFER, "created_at": NOW,
        "expires_at": Instant(NOW + 3600 * SECOND), "since": NOW, **more,
    }  # fmt: skip
    return Contract(id=id, **fields)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def auth(hub: BrokerHub) -> AuthService:
    return AuthService(hub, BROKER, lambda: Authority(KeyRing([new_key(NOW // SECOND)])))


@pytest.fixture
async def serving(hub: BrokerHub, store: MemoryStore, auth: AuthService) -> AsyncIterator[HttpServer]:
    handler = A2acpHandler(hub, store, auth, Vault(), limits=Limits())
    endpoints = (A2acpHttp(handler, ttl=60), A2acpWebSocket(handler))
    async with HttpServer(hub, endpoints, fallback=elsewhere, port=0, limits=Limits()) as serving:
        yield serving


class Client:
    """An agent over HTTP that is not ours."""

    def __init__(self, http: httpx2.AsyncClient, auth: AuthService, hub: BrokerHub) -> None:
        self.http = http
        self._auth = auth
        self._hub = hub

    def message(self, kind: str, intent: str | None, payload: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """By ada to bob, unless it says otherwise."""
        by, to = fields.pop("by", "ada"), fields.pop("to", "bob")
        token = self._auth.issue(self._hub.known[AgentId(by)], to, ("w",), 60).token
        domain = "a_domain" if to == BROKER.agent_id else "lab"
        said: dict[str, Any] = {
            "protocol_version": "1.0", "message_id": str(uuid.uuid4()), "timestamp": WHEN,
            "source_agent": {"agent_id": by, "domain": "lab", "version": "1.0.0"},
            "target_agent": {"agent_id": to, "domain": domain, "version": "1.0.0"},
            "message_type": kind, "intent": intent, "payload": payload,
            "security": {"auth_token": token, "encryption": "none"}, **fields,
        }  # fmt: skip
        return {name: value for name, value in said.items() if value is not None}

    async def send(self, message: Any, **headers: str) -> httpx2.Response:
        return await soon(self.http.post("/a2acp/messages", json=message, headers=headers))

    async def __call__(self, method: str, path: str, by: str = "ada", **more: Any) -> httpx2.Response:
        headers = {"authorization": f"Bearer {SECRETS.get(by, by)}"}
        return await soon(self.http.request(method, path, headers=headers, **more))


@pytest.fixture
async def client(serving: HttpServer, auth: AuthService, hub: BrokerHub) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as http:
        yield Client(http, auth, hub)


def task(number: int = 1, **more: Any) -> Task:
    origin = Origin(
        principal=AgentId("ada"),
        protocol="a2acp",
        request_id=str(uuid.UUID(int=number)),
        digest="-",
        called=f"k-{number}",
    )
    fields: dict[str, Any] = {"status": Status.ASSIGNED, "contract": "c-1", **more}
    return task_head(
        id=TaskId(uuid7(NOW, number)), type="provision", origin=origin, created_at=NOW, updated_at=NOW, route="bob",
        deadline=NOW, idle_limit=1, rank=0, trace_id="0" * 31 + "1", owner=AgentId("bob"), **fields,
    )  # fmt: skip


def outgoing(number: int = 1, message_kind: MessageKind = MessageKind.RESULT, **more: Any) -> Outgoing:
    """News about a task."""
    about = task(number, **more)
    kind, body = (EventKind.COMPLETED, {"result": {"n": number}}) if message_kind is MessageKind.RESULT else (
        EventKind.SUBMITTED, {"input": {"rows": number}}
    )  # fmt: skip
    event = Event(task=about.id, seq=1, at=NOW, kind=kind, body=msgspec.Raw(msgspec.json.encode(body)))
    delivery = Delivery(
        id=DeliveryId(uuid7(NOW, 1000 + number)), task=about.id, receiver=AgentId("ada"), seq=1, kind=message_kind,
        event=1, rank=0, created_at=NOW,
    )  # fmt: skip
    return Outgoing(delivery, about, event)


class Link:
    def __init__(self, socket: ClientConnection, hub: BrokerHub) -> None:
        self.socket = socket
        self._hub = hub

    async def say(self, message: Any) -> None:
        await soon(self.socket.send(message if isinstance(message, str) else json.dumps(message)))

    async def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(await soon(self.socket.recv()))
        return heard

    async def end(self) -> Any:
        """The hub's end."""
        await self._hub.until(lambda: bool(self._hub.asked_for(OpenLink)))
        return self._hub.ends[self._hub.asked_for(OpenLink)[-1].session]


Connect = Callable[..., Any]


@pytest.fixture
def connect(serving: HttpServer, hub: BrokerHub) -> Connect:
    @asynccontextmanager
    async def make(by: str = "ada") -> AsyncIterator[Link]:
        headers = {"authorization": f"Bearer {SECRETS[by]}"}
        url = f"{serving.url.replace('http', 'ws')}/a2acp/ws"
        async with websockets.connect(url, additional_headers=headers, proxy=None, ping_interval=None) as socket:
            yield Link(socket, hub)

    return make


class Kit:
    """The makers above, for tests: importlib mode lets no test import its conftest."""

    task = staticmethod(task)
    outgoing = staticmethod(outgoing)
    contract = staticmethod(contract)
    soon = staticmethod(soon)
    secrets = SECRETS
    broker = BROKER.agent_id
    when = datetime.fromtimestamp(NOW / SECOND, UTC)


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
