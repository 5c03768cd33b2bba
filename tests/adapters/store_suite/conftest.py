"""A store of each kind for every test."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.core.ports import Store
from dragoman.stores.sqlite import writer_process
from tests.adapters.store_suite.stores import KINDS
from tests.support.leading import done_with
from tests.support.nest import nest


@pytest.fixture(params=["memory", "sqlite", "sqlite-uncached", "postgres", "postgres-uncached"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = KINDS[request.param](tmp_path)
    await made.open()
    yield made
    await made.close()
    done_with(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _forked_writers() -> Iterator[None]:
    """Stores are opened by the hundred here, and it is not the start of their writers that is tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer_process, "subprocess", SimpleNamespace(Popen=nest().writer, DEVNULL=subprocess.DEVNULL))
        yield
