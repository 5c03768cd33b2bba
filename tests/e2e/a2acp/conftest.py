"""One hub for all files here; every test brings agents of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.a2acp.speaking import INTENT, RECORD, SLOW, Speaker
from tests.e2e.conftest import one_hub
from tests.support.hubproc import HubProcess


@pytest.fixture(scope="package")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with one_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture
def pair(hub: HubProcess) -> tuple[Speaker, Speaker]:
    """Two of one domain: who asks, and who serves."""
    ada, bob = Speaker(hub, "lab", "write:datasets"), Speaker(hub, "lab")
    bob.serve(INTENT, RECORD, SLOW)
    return ada, bob
