"""The order of a stop: an agent that cannot reach the hub any more is not late."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.world import START, World

from dragoman.app.settings import Settings
from dragoman.app.settings.model import CovenSettings, Server, StoreSettings
from dragoman.app.wiring import hub
from dragoman.core.commands import Acknowledge
from dragoman.core.ids import ADMIN, HOUR, Instant
from dragoman.supervisor.supervisor import Supervisor


async def test_no_clock_runs_out_while_the_hub_waits_for_agents_to_finish(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent lost its connection at the beginning of the stop, and a child takes its time."""
    settings = Settings(
        data=str(tmp_path),
        server=Server(port=0),
        store=StoreSettings(kind="memory"),
        coven=CovenSettings(enabled=False),
    )
    world = World()
    seen = []

    async with hub(settings, clock=lambda: world.time) as running:
        world.intake = intake = running.intake
        await world.add("boss", "orchestrator")
        await world.add("i1", "infra")
        await world.add("i2", "desktop")
        i1 = await world.connect("i1")
        at_work, queued = await world.submit(), await world.submit("desktop")

        async def an_hour_later(_: Supervisor, seconds: float) -> None:
            await i1.close()
            world.time = Instant(START + HOUR // 2)
            intake.wake_changed.set()
            for _ in range(20):
                await asyncio.sleep(0)
                await intake.execute(Acknowledge(principal=ADMIN, deliveries=()))
            for id in (at_work.id, queued.id):
                task = await intake.store.task(id)
                assert task is not None
                seen.append((task.status.value, task.attempt.count))

        monkeypatch.setattr(Supervisor, "drain", an_hour_later)
    assert seen == [("assigned", 1), ("queued", 0)]
