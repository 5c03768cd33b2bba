"""A leader and a node that follows it, with a caller and an agent, and a gate for commits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.support.nodes import FollowedWorld, Gate, peopled


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = await peopled(FollowedWorld())
    yield world
    await world.stop()


@pytest.fixture
async def gate(world: FollowedWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()
