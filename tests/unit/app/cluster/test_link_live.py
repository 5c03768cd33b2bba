"""Event streams and plots at a following node: what the leader commits is seen there, and what a slow node misses it
reads from the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.nodes import SECONDS, FollowedWorld, soon

from dragoman.api import live as live_module
from dragoman.api.live import Live
from dragoman.api.series import Series
from dragoman.app.cluster.link import LeaderPort, node_link
from dragoman.app.intake import Intake
from dragoman.app.metrics import Counters
from dragoman.app.observers import Observers


class Watched(FollowedWorld):
    def __init__(self) -> None:
        self.live = Live(lambda: self.time)
        self.series = Series(lambda: self.time, lambda agent: "chiffon", lambda: 0)
        super().__init__()
        self.port = LeaderPort(
            self.leader, host="127.0.0.1", port=0, tls=None, live=self.live, series=self.series, ttl=SECONDS
        )

    def _new_intake(self) -> Intake:
        return Intake(
            self.store,
            rules=self.rules,
            now=lambda: self.time,
            mint=self.mint,
            observer=Observers(Counters(), self.series, self.live),
        )


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(live_module, "TICK_SECONDS", 0.001)
    world = Watched()
    await world.start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    yield world
    await world.stop()


async def test_a_page_of_a_node_sees_what_the_leader_commits_from_its_first_moment_on(world: Watched) -> None:
    node = world.nodes[0]
    async with node.live.watching() as watcher:
        task = await world.leader.execute(world.request())
        moments, missed = await watcher.next(SECONDS)
        assert not missed
        assert [event.task for event in moments[0].events] == [task.id]
        assert moments[0].tasks == {task.id: task}
        async with node.live.watching() as second:
            await world.leader.execute(world.request())
            for one in (watcher, second):
                ((moment,), missed) = await one.next(SECONDS)
                assert (len(moment.events), missed) == (1, False)
    await soon(lambda: world.live._watchers == 0)


async def test_moments_that_were_left_out_are_missed_and_the_watcher_knows(
    world: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.nodes[0].live.watching() as watcher:
        await world.leader.execute(world.request())
        await watcher.next(SECONDS)
        monkeypatch.setattr(node_link, "LIVE_BACKLOG", 0)  # the node is slow
        before = world.live._number
        await world.leader.execute(world.request())
        await soon(lambda: world.live._number > before)
        await asyncio.sleep(0)
        await world.settle()
        monkeypatch.undo()
        await world.leader.execute(world.request())
        moments, missed = await watcher.next(SECONDS)
        assert (len(moments), missed) == (1, True)


async def test_when_nobody_watches_at_a_node_the_leader_gathers_nothing(world: Watched) -> None:
    await world.leader.execute(world.request())
    assert (world.live._events, world.nodes[0].live._moments) == ([], type(world.nodes[0].live._moments)(maxlen=64))


async def test_plots_at_a_node_have_the_buckets_that_are_not_stored_yet(world: Watched) -> None:
    await world.leader.execute(world.request())
    here = await world.nodes[0].series.read(world.store, "15m")
    assert here == await world.series.read(world.store, "15m")
    assert [bucket.submitted for bucket in here] == [1]
