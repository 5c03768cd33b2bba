"""The example agent of the document of forge, as a child of a real hub: it takes each read of stdin for one message."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.hubproc import HubProcess, until
from tests.support.kids import Kids

EXAMPLE = Path(__file__).parents[1] / "support" / "node" / "forge_example.cjs"
LARGE = {"text": "x" * 200_000}


@pytest.mark.requirement("forge-D14")
def test_the_documents_example_understands_every_message_of_the_hub(hub: HubProcess) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is needed to run the document's example")
    kids = Kids(hub)
    agent = kids.run("example", node, str(EXAMPLE), grace_seconds=0.2)  # it does not end when it is asked to
    pid = kids.pid(agent)
    until(lambda: any("Received response" in line for line in kids.printed(agent)), "its request was answered")
    tasks = [kids.submit(agent, **given) for given in (LARGE, {}, LARGE, {}, {})]
    for number, task in enumerate(tasks):
        until(lambda task=task: hub.status(task) == "assigned", "the child was given the task")
        assert [hub.status(other) for other in tasks[number + 1 :]] == ["queued"] * (4 - number)  # one at a time
        cancelled = hub.admin.post(f"/api/v1/tasks/{task}/cancel", {})
        assert cancelled.status == 200, cancelled
    assert kids.pid(agent) == pid  # it would have ended by an exception: JSON.parse of two messages, or of half of one
    assert not [line for line in kids.printed(agent) if "SyntaxError" in line]
    assert kids.look(agent)["max_concurrent"] == 1
