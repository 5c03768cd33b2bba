from __future__ import annotations

import pytest
from tests.unit.sdk.harness import FakeHub, FakeRuntime

from dragoman import Agent


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


@pytest.fixture
def hub(runtime: FakeRuntime) -> FakeHub:
    return FakeHub(runtime)


@pytest.fixture
def agent(runtime: FakeRuntime) -> Agent:
    return Agent("worker", runtime=runtime)
