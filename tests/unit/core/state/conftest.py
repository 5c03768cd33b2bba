"""A hub in memory with agents that share state, under a clock that only moves when told."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.world import World

from dragoman.core.commands import AddAgent, ChangeState
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.state import Entity, Operation, Registry
from dragoman.core.queries.state import StateView
from dragoman.core.rules import Rules
from dragoman.stores.memory import MemoryStore


class SharedWorld(World):
    @property
    def view(self) -> StateView:
        return StateView(self.store, self.intake, self.rules)

    async def join(self, id: str, **fields: Any) -> Agent:
        """An agent that converses."""
        agent = Agent(
            **{"id": AgentId(id), "protocol": "agentmsg", "created_at": self.time, "token_hash": f"hash-{id}", **fields}
        )
        return await self.ask(AddAgent(principal=ADMIN, agent=agent))

    def change(
        self, who: str, registry: Registry, name: str, changes: dict[str, Any], version: int, operation: str = "UPDATE"
    ) -> ChangeState:
        return ChangeState(
            principal=AgentId(who),
            operation=Operation(operation),
            entity=registry,
            entity_id=name,
            changes=changes,
            version=version,
        )

    async def write(self, who: str, registry: Registry, name: str, changes: dict[str, Any], version: int) -> Entity:
        return await self.ask(self.change(who, registry, name, changes, version, "UPDATE" if version else "CREATE"))

    async def policy(self, **changes: Any) -> Entity:
        now = await self.view.one(Registry.POLICY, "policy")
        assert now is not None
        return await self.write(ADMIN, Registry.POLICY, "policy", changes, now.version)

    async def allot(self, name: str, **value: Any) -> Entity:
        now = await self.view.one(Registry.RESOURCE, name)
        return await self.write(ADMIN, Registry.RESOURCE, name, value, 0 if now is None else now.version)

    async def account(self, name: str) -> dict[str, Any]:
        entity = await self.view.one(Registry.RESOURCE, name)
        return {} if entity is None else entity.value


@pytest.fixture
async def make_world():
    """Worlds with rules of their own."""
    made: list[SharedWorld] = []

    async def make(rules: Rules | None = None, *, immediate: bool = True) -> SharedWorld:
        world = SharedWorld(MemoryStore(immediate=immediate), rules)
        await world.start()
        made.append(world)
        return world

    yield make
    for world in made:
        await world.intake.stop()


@pytest.fixture(params=[True, False], ids=["embedded", "over a wire"])
async def world(request, make_world):
    world = await make_world(immediate=request.param)
    await world.add("boss", "orchestrator")
    return world
