from __future__ import annotations

import pytest
from tests.unit.sdk.harness import FakeHub, FakeWorld

from dragoman import Agent


@pytest.fixture
def world() -> FakeWorld:
    return FakeWorld()


@pytest.fixture
def hub(world: FakeWorld) -> FakeHub:
    return FakeHub(world)


@pytest.fixture
def agent(world: FakeWorld) -> Agent:
    return Agent("worker", world=world)
