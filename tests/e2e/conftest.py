"""One hub for each file; every test brings agents of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hubproc import HubProcess, running


@contextmanager
def one_hub(home: Path) -> Iterator[HubProcess]:
    settings = {"DRAGOMAN_CHIFFON__ALLOW_PRIVATE_CALLBACKS": "true", "DRAGOMAN_RULES__IDLE_SECONDS": "20"}
    with running(home, **settings) as hub:
        yield hub
        log = hub.log.read_text()
        assert "Traceback" not in log
        assert hub.stop() == 0


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    with one_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub
