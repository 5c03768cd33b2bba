"""Chiffon's doors over a scripted hub: what is asked is recorded, what is answered is scripted, on a real port."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx2
import msgspec
import pytest

from dragoman.core.agents.model import Agent
from dragoman.core.commands import CloseLink, Command, NoteRefusal, OpenLink, RegisterAgent
from dragoman.core.delivery.model import Cargo, Delivery, Parcel
from dragoman.core.errors import Fault, Refused
from dragoman.core.ids import AgentId, DeliveryId, Instant, SessionId, TaskId, uuid7
from dragoman.core.ports import LinkEnd
from dragoman.core.tasks.model import Event, EventKind, Origin, Status, Task
from dragoman.security.tokens import token_hash
from dragoman.stores.memory import MemoryStore
from dragoman.transports.limits import Limits
from dragoman.transports.server import Serving, serve

T = TypeVar("T")
NOW = Instant(1_768_796_464_000_000)
PATIENCE = 5.0
TOKENS = {"orch-1": "0" * 31 + "1", "infra-1": "0" * 31 + "2", "forge-1": "0" * 31 + "3"}
ADMIN_TOKEN = "a" * 32
TASK = TaskId("550e8400-e29b-41d4-a716-446655440004")


async def soon(what: Awaitable[T]) -> T:
    """Every wait is bounded."""
    return await asyncio.wait_for(what, PATIENCE)


class ScriptedHub:
    """Answers each type of command from `script`: a value, a Fault, or a function of the command.

    With `held`, outcomes wait until `commit` is called: then all of them are there at once.
    """

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.noted: list[NoteRefusal] = []
        self.script: dict[type[Command], Any] = {}
        self.known: dict[AgentId, Agent] = {}
        self.ends: dict[SessionId, LinkEnd] = {}
        self.detached: list[SessionId] = []
        self.held: list[tuple[Command, asyncio.Future[Any]]] | None = None
        self.linked: set[AgentId] = set()
        self.looked = 0
        self._minted = 0
        self._changed = asyncio.Event()

    def post(self, command: Command) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if isinstance(command, NoteRefusal):
            self.noted.append(command)
        else:
            self.asked.append(command)
        self._changed.set()
        if self.held is None or isinstance(command, OpenLink | CloseLink):
            self._settle(command, future)
        else:
            self.held.append((command, future))
        return future

    def mention(self, command: Command) -> None:
        self.post(command).add_done_callback(lambda future: future.exception())

    def hand_in(self, command: Command, then: Callable[[Any, Refused | None], None]) -> None:
        def settled(future: asyncio.Future[Any]) -> None:
            refusal = future.exception()
            assert refusal is None or isinstance(refusal, Refused)
            then(None if refusal else future.result(), refusal)

        self.post(command).add_done_callback(settled)

    def _settle(self, command: Command, future: asyncio.Future[Any]) -> None:
        answer = self.script.get(type(command))
        if callable(answer):
            answer = answer(command)
        if future.done():
            return
        if isinstance(answer, Fault):
            future.set_exception(Refused(answer))
        else:
            future.set_result(answer)

    def commit(self) -> None:
        held, self.held = self.held or [], []
        for command, future in held:
            self._settle(command, future)

    def release(self) -> None:
        """Commit what is held, and hold no more."""
        held, self.held = self.held or [], None
        for command, future in held:
            self._settle(command, future)

    async def ask(self, command: Command) -> Any:
        return await self.post(command)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until what was asked satisfies `ready`."""

        async def wait() -> None:
            while not ready():
                self._changed.clear()
                await self._changed.wait()

        await soon(wait())

    def asked_for(self, kind: type[Command]) -> list[Any]:
        return [command for command in self.asked if type(command) is kind]

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        self.ends[session] = end

    def detach(self, session: SessionId) -> None:
        self.ends.pop(session, None)
        self.detached.append(session)
        self._changed.set()

    def agent_of(self, hashed: str) -> Agent | None:
        return next((agent for agent in self.known.values() if agent.token_hash == hashed), None)

    def agent(self, id: AgentId) -> Agent | None:
        return self.known.get(id)

    def agents(self) -> Sequence[Agent]:
        return list(self.known.values())

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return ()

    def reachable(self, id: AgentId) -> bool:
        self.looked += 1
        self._changed.set()
        return id in self.linked

    def watch(self, task: TaskId) -> Any:
        raise NotImplementedError

    def now(self) -> Instant:
        return NOW

    def mint(self) -> str:
        self._minted += 1
        return uuid7(NOW, self._minted)


def _register(hub: ScriptedHub) -> Callable[[RegisterAgent], Agent]:
    def register(command: RegisterAgent) -> Agent:
        agent = msgspec.structs.replace(
            hub.known[command.principal],
            kind=command.kind,
            protocol_version=command.protocol_version,
            callback_url=command.callback_url,
        )
        hub.known[agent.id] = agent
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


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """Everything that is not chiffon's."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b"elsewhere"})
    else:
        await send({"type": "websocket.close"})


Open = Callable[..., Any]


@pytest.fixture
def opened(hub: ScriptedHub) -> Open:
    """`async with opened(limit=…) as serving`."""

    @asynccontextmanager
    async def make(*, networks: Sequence[Any] = (), **limits: Any) -> AsyncIterator[Serving]:
        serving = serve(
            hub,
            MemoryStore(),
            fallback=elsewhere,
            port=0,
            admin_token_hash=token_hash(ADMIN_TOKEN),
            limits=Limits(**limits),
            callback_networks=networks,
        )
        async with serving:
            yield serving

    return make


@pytest.fixture
async def serving(opened: Open) -> AsyncIterator[Serving]:
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
async def client(serving: Serving) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(base_url=serving.url, trust_env=False) as http:
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


def parcel(number: int = 1, cargo: Cargo = Cargo.PROGRESS, task: TaskId = TASK) -> Parcel:
    """What the hub delivers: progress of `number` percent."""
    raw = message("work_request" if cargo is Cargo.WORK else "work_status", **(
        {} if cargo is Cargo.WORK else {"progress_percent": number % 101}
    ))  # fmt: skip
    raw["payload"]["task_id"] = task
    head = Task(
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
        cargo=cargo,
        event=1,
        rank=0,
        created_at=NOW,
    )
    return Parcel(delivery, head, event)


class Kit:
    """The makers above, for tests: importlib mode lets no test import its conftest."""

    message = staticmethod(message)
    parcel = staticmethod(parcel)
    soon = staticmethod(soon)
    tokens = TOKENS
    admin = ADMIN_TOKEN
    task = TASK


@pytest.fixture
def kit() -> type[Kit]:
    return Kit
