"""Publish and subscribe within one process, at most once.

A subscription lives as long as the link that made it. What is published reaches whoever is subscribed at that moment
and keeps up; it is kept for nobody. A reader without room loses the message, never holds up the publisher or another
reader, and learns with the next one how many it missed.

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
    """One link's subscriptions."""

    def __init__(self, bus: Bus, take: Take) -> None:
        self._bus = bus
        self.take = take
        self.patterns: set[str] = set()
        self.missed = 0

    def subscribe(self, pattern: str) -> bool:
        """Whether that is new. Refused with RESOURCES when there are too many."""
        if pattern in self.patterns:
            return False
        if len(self.patterns) >= MOST_PATTERNS:
            message = f"a link may have {MOST_PATTERNS} subscriptions; unsubscribe from some, or use a pattern with `*`"
            raise refuse(Kind.RESOURCES, message, field="payload.topic")
        self.patterns.add(pattern)
        self._bus.enter(self, pattern)
        return True

    def unsubscribe(self, pattern: str) -> bool:
        """Whether there was such a subscription."""
        if pattern not in self.patterns:
            return False
        self.patterns.discard(pattern)
        self._bus.strike(self, pattern)
        return True

    def leave(self) -> None:
        """The link is gone."""
        for pattern in list(self.patterns):
            self.unsubscribe(pattern)


class Bus:
    """`published`, `delivered` and `lost` are counts for the metrics."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[Reader, None]] = {}
        self._prefixes: dict[str, dict[Reader, None]] = {}
        self._lengths: dict[int, int] = {}  # of the prefixes, with how many have it
        self.published = 0
        self.delivered = 0
        self.lost = 0

    def publish(self, topic: str, publisher: str, data: Any) -> int:
        """Hand it to everybody who is subscribed, once each; how many took it."""
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
        readers = dict(self._exact.get(topic, {}))
        for length in self._lengths:
            if length <= len(topic):
                readers.update(self._prefixes.get(topic[:length], {}))
        return readers

    def enter(self, reader: Reader, pattern: str) -> None:
        table, key = self._place(pattern)
        readers = table.setdefault(key, {})
        if not readers and table is self._prefixes:
            self._lengths[len(key)] = self._lengths.get(len(key), 0) + 1
        readers[reader] = None

    def strike(self, reader: Reader, pattern: str) -> None:
        table, key = self._place(pattern)
        readers = table[key]
        del readers[reader]
        if readers:
            return
        del table[key]
        if table is self._prefixes:
            self._lengths[len(key)] -= 1
            if not self._lengths[len(key)]:
                del self._lengths[len(key)]

    def _place(self, pattern: str) -> tuple[dict[str, dict[Reader, None]], str]:
        return (self._prefixes, pattern[:-1]) if pattern.endswith(ANY) else (self._exact, pattern)
