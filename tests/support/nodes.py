"""A leader and a node that follows it, in one process: real intakes, a real stream over loopback, no sockets of agents
unless a test opens them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragoman.app.cluster.link import LeaderPort, RemoteIntake
from dragoman.app.intake import Intake
from dragoman.core.commands import Acknowledge
from dragoman.core.ids import ADMIN
from dragoman.core.ports import Store
from dragoman.core.rules import Rules
from dragoman.stores.memory import MemoryStore
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
