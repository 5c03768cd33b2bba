"""The most urgent comes first, whatever protocol it came in by, and whoever does it."""

from __future__ import annotations

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.neutral import Order

pytestmark = pytest.mark.asyncio(loop_scope="session")

RISING = ("low", "normal", "high", "critical")


async def test_urgent_work_of_any_protocol_overtakes_the_others(scene: Scene) -> None:
    """A caller of each protocol asks, the least urgent first; the scene's own caller is the most urgent one."""
    worker = await scene.enter(type(scene.worker), seats=1)
    scene.worker = worker
    _, held = await scene.begin(type="held")
    names = sorted(PLAYERS, key=lambda name: name == scene.names[0])
    for name, priority in zip(names, RISING, strict=True):
        caller = scene.caller if name == scene.names[0] else await scene.enter(PLAYERS[name].caller)
        await caller.submit(Order(to=worker.id, type=f"{priority} of {name}", priority=priority))

    await worker.finish(held, text="done")
    taken = []
    for _ in names:
        job = await worker.take()
        taken.append(job.type)
        await worker.finish(job, text="done")
    assert taken == [f"{priority} of {name}" for priority, name in zip(RISING[::-1], names[::-1], strict=True)]


async def test_what_is_equally_urgent_is_done_in_the_order_it_came(scene: Scene) -> None:
    worker = await scene.enter(type(scene.worker), seats=1)
    scene.worker = worker
    _, held = await scene.begin(type="held")
    other = await scene.enter(PLAYERS["agentmsg"].caller)
    for number, caller in enumerate((scene.caller, other, scene.caller, other)):
        await caller.submit(Order(to=worker.id, type=f"number {number}", priority="high"))
    await worker.finish(held, text="done")
    taken = []
    for _ in range(4):
        job = await worker.take()
        taken.append(job.type)
        await worker.finish(job, text="done")
    assert taken == [f"number {number}" for number in range(4)]
