"""Identity and time, as values.

Inside the hub, times are whole microseconds since the epoch, UTC: cheap to compare, to store and to index, and without
time zones. They become RFC 3339 text only on the wire (`rfc3339`).

Ids are time-ordered UUIDs (version 7), so rows made together lie together. They come from a `Moment`, never from a
random source: the same seed gives the same ids.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import NewType

import msgspec

AgentId = NewType("AgentId", str)
TaskId = NewType("TaskId", str)
DeliveryId = NewType("DeliveryId", str)
QuestionId = NewType("QuestionId", str)
SessionId = NewType("SessionId", str)
Instant = NewType("Instant", int)

MILLISECOND = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

HUB = AgentId("hub")
"""The hub itself, where it is a sender or asks for work (health checks)."""

ADMIN = AgentId("admin")
"""The holder of the admin token: people, through the API, the command line and the dashboard."""

NOBODY = AgentId("anonymous")
"""The principal of a request without a valid credential."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Moment(msgspec.Struct, frozen=True):
    """What a decision may know of the outside world: the time, and fresh ids."""

    now: Instant
    mint: Callable[[], str]


def uuid7(now: Instant, entropy: int) -> str:
    """A version 7 UUID from a time and 74 bits of entropy (more bits are ignored)."""
    millis = now // MILLISECOND
    a = entropy & 0xFFF
    b = (entropy >> 12) & 0x3FFF_FFFF_FFFF_FFFF
    value = (millis << 80) | (0x7000 | a) << 64 | (0x8000_0000_0000_0000 | b)
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def minted_at(id: str) -> Instant | None:
    """The millisecond in which a `uuid7` was made; None for any other id."""
    return Instant(int(id[:8] + id[9:13], 16) * MILLISECOND) if len(id) == 36 and id[14] == "7" else None


def rfc3339(at: Instant) -> str:
    """The time in the form of the wire: UTC, with `Z`, microseconds only where there are any."""
    return (EPOCH + timedelta(microseconds=at)).isoformat().replace("+00:00", "Z")


def instant(at: datetime) -> Instant:
    """The instant of an aware datetime."""
    if at.tzinfo is None:
        raise ValueError("a time needs an offset from UTC, for example 2026-01-19T04:21:04Z")
    return Instant((at - EPOCH) // timedelta(microseconds=1))
