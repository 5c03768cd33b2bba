"""A scripted hub whose agents converse."""

from __future__ import annotations

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg
from tests.unit.sdk.harness import FakeWorld


@pytest.fixture
def hub(world: FakeWorld) -> FakeAgentmsg:
    return FakeAgentmsg(world)
