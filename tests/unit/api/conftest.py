"""The API over a scripted intake and the memory store: what is asked is recorded, what is answered is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from tests.support.heads import task_head

from dragoman.api import Context, app
from dragoman.api.live import Live
from dragoman.api.series import Series
from dragoman.app.metrics import Counters, Gauges, Metrics
from dragoman.core.commands import Command, NoteRefusal
from dragoman.core.ids import MINUTE, SECOND, AgentId, Instant, TaskId, uuid7
from dragoman.core.memory import MemoryBudget
from dragoman.core.model import policy
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import AuditRecord, Newest
from dragoman.core.model.contracts import Contract
from dragoman.core.model.holdings import NOTHING, Holding
from dragoman.core.model.people import Person
from dragoman.core.model.policy import Policy
from dragoman.core.model.silence import Watched
from dragoman.core.model.state import Entity, Registry
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.core.ports import Changes
from dragoman.core.routing.routes import Route
from dragoman.core.rules import Rules
from dragoman.core.streams import Streams
from dragoman.messages.faults import Fault, Refused
from dragoman.stores.memory import MemoryStore

NOW = Instant(1_768_796_464_000_000)  # 2026-01-19T04:21:04Z
TOKEN = "0123456789abcdef0123456789abcdef"
Answer = Any


class ScriptedIntake:
    """Answers each type of command from `script`: a value, a Fault, or a function of the command."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.streams = Streams()
        self.holdings: dict[AgentId, Holding] = {}
        self.noted: list[NoteRefusal] = []
        self.script: dict[type[Command], Answer] = {}
        self.known: dict[AgentId, Agent] = {}
        self.loads: dict[AgentId, list[TaskId]] = {}
        self.linked: set[AgentId] = set()
        self.shared: dict[str, Entity] = {}
        self.contracts: dict[str, Contract] = {}
        self.newest_audit = Newest()
        self.people: dict[str, Person] = {}
        self.watching = 0
        self.parked = asyncio.Event()
        self._changed = asyncio.Event()
        self._minted = 0

    async def execute(self, command: Command) -> Any:
        if isinstance(command, NoteRefusal):
            self.noted.append(command)
            return None
        self.asked.append(command)
        answer = self.script[type(command)]
        if callable(answer):
            answer = answer(command)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, Fault):
            raise Refused(answer)
        return answer

    def agent(self, id: AgentId) -> Agent | None:
        return self.known.get(id)

    def agents(self) -> Sequence[Agent]:
        return list(self.known.values())

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return self.loads.get(id, [])

    def watched(self, task: Task) -> Watched:
        linked = task.owner in self.linked
        return Watched(Rules(), Instant(0), self.known.get(task.owner), None, is_linked=linked, seen_at=None)

    def holding(self, id: AgentId) -> Holding:
        return self.holdings.get(id, NOTHING)

    def reachable(self, id: AgentId) -> bool:
        return id in self.linked

    def seen_at(self, id: AgentId) -> Instant | None:
        return None

    def entity(self, id: str) -> Entity | None:
        return self.shared.get(id)

    @property
    def policy(self) -> Policy:
        entity = self.shared.get(f"{Registry.POLICY.value}/{policy.NAME}")
        return policy.default(Rules()) if entity is None else policy.read(entity.value)

    async def contract(self, id: str) -> Contract | None:
        return self.contracts.get(id)

    def now(self) -> Instant:
        return NOW

    def mint(self) -> str:
        self._minted += 1
        return uuid7(NOW, self._minted)

    @asynccontextmanager
    async def watch(self, task: TaskId) -> AsyncIterator[ScriptedIntake]:
        self.watching += 1
        try:
            yield self
        finally:
            self.watching -= 1

    async def changed(self, timeout: float) -> bool:
        self.parked.set()
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return False
        finally:
            self.parked.clear()
        self._changed.clear()
        return True

    def wake(self) -> None:
        self._changed.set()


