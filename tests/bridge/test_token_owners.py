"""A token that is another agent's: the error names whose it is. (Agentmsg and forge: see the tests of their
endpoints.)"""

from __future__ import annotations

import uuid

import pytest

from dragoman import Agent, DragomanError
from tests.bridge.players.neutral import soon
from tests.bridge.players.stage import Stage
from tests.bridge.sdk_pairs import address

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("protocol", ["chiffon", "coven", "a2acp"])
async def test_an_error_about_a_token_names_its_owner(stage: Stage, protocol: str) -> None:
    owner = f"owner-{uuid.uuid4().hex[:8]}"
    agent = Agent("impostor", token=await stage.add(owner, protocol))

    @agent.on("work")
    async def work() -> None: ...

    with pytest.raises(DragomanError, match=f"his token belongs to agent '{owner}'"):
        await soon(agent.serve(address(stage, protocol)))
