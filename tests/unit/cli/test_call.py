"""`dragoman call`: what is sent, what is shown while one waits, and how it ends."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import arguments
from dragoman.cli.errors import CommandError

ID = "0199f3a0-0000-7000-8000-000000000001"


@pytest.fixture
def working(hub: Any, make_task: Any, make_stream: Any) -> Any:
    """A hub with one agent whose every task completes."""
    hub.answers["GET /api/v1/agents/deployer"] = (200, {"id": "deployer", "kind": "infra"})
    hub.answers["GET /api/v1/agents"] = (200, {"agents": [{"id": "deployer", "kind": "infra"}]})
    hub.answers["POST /api/v1/tasks"] = (202, make_task(status="queued", finished_at=None))
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, make_task(result={"url": "https://kuma.lan"}))
    hub.answers[f"GET /api/v1/tasks/{ID}/events"] = (
        200,
        make_stream(
            (1, "submitted", {"input": {}}),
            (2, "assigned", {"agent": "deployer", "attempt": 1}),
            (3, "progress", {"percent": 50, "step": {"number": 2, "name": "configure", "total": 4}}),
            (4, "completed", {"result": {}}),
        ),
    )
    return hub


def submitted(hub: Any) -> Any:
    return next(asked for asked in hub.asked if asked.path == "/api/v1/tasks" and asked.method == "POST")


def test_the_result_is_on_stdout_and_progress_on_stderr(working: Any, run: Any) -> None:
    ran = run("call", "deployer", "run_playbook", "playbook=x.yml", "retries=3", "--priority", "high", "--name", "n")
    assert (ran.code, json.loads(ran.out)) == (0, {"url": "https://kuma.lan"})
    assert ran.err.splitlines() == [
        f"• task {ID}  admin ─api→ hub ─chiffon→ deployer",
        "  assigned · to deployer · attempt 1",
        "  progress · 50 % · step 2/4 configure",
        f"✓ task {ID}  run_playbook  completed (12 s)",
        f"  next: dragoman task logs {ID}",
    ]
    assert submitted(working).body == {
        "type": "run_playbook", "input": {"playbook": "x.yml", "retries": 3}, "agent": "deployer",
        "priority": "high", "name": "n",
    }  # fmt: skip
    assert submitted(working).headers["idempotency-key"]


def test_the_agent_or_person_that_was_asked_is_named(working: Any, run: Any, make_stream: Any) -> None:
    asked = {"question_id": "q1", "question": "which way?", "options": []}
    handed = {"input": {}, "handover": {"from": "deployer", "to": "bob", "reason": "load_balancing"}}
    events = ((1, "asked", {**asked, "asked_of": "brain"}), (2, "asked", asked), (3, "handed_over", handed))
    working.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream(*events))
    assert run("call", "deployer", "run_playbook").err.splitlines()[1:6] == [
        "  asked · of brain · which way?",
        "  brain, an agent, was asked; the task goes on when it has answered",
        "  asked · which way?",
        "  a person must answer: dragoman ask ls",
        "  handed over · from deployer to bob (load balancing)",
    ]


def test_a_task_that_nobody_takes_at_once_says_why_while_one_waits(working: Any, run: Any) -> None:
    reasons = [{"text": "it stands in its queue with 0 before it"}, {"text": "deployer: \x1b[31moffline"}]
    working.answers[f"GET /api/v1/tasks/{ID}/why"] = (200, {"status": "queued", "reasons": reasons})
    assert run("call", "deployer", "run_playbook").err.splitlines()[:4] == [
        f"• task {ID}  admin ─api→ hub ─chiffon→ deployer",
        "  it stands in its queue with 0 before it",
        "  deployer: \\e[31moffline",
        "  assigned · to deployer · attempt 1",
    ]


def test_a_kind_is_found_when_no_agent_has_the_name(working: Any, run: Any) -> None:
    assert run("call", "infra", "run_playbook").code == 0
    assert submitted(working).body == {"type": "run_playbook", "input": {}, "kind": "infra"}


def test_an_unknown_agent_is_not_found_and_the_error_lists_the_known_ones(working: Any, run: Any) -> None:
    ran = run("call", "nobody", "run_playbook")
    assert ran.code == 3
    assert "no agent and no kind of agent called nobody (agents: deployer; kinds: infra)" in ran.err


def test_a_list_of_agents_says_where_it_was_cut(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/agents"] = (200, {"agents": [{"id": f"w{n}", "kind": "infra"} for n in range(1, 11)]})
    assert "(agents: w1, w2, w3, w4, w5, w6, w7, w8, and 2 more; kinds: infra)" in run("call", "nobody", "x").err


def test_a_kind_may_be_called_one_and_must_have_an_agent(working: Any, run: Any) -> None:
    assert run("call", "infra", "run_playbook", "--kind", "--detach").code == 0
    assert submitted(working).body["kind"] == "infra"
    ran = run("call", "deployer", "run_playbook", "--kind")
    assert ran.code == 3
    assert "next: dragoman agent add ID --kind deployer --protocol chiffon" in ran.err


def test_a_wrong_input_is_refused_once_with_what_to_correct(working: Any, run: Any, make_task: Any) -> None:
    facts = {"validation_error": "missing", "field_name": "payload.parameters.host", "code": 5003}
    error = {"kind": "invalid", "message": "payload.parameters.host: missing", "facts": facts}
    working.answers[f"GET /api/v1/tasks/{ID}"] = (200, make_task(status="failed", error=error))
    ran = run("call", "deployer", "run_playbook")
    assert "why: payload.parameters.host: missing [invalid]; code 5003\n" in ran.err
    assert f"next: dragoman task retry {ID} key=value" in ran.err


def test_detached_prints_the_id_alone(working: Any, run: Any, make_task: Any) -> None:
    ran = run("call", "deployer", "run_playbook", "--detach")
    assert (ran.code, ran.out) == (0, f"{ID}\n")
    assert "--follow" in ran.err
    assert json.loads(run("call", "deployer", "x", "--detach", "-o", "json").out)["id"] == ID


def test_json_is_the_whole_task_and_jsonl_the_events_before_it(working: Any, run: Any) -> None:
    assert json.loads(run("call", "deployer", "x", "-o", "json").out)["status"] == "completed"
    rows = [json.loads(row) for row in run("call", "deployer", "x", "-o", "jsonl").out.splitlines()]
    assert [row.get("kind") for row in rows[:-1]] == ["submitted", "assigned", "progress", "completed"]
    assert rows[-1]["status"] == "completed"


def test_a_failed_task_ends_with_1_and_says_why(working: Any, run: Any, make_task: Any) -> None:
    error = {"kind": "work_failed", "message": "image pull timeout", "facts": {}}
    failed = make_task(status="failed", attempts=4, error=error, output="log\n")
    working.answers[f"GET /api/v1/tasks/{ID}"] = (200, failed)
    ran = run("call", "deployer", "run_playbook")
    assert (ran.code, ran.out) == (1, "log\n")
    assert ran.err.splitlines()[-4:] == [
        f"✗ task {ID}  run_playbook  failed after 4 attempts (12 s)",
        "  admin ─api→ hub ─chiffon→ deployer",
        "  why: image pull timeout [work_failed]",
        f"  next: dragoman task retry {ID}   ·   dragoman trace {ID} --sequence",
    ]


def test_the_time_is_up_with_6_and_the_task_goes_on(working: Any, run: Any, make_stream: Any, clock: Any) -> None:
    working.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream((1, "submitted", {}), end=None))
    ran = run("call", "deployer", "run_playbook", "--timeout", "2")
    assert ran.code == 6
    assert ran.err.splitlines()[-2:] == [
        f"error: task {ID} did not end within 2 s; it goes on",
        f"  next: dragoman task why {ID}   ·   dragoman task logs {ID} --follow   ·   dragoman task cancel {ID}",
    ]


def test_a_broken_stream_is_resumed_after_the_last_event(working: Any, run: Any, make_stream: Any, clock: Any) -> None:
    working.answers[f"GET /api/v1/tasks/{ID}/events"] = [
        (200, make_stream((1, "submitted", {}), (2, "assigned", {"agent": "deployer"}), end=None)),
        (503, {"detail": "stopping"}),
        (200, make_stream((3, "completed", {}))),
    ]
    ran = run("call", "deployer", "run_playbook", "-o", "jsonl")
    assert ran.code == 0
    assert [json.loads(row).get("seq") for row in ran.out.splitlines()] == [1, 2, 3, None]
    assert "the hub is away; waiting for it" in ran.err
    resumed = [asked.headers.get("last-event-id") for asked in working.asked if asked.path.endswith("/events")]
    assert resumed == [None, "2", "2"]


def test_a_hub_that_stays_away_is_unreachable(working: Any, run: Any, clock: Any) -> None:
    working.answers[f"GET /api/v1/tasks/{ID}/events"] = (503, {"detail": "stopping"})
    assert run("call", "deployer", "run_playbook").code == 5


def test_via_chiffon_asks_as_an_agent_and_leaves_nothing_behind(working: Any, run: Any) -> None:
    working.answers["POST /api/v1/agents"] = (201, {"agent_id": "x", "token": "ef" * 16})
    working.answers["POST /api/agent/register"] = (200, {})
    working.answers["POST /api/agent/message"] = (202, {"status": "accepted", "message_id": "m"})
    working.answers["GET /api/agent/messages"] = [
        (200, {"messages": [{"delivery_id": "d1", "message": {}}]}),
        (200, {"messages": []}),
    ]
    working.answers["POST /api/agent/ack"] = (200, {})

    class Anything(dict[str, Any]):
        """The task's id is the command's own choice, so is the agent's name."""

        def get(self, route: str, default: Any = None) -> Any:
            if route.startswith("DELETE /api/v1/agents/cli-"):
                return (204, None)
            if route.startswith("GET /api/v1/tasks/") and route.count("/") == 4 and ID not in route:
                route = f"GET /api/v1/tasks/{ID}"
            return super().get(route, default)

    working.answers = Anything(working.answers)
    ran = run("call", "deployer", "run_playbook", "playbook=x.yml", "--via", "chiffon")
    assert ran.code == 0
    envelope = next(asked for asked in working.asked if asked.path == "/api/agent/message")
    assert envelope.headers["authorization"] == "Bearer " + "ef" * 16
    assert (envelope.body["to_agent"], envelope.body["x_custom_fields"]) == ("infra", {"agent_id": "deployer"})
    assert envelope.body["payload"]["parameters"] == {"playbook": "x.yml"}
    assert next(asked for asked in working.asked if asked.path == "/api/agent/ack").body == {"delivery_ids": ["d1"]}
    assert working.asked[-1].method == "DELETE"


