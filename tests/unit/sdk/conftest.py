from __future__ import annotations

import pytest

from dragoman import Agent
from tests.unit.sdk.harness import FakeHub, FakeWorld


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def hub(world: FakeWorld) -> FakeHub:
    return FakeHub(world)


@pytest.fixture
def agent(world: FakeWorld) -> Agent:
    return Agent("worker", world=world)
