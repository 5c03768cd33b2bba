"""A hub with a forge endpoint, and a cast: a planner, two workers, a reviewer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.forge import ForgeHub, forge_hub


@pytest.fixture
async def hub() -> AsyncIterator[ForgeHub]:
    async with forge_hub() as hub:
        await hub.add("planner-1", role="planner")
        await hub.add("worker-1", role="worker", capabilities=("typescript", "testing"))
        await hub.add("worker-2", role="worker", capabilities=("python",))
        await hub.add("reviewer-1", role="reviewer")
        yield hub
