"""The scripted orchestrator of the tests."""

from __future__ import annotations

import pytest
from tests.unit.sdk.forge.harness import FakeForge
from tests.unit.sdk.harness import FakeWorld


@pytest.fixture
def forge_hub(world: FakeWorld) -> FakeForge:
    return FakeForge(world)
