"""A leader and a node that follows it, in one process: real intakes, a real stream over loopback, no sockets of agents
unless a test opens them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.app.cluster.link import LeaderPort, RemoteIntake
from dragoman.app.intake import Intake
from dragoman.core.commands import Acknowledge, AddAgent, RegisterAgent
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Store
from dragoman.core.rules import Rules
from dragoman.security.tokens import token_hash
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer
from dragoman.stores.memory import MemoryStore
from dragoman.stores.shared import StoreUnit
from tests.support.scripted import elsewhere
from tests.support.world import World

SECONDS = 20.0
"""How long a test waits for what must come."""


async def soon(holds: Callable[[], Any]) -> None:
    """Wait until this holds: the other end is a few turns of the loop away."""
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(0)


class FollowedWorld(World):
    """`intake` is the following node's, `leader` the one that decides: so whatever is written for a `World` talks to
    the leader through a node."""

    def __init__(self, store: MemoryStore | None = None, rules: Rules | None = None, **link: Any) -> None:
        super().__init__(store, rules)
        self.leader: Intake = self.intake
        self.port = LeaderPort(self.leader, host="127.0.0.1", port=0, tls=None, **link)
        self.nodes: list[RemoteIntake] = []

    async def start(self) -> FollowedWorld:
        await self.leader.start()
        await self.port.start()
        self.intake = await self.follow("n2")  # type: ignore[assignment]
        return self

    async def follow(self, node: str, **how: Any) -> RemoteIntake:
        following = await RemoteIntake.connect(
            self.port.address,
            **{
                "node": node,
                "store": self.store,
                "rules": self.rules,
                "now": lambda: self.time,
                "mint": self.mint,
                "tls": None,
                **how,
            },
        )
        self.nodes.append(following)
        return following

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()
        await self.port.stop()
        await self.leader.stop()

    async def settle(self) -> None:
        for _ in range(1000):
            await self.intake.execute(Acknowledge(principal=ADMIN, deliveries=()))  # behind what was enqueued here
            if not self.leader.depth and not await self.leader.wake_due():
                await self.intake.execute(Acknowledge(principal=ADMIN, deliveries=()))
                return
        raise AssertionError("the hub never comes to rest")


class Followed:
    """A leader and a node that follows it, in place of one `Intake`: endpoints talk to the node, the wake timer to the
    leader. So a whole hub can be run with a stream in its middle."""

    def __init__(self, store: Store, *, rules: Rules | None = None, **how: Any) -> None:
        self.leader = Intake(store, rules=rules, **how)
        self._how = {name: value for name, value in how.items() if name != "observer"}
        self.port = LeaderPort(self.leader, host="127.0.0.1", port=0, tls=None, ttl=SECONDS)
        self._node: RemoteIntake | None = None

    async def start(self) -> None:
        await self.leader.start()
        await self.port.start()
        self._node = await RemoteIntake.connect(
            self.port.address, node="n2", store=self.leader.store, rules=self.leader.rules, tls=None, ttl=SECONDS,
            **self._how,
        )  # fmt: skip

    def part(self) -> None:
        self.leader.part()

    async def stop(self) -> None:
        if self._node is not None:
            await self._node.stop()
        await self.port.stop()
        await self.leader.stop()

    def __getattr__(self, name: str) -> Any:
        there = self._node if self._node is not None and hasattr(self._node, name) else self.leader
        return getattr(there, name)


async def peopled(world: FollowedWorld) -> FollowedWorld:
    await world.start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    return world


async def end_of(world: FollowedWorld, node: str) -> str:
    """Why the stream of a node ended."""
    link = world.port._nodes.get(node)
    await soon(lambda: node not in world.port.nodes)
    assert link is not None
    return link.stream._why


class Gate:
    """Holds commits up from `close` to `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.open = asyncio.Event()
        self.waiting = 0

    def close(self) -> None:
        honest = StoreUnit.commit

        async def slow(unit: StoreUnit, changes: Any) -> None:
            self.waiting += 1
            await self.open.wait()
            await honest(unit, changes)

        self._monkeypatch.setattr(StoreUnit, "commit", slow)


# -- an agent of chiffon at the following node -------------------------------------------------------------------------

TOKEN = "0" * 32
BEARER = {"authorization": f"Bearer {TOKEN}"}


def chiffon_at(world: FollowedWorld) -> Any:
    return _ChiffonAt(world)


class _ChiffonAt:
    """Chiffon's endpoints at the following node, with one agent."""

    def __init__(self, world: FollowedWorld) -> None:
        self._world = world
        self._serving: HttpServer

    async def __aenter__(self) -> str:
        world = self._world
        agent = Agent(id=AgentId("infra-1"), protocol="chiffon", created_at=world.time, token_hash=token_hash(TOKEN))
        await world.ask(AddAgent(principal=ADMIN, agent=agent))
        await world.ask(RegisterAgent(principal=AgentId("infra-1"), kind="lab", max_concurrent=4))
        endpoints = chiffon.endpoints(ChiffonHandler(world.intake, world.store, limits=Limits()))
        self._serving = HttpServer(world.intake, endpoints, fallback=elsewhere, port=0)
        await self._serving.start()
        return self._serving.url

    async def stop(self) -> None:
        await self._serving.stop(0)

    async def __aexit__(self, *exc: object) -> None:
        await self._serving.stop(1.0)


def report_on(task: TaskId, request: str) -> dict[str, Any]:
    return {
        "protocol_version": "1.0",
        "message_id": str(uuid.uuid4()),
        "from_agent": "lab",
        "to_agent": "orchestrator",
        "timestamp": "2026-01-19T04:21:04Z",
        "trace_id": str(uuid.uuid4()),
        "request_id": request,
        "type": "work_status",
        "payload": {"task_id": task, "status": "running", "progress_percent": 10},
        "x_custom_fields": {},
    }
