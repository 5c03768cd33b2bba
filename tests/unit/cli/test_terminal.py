"""What a terminal shows that a pipe does not: colours of states, and a line that is written over while one waits."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.unit.cli.answers import ID, Terminal

from dragoman.cli.printing import ProgressBar, note, render_bar

RED, GREEN = "\x1b[31m", "\x1b[32m"


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Both streams, in one. Not a fixture: pytest sets its own streams again when the test begins."""
    shown = Terminal()
    for name, value in (("TERM", "xterm-256color"), ("COLUMNS", "120")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


@pytest.fixture
def failed(hub: Any, make_task: Any) -> Any:
    task = make_task(status="failed", attempts=4, error={"kind": "unavailable", "message": "agent unavailable"})
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [task, make_task()], "next": None})
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, task)
    return task


def test_states_are_coloured_on_a_terminal(failed: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    run("task", "ls")
    run("task", "show", ID)
    text = terminal.getvalue()
    assert f"{RED}failed" in text
    assert f"{GREEN}completed" in text
    assert f"{RED}✗\x1b[0m task {ID}  run_playbook  {RED}failed after 4 attempts (12 s)\x1b[0m" in text


def test_no_colour_is_shown_where_it_is_not_wanted(failed: Any, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    run("task", "ls")
    run("task", "show", ID)
    assert (RED in terminal.getvalue(), GREEN in terminal.getvalue()) == (False, False)


@pytest.mark.parametrize("command", [("task", "ls"), ("task", "show", ID)])
def test_no_colour_is_shown_in_a_pipe(failed: Any, run: Any, command: tuple[str, ...]) -> None:
    ran = run(*command)
    assert "\x1b" not in ran.out + ran.err


def test_a_failed_task_leads_with_the_verdict_and_ends_with_the_next_command(failed: Any, run: Any) -> None:
    ran = run("task", "show", ID)
    assert ran.out.splitlines()[:3] == [
        f"✗ task {ID}  run_playbook  failed after 4 attempts (12 s)",
        "  admin ─api→ hub ─chiffon→ deployer",
        "  why: agent unavailable [unavailable]",
    ]
    assert ran.err.splitlines()[-1] == f"  next: dragoman task retry {ID}   ·   dragoman trace {ID} --sequence"


# -- the bar


@pytest.mark.parametrize(
    ("percent", "words", "line"),
    [
        (0, "", f"  {'░' * 24}    0 %  3.0 s"),
        (50, "step 2/4 configure", f"  {'█' * 12}{'░' * 12}   50 %  step 2/4 configure  3.0 s"),
        (100, "done", f"  {'█' * 24}  100 %  done  3.0 s"),
        (250, "more than all", f"  {'█' * 24}  250 %  more than all  3.0 s"),
        (None, "assigned · to w1", "  assigned · to w1  3.0 s"),
    ],
)
def test_the_line_says_how_far_it_is_and_how_long_it_took(percent: Any, words: str, line: str) -> None:
    assert render_bar(percent, words, 3.0, 80) == line


def test_the_line_is_no_wider_than_the_terminal() -> None:
    assert len(render_bar(50, "x" * 200, 3.0, 60)) < 60


def test_another_line_takes_the_place_of_the_bar_which_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with ProgressBar(terminal, ticking=False) as progress_bar:
        progress_bar.update(50, "half")
        note("a line")
        progress_bar.update(None, "still half")
    note("the end")
    shown = terminal.getvalue().split("\r\x1b[K")
    assert [each.split("  ")[-2] if "%" in each else each for each in shown] == [
        "", "half", "a line\n", "still half", "the end\n",
    ]  # fmt: skip


def test_a_call_on_a_terminal_shows_a_bar_in_the_place_of_a_line_for_each_step(
    hub: Any, run: Any, make_task: Any, make_stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = on_terminal(monkeypatch)
    hub.answers["GET /api/v1/agents/deployer"] = (200, {"id": "deployer"})
    hub.answers["POST /api/v1/tasks"] = (202, make_task(status="running", finished_at=None))
    hub.answers[f"GET /api/v1/tasks/{ID}"] = (200, make_task(result="done"))
    step = {"percent": 50, "step": {"number": 2, "name": "configure"}, "output": "3 monitors"}
    events = [(1, "progress", step), (2, "progress", {"output": "Hello, "}), (3, "completed", {})]
    hub.answers[f"GET /api/v1/tasks/{ID}/events"] = (200, make_stream(*events))
    assert run("call", "deployer", "run").code == 0
    shown = terminal.getvalue()
    assert "█" * 12 + "░" * 12 + "   50 %  step 2 configure" in shown
    assert "\r\x1b[K  “Hello, ”\n" in shown  # a piece of an answer is a line of its own
    assert shown.split("\r\x1b[K")[-1].startswith("done\n")
