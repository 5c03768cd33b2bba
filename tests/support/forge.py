"""Forge for tests: two ends of a link with nothing between them but bytes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from dragoman.protocols.forge.connection import Connection
from dragoman.protocols.forge.types import Stamp
from dragoman.wire import Role


class Link:
    """An orchestrator and an agent; `lines=True` for pipes."""

    def __init__(self, **settings: Any) -> None:
        self.hub = Connection(Role.HUB, agent_id="agent-1", **settings)
        self.agent = Connection(Role.AGENT, **settings)
        self._numbers = count(1)

    def stamp(self, id: str | None = None) -> Stamp:
        number = next(self._numbers)
        return Stamp(id or f"id-{number}", datetime(2026, 2, 4, tzinfo=UTC) + timedelta(seconds=number))
