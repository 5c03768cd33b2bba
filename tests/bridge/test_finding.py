"""An agentmsg agent names nobody: the hub finds who can, among agents of every protocol."""

from __future__ import annotations

import uuid

import pytest

from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.agentmsg import AgentmsgWorker
from tests.bridge.players.agentmsg_link import HUB
from tests.bridge.players.neutral import Order, Worker

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("pair", [("agentmsg", name) for name in PLAYERS], ids=PLAYERS),
]

ANYONE = "*"


async def somebody_able(scene: Scene) -> tuple[Worker, str]:
    """The only one who can do something, and what that is."""
    skill = f"skill-{uuid.uuid4().hex}"
    return await scene.enter(type(scene.worker), able=(skill,)), skill


@pytest.mark.parametrize("to", [HUB, ANYONE], ids=["hub", "anyone"])
async def test_an_assignment_finds_an_agent_with_the_capabilities(scene: Scene, to: str) -> None:
    able, skill = await somebody_able(scene)
    handle = await scene.caller.submit(Order(to=to, needs=(skill,)))
    job = await able.take()
    await able.finish(job, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"
    assert (await scene.stage.task(handle.task_id))["agent"] == able.id


async def test_a_handoff_finds_an_agent_with_the_capabilities(scene: Scene) -> None:
    able, skill = await somebody_able(scene)
    owner: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    handle = await scene.caller.submit(Order(to=owner.id))
    job = await owner.take()
    request = await owner.hand_over(job, ANYONE, {"found": "cracks"}, "CAPABILITY_LIMIT", needs=(skill,))
    taken = await able.take_over()
    assert taken.id == handle.task_id
    assert (await owner.answer(request))["payload"]["agent_id"] == able.id
    await able.finish(taken, text="done")
    assert (await scene.caller.history(handle))[-1]["text"] == "done"


async def test_a_request_for_help_finds_an_agent_with_that_capability(scene: Scene) -> None:
    helper: Worker = await scene.enter(type(scene.worker), able=("architecture-advice",))
    asker: AgentmsgWorker = await scene.enter(AgentmsgWorker)
    await scene.caller.submit(Order(to=asker.id))
    job = await asker.take()
    request = await asker.ask_for_help(job, "An arch, or a beam?", ANYONE, "ARCHITECTURE_ADVICE")
    assert await helper.help("an arch") == "An arch, or a beam?"
    given = (await asker.answer(request))["payload"]
    assert (given["responder_id"], given["content"]) == (helper.id, "an arch")
