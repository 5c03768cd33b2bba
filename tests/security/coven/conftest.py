"""Attacks on coven's port. Whatever is tried, an honest agent's task is done afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.security.coven.attackers import QUOTA, agent_of, done_by
from tests.support.hubproc import HubProcess, running

MIB = 1024 * 1024


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    settings = {
        "DRAGOMAN_COVEN__MAX_STREAMS": "2000",
        "DRAGOMAN_FILES__QUOTA_BYTES": str(QUOTA),
        "DRAGOMAN_FILES__LARGEST_BYTES": str(4 * MIB),
        "DRAGOMAN_RULES__IDLE_SECONDS": "20",
        "DRAGOMAN_LOG__LEVEL": "debug",
    }
    with running(tmp_path_factory.mktemp("hub"), **settings) as hub:
        yield hub


@pytest.fixture(autouse=True)
async def honest(hub: HubProcess) -> AsyncIterator[None]:
    """After each attack an honest agent works."""
    yield
    async with agent_of(hub, "honest") as agent:
        assert (await done_by(hub, agent, "honest", text="as ever"))["output"] == "as ever"
