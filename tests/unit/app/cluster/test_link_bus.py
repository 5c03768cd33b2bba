"""Publish and subscribe over several nodes: what is published at one reaches the readers of all, once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.nodes import FollowedWorld, soon

from dragoman.server.forge.bus import Bus, Reader


class Reading:
    def __init__(self, bus: Bus, *patterns: str) -> None:
        self.taken: list[tuple[str, str, Any]] = []
        self.reader = Reader(bus, self._take)
        for pattern in patterns:
            self.reader.subscribe(pattern)

    def _take(self, topic: str, publisher: str, data: Any, missed: int) -> bool:
        self.taken.append((topic, publisher, data))
        return True


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = FollowedWorld()
    await world.start()
    await world.follow("n3")
    yield world
    await world.stop()


async def test_what_is_published_at_any_node_reaches_the_readers_of_all(world: FollowedWorld) -> None:
    buses = [world.leader.bus, *(node.bus for node in world.nodes)]
    readings = [Reading(bus, "builds.*") for bus in buses]
    await soon(lambda: [bus.audience("builds.main") for bus in buses] == [3, 3, 3])
    for number, bus in enumerate(buses):
        assert bus.publish("builds.main", f"agent-{number}", {"n": number}) == 3
    await soon(lambda: all(len(reading.taken) == 3 for reading in readings))
    everything = [("builds.main", f"agent-{number}", {"n": number}) for number in range(3)]
    assert [sorted(reading.taken, key=str) for reading in readings] == [everything] * 3
    assert [bus.audience("tests") for bus in buses] == [0, 0, 0]


async def test_readers_of_a_node_that_is_gone_do_not_count_and_a_new_one_knows_the_others(world: FollowedWorld) -> None:
    leaders = Reading(world.leader.bus, "builds", "*")
    Reading(world.nodes[1].bus, "builds")
    await soon(lambda: world.nodes[0].bus.audience("builds") == 3)
    await world.nodes[1].stop()
    await soon(lambda: world.nodes[0].bus.audience("builds") == 2)
    later = await world.follow("n4")
    await soon(lambda: later.bus.audience("builds") == 2)
    leaders.reader.leave()
    await soon(lambda: later.bus.audience("builds") == 0)
    for node in world.nodes:
        await node.stop()
    await soon(lambda: not world.port.nodes)
    assert (world.leader.bus.elsewhere, world.leader.bus.publish("builds", "a", 1)) == ({}, 0)