@pytest.mark.parametrize(
    ("extra", "said"), [(("--detach",), "wait for the result"), (("--name", "n"), "cannot carry name")]
)
def test_via_chiffon_refuses_what_chiffon_cannot_say(working: Any, run: Any, extra: Any, said: str) -> None:
    ran = run("call", "deployer", "x", "--via", "chiffon", *extra)
    assert (ran.code, said in ran.err) == (2, True)
    assert {asked.method for asked in working.asked} == {"GET"}


# -- the input


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("1.5", 1.5), ("true", True), ("null", None), ('["a"]', ["a"]), ('"3"', "3"), ("kuma", "kuma"),
        ("", ""), ("a=b", "a=b"), ("NaN", "NaN"), ("1e999", "1e999"), ("{", "{"), ("[" * 100_000, "[" * 100_000),
    ],
)  # fmt: skip
def test_a_value_is_json_where_it_parses(text: str, value: Any) -> None:
    assert arguments.read([f"key={text}"]) == {"key": value}


def test_what_is_nested_too_deeply_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    with pytest.raises(CommandError) as stopped:
        arguments.read([f"@{tmp_path}/deep.json"])
    assert (stopped.value.code, stopped.value.sentence) == (2, f"{tmp_path}/deep.json is nested too deeply")


def test_files_stdin_and_pairs_are_merged_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.json").write_text('{"a": 1, "b": 1}')
    monkeypatch.setattr(sys, "stdin", StringIO('{"b": 2, "c": 2}'))
    assert arguments.read([f"@{tmp_path}/in.json", "-", "c=3"]) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize(
    "typed", ["plain", "=3", "@nowhere.json", "@list.json", "@bad.json", "@nan.json", "@twice.json"]
)
def test_other_input_is_a_usage_error(typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.json").write_text("[1]")
    Path("bad.json").write_text("{")
    Path("nan.json").write_text('{"a": NaN}')
    Path("twice.json").write_text('{"a": {"b": 1, "b": 2}}')
    with pytest.raises(CommandError) as stopped:
        arguments.read([typed])
    assert (stopped.value.code, stopped.value.next) == (2, "write key=value, @file.json, or - for JSON on stdin")


def test_an_unknown_option_is_named_and_the_help_is_next(working: Any, run: Any) -> None:
    ran = run("call", "deployer", "x", "--prio", "high")
    assert (ran.code, "unknown option --prio" in ran.err, "call --help" in ran.err) == (2, True, True)


def test_stdin_is_read_by_a_dash(working: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO('{"a": 1}'))
    assert run("call", "deployer", "x", "-", "--detach").code == 0
    assert submitted(working).body["input"] == {"a": 1}
