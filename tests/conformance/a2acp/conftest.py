"""The document's examples, and two ends of a link with nothing between them but bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.a2acp.samples import Link

EXAMPLES = Path(__file__).with_name("examples.json")


@pytest.fixture
def examples() -> dict[str, Any]:
    """The document's examples by name."""
    loaded: dict[str, Any] = json.loads(EXAMPLES.read_text("utf-8"))
    return loaded


@pytest.fixture
def link() -> Link:
    """Two fresh ends of a link."""
    return Link()
