"""A hub with somebody who asks, over a store that loads before it decides and over one that peeks."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await World(MemoryStore(immediate=request.param == "peeks")).start()
    await world.add("boss", "orchestrator")
    yield world
    await world.intake.stop()
