"""The flows that the document speaks of, played from outside: `dragoman play`, against a real hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dragoman.protocols.a2acp import flow
from tests.support.cli import dragoman
from tests.support.hubproc import HubProcess

EXAMPLES = Path(__file__).parents[2] / "examples"
FLOWS = ("agent-collaboration-flow", "error-handling-flow")
OK, FAILED, USAGE, NOT_FOUND, NOT_ALLOWED, UNREACHABLE, TIMEOUT = range(7)


def agents(hub: HubProcess) -> set[str]:
    return {one["id"] for one in hub.admin.get("/api/v1/agents").json["agents"]}


def left(hub: HubProcess) -> tuple[set[str], set[str], set[str]]:
    """Dead letters, unfinished tasks and contracts that stand: what a person would have to look after."""
    letters = hub.admin.get("/api/v1/deadletters?limit=500").json["deadletters"]
    tasks = hub.admin.get("/api/v1/tasks?limit=500").json["tasks"]
    contracts = hub.admin.get("/api/v1/contracts?limit=500").json["contracts"]
    return (
        {one["id"] for one in letters},
        {one["id"] for one in tasks if one["status"] not in ("completed", "failed", "cancelled")},
        {one["id"] for one in contracts if one["standing"] == "active"},
    )


def changed(tmp_path: Path, name: str, change: Any) -> str:
    """A flow that is not quite the example."""
    told = json.loads((EXAMPLES / f"{name}.json").read_bytes())
    change(told)
    file = tmp_path / "changed-flow.json"
    file.write_text(json.dumps(told))
    return str(file)


@pytest.mark.parametrize("name", FLOWS)
def test_a_flow_of_the_document_plays_as_it_is_written(hub: HubProcess, name: str) -> None:
    before = agents(hub), left(hub)
    said = dragoman("play", str(EXAMPLES / f"{name}.json"), "-o", "json", hub=hub)
    assert said.code == OK, said
    told = flow.read((EXAMPLES / f"{name}.json").read_bytes())
    assert said.json["ok"] is True
    assert [(one["part"], one["by"]) for one in said.json["played"]] == [(step.part, step.by) for step in told.steps]
    assert all(one["ok"] for one in said.json["played"])
    assert '"auth_token": "[token]"' in said.out
    assert "eyJ" not in said.out, "a credential was shown"
    assert (agents(hub), left(hub)) == before, "the players left something behind"


def test_a_person_sees_a_line_for_each_message_and_may_play_again(hub: HubProcess) -> None:
    file = EXAMPLES / "agent-collaboration-flow.json"
    for _ in range(2):
        said = dragoman("play", str(file), hub=hub)
        assert said.code == OK, said
    told = flow.read(file.read_bytes())
    lines = said.out.splitlines()
    assert [text for text in lines if text and not text.startswith(" ")] == list(told.parts)
    assert sum(text.startswith("  → ") for text in lines) == sum(step.send is not None for step in told.steps)
    assert sum(text.startswith("  ✓ ") for text in lines) == sum(step.expect is not None for step in told.steps)
    assert "✗" not in said.out
    assert "CONTRACT_VIOLATION" in said.out


def test_a_play_without_the_hubs_keys_says_what_it_sends_for_an_expired_token(hub: HubProcess) -> None:
    """Its title was "A token that has expired", and the hub said that the signature does not fit."""
    said = dragoman("play", str(EXAMPLES / "error-handling-flow.json"), hub=hub)
    assert said.code == OK, said
    assert "A token that has expired" not in said.out
    assert "A token whose times were set back" in said.out
    assert "signature does not fit" in said.out


def test_a_play_at_a_hub_of_its_own_needs_no_hub(tmp_path: Path) -> None:
    said = dragoman("play", str(EXAMPLES / "error-handling-flow.json"), "--fresh", DRAGOMAN_DATA=str(tmp_path / "none"))
    assert said.code == OK, said
    assert "A token that has expired" in said.out
    assert "token is expired" in said.out
    assert "RATE_LIMIT_EXCEEDED" in said.out


def test_what_is_not_as_expected_is_named_and_ends_the_play(hub: HubProcess, tmp_path: Path) -> None:
    def wrong(told: Any) -> None:
        told["steps"][1]["expect"]["payload"]["capabilities"][0]["agent"]["version"] = "9.9.9"

    file = changed(tmp_path, "agent-collaboration-flow", wrong)
    said = dragoman("play", file, "--patience", "2", hub=hub)
    assert said.code == FAILED, said
    assert "✗" in said.out
    assert "/payload/capabilities/0/agent/version: expected '9.9.9'" in said.out
    assert "handshake" not in said.out.splitlines()


def test_an_agent_of_a_players_name_is_not_touched(hub: HubProcess) -> None:
    taken = {"agent_id": "sdlc-test-agent", "protocol": "a2acp"}
    assert hub.admin.post("/api/v1/agents", taken).status == 201
    try:
        said = dragoman("play", str(EXAMPLES / "agent-collaboration-flow.json"), hub=hub)
        assert said.code == NOT_ALLOWED, said
        assert "--fresh" in said.err
        assert "sdlc-test-agent" in agents(hub)
    finally:
        hub.admin.ask("DELETE", "/api/v1/agents/sdlc-test-agent")


def test_a_file_that_is_no_flow_is_a_matter_of_usage(hub: HubProcess, tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("{}")
    assert dragoman("play", str(tmp_path / "no.json"), hub=hub).code == USAGE
    assert dragoman("play", str(tmp_path / "absent.json"), hub=hub).code == USAGE
    unkept = changed(tmp_path, "agent-collaboration-flow", lambda told: told["steps"][3].pop("keep"))
    said = dragoman("play", unkept, hub=hub)
    assert said.code == USAGE
    assert "{{offer}}" in said.err
    good = str(EXAMPLES / "agent-collaboration-flow.json")
    lonely = dragoman("play", good, DRAGOMAN_DATA=str(tmp_path / "none"))
    assert (lonely.code, "--fresh" in lonely.err) == (UNREACHABLE, True)
