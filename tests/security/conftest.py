"""One hub for each file of attacks; at the end of every test it must still serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hubproc import HubProcess, running


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with running(tmp_path_factory.mktemp("hub"), DRAGOMAN_SERVER__MAX_MESSAGE_BYTES=str(4 << 20)) as hub:
        yield hub


@pytest.fixture(autouse=True)
def still_serving(hub: HubProcess) -> Iterator[None]:
    yield
    assert hub.alive
    assert hub.admin.get("/livez").status == 200
    assert "Traceback" not in hub.log.read_text()
