"""The road of a task through the hub, step by step, under a clock that only moves when told."""

from __future__ import annotations

import pytest
from tests.support.world import World

from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=[True, False], ids=["embedded", "over a wire"])
async def world(request):
    """Every flow twice: decisions that see the store at once, and decisions that are run again for what they lack."""
    world = await World(MemoryStore(immediate=request.param)).start()
    await world.add("boss", "orchestrator")
    yield world
    await world.intake.stop()
