"""A sliding minute, as a pure value (D16): how many messages in any 60 seconds, and when the next one may come.

A `Minute` counts by slots of a second. A slot counts until 60 seconds after its last message, so no sliding minute ever
holds more than the limit, and no sender waits longer than 60 seconds; a sender at the limit waits up to a second longer
than necessary. A minute takes 61 pairs of numbers at most, whatever the limit.

    whose              default    key
    -----------------  ---------  --------------------------------------------------------------
    an agent           1000       its principal, over all links and all protocols: one bucket
    a collaboration    100        its id
    the broker         10,000     the one for all

A message takes from all three or from none. Times are whole microseconds since the epoch, as everywhere in the hub.
Nothing here belongs to one protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

SECOND = 1_000_000
SPAN = 60

Key: TypeAlias = tuple[str, str]
BROKER: Key = ("broker", "")


class Limits(Struct, frozen=True, kw_only=True):
    """Messages a minute; 0 means no limit."""

    agent: int = 1000
    collaboration: int = 100
    broker: int = 10_000


class Minute(Struct, frozen=True):
    """Immutable: `taken` returns the next minute. A slot is (time of its last message, number of messages); `past` are
    the slots of former seconds, oldest first, `last` and `count` are the newest slot."""

    past: tuple[tuple[int, int], ...] = ()
    last: int = 0
    count: int = 0
    total: int = 0

    @property
    def slots(self) -> tuple[tuple[int, int], ...]:
        return (*self.past, (self.last, self.count)) if self.count else self.past

    def at(self, now: int) -> Minute:
        """What still counts at `now`."""
        over = now - SPAN * SECOND
        if self.last <= over:
            return EMPTY
        if not self.past or self.past[0][0] > over:
            return self
        kept = tuple(slot for slot in self.past if slot[0] > over)
        return Minute(kept, self.last, self.count, self.count + sum(count for _, count in kept))

    def wait(self, limit: int, now: int, wanted: int = 1) -> int:
        """Microseconds until so many may pass; 0 is now."""
        if limit <= 0:
            return 0
        current = self.at(now)
        excess = current.total + wanted - limit
        if excess <= 0:
            return 0
        for last, count in current.slots:
            excess -= count
            if excess <= 0:
                return max(1, last + SPAN * SECOND - now)
        return SPAN * SECOND  # more at once than a minute may hold

    def taken(self, now: int, wanted: int = 1) -> Minute:
        """The minute after so many passed. If the clock was set back, they count in the newest slot."""
        past, over = self.past, now - SPAN * SECOND
        current = self if self.last > over and (not past or past[0][0] > over) else self.at(now)
        if now // SECOND <= current.last // SECOND:
            return Minute(current.past, max(now, current.last), current.count + wanted, current.total + wanted)
        return Minute(current.slots, now, wanted, current.total + wanted)


EMPTY = Minute()


class Exceeded(Struct, frozen=True, kw_only=True):
    """Which limit was met, and how long to wait."""

    scope: str
    limit: int
    wait: int

    @property
    def retry_after(self) -> int:
        """Whole seconds, 1 to 60, also if the clock was set back."""
        return min(SPAN, max(1, -(-self.wait // SECOND)))


def keys(principal: str, collaboration: str | None = None) -> tuple[Key, ...]:
    """The minutes that a message takes from."""
    own: Key = ("agent", principal)
    return (own, ("collaboration", collaboration), BROKER) if collaboration else (own, BROKER)


def take(
    find: Callable[[Key], Minute | None], wanted: Sequence[Key], limits: Limits, now: int
) -> Mapping[Key, Minute] | Exceeded:
    """The changed minutes, or the limit that was met: the one with the longest wait."""
    worst: Exceeded | None = None
    changed: dict[Key, Minute] = {}
    for key in wanted:
        minute = find(key) or EMPTY
        limit: int = getattr(limits, key[0])
        if minute.total >= limit and (wait := minute.wait(limit, now)) and (worst is None or wait > worst.wait):
            worst = Exceeded(scope=key[0], limit=limit, wait=wait)
        changed[key] = minute.taken(now)
    return worst or changed
