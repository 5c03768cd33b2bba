"""Files that come out of work, over the protocols that have no message for them: brought over HTTP, then named."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman import Agent, Task
from tests.e2e.at_work import people, serving, soon, token, url
from tests.support.hubproc import HubProcess, running

DATA = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> object:
    home: Path = tmp_path_factory.mktemp("hub")
    with running(home) as hub:
        yield hub


@pytest.mark.parametrize("way", ["chiffon+http", "agentmsg+http", "agentmsg+ws", "a2acp+http", "a2acp+ws"])
async def test_an_agent_sends_a_file_whatever_it_speaks(hub: HubProcess, way: str) -> None:
    id, protocol = way.replace("+", "-"), way.partition("+")[0]
    agent = Agent(id, domain="lab", version="1.0.0", token=token(hub, id, protocol, domain="lab"))

    @agent.task("draw")
    async def draw(task: Task) -> dict[str, str]:
        await task.send_file("plan ü.png", DATA, "image/png")
        return {"drawn": "yes"}

    async with serving(hub, agent, at=url(hub, way)), people(hub) as admin:
        made = await soon(admin.submit(id, "draw", {}))
        assert await soon(admin.result(made)) == {"drawn": "yes"}
    [file] = hub.admin.get(f"/api/v1/tasks/{made}/files").json["files"]
    assert (file["name"], file["mime_type"], file["size"]) == ("plan ü.png", "image/png", len(DATA))
    got = hub.admin.get(f"/api/v1/tasks/{made}/files/{file['id']}")
    assert (got.status, got.body) == (200, DATA)
