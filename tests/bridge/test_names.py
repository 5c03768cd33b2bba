"""Agentmsg callers call their tasks what they like; everybody else knows them by the hub's id."""

from __future__ import annotations

import uuid

import pytest

from dragoman.server.agentmsg.ids import task_id
from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.agentmsg import AgentmsgCaller
from tests.bridge.players.neutral import Order, heard

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("pair", [("agentmsg", name) for name in PLAYERS], ids=PLAYERS),
]


class Namer(AgentmsgCaller):
    def name_of(self, order: Order) -> str:
        return f"the bridge, part {order.request_id}"


async def test_a_task_with_a_name_of_its_own_is_reported_under_that_name(scene: Scene) -> None:
    caller = await scene.enter(Namer)
    handle = await caller.submit(Order(to=scene.worker.id, request_id=str(uuid.uuid4())))
    id = task_id(handle.task_id)
    assert id != handle.task_id
    job = await scene.worker.take()
    assert job.id == (handle.task_id if scene.worker.protocol == "agentmsg" else id)
    await scene.worker.say(job, percent=10, message="halfway over")
    await scene.worker.finish(job, text="done")
    history = await caller.history(handle)  # by its name
    assert (heard(history, "message"), history[-1]["text"]) == (["halfway over"], "done")
    assert (await scene.stage.task(id))["status"] == "completed"


async def test_a_task_is_cancelled_and_waited_for_by_its_name(scene: Scene) -> None:
    caller = await scene.enter(Namer)
    first = await caller.submit(Order(to=scene.worker.id))
    job = await scene.worker.take()
    second = await caller.submit(Order(to=scene.worker.id, type="after", dependencies=(first.task_id,)))
    assert (await scene.stage.task(task_id(second.task_id)))["waiting"] == "dependency"
    await scene.worker.finish(job, text="done")
    job = await scene.worker.take()
    assert job.type == "after"
    await caller.cancel(second, "no longer wanted")
    await scene.worker.until_cancelled(job)
    assert (await caller.history(second))[-1]["final"] == "cancelled"
