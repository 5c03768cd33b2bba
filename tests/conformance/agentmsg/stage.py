"""A whole hub behind agentmsg's real endpoints, on a real port, under a clock that only moves when told.

Agents here are an HTTP client, a WebSocket and the document: nothing of ours is at their end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import websockets
from tests.conformance.agentmsg import words
from tests.support.scripted import elsewhere, soon
from tests.support.world import World
from websockets.asyncio.client import ClientConnection
from websockets.typing import Subprotocol

from dragoman.core.commands import Acknowledge, AddAgent, RegisterAgent
from dragoman.core.ids import ADMIN, SECOND, AgentId, Instant, rfc3339
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Task
from dragoman.core.queries.state import StateView
from dragoman.core.rules import Rules
from dragoman.security.tokens import token_hash
from dragoman.server.agentmsg import http as agentmsg
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.memory import MemoryStore

ADMIN_TOKEN = "a" * 32


class Stage(World):
    url: str
    http: httpx2.AsyncClient

    @property
    def at(self) -> str:
        return rfc3339(self.time)

    def after(self, seconds: float) -> str:
        return rfc3339(Instant(self.time + int(seconds * SECOND)))

    async def join(self, id: str, *, concurrent: int = 8, **fields: Any) -> Speaker:
        """`agent add`, and nothing more: it may speak at once."""
        token = token_hash(id)[:32]
        agent = Agent(
            **{"id": id, "protocol": "agentmsg", "created_at": self.time, "token_hash": token_hash(token), **fields}
        )
        await self.ask(AddAgent(principal=ADMIN, agent=agent))
        if concurrent != 8:
            capabilities = agent.capabilities
            await self.ask(
                RegisterAgent(principal=agent.id, max_concurrent=concurrent, capabilities=capabilities, work_types=None)
            )
        return Speaker(self, id, token)

    async def rest(self) -> None:
        """Until all that was said is decided, also what was only mentioned."""
        await self.ask(Acknowledge(principal=ADMIN, deliveries=()))
        await self.settle()

    async def pass_time(self, seconds: float) -> None:
        await self.rest()
        await self.advance(seconds)

    async def named(self, name: str) -> Task:
        """The hub's task that agents call so."""
        found = [task for task in self.store.rows(Task) if name in (task.id, task.origin.called)]
        assert len(found) == 1, (name, found)
        return found[0]

    async def get(self, path: str, token: str = ADMIN_TOKEN) -> httpx2.Response:
        headers = {"authorization": f"Bearer {token}"}
        return await soon(self.http.get(f"/agentmsg{path}", headers=headers))

    async def post(self, path: str, body: Any, token: str = ADMIN_TOKEN, **headers: str) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"authorization": f"Bearer {token}", **headers}
        return await soon(self.http.post(f"/agentmsg{path}", headers=said, content=content))

    async def change(
        self, operation: str, kind: str, id: str, changes: dict[str, Any], version: int, token: str = ADMIN_TOKEN
    ) -> httpx2.Response:
        return await self.post("/state", words.change(operation, kind, id, changes, version, self.at), token)

    async def policy(self, **changes: Any) -> dict[str, Any]:
        version = (await self.get("/state/POLICY/policy")).json()["version"]
        answer = await self.change("UPDATE", "POLICY", "policy", changes, version)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    @asynccontextmanager
    async def watching(self, query: str, **headers: str) -> AsyncIterator[AsyncIterator[tuple[int, dict[str, Any]]]]:
        """Server-sent events of the shared state: cursor and change."""
        said = {"authorization": f"Bearer {ADMIN_TOKEN}", **headers}
        async with self.http.stream("GET", f"/agentmsg/state/watch?{query}", headers=said) as answer:
            assert answer.status_code == 200, await answer.aread()

            async def events() -> AsyncIterator[tuple[int, dict[str, Any]]]:
                cursor = 0
                async for line in answer.aiter_lines():
                    if line.startswith("id: "):
                        cursor = int(line[4:])
                    elif line.startswith("data: "):
                        yield cursor, json.loads(line[6:])

            yield events()


