"""`dragoman task` and `dragoman trace`: what they ask of the hub, what they print, and how they end."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
from tests.unit.cli.answers import AGENT, ID, Terminal


def test_task_ls_as_table_json_and_jsonl(hub: Any, run: Any, make_task: Any) -> None:
    answer = {"tasks": [make_task(status="failed"), make_task(id="t2")], "next": "c1"}
    hub.answers["GET /api/v1/tasks"] = (200, answer)
    table = run("task", "ls", "--status", "failed", "--limit", "2")
    assert hub.asked[0].query == {"status": "failed", "limit": "2"}
    assert [row.split()[0] for row in table.out.splitlines()] == ["ID", ID, "t2"]
    assert table.err.splitlines() == [
        "✗ 2 tasks, and more, 1 failed",
        "  next: dragoman task ls --status failed --cursor c1",
    ]
    assert json.loads(run("task", "ls", "-o", "json").out) == answer
    assert [json.loads(row) for row in run("task", "ls", "-o", "jsonl").out.splitlines()] == answer["tasks"]


def test_task_ls_without_tasks_says_how_to_make_one(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [], "next": None})
    ran = run("task", "ls")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines()[-1] == "  next: dragoman call AGENT WORK key=value"


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, "ID TYPE STATUS AGENT DONE TRIES AGE"),
        (110, "ID TYPE STATUS AGENT DONE TRIES AGE"),
        (80, "ID TYPE STATUS AGENT AGE"),  # what can be spared goes before words are cut to nothing
        (60, "ID TYPE STATUS AGENT"),
        (30, "ID"),
    ],
)
def test_a_table_on_a_terminal_fits_it_and_never_cuts_the_id(
    hub: Any, run: Any, make_task: Any, monkeypatch: pytest.MonkeyPatch, width: int, titles: str
) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task(type="x" * 200)], "next": None})
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys, "stdout", screen)
    assert run("task", "ls").code == 0
    drawn = re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue())
    assert ID in drawn
    assert "x" * 200 not in drawn
    assert max(len(row) for row in drawn.splitlines()) <= max(width, len(ID))
    assert drawn.splitlines()[0].split() == titles.split()


def test_task_show_explains_a_failed_task(hub: Any, run: Any, make_task: Any) -> None:
    failed = make_task(
        status="failed",
        attempts=4,
        requested_by="planner",
        protocol_in="chiffon",
        protocol_out="coven",
        agent="mux-1",
        error={"kind": "unavailable", "message": "agent unavailable", "facts": {"code": 5002}},
        output="line one\nline two\n",
    )
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, failed)
    ran = run("task", "show", ID)
    assert ran.out.splitlines()[:3] == [
        f"✗ task {ID}  run_playbook  failed after 4 attempts (12 s)",
        "  planner ─chiffon→ hub ─coven→ mux-1",
        "  why: agent unavailable [unavailable]; code 5002",
    ]
    assert ran.out.splitlines()[-3:] == ["  output:", "    line one", "    line two"]
    assert ran.err == f"  next: dragoman task retry {ID}   ·   dragoman trace {ID} --sequence\n"
    assert json.loads(run("task", "show", ID, "-o", "json").out) == failed


def test_the_sandbox_is_a_column_where_there_is_one(hub: Any, run: Any, make_task: Any) -> None:
    contract = {
        "id": "c1", "source": {"agent": "a"}, "target": {"agent": "b"}, "intent": "work", "standing": "active",
        "expires_at": "2026-01-19T04:21:04Z", "sandbox": None,
    }  # fmt: skip
    lists = {
        "task": ("tasks", make_task(sandbox=None)), "agent": ("agents", AGENT), "contract": ("contracts", contract)
    }  # fmt: skip
    for command, (name, item) in lists.items():
        hub.answers[f"GET /api/v1/{name}"] = (200, {name: [item]})
        assert "SANDBOX" not in run(command, "ls").out
        hub.answers[f"GET /api/v1/{name}"] = (200, {name: [item, {**item, "sandbox": "bubblewrap"}]})
        assert [row.count("bubblewrap") for row in run(command, "ls").out.splitlines()] == [0, 0, 1]


def test_task_show_and_logs_have_the_sandbox_and_the_callers_own_name(
    hub: Any, run: Any, make_task: Any, make_stream: Any
) -> None:
    walled = make_task(sandbox="bubblewrap", called="job-7", requested_by="ada", events=1)
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, walled)
    given = {"agent": "deployer", "attempt": 1, "sandbox": "bubblewrap"}
    hub.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream((1, "assigned", given)))
    shown = [row.split() for row in run("task", "show", ID).out.splitlines()]
    assert ["sandbox", "bubblewrap"] in shown
    assert ["called", "job-7", "by", "ada"] in shown
    assert "attempt 1 · in a sandbox: bubblewrap" in run("task", "logs", ID).out


def test_the_logs_of_an_agent_elsewhere_say_what_happened(hub: Any, run: Any) -> None:
    said = [
        {"seq": 1, "at": "T1", "kind": "submitted", "text": ""},
        {"seq": 2, "at": "T2", "kind": "assigned", "text": "to a\nbegun\n\x1b[2J", "task_id": "01a1-4dd3"},
        {"seq": 3, "at": "T3", "kind": "log", "stream": "stderr", "text": "oops"},
    ]
    hub.answers["GET /api/v1/agents/a/logs"] = (200, {"logs": said, "next": None})
    assert (
        run("agent", "logs", "a").out
        == "T1   submitted\nT2   …4dd3  assigned · to a\n    begun\n    \\e[2J\nT3 ! oops\n"
    )


def test_task_logs_show_what_was_logged_beside_the_work(hub: Any, run: Any, make_task: Any, make_stream: Any) -> None:
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, make_task(events=1))
    printed = [
        {"level": "info", "message": "begun", "context": {"stream": "stdout"}},
        {"level": "warn", "message": "\x1b[31mslow", "context": {"stream": "stderr"}},
        {"level": "error", "message": "no such table", "context": {"stream": "event", "table": "users"}},
        {"level": "error", "message": "said by an agent elsewhere"},
    ]
    hub.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream((1, "log", {"lines": printed})))
    assert run("task", "logs", ID).out.splitlines() == [
        "2026-01-19T04:21:04Z  log",
        "      begun",
        "    ! \\e[31mslow",
        "    › error: no such table",
        "    › error: said by an agent elsewhere",
    ]


def test_task_logs_stops_at_the_newest_event_unless_followed(
    hub: Any, run: Any, make_task: Any, make_stream: Any
) -> None:
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, make_task(status="running", events=2, finished_at=None))
    progress = {"percent": 50, "step": {"number": 2, "name": "configure"}, "output": "3 monitors\n"}
    events = ((1, "submitted", {"input": {}}), (2, "progress", progress), (3, "completed", {"exit_code": 0}))
    hub.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream(*events))
    assert run("task", "logs", ID).out.splitlines() == [
        "2026-01-19T04:21:04Z  submitted",
        "2026-01-19T04:21:04Z  progress · 50 % · step 2 configure",
        "    3 monitors",
    ]
    followed = run("task", "logs", ID, "-f", "-o", "jsonl")
    assert [json.loads(row)["seq"] for row in followed.out.splitlines()] == [1, 2, 3]
    whole = json.loads(run("task", "logs", ID, "-f", "-o", "json").out)
    assert [event["kind"] for event in whole["events"]] == ["submitted", "progress", "completed"]


def test_task_why_lists_the_reasons(hub: Any, run: Any) -> None:
    answer = {
        "task_id": ID, "status": "queued", "waiting": None, "summary": "…", "candidates": [],
        "reasons": [{"code": "no_agents", "text": "no agent is known to the hub; add one"}],
        "next": ["dragoman agent add NAME --protocol chiffon", "wait"],
    }  # fmt: skip
    hub.answers[f"GET /api/v1/tasks/{ID}/why"] = (200, answer)
    ran = run("task", "why", ID)
    assert ran.out == f"• task {ID}  queued\n  - no agent is known to the hub; add one\n"
    assert ran.err == "  next: dragoman agent add NAME --protocol chiffon\n  next: wait\n"
    assert json.loads(run("task", "why", ID, "-o", "json").out) == answer


@pytest.mark.parametrize(
    ("tokens", "verb", "body"),
    [
        (("retry", ID), "retry", {}),
        (("retry", ID, "a=2"), "retry", {"input": {"a": 2}}),
        (("cancel", ID), "cancel", {}),
        (("cancel", ID, "--reason", "no use"), "cancel", {"reason": "no use"}),
        (("pause", ID), "pause", {}),
        (("resume", ID), "resume", {}),
    ],
)
def test_task_verbs(hub: Any, run: Any, make_task: Any, tokens: Any, verb: str, body: Any) -> None:
    hub.answers[f"POST /api/v1/tasks/{ID}/{verb}"] = (200, make_task())
    ran = run("task", *tokens)
    assert (ran.code, ran.out) == (0, "")
    assert (hub.asked[0].path, hub.asked[0].body) == (f"/api/v1/tasks/{ID}/{verb}", body)
    assert json.loads(run("task", *tokens, "-o", "json").out) == make_task()


def test_a_trace_is_a_tree_with_times_and_a_sequence_of_arrows(hub: Any, run: Any, make_task: Any) -> None:
    def step(second: float, kind: str, source: str, target: str, protocol: str | None, **more: Any) -> Any:
        at = f"2026-01-19T04:21:{4 + second:06.3f}Z"
        return {"seq": 1, "at": at, "until": at, "count": 1, "kind": kind, "source": source, "target": target,
                "protocol": protocol, "text": "", **more}  # fmt: skip

    root = make_task(
        protocol_out=None, requested_by="planner", protocol_in="chiffon", agent="mux-1", cause=None, steps_left_out=2,
        steps=[
            step(0, "submitted", "planner", "hub", "chiffon"),
            step(1, "progress", "mux-1", "hub", "coven", count=3, until="2026-01-19T04:21:06Z", text="50 %"),
            step(12, "completed", "mux-1", "planner", "coven"),
        ],
    )  # fmt: skip
    child = make_task(
        id="c-0002", cause=ID, requested_by="mux-1", protocol_in="coven", agent="lint", sandbox="bubblewrap",
        steps=[step(1.5, "asked", "lint", "person", "forge", text="sure?")],
    )  # fmt: skip
    told = {"trace_id": "5" * 32, "task_id": ID, "tasks": [root, child], "left_out": 0}
    hub.answers["GET /api/v1/tasks/0199/trace"] = (200, told)
    assert run("trace", "0199").out.splitlines() == [
        f"✓ trace {'5' * 32}  2 tasks  (12 s)",
        f"  run_playbook  {ID}  completed  12 s  planner ─chiffon→ hub ─coven→ mux-1",
        "  │   +0.000  submitted",
        "  │   +1.000 … +2.000  progress ×3 · 50 %",
        "  │   +12.000  completed",
        f"  │   … and 2 more events: dragoman task logs {ID}",
        "  ├─ run_playbook  c-0002  completed  12 s  mux-1 ─coven→ hub ─forge→ lint  in a sandbox: bubblewrap",
        "  │  │   +1.500  asked · sure?",
    ]
    lanes = [{"id": f"agent-{number}", "kind": "agent", "protocol": "coven"} for number in range(12)]
    model = {"participants": [{"id": "hub", "kind": "hub", "protocol": None}, *lanes], "steps": [], "task_id": ID}
    hub.answers[f"GET /api/v1/tasks/{ID}/sequence"] = (200, model)  # more lanes than fit: then it is a list
    arrows = [" ".join(row.split()) for row in run("trace", "0199", "--sequence").out.splitlines()[1:]]
    assert arrows == [
        "+0.000 planner ─chiffon→ hub …0001 submitted",
        "+1.000 … +2.000 mux-1 ─coven→ hub …0001 progress ×3 · 50 %",
        "+1.500 lint ─forge→ person …0002 asked · sure?",
        "+12.000 mux-1 ─coven→ hub → planner …0001 completed",
    ]
    assert json.loads(run("trace", "0199", "-o", "json").out) == told
