"""A hub to kill, and which kills are tried at every run.

A kill at each named step of each kind of work takes minutes, since each starts and kills a hub of its own. At every run
it is the step between commit and everything after it; all others are tried in the long runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.hubproc import HubProcess

ALWAYS = "after_commit"
STEPS = ("before_", "after_", "writer:")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubProcess]:
    """A hub whose clocks are slow: what they commit would meet a crash point first."""
    hub = HubProcess(tmp_path, DRAGOMAN_RULES__IDLE_SECONDS="600", DRAGOMAN_AGENTMSG__HEARTBEAT_SECONDS="600")
    hub.start()
    yield hub
    hub.kill()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        case = getattr(item, "callspec", None)
        if case is None or item.path.parent.name != "faults" or "kill" not in item.name:
            continue
        if ALWAYS not in case.id and any(step in case.id for step in STEPS):
            item.add_marker(pytest.mark.soak)
