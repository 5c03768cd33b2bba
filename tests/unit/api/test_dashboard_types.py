"""The dashboard's types are those of the hub's routes: whoever changes a body or an answer runs `make web`."""

from __future__ import annotations

import hashlib
import runpy
from pathlib import Path

WEB = Path(__file__).resolve().parents[3] / "web"


def test_the_dashboards_types_are_generated_from_the_routes_as_they_are() -> None:
    document = runpy.run_path(str(WEB / "openapi.py"))["dashboard_document"]()
    with (WEB / "src" / "api" / "schema.ts").open() as schema:
        noted = schema.readline().strip().rpartition(" ")[2]
    assert noted == hashlib.sha256(document.encode()).hexdigest(), "run `make web` and commit what it changes"
