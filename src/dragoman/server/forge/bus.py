"""Publish and subscribe within one process, at most once.

A subscription lives as long as the connection that made it. A message reaches the readers that are subscribed at that
moment and keep up; the hub keeps it for none. A reader without room loses the message, never holds up the publisher or
another reader, and learns with the next one how many it missed.

    pattern     matches
    ---------   ---------------------------------------
    builds      the topic `builds`
    builds.*    every topic that begins with `builds.`
    *           every topic
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from dragoman.messages.faults import Kind, refuse

MOST_PATTERNS = 1000
"""Subscriptions of one reader."""
ANY = "*"

Take: TypeAlias = Callable[[str, str, Any, int], bool]
"""Topic, publisher, data, and how many were missed before. Returns at once: False if there was no room."""


class Reader:
    """One connection's subscriptions."""

    def __init__(self, bus: Bus, take: Take) -> None:
        self._readers = bus.readers
        self.take = take
        self.patterns: set[str] = set()
        self.missed = 0

    def subscribe(self, pattern: str) -> bool:
        """Whether that is new. Refused with RESOURCES when there are too many."""
        if pattern in self.patterns:
            return False
        if len(self.patterns) >= MOST_PATTERNS:
            raise refuse(
                Kind.RESOURCES,
                f"a link may have {MOST_PATTERNS} subscriptions",
                next="unsubscribe from some, or use a pattern with `*`",
                field="payload.topic",
            )
        self.patterns.add(pattern)
        self._readers.setdefault(pattern, {})[self] = None
        return True

    def unsubscribe(self, pattern: str) -> bool:
        """Whether there was such a subscription."""
        if pattern not in self.patterns:
            return False
        self.patterns.discard(pattern)
        del self._readers[pattern][self]
        if not self._readers[pattern]:
            del self._readers[pattern]
        return True

    def leave(self) -> None:
        """The connection is gone."""
        for pattern in list(self.patterns):
            self.unsubscribe(pattern)


class Bus:
    """`published`, `delivered` and `lost` are counts for the metrics."""

    def __init__(self) -> None:
        self.readers: dict[str, dict[Reader, None]] = {}
        """By their patterns, in the order in which they subscribed."""
        self.published = 0
        self.delivered = 0
        self.lost = 0

    def publish(self, topic: str, publisher: str, data: Any) -> int:
        """Give it to every subscribed reader, once each; how many took it."""
        self.published += 1
        taken = 0
        for reader in self._audience(topic):
            if reader.take(topic, publisher, data, reader.missed):
                reader.missed = 0
                taken += 1
            else:
                reader.missed += 1
                self.lost += 1
        self.delivered += taken
        return taken

    def audience(self, topic: str) -> int:
        """How many are subscribed to it now."""
        return len(self._audience(topic))

    def _audience(self, topic: str) -> dict[Reader, None]:
        """A topic has at most 200 characters, so all patterns that match it are soon tried."""
        found = dict(self.readers.get(topic, {}))
        for end in range(len(topic) + 1):
            found.update(self.readers.get(topic[:end] + ANY, {}))
        return found
