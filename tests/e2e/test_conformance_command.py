"""`dragoman conformance`: every clause it tries holds here, and one that does not would be seen."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess

AGENT = """
from dragoman import Agent, Task

agent = Agent("tried", version="1.0.0")

@agent.on("double")
async def double(task: Task, n: int = 1) -> dict:
    await task.progress(50, "half")
    return {"n": 2 * n}

agent.run("stdio:")
"""


def test_the_hub_holds_every_clause_that_is_tried_and_is_left_as_it_was(hub: HubProcess) -> None:
    before = {agent["id"] for agent in hub.admin.get("/api/v1/agents").json["agents"]}
    said = dragoman("conformance", "hub", "-o", "json", hub=hub)
    assert [(one["protocol"], one["id"], one["why"]) for one in said.json["checks"] if not one["good"]] == []
    assert (said.code, {one["protocol"] for one in said.json["checks"]}) == (
        0,
        {"chiffon", "coven", "forge", "agentmsg", "a2acp"},
    )
    assert {agent["id"] for agent in hub.admin.get("/api/v1/agents").json["agents"]} == before


def test_an_agent_is_tried_and_one_that_does_not_come_is_seen(hub: HubProcess, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(AGENT)
    said = dragoman("conformance", "agent", "--input", "n=2", "--", sys.executable, str(program), hub=hub)
    # It may be over before it can be told to stop a task.
    assert (said.code, said.out.count("✓") >= 6, said.out.count("✗")) == (0, True, 0), said
    for command in (("false",), ("sleep", "0.3")):  # whether or not the hub saw it for a moment
        gone = dragoman("conformance", "agent", "--", *command, hub=hub)
        assert (gone.code, gone.out.count("✗"), "its process ended" in gone.out) == (1, 1, True), gone