class Stream:
    """One server-sent stream, read frame by frame as the application writes it."""

    def __init__(self, app: Any, path: str, query: str = "", headers: dict[str, str] | None = None) -> None:
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.gone = asyncio.Event()
        self.status = 0
        told = {"authorization": f"Bearer {TOKEN}", **(headers or {})}
        self._scope = {
            "type": "http", "asgi": {"spec_version": "2.3"}, "method": "GET", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "headers": [(k.encode(), v.encode()) for k, v in told.items()],
            "scheme": "http", "server": ("hub", 80), "client": ("127.0.0.1", 1), "http_version": "1.1",
            "root_path": "",
        }  # fmt: skip
        self.running = asyncio.create_task(app(self._scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if message["body"]:
            self._pieces.put_nowait(message["body"])
        if not message.get("more_body"):
            self._pieces.put_nowait(None)

    async def next(self) -> dict[str, str] | None:
        """The next frame as its fields (a comment under ""), or None at the end. The `retry` frame is skipped."""
        async with asyncio.timeout(60):
            piece = await self._pieces.get()
        if piece is None:
            return None
        assert piece.endswith(b"\n\n")
        fields: dict[str, str] = {}
        for line in piece.decode().rstrip("\n").split("\n"):
            name, _, value = line.partition(": ")
            fields[name] = f"{fields[name]}\n{value}" if name in fields else value
        return await self.next() if "retry" in fields else fields

    async def rest(self) -> list[dict[str, str]]:
        found = []
        while (frame := await self.next()) is not None:
            found.append(frame)
        return found

    async def close(self) -> None:
        self.gone.set()
        async with asyncio.timeout(60):
            await asyncio.gather(self.running, return_exceptions=True)


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.intake = ScriptedIntake()
        self.counters = Counters()
        self.links = self.depth = 0
        self.coven: dict[str, int] = {}
        gauges = Gauges(
            links_open=lambda: self.links,
            intake_depth=lambda: self.depth,
            coven=lambda: self.coven,
            memory=MemoryBudget(),
        )
        self.readiness = (True, "")
        self.context = Context(
            self.intake,  # type: ignore[arg-type]
            self.store,
            admin_token=TOKEN,
            ready=lambda: self.readiness,
            metrics=Metrics(self.counters, gauges),
            heartbeat=0.02,
            live=Live(self.intake.now),
            series=Series(self.intake.now, lambda agent: None, lambda: 0),
        )
        self.app = app(self.context)
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False, client=("127.0.0.1", 50000))
        self.stranger = httpx2.AsyncClient(transport=transport, base_url="http://hub")
        self.client = httpx2.AsyncClient(
            transport=transport, base_url="http://hub", headers={"Authorization": f"Bearer {TOKEN}"}
        )

    async def put(self, *rows: Any, audit: Sequence[AuditRecord] = ()) -> None:
        async with self.store.unit() as unit:
            await unit.commit(Changes(added=rows, audit=audit))

    async def change(self, *rows: Any, added: Sequence[Any] = ()) -> None:
        async with self.store.unit() as unit:
            await unit.commit(Changes(changed=rows, added=added))
        self.intake.wake()

    def know(self, *agents: Agent, linked: bool = True) -> None:
        for agent in agents:
            self.intake.known[agent.id] = agent
            if linked:
                self.intake.linked.add(agent.id)

    def stream(self, path: str, query: str = "", **headers: str) -> Stream:
        return Stream(self.app, path, query, {name.replace("_", "-"): value for name, value in headers.items()})


def make_task(n: int = 1, **changes: Any) -> Task:
    id = TaskId(changes.pop("id", uuid7(Instant(NOW + n * SECOND), n << 40 | n)))
    base = {
        "id": id, "type": "run_playbook", "status": Status.QUEUED,
        "origin": Origin(principal=AgentId("planner"), protocol="chiffon", request_id=f"r-{id}", digest="d"),
        "created_at": Instant(NOW + n * SECOND), "updated_at": Instant(NOW + n * SECOND),
        "route": Route("run_playbook", "infra").queue, "deadline": Instant(NOW + 60 * MINUTE),
        "idle_limit": 30 * SECOND, "rank": NOW + n, "trace_id": "0" * 31 + "1", "kind": "infra",
    }  # fmt: skip
    return task_head(**{**base, **changes})


def make_event(task: Task, seq: int, kind: EventKind, body: Any = None, **changes: Any) -> Event:
    raw = msgspec.Raw(msgspec.json.encode({} if body is None else body))
    return Event(**{"task": task.id, "seq": seq, "at": Instant(NOW + seq), "kind": kind, "body": raw, **changes})


def make_agent(id: str = "mux-1", **changes: Any) -> Agent:
    base = {"id": AgentId(id), "protocol": "chiffon", "created_at": NOW, "token_hash": "h" * 64, "kind": "infra"}
    return Agent(**{**base, **changes})


class Make:
    now = NOW
    token = TOKEN
    task: Callable[..., Task] = staticmethod(make_task)
    event: Callable[..., Event] = staticmethod(make_event)
    agent: Callable[..., Agent] = staticmethod(make_agent)


@pytest.fixture
def make() -> Make:
    return Make()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.client.aclose()
    await world.stranger.aclose()
