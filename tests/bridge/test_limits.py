"""A2acp's limits hold for those who speak it, and for nobody else; work for agents of every protocol counts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dragoman.app.settings import A2acpSettings
from tests.bridge.conftest import Scene
from tests.bridge.players import PLAYERS
from tests.bridge.players.a2acp import Refusal
from tests.bridge.players.neutral import Order
from tests.bridge.players.stage import Stage, playing

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.parametrize("pair", [("a2acp", name) for name in PLAYERS], ids=PLAYERS),
]

A_COLLABORATION = 3
AN_AGENT = 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    few = A2acpSettings(messages_per_agent=AN_AGENT, messages_per_collaboration=A_COLLABORATION, messages_per_broker=0)
    async with playing(tmp_path_factory.mktemp("limits"), a2acp=few) as running:
        yield running


async def test_too_many_messages_of_an_a2acp_caller_are_refused_and_nobody_elses(scene: Scene) -> None:
    for _ in range(A_COLLABORATION):
        _, job = await scene.begin()
        await scene.worker.finish(job, text="done")
    with pytest.raises(Refusal) as refused:
        await scene.caller.submit(Order(to=scene.worker.id))
    error = refused.value.error
    assert (error["code"], error["details"]["scope"]) == ("RATE_LIMIT_EXCEEDED", "collaboration")
    assert 1 <= error["retry_after"] <= 60

    for name in sorted(set(PLAYERS) - {"a2acp"}):
        other = await scene.enter(PLAYERS[name].caller)
        for _ in range(AN_AGENT + 2):
            await other.submit(Order(to=scene.worker.id))


async def test_all_collaborations_of_an_agent_together_have_a_limit_too(scene: Scene) -> None:
    for _ in range(AN_AGENT // 2):  # each is a handshake and a request; tokens are no messages
        worker = await scene.enter(type(scene.worker))
        await scene.caller.submit(Order(to=worker.id))
    with pytest.raises(Refusal) as refused:
        await scene.caller.submit(Order(to=scene.worker.id))
    error = refused.value.error
    assert (error["code"], error["details"]["scope"]) == ("RATE_LIMIT_EXCEEDED", "agent")
    assert error["details"]["limit"] == AN_AGENT
