"""The bus in one process: who gets what, who loses what, and that nobody waits."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.messages.faults import Refused
from dragoman.server.forge.bus import MOST_PATTERNS, Bus, Reader


class Mailbox:
    """Takes as many as it has room for."""

    def __init__(self, bus: Bus, *patterns: str, room: int = 100) -> None:
        self.got: list[tuple[str, str, Any, int]] = []
        self.room = room
        self.reader = Reader(bus, self.take)
        for pattern in patterns:
            self.reader.subscribe(pattern)

    def take(self, topic: str, publisher: str, data: Any, missed: int) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.got.append((topic, publisher, data, missed))
        return True

    @property
    def topics(self) -> list[str]:
        return [topic for topic, *_ in self.got]


def test_patterns_are_exact_or_end_with_a_star() -> None:
    bus = Bus()
    exact, below, everything = Mailbox(bus, "builds"), Mailbox(bus, "builds.*"), Mailbox(bus, "*")
    for topic in ("builds", "builds.done", "build", "other"):
        bus.publish(topic, "a", None)
    assert exact.topics == ["builds"]
    assert below.topics == ["builds.done"]
    assert everything.topics == ["builds", "builds.done", "build", "other"]


def test_several_patterns_that_match_are_one_message() -> None:
    bus = Bus()
    box = Mailbox(bus, "a.b", "a.*", "*")
    assert bus.publish("a.b", "me", 1) == 1
    assert box.got == [("a.b", "me", 1, 0)]


def test_a_full_reader_loses_messages_learns_how_many_and_holds_up_no_other() -> None:
    bus = Bus()
    slow, quick = Mailbox(bus, "t", room=1), Mailbox(bus, "t")
    assert [bus.publish("t", "me", n) for n in range(4)] == [2, 1, 1, 1]
    slow.room = 2
    bus.publish("t", "me", 4)
    bus.publish("t", "me", 5)
    assert [(data, missed) for _, _, data, missed in slow.got] == [(0, 0), (4, 3), (5, 0)]
    assert len(quick.got) == 6
    assert (bus.published, bus.delivered, bus.lost) == (6, 9, 3)


def test_leaving_ends_every_subscription_and_leaves_nothing_behind() -> None:
    bus = Bus()
    box, other = Mailbox(bus, "a", "a.*", "*"), Mailbox(bus, "a.*")
    assert box.reader.unsubscribe("a")
    assert not box.reader.unsubscribe("a")
    assert not box.reader.subscribe("*")
    box.reader.leave()
    assert bus.publish("a.b", "me", None) == 1
    other.reader.leave()
    assert (bus.publish("a.b", "me", None), bus.readers) == (0, {})


def test_a_reader_has_a_bound() -> None:
    box = Mailbox(Bus(), *(f"t{n}" for n in range(MOST_PATTERNS)))
    with pytest.raises(Refused):
        box.reader.subscribe("one more")
