"""How long the acknowledgment of an attempt is waited for, and how often something is attempted (agentmsg-D7).

    who says it           waits of                              attempts at
    --------------------  ------------------------------------  -------------------------------------------------
    the sender            its direct message                    the same (`DirectMessage.attempts`, always there)
    a task's caller       its work orders                       its work orders (`Task.retry`)
    the policy            everything for agents that converse   work orders and notices
    the hub's settings    the same                              the same

Field by field, the first of them that says something counts. Senders and the policy are held to `SHORTEST` and
`LONGEST`: between attempts the hub has others to serve, and a lane stands still behind its head. A direct message that
is attempted more than `OWN` times waits as all others do from then on.
"""

from __future__ import annotations

import math
from typing import Any
from zlib import crc32

import msgspec

from dragoman.core.ids import HOUR, MILLISECOND
from dragoman.core.rules import Rules

SHORTEST = 100 * MILLISECOND
LONGEST = HOUR
OWN = 100


class Backoff(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What somebody says of the waits between attempts. None: nothing. Not whole microseconds: a beginning below one
    grows, too."""

    base: float | None = None
    most: float | None = None
    factor: float | None = None
    jitter: bool | None = None
    attempts: int | None = None


def wait_of(rules: Rules, id: str, attempt: int, policy: Backoff | None = None, own: Backoff | None = None) -> int:
    """How long an acknowledgment of this attempt is waited for. The jitter follows from the id: a decision that is made
    twice is the same, and direct messages that left together do not come back together."""
    base, most, factor = rules.direct_message_waits
    if policy is None and own is None:
        whole: float = min(base * factor ** min(attempt - 1, 40), most)
        return int(whole * _share(id, attempt)) if rules.direct_message_jitter else int(whole)
    said = [backoff for backoff in (own if attempt <= OWN else None, policy) if backoff is not None]
    jitter = _first([backoff.jitter for backoff in said], rules.direct_message_jitter)
    whole = grown(
        _first([backoff.base for backoff in said], base),
        _first([backoff.most for backoff in said], most),
        _first([backoff.factor for backoff in said], factor),
        attempt,
    )
    return max(SHORTEST, min(int(whole * _share(id, attempt) if jitter else whole), LONGEST))


def grown(base: float, most: float, factor: float, attempt: int) -> float:
    """The wait after an attempt, counted from 1, without jitter."""
    if not base or base >= most or factor <= 1:
        return min(base, most)
    # A power overflows long before anybody stops retrying.
    steps = math.log(most / base) / math.log(factor)
    return most if attempt - 1 >= steps else min(base * factor ** (attempt - 1), most)


def _first(said: list[Any], otherwise: Any) -> Any:
    return next((value for value in said if value is not None), otherwise)


def _share(id: str, attempt: int) -> float:
    """From a half up to the whole."""
    return (1 + crc32(f"{id}{attempt}".encode()) / 0x1_0000_0000) / 2
