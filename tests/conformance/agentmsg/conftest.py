"""The document's interfaces and enums; two ends of a link with nothing between them but bytes; a whole hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.agentmsg.samples import Link
from tests.conformance.agentmsg.stage import Stage, opened

DOCUMENT = Path(__file__).with_name("document.json")


@pytest.fixture(scope="session")
def document() -> dict[str, Any]:
    """What the document declares: `enums` by name, and `interfaces` with their fields."""
    loaded: dict[str, Any] = json.loads(DOCUMENT.read_text("utf-8"))
    return loaded


@pytest.fixture
def link() -> Link:
    """Two fresh ends of a link."""
    return Link()


@pytest.fixture(params=[True, False], ids=["embedded", "over a wire"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """A hub behind its real endpoints, under a clock that only moves when told; its store is near or far."""
    async with opened(immediate=request.param) as stage:
        yield stage
