"""How an agent stands, as far as routing must know it: read from its entry in the registry, kept beside it in memory.

Agents that never said how they are have none, and nothing is asked about them.
"""

from __future__ import annotations

import enum
from datetime import datetime
from typing import Any

import msgspec

from dragoman.core.ids import Instant, instant


class AgentState(enum.StrEnum):
    IDLE = "IDLE"
    BUSY = "BUSY"
    ERROR = "ERROR"
    OFFLINE = "OFFLINE"
    MAINTENANCE = "MAINTENANCE"


AWAY = frozenset({AgentState.ERROR, AgentState.OFFLINE, AgentState.MAINTENANCE})
"""An agent in these states is given no work."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """`until`: before that it takes no work, as it said itself. `level` is how capable it is, 0 to 100."""

    away: bool = False
    until: Instant | None = None
    error_rate: float = 0.0
    level: float = 100.0


def standing_of(value: dict[str, Any]) -> Standing:
    return Standing(
        value.get("state") in AWAY,
        moment_of(value.get("next_available")),
        value.get("error_rate", 0.0),
        value.get("capability_level", 100.0),
    )


def moment_of(text: str | None) -> Instant | None:
    """A time as it stands in a shared value. It was checked when it was written."""
    return None if text is None else instant(datetime.fromisoformat(text))
