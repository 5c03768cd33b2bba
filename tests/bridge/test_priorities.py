"""The most urgent task comes first, whatever protocol it came by, and whatever agent does it."""

from __future__ import annotations

import pytest

from dragoman.messages.features import Feature
from tests.bridge.conftest import SOME, Scene, able_to
from tests.bridge.players import PLAYERS
from tests.bridge.players.neutral import Order

pytestmark = pytest.mark.asyncio(loop_scope="session")

RISING = ("low", "normal", "high", "critical")
PLACES = ("first", "second", "third", "fourth")


@pytest.mark.parametrize("pair", able_to(Feature.PRIORITY, SOME), ids="-to-".join)
async def test_urgent_work_of_any_protocol_overtakes_the_others(scene: Scene) -> None:
    """A caller of each protocol asks, the least urgent first; the scene's own caller is the most urgent one. Who has no
    word for it asks for something normal."""
    worker = await scene.enter(type(scene.worker), seats=1)
    scene.worker = worker
    _, held = await scene.begin(type="held")
    names = sorted(set(PLAYERS) - {"a2acp"}, key=lambda name: name == scene.names[0])
    for name, priority in zip(names, RISING, strict=True):
        caller = scene.caller if name == scene.names[0] else await scene.enter(PLAYERS[name].caller)
        await caller.submit(Order(to=worker.id, type=priority, priority=priority))
    silent = await scene.enter(PLAYERS["a2acp"].caller)
    await silent.submit(Order(to=worker.id, type="next"))

    await worker.finish(held, text="done")
    taken = []
    for _ in (*names, silent):
        job = await worker.take()
        taken.append(job.type)
        await worker.finish(job, text="done")
    assert taken == ["critical", "high", "normal", "next", "low"]


@pytest.mark.parametrize("pair", SOME, ids="-to-".join)
async def test_what_is_equally_urgent_is_done_in_the_order_it_came(scene: Scene) -> None:
    worker = await scene.enter(type(scene.worker), seats=1)
    scene.worker = worker
    _, held = await scene.begin(type="held")
    other = await scene.enter(PLAYERS["agentmsg"].caller)
    is_silent = scene.names[0] == "a2acp"
    priority = None if is_silent else "high"
    for place, caller in zip(PLACES, (scene.caller, other, scene.caller, other), strict=True):
        await caller.submit(Order(to=worker.id, type=place, priority=priority))
    await worker.finish(held, text="done")
    taken = []
    for _ in PLACES:
        job = await worker.take()
        taken.append(job.type)
        await worker.finish(job, text="done")
    assert taken == list(PLACES)