class Speaker:
    """One agent: what it says, what it polls, and its links."""

    def __init__(self, stage: Stage, id: str, token: str) -> None:
        self.stage = stage
        self.id = id
        self.token = token

    def message(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        return words.message(self.id, type, to, payload, metadata.pop("at", self.stage.at), **metadata)

    async def send(self, message: dict[str, Any] | bytes) -> httpx2.Response:
        return await self.stage.post("/messages", message, self.token)

    async def say(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        """A message that is accepted."""
        message = self.message(type, to, payload, **metadata)
        answer = await self.send(message)
        assert answer.status_code == 202, answer.text
        return message

    async def refused(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> tuple[int, dict[str, Any]]:
        """A message that is not: the status, and the report."""
        answer = await self.send(self.message(type, to, payload, **metadata))
        assert answer.status_code >= 400, answer.text
        return answer.status_code, answer.json()

    async def poll(self, most: int = 100) -> list[dict[str, Any]]:
        """What waits, with its delivery ids; nothing is acknowledged."""
        answer = await self.stage.get(f"/messages?wait=0&max={most}", self.token)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["messages"])

    async def ack(self, *polled: dict[str, Any]) -> int:
        ids = [one["delivery_id"] for one in polled]
        answer = await self.stage.post("/ack", {"delivery_ids": ids}, self.token)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["acknowledged"])

    async def hear(self) -> list[dict[str, Any]]:
        """Everything that waits, lane after lane, acknowledged as it comes."""
        heard: list[dict[str, Any]] = []
        while got := await self.poll():
            await self.ack(*got)
            heard += (one["message"] for one in got)
        return heard

    async def hears(self, type: str) -> dict[str, Any]:
        """The one message of a type among all that waits."""
        heard = await self.hear()
        found = [one for one in heard if one["type"] == type]
        assert len(found) == 1, [(one["type"], one["from"]) for one in heard]
        return found[0]

    async def works(self, boss: Speaker, task: str, **fields: Any) -> dict[str, Any]:
        """It gets a task from somebody, and has it in hand."""
        await boss.say("TASK_ASSIGNMENT", self.id, words.assignment(task, **fields))
        return await self.hears("TASK_ASSIGNMENT")

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        headers = {"authorization": f"Bearer {self.token}"}
        url = f"{self.stage.url.replace('http', 'ws')}/agentmsg/ws"
        spoken = [Subprotocol("agentmsg.v1")]
        async with websockets.connect(url, additional_headers=headers, subprotocols=spoken, proxy=None) as socket:
            link = Link(self, socket)
            await link.say("HEARTBEAT", "hub", {"agent_id": self.id})
            await link.linked()
            yield link


class Link:
    """A WebSocket of one agent."""

    def __init__(self, agent: Speaker, socket: ClientConnection) -> None:
        self.agent = agent
        self.socket = socket

    async def linked(self) -> None:
        async def wait() -> None:
            while not self.agent.stage.intake.reachable(AgentId(self.agent.id)):
                await asyncio.sleep(0)

        await soon(wait())

    async def say(self, type: str, to: str, payload: dict[str, Any], **metadata: Any) -> dict[str, Any]:
        message = self.agent.message(type, to, payload, **metadata)
        await soon(self.socket.send(json.dumps(message)))
        return message

    async def hear(self) -> dict[str, Any]:
        heard: dict[str, Any] = json.loads(await soon(self.socket.recv()))
        return heard

    async def hears(self, type: str) -> dict[str, Any]:
        while (heard := await self.hear())["type"] != type:
            pass
        return heard

    async def ack(self, *messages: dict[str, Any]) -> None:
        ids = [one["id"] for one in messages]
        await self.say("ACK", "hub", {"message_ids": ids} if len(ids) > 1 else {}, correlation_id=ids[0])

    async def told(self) -> dict[str, dict[str, Any]]:
        """All that came until now, by id; what was said on this link before has been heard and decided by then."""
        heard = await self._until_now()
        await self.agent.stage.rest()
        return heard | await self._until_now()

    async def _until_now(self) -> dict[str, dict[str, Any]]:
        """What came, up to the answer to a question that the hub answers at once and in its turn."""
        mark = await self.say("STATE_QUERY", "hub", {"entity_type": "POLICY"})
        heard: dict[str, dict[str, Any]] = {}
        while (one := await self.hear())["metadata"].get("correlation_id") != mark["id"]:
            heard[one["id"]] = one
        return heard


@asynccontextmanager
async def reopened(stage: Stage) -> AsyncIterator[None]:
    """New endpoints, which remember nothing, to the same hub."""
    view = StateView(stage.store, stage.intake, stage.rules)
    handler = AgentmsgHandler(stage.intake, stage.store, view, limits=Limits(), admin_hash=token_hash(ADMIN_TOKEN))
    endpoints = agentmsg.endpoints(handler)
    async with HttpServer(stage.intake, endpoints, fallback=elsewhere, port=0) as serving:
        stage.url = serving.url
        async with httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60) as stage.http:
            yield


@asynccontextmanager
async def opened(rules: Rules | None = None, *, immediate: bool = True) -> AsyncIterator[Stage]:
    stage = Stage(MemoryStore(immediate=immediate), rules or Rules(direct_message_jitter=False))
    await stage.start()
    async with reopened(stage):
        yield stage
    await stage.intake.stop()
