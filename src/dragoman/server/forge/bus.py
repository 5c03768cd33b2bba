"""Publish and subscribe, at most once.

A subscription lives as long as the connection that made it. A message reaches the readers that are subscribed at that
moment and keep up; the hub keeps it for none. A reader without room loses the message, never holds up the publisher or
another reader, and learns with the next one how many it missed.

In a cluster, each node has a bus for its own connections. The leader carries what is published to the other nodes, and
tells each how many readers they have; a reader whose two patterns match counts twice there.

    pattern     matches
    ---------   ---------------------------------------
    builds      the topic `builds`
    builds.*    every topic that begins with `builds.`
    *           every topic
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from dragoman.messages.faults import Kind, refuse

MOST_PATTERNS = 1000
"""Subscriptions of one reader."""
ANY = "*"

Take: TypeAlias = Callable[[str, str, Any, int], bool]
"""Topic, publisher, data, and how many were missed before. Returns at once: False if there was no room."""


class Neighbours(Protocol):
    """The buses of the other nodes."""

    def subscribed(self, pattern: str, readers: int) -> None:
        """So many readers have this pattern here now."""
        ...

    def published(self, topic: str, publisher: str, data: Any) -> None: ...


class Reader:
    """One connection's subscriptions."""

    def __init__(self, bus: Bus, take: Take) -> None:
        self._bus = bus
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
        self._bus.changed(pattern)
        return True

    def unsubscribe(self, pattern: str) -> bool:
        """Whether there was such a subscription."""
        if pattern not in self.patterns:
            return False
        self.patterns.discard(pattern)
        del self._readers[pattern][self]
        if not self._readers[pattern]:
            del self._readers[pattern]
        self._bus.changed(pattern)
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
        self.elsewhere: dict[str, int] = {}
        """How many readers other nodes have, by their patterns."""
        self._neighbours: Neighbours | None = None
        self.published = 0
        self.delivered = 0
        self.lost = 0

    def meet(self, neighbours: Neighbours | None) -> None:
        """Other nodes are there now (None: no more)."""
        self._neighbours = neighbours
        self.elsewhere.clear()
        for pattern in self.readers if neighbours is not None else ():
            self.changed(pattern)

    def changed(self, pattern: str) -> None:
        if self._neighbours is not None:
            self._neighbours.subscribed(pattern, len(self.readers.get(pattern, ())))

    def publish(self, topic: str, publisher: str, data: Any) -> int:
        """Give it to every subscribed reader, once each; how many took it. Those at other nodes count as if they
        had."""
        self.published += 1
        if self._neighbours is not None:
            self._neighbours.published(topic, publisher, data)
        return self.deliver(topic, publisher, data) + self._elsewhere(topic)

    def deliver(self, topic: str, publisher: str, data: Any) -> int:
        """Give it to the readers of this node."""
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
        return len(self._audience(topic)) + self._elsewhere(topic)

    def _elsewhere(self, topic: str) -> int:
        if not self.elsewhere:
            return 0
        patterns = (topic, *(topic[:end] + ANY for end in range(len(topic) + 1)))
        return sum(self.elsewhere.get(pattern, 0) for pattern in patterns)

    def _audience(self, topic: str) -> dict[Reader, None]:
        """A topic has at most 200 characters, so all patterns that match it are soon tried."""
        found = dict(self.readers.get(topic, {}))
        for end in range(len(topic) + 1):
            found.update(self.readers.get(topic[:end] + ANY, {}))
        return found
