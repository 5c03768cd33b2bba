"""The lab and the clinic, over a store that answers at once and over one that loads first."""

from __future__ import annotations

import pytest
from tests.support.contracts import lab_and_clinic

from dragoman.stores.memory import MemoryStore


@pytest.fixture(params=["loads first", "peeks"])
async def world(request):
    world = await lab_and_clinic(MemoryStore(immediate=request.param == "peeks"))
    yield world
    await world.intake.stop()
