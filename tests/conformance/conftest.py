"""The document's examples, for every suite that has them beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:  # the suites import each other's manifests; importlib mode puts no folder there itself
    sys.path.insert(0, str(ROOT))


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The document's examples by name."""
    place = next(found for folder in request.path.parents if (found := folder / "examples.json").exists())
    loaded: dict[str, Any] = json.loads(place.read_text("utf-8"))
    return loaded
