"""What each command asks of the hub, what it prints, and how it ends."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

ID = "0199f3a0-0000-7000-8000-000000000001"
AGENT = {
    "id": "deployer", "protocol": "chiffon", "protocol_version": "1.0", "status": "idle", "kind": "infra",
    "capabilities": ["run"], "current_tasks": [], "breaker": {"state": "closed", "failures": 0, "until": None},
    "last_seen": None, "untrusted": False,
}  # fmt: skip
LETTER = {
    "id": "d1", "task_id": ID, "receiver": "deployer", "cargo": "work", "attempts": 4, "at": "2026-01-19T04:21:04Z",
    "error": {"kind": "unavailable", "message": "nobody there", "facts": {}}, "body": {"input": {"a": 1}},
}  # fmt: skip
CONTRACT = {"id": "c1", "source": {"agent": "a"}, "target": {"agent": "b"}, "intent": "i", "standing": "active"}
QUESTION = {
    "id": "q1", "task_id": ID, "agent": "deployer", "question": "Restart prod?", "options": ["yes", "no"],
    "status": "open", "deadline": None, "created_at": "2026-01-19T04:21:04Z",
}  # fmt: skip
RECORD = {
    "seq": 7, "at": "2026-01-19T04:21:04Z", "principal": "deployer", "action": "task.finish", "outcome": "refused",
    "subject": ID, "reason": "not yours", "hash": "0" * 64,
}  # fmt: skip


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


# -- agents


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


def test_agent_add_prints_only_the_token_on_stdout(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "deployer", "token": "ab" * 16})
    ran = run("agent", "add", "deployer", "--protocol", "chiffon")
    assert (ran.code, ran.out) == (0, "ab" * 16 + "\n")
    assert ran.err.startswith("✓ agent deployer may now speak chiffon")
    assert ran.err.rstrip().endswith("next: dragoman agent show deployer")


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


def test_agent_show_tells_what_it_said_of_itself_and_before(hub: Any, run: Any) -> None:
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


# -- tasks


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


def test_a_table_on_a_terminal_is_drawn_by_rich_and_never_cuts_the_id(
    hub: Any, run: Any, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task(type="x" * 200)], "next": None})
    screen = Terminal()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", screen)
    assert run("task", "ls").code == 0
    drawn = re.sub("\x1b\\[[0-9;]*m", "", screen.getvalue())
    assert ID in drawn
    assert "x" * 200 not in drawn
    assert max(len(row) for row in drawn.splitlines()) <= 80
    assert len(drawn.splitlines()[0].split()) == 7  # no column is lost for a long one
    assert " 100 % " in drawn


def test_task_show_tells_a_failed_task_as_a_story(hub: Any, run: Any, make_task: Any) -> None:
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


def test_task_show_and_logs_tell_the_sandbox_and_the_callers_own_name(
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
    arrows = [" ".join(row.split()) for row in run("trace", "0199", "--sequence").out.splitlines()[1:]]
    assert arrows == [
        "+0.000 planner ─chiffon→ hub …0001 submitted",
        "+1.000 … +2.000 mux-1 ─coven→ hub …0001 progress ×3 · 50 %",
        "+1.500 lint ─forge→ person …0002 asked · sure?",
        "+12.000 mux-1 ─coven→ hub → planner …0001 completed",
    ]
    assert json.loads(run("trace", "0199", "-o", "json").out) == told


# -- dead letters, questions, audit


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
        ("audit query --subject 0199", "records", RECORD),
    ],
)
def test_the_next_page_is_of_the_same_list(hub: Any, run: Any, command: str, key: str, item: Any) -> None:
    route = {"records": "audit"}.get(key, key)
    hub.answers[f"GET /api/v1/{route}"] = (200, {key: [item], "next": "c7"})
    assert f"next: dragoman {command} --cursor c7" in run(*command.split()).err


def test_questions_are_listed_and_answered_with_an_option(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/questions"] = (200, {"questions": [QUESTION]})
    hub.answers["GET /api/v1/questions/q1"] = (200, QUESTION)
    hub.answers["POST /api/v1/questions/q1/answer"] = (200, {**QUESTION, "status": "answered"})
    listed = run("ask", "ls")
    assert "Restart prod?" in listed.out
    assert listed.err.splitlines()[-1] == "  next: dragoman ask answer q1 yes"
    assert hub.asked[0].query == {"status": "open"}
    assert run("ask", "answer", "q1", "no").code == 0
    assert hub.asked[-1].body == {"answer": "no"}


@pytest.mark.parametrize(
    ("options", "said", "meant"), [([1, 2], "2", 2), (["2"], "2", "2"), ([], "2", 2), ([], "x", "x")]
)
def test_an_answer_is_the_option_it_looks_like(hub: Any, run: Any, options: Any, said: str, meant: Any) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, {**QUESTION, "options": options})
    hub.answers["POST /api/v1/questions/q1/answer"] = (200, QUESTION)
    assert run("ask", "answer", "q1", said).code == 0
    assert hub.asked[-1].body == {"answer": meant}


def test_no_prompt_off_a_terminal(hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, QUESTION)
    monkeypatch.setattr(sys, "stdin", StringIO("yes\n"))
    ran = run("ask", "answer", "q1")
    assert (ran.code, hub.asked[-1].method) == (2, "GET")
    assert ran.err.splitlines()[-1] == "  next: dragoman ask answer q1 ANSWER"


def test_a_prompt_on_a_terminal(hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, QUESTION)
    hub.answers["POST /api/v1/questions/q1/answer"] = (200, QUESTION)
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    ran = run("ask", "answer", "q1")
    assert (ran.code, hub.asked[-1].body) == (0, {"answer": "yes"})
    assert "deployer asks: Restart prod?" in ran.err


def test_watching_shows_each_question_once_and_takes_answers_on_a_terminal(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**QUESTION, "id": "q2", "question": "Really?"}
    hub.answers["GET /api/v1/questions"] = (200, {"questions": [QUESTION, other]})
    hub.answers["POST /api/v1/questions/q1/answer"] = (409, {"detail": "already answered."})
    hub.answers["POST /api/v1/questions/q2/answer"] = (200, other)
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    watched = run("ask", "watch", "--for", "0.05", "--interval", "0.01")
    assert watched.out.splitlines() == ["q1  deployer asks: Restart prod?", "q2  deployer asks: Really?"]
    lines = run("ask", "watch", "--for", "0", "-o", "jsonl").out.splitlines()
    assert [json.loads(each)["id"] for each in lines] == ["q1", "q2"]
    monkeypatch.setattr(sys, "stdin", Terminal("yes\nno\n"))
    taken = run("ask", "watch", "--for", "0")
    assert "already answered." in taken.err
    assert "answered deployer: no" in taken.err
    monkeypatch.setattr(sys, "stdin", Terminal("\n\n"))
    assert run("ask", "watch", "--for", "0").err.count("left open") == 2
    hub.answers["POST /api/v1/questions/q1/answer"] = (422, {"detail": "The answer must be one of 'yes', 'no'."})
    monkeypatch.setattr(sys, "stdin", Terminal("perhaps\n\nno\n"))
    assert run("ask", "watch", "--for", "0").err.count("deployer asks: Restart prod?") == 2


def test_a_second_answer_is_not_allowed(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, {**QUESTION, "status": "answered"})
    hub.answers["POST /api/v1/questions/q1/answer"] = (409, {"detail": "already answered. Read the current state."})
    ran = run("ask", "answer", "q1", "no")
    said = f"error: already answered. Read the current state.\n  next: dragoman task show {ID}\n"
    assert (ran.code, ran.err) == (4, said)


def test_an_answer_that_is_none_of_the_options_says_what_would_be(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, {**QUESTION, "options": ["not now", "no"]})
    detail = "The answer must be one of 'not now', 'no'. Correct the message and send it again."
    hub.answers["POST /api/v1/questions/q1/answer"] = (422, {"detail": detail, "field": "answer"})
    assert run("ask", "answer", "q1", "maybe").err.splitlines() == [
        "error: The answer must be one of 'not now', 'no'. (field answer)",
        "  next: dragoman ask answer q1 'not now'",
    ]


def test_policies_say_for_what_and_whom_they_hold(hub: Any, run: Any) -> None:
    entry = {"source": "a", "target": "b", "allow": True, "intents": ["run"], "encrypt": True}
    hub.answers["POST /api/v1/policies/domains"] = (200, {"domains": [entry]})
    hub.answers["GET /api/v1/agents"] = (200, {"agents": [{**AGENT, "domain": "a"}, AGENT]})
    assert run("policy", "allow", "a", "b", "--intent", "run", "--encrypt").err.splitlines() == [
        "✓ agents of a may ask agents of b for run, and only encrypted",
        "  no agent is of the domain b yet; there are: a, default",
        "  next: dragoman policy ls",
    ]


def test_audit_query_and_verify(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/audit"] = (200, {"records": [RECORD], "next": "7"})
    ran = run("audit", "query", "--outcome", "refused", "--principal", "deployer")
    assert hub.asked[0].query == {"outcome": "refused", "principal": "deployer", "limit": "50"}
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
    ran = run("translate", "agentmsg", "a2acp", "--example", "result")
    assert (ran.code, json.loads(ran.out)["payload"]["url"]) == (0, "https://kuma.lan")
    assert "✗ resources used" in ran.err
    assert "✗ TASK_COMPLETE arrives in a2acp without resources used" in ran.err
    whole = json.loads(run("translate", "forge", "forge", "-o", "json").out)
    (tmp_path / "message.json").write_text(json.dumps(whole["message"]))
    again = run("translate", "forge", "coven", "message.json")
    assert (again.code, json.loads(again.out)["work_type"]) == (0, "run_playbook")
    assert hub.asked == []
    (tmp_path / "message.json").write_text("{}")
    wrong = run("translate", "chiffon", "coven", "message.json")
    assert (wrong.code, "next: see what one looks like" in wrong.err) == (2, True)
    assert run("translate", "chiffon", "coven", "nothing.json").code == 3


# -- conformance


def test_a_hub_that_does_not_hold_a_clause_is_told_so(hub: Any, run: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "x", "token": "ab" * 16})
    hub.answers["POST /api/agent/message"] = (202, {"status": "accepted"})  # whatever is said
    ran = run("conformance", "hub", "chiffon")
    rows = ran.out.splitlines()
    assert ran.code == 1
    assert "  ✗ CH-AUT-4      A bad token is answered with 5004, which is not retried." in rows
    assert "    it was accepted with 202" in rows
    assert "✗ the hub: 0 of 13 clauses hold, 13 do not" in ran.err


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
