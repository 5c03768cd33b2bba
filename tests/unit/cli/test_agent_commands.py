"""`dragoman agent`: what it asks of the hub, what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.cli.answers import AGENT


def test_agent_add_prints_id_and_token_as_json(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "deployer", "token": "ab" * 16, "more": 1})
    ran = run(
        "agent", "add", "deployer", "--protocol", "chiffon", "--kind", "infra", "--domain", "d", "--version", "1.2",
        "--capability", "run", "--capability", "stop", "--untrusted", "-o", "json",
    )  # fmt: skip
    assert (ran.code, json.loads(ran.out), ran.err) == (0, {"agent_id": "deployer", "token": "ab" * 16}, "")
    asked = hub.asked[0]
    assert asked.body == {
        "agent_id": "deployer", "protocol": "chiffon", "kind": "infra", "domain": "d", "version": "1.2",
        "capabilities": ["run", "stop"], "untrusted": True,
    }  # fmt: skip
    assert asked.headers["authorization"] == "Bearer 0123456789abcdef0123456789abcdef"


def test_agent_add_offers_work_to_a2acp_agents(hub: Any, run: Any, tmp_path: Path) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "deployer", "token": "ab" * 16})
    listed = tmp_path / "offers.json"
    listed.write_text('[{"intent": "count", "input_schema": {"type": "object"}}, {"intent": "sum", "pii": true}]')
    given = ("--offer", "paint", "--offer", '{"intent": "echo"}', "--offer", f"@{listed}")
    assert run("agent", "add", "deployer", "--protocol", "coven", *given).code == 0
    assert hub.asked[0].body["offers"] == [
        {"intent": "paint", "input_schema": True},
        {"intent": "echo", "input_schema": True},
        {"intent": "count", "input_schema": {"type": "object"}},
        {"intent": "sum", "input_schema": True, "pii": True},
    ]
    for wrong in ("{", "[1]", "", "@nowhere.json"):
        ran = run("agent", "add", "deployer", "--protocol", "coven", "--offer", wrong)
        assert ran.code == 2
        assert "offer" in ran.err or "nowhere.json" in ran.err
    assert len(hub.asked) == 1


def test_agent_add_prints_only_the_token_on_stdout(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "deployer", "token": "ab" * 16})
    ran = run("agent", "add", "deployer", "--protocol", "chiffon")
    assert (ran.code, ran.out) == (0, "ab" * 16 + "\n")
    assert ran.err.startswith("✓ agent deployer may now speak chiffon")
    assert ran.err.rstrip().endswith("next: dragoman agent show deployer")


def test_a_program_that_is_not_there_is_not_left_to_the_hub(hub: Any, run: Any) -> None:
    ran = run("agent", "run", "--detach", "--", "no-such-program")
    assert (ran.code, "there is no program no-such-program here" in ran.err, hub.asked) == (3, True, [])


def test_agent_token_gives_a_new_one(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents/deployer/token"] = (200, {"agent_id": "deployer", "token": "cd" * 16})
    assert json.loads(run("agent", "token", "deployer", "-o", "json").out) == {
        "agent_id": "deployer",
        "token": "cd" * 16,
    }


def test_agent_ls_filters_and_draws_plain_columns_into_a_pipe(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/agents"] = (200, {"agents": [AGENT]})
    ran = run("agent", "ls", "--kind", "infra")
    assert hub.asked[0].query == {"kind": "infra"}
    assert ran.out.splitlines()[0].split() == ["ID", "PROTOCOL", "KIND", "STATUS", "TASKS", "BREAKER", "SEEN"]
    assert ran.out.splitlines()[1].split() == ["deployer", "chiffon", "infra", "idle", "0", "closed", "-"]
    assert "1 agent, 1 here now" in ran.err


def test_agent_show_and_rm(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/agents/deployer"] = (200, AGENT)
    hub.answers["DELETE /api/v1/agents/deployer"] = (204, None)
    shown = run("agent", "show", "deployer")
    assert shown.out.startswith("✓ agent deployer  idle\n")
    assert "chiffon 1.0" in shown.out
    assert json.loads(run("agent", "show", "deployer", "-o", "json").out) == AGENT
    assert run("agent", "rm", "deployer").code == 0
    assert json.loads(run("agent", "rm", "deployer", "-o", "jsonl").out) == {"agent_id": "deployer", "removed": True}


def test_agent_show_has_the_agents_last_reports(hub: Any, run: Any) -> None:
    reported = {
        "version": 7, "at": "2026-01-19T04:21:04Z",
        "status": {"state": "BUSY", "error_rate": 0.25, "capability_level": 80, "avg_response_time_ms": 12,
                   "next_available": "2026-01-19T05:00:00Z"},
        "history": [{"at": f"2026-01-19T04:{n:02}:00Z", "state": "IDLE", "error_rate": 0} for n in range(7)],
        "errors": [{"at": "2026-01-19T04:20:00Z", "severity": "high", "message": "disk full"}],
    }  # fmt: skip
    hub.answers["GET /api/v1/agents/deployer"] = (200, {**AGENT, "reported": reported})
    rows = [row.strip() for row in run("agent", "show", "deployer").out.splitlines()]
    assert any("BUSY, 25 % errors, 80 % capable, answers in 12 ms" in row for row in rows)
    assert rows[rows.index("history:") + 1 : rows.index("errors:")] == [
        f"2026-01-19T04:{n:02}:00Z  IDLE" for n in range(2, 7)
    ]
    assert rows[-1] == "2026-01-19T04:20:00Z  high: disk full"
