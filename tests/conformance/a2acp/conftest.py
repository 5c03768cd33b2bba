"""Two ends of a link with nothing between them but bytes."""

from __future__ import annotations

import pytest
from tests.conformance.a2acp.samples import Link


@pytest.fixture
def link() -> Link:
    """Two fresh ends of a link."""
    return Link()
