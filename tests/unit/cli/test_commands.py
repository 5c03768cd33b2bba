"""What the other commands ask of the hub, what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.answers import AGENT, ID

LETTER = {
    "id": "d1", "task_id": ID, "receiver": "deployer", "cargo": "work", "attempts": 4, "at": "2026-01-19T04:21:04Z",
    "error": {"kind": "unavailable", "message": "nobody there", "facts": {}}, "body": {"input": {"a": 1}},
}  # fmt: skip
CONTRACT = {"id": "c1", "source": {"agent": "a"}, "target": {"agent": "b"}, "intent": "i", "standing": "active"}
RECORD = {
    "seq": 7, "at": "2026-01-19T04:21:04Z", "principal": "deployer", "action": "task.finish", "outcome": "refused",
    "subject": ID, "reason": "not yours", "hash": "0" * 64,
}  # fmt: skip


# -- dead letters, audit


def test_dead_letters(hub: Any, run: Any, make_task: Any) -> None:
    hub.answers["GET /api/v1/deadletters"] = (200, {"deadletters": [LETTER], "next": None})
    hub.answers["GET /api/v1/deadletters/d1"] = (200, LETTER)
    hub.answers["POST /api/v1/deadletters/d1/redrive"] = (202, make_task(status="queued"))
    hub.answers["POST /api/v1/deadletters/d1/discard"] = (200, LETTER)
    listed = run("dlq", "ls")
    assert "nobody there [unavailable]" in listed.out
    assert listed.err.startswith("✗ 1 dead letter\n")
    assert "{" in run("dlq", "show", "d1").out
    assert run("dlq", "redrive", "d1", "a=2").code == 0
    assert hub.asked[-1].body == {"input": {"a": 2}}
    assert run("dlq", "redrive", "d1").code == 0
    assert hub.asked[-1].body == {}
    assert json.loads(run("dlq", "discard", "d1", "-o", "json").out) == LETTER


@pytest.mark.parametrize(
    ("command", "key", "item"),
    [
        ("dlq ls --task 0199", "deadletters", LETTER),
        ("contract ls --agent deployer", "contracts", CONTRACT),
        ("audit query --subject 0199 --cursor 3", "records", RECORD),
    ],
)
def test_the_next_page_is_of_the_same_list(hub: Any, run: Any, command: str, key: str, item: Any) -> None:
    route = {"records": "audit"}.get(key, key)
    hub.answers[f"GET /api/v1/{route}"] = (200, {key: [item], "next": "c7"})
    assert f"next: dragoman {command.removesuffix(' --cursor 3')} --cursor c7" in run(*command.split()).err


def test_policies_say_for_what_and_whom_they_hold(hub: Any, run: Any) -> None:
    entry = {"source": "a", "target": "b", "allow": True, "intents": ["run"], "encrypt": True}
    hub.answers["POST /api/v1/policies/domains"] = (200, {"domains": [entry]})
    hub.answers["GET /api/v1/agents"] = (200, {"agents": [{**AGENT, "domain": "a"}, AGENT]})
    assert run("policy", "allow", "a", "b", "--intent", "run", "--encrypt").err.splitlines() == [
        "✓ agents of a may ask agents of b for run, and only encrypted",
        "  no agent belongs to the domain b yet; known domains: a, default",
        "  next: dragoman policy ls",
    ]


def test_a_look_at_policies_and_keys_leads_to_another_look(hub: Any, run: Any) -> None:
    """A command that removes something is no next step for a person who asked for a list."""
    entry = {"source": "a", "target": "b", "allow": True, "intents": [], "encrypt": False}
    hub.answers["GET /api/v1/policies/domains"] = (200, {"domains": [entry]})
    hub.answers["GET /api/v1/keys"] = (200, {"keys": [{"kid": "k1", "use": "signs"}]})
    assert run("policy", "ls").err == "✓ 1 pair of domains\n  next: dragoman contract ls\n"
    assert run("key", "ls").err == "✓ k1 signs\n  next: dragoman agent ls --protocol a2acp\n"


def test_audit_query_and_verify(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/audit"] = (200, {"records": [RECORD], "next": "7", "newest": 9})
    ran = run("audit", "query", "--outcome", "refused", "--principal", "deployer", "--cursor", "0")
    assert hub.asked[0].query == {"outcome": "refused", "principal": "deployer", "limit": "50", "cursor": "0"}
    assert "not yours" in ran.out
    assert "--principal deployer --outcome refused --cursor 7 " in ran.err.splitlines()[-1]

    hub.answers["GET /api/v1/audit/verify"] = (200, {"ok": True, "verified": 7, "last_hash": "0", "broken": None})
    whole = run("audit", "verify")
    assert (whole.code, whole.err.splitlines()[0]) == (0, "✓ the audit record is whole: 7 records")

    broken = {"ok": False, "verified": 3, "last_hash": "0", "broken": {"seq": 4, "why": "record 4 was changed"}}
    hub.answers["GET /api/v1/audit/verify"] = (200, broken)
    ran = run("audit", "verify")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "✗ the audit record is broken at 4: record 4 was changed")
    assert json.loads(run("audit", "verify", "-o", "json").out) == broken


def test_tail_prints_what_changed(hub: Any, run: Any, make_task: Any, clock: Any) -> None:
    first = (200, {"tasks": [make_task(status="running", updated_at="2026-01-19T04:21:05Z")]})
    hub.answers["GET /api/v1/tasks"] = [first] * 3 + [(200, {"tasks": [make_task()]})]
    ran = run("tail", "--for", "2", "-o", "jsonl")
    assert [json.loads(row)["status"] for row in ran.out.splitlines()] == ["running", "completed"]


def test_tail_goes_on_when_the_hub_was_restarted(hub: Any, run: Any, clock: Any) -> None:
    page = [{**RECORD, "seq": seq} for seq in range(100)]
    away = (503, {"detail": "stopping"})
    some, none = (200, {"records": page}), (200, {"records": []})
    hub.answers["GET /api/v1/audit"] = [none, some, *[away] * 9, some, none]
    ran = run("tail", "audit", "--for", "60", "-o", "jsonl")
    assert [json.loads(row)["seq"] for row in ran.out.splitlines()] == list(range(100))
    assert ran.err.count("the hub is away; waiting for it") == 1


def test_tail_of_the_audit_record_goes_on_after_the_last_one(hub: Any, run: Any, clock: Any) -> None:
    hub.answers["GET /api/v1/audit"] = [(200, {"records": [RECORD]}), (200, {"records": []})]
    ran = run("tail", "audit", "--for", "2")
    assert ran.out == f"2026-01-19T04:21:04Z  7  deployer  task.finish  refused  {ID}  why: not yours\n"
    assert hub.asked[1].query["cursor"] == "7"


def test_version(hub: Any, run: Any) -> None:
    told = run("version")
    assert told.out.strip() == json.loads(run("version", "-o", "json").out)["dragoman"]
    assert hub.asked == []


# -- translating


def test_translate_shows_what_arrives_on_stdout_and_what_is_lost_beside_it(
    hub: Any, run: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("translate", "agentmsg", "forge", "--example", "result")
    assert (ran.code, json.loads(ran.out)["payload"]["result"]["url"]) == (0, "https://kuma.lan")
    assert "✗ resources used" in ran.err
    assert "✗ TASK_COMPLETE arrives in forge without resources used" in ran.err
    whole = json.loads(run("translate", "forge", "forge", "-o", "json").out)
    (tmp_path / "message.json").write_text(json.dumps(whole["message"]))
    again = run("translate", "forge", "coven", "message.json")
    assert (again.code, json.loads(again.out)["work_type"]) == (0, "run_playbook")
    assert hub.asked == []
    (tmp_path / "message.json").write_text("{}")
    wrong = run("translate", "chiffon", "coven", "message.json")
    assert (wrong.code, "next: see what one looks like" in wrong.err) == (2, True)
    missing = run("translate", "chiffon", "coven", "nothing.json")
    assert (missing.code, "nothing.json cannot be read" in missing.err) == (2, True)


def test_translate_takes_a_message_that_is_written_into_the_command(hub: Any, run: Any) -> None:
    """It looked for a file of that name."""
    whole = json.loads(run("translate", "forge", "forge", "-o", "json").out)
    ran = run("translate", "forge", "coven", json.dumps(whole["message"]))
    assert (ran.code, json.loads(ran.out)["work_type"]) == (0, "run_playbook")
    wrong = run("translate", "chiffon", "coven", "{}")
    assert (wrong.code, "this is not a message of chiffon" in wrong.err) == (2, True)


# -- conformance


def test_a_hub_that_breaks_a_clause_fails_the_check(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "x", "token": "ab" * 16})
    hub.answers["POST /api/agent/message"] = (202, {"status": "accepted"})  # whatever is said
    ran = run("conformance", "hub", "chiffon")
    rows = ran.out.splitlines()
    assert ran.code == 1
    assert "  ✗ CH-AUT-4      A bad token is answered with 5004, which is not retried." in rows
    assert "    it was accepted with 202" in rows
    assert "✗ the hub: 0 of 13 clauses hold, 13 do not" in ran.err


def test_without_the_right_token_no_clause_is_tried(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (401, {"detail": "this is not the admin token of this hub."})
    ran = run("conformance", "hub")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[0] == "error: this is not the admin token of this hub."


def test_an_agent_to_be_tried_needs_a_command(hub: Any, run: Any) -> None:
    ran = run("conformance", "agent")
    assert (ran.code, "dragoman conformance agent --fresh -- node agent.js" in ran.err) == (2, True)


def test_the_next_command_is_for_the_same_hub_and_called_as_we_were(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [], "next": None})
    monkeypatch.setattr("sys.argv", [str(tmp_path / "bin" / "dragoman"), "task", "ls", "--data", "my data"])
    assert run("task", "ls").err.splitlines()[-1] == "  next: bin/dragoman call AGENT WORK key=value --data 'my data'"
    monkeypatch.setattr("sys.argv", ["dragoman", "task", "ls"])
    assert run("task", "ls").err.splitlines()[-1] == "  next: dragoman call AGENT WORK key=value"
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [], "next": "c7"})
    monkeypatch.setattr("sys.argv", ["dragoman", "task", "ls", "--limit=2"])
    assert run("task", "ls", "--limit=2").err.splitlines()[-1] == "  next: dragoman task ls --limit 2 --cursor c7"
    monkeypatch.setattr("sys.argv", ["dragoman", "task", "ls", "more", "--data", "d"])
    assert run("task", "ls", "more").err.splitlines() == [
        "error: unexpected argument: 'more'",
        "  next: dragoman task ls --help",
    ]


@pytest.mark.parametrize(
    "place",
    [
        lambda option: (*option, "task", "ls"),
        lambda option: ("task", *option, "ls"),
        lambda option: ("task", "ls", *option),
        lambda option: (f"{option[0]}={option[1]}", "-o", "json", "task", "ls"),
    ],
)
def test_the_hub_may_be_named_anywhere(hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, place: Any) -> None:
    monkeypatch.delenv("DRAGOMAN_URL")
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [], "next": None})
    ran = run(*place(("--hub", hub.url)))
    assert (ran.code, [asked.path for asked in hub.asked]) == (0, ["/api/v1/tasks"]), ran.err


def test_a_shared_option_without_a_command_is_a_usage_error(run: Any) -> None:
    ran = run("--hub", "http://127.0.0.1:9")
    assert (ran.code, "next: dragoman --help" in ran.err) == (2, True)
    assert run("--nonsense", "task", "ls").code == 2
