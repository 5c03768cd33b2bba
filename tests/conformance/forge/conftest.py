"""Two ends of a link with nothing between them but bytes."""

from __future__ import annotations

import pytest
from tests.support.forge import Link


@pytest.fixture
def link() -> Link:
    """Two fresh ends of a link that carries frames."""
    return Link()


@pytest.fixture
def pipe() -> Link:
    """Two fresh ends of a link that carries lines."""
    return Link(lines=True)
