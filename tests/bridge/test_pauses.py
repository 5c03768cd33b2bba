"""A person holds a task and lets it go on: its worker is told where it can hear it, and the caller hears the end."""

from __future__ import annotations

import pytest

from dragoman.messages.features import Carriage, Feature
from dragoman.protocols.features import FEATURES
from tests.bridge.conftest import Scene
from tests.bridge.players.neutral import Unsayable, soon

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_person_holds_a_task_and_lets_it_go_on(scene: Scene) -> None:
    handle, job = await scene.begin()
    await scene.worker.say(job, percent=10)
    assert await soon(scene.caller.piece(handle))
    path = f"/api/v1/tasks/{handle.task_id}"
    held = await scene.stage.admin.post(f"{path}/pause")
    assert (held.status_code, held.json()["status"], held.json()["waiting"]) == (200, "waiting", "held")
    told = await what_it_hears(scene)
    again = await scene.stage.admin.post(f"{path}/resume", json={})
    assert (again.status_code, again.json()["status"]) == (200, "running")
    told += await what_it_hears(scene)

    cell = FEATURES[scene.worker.protocol].agent_receives.get(Feature.PAUSE)
    deaf = cell is not None and cell.how is Carriage.LOST
    assert told == ([] if deaf else ["paused", "running"])
    await scene.worker.finish(job, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"


async def what_it_hears(scene: Scene) -> list[str]:
    try:
        return [await scene.worker.hears()]
    except Unsayable:
        return []
