"""A scripted hub whose agents converse."""

from __future__ import annotations

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg
from tests.unit.sdk.harness import FakeRuntime


@pytest.fixture
def hub(runtime: FakeRuntime) -> FakeAgentmsg:
    return FakeAgentmsg(runtime)
