"""The scripted orchestrator of the tests."""

from __future__ import annotations

import pytest
from tests.unit.sdk.forge.harness import FakeForge
from tests.unit.sdk.harness import FakeRuntime


@pytest.fixture
def forge_hub(runtime: FakeRuntime) -> FakeForge:
    return FakeForge(runtime)
