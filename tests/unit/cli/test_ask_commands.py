"""`dragoman ask`: questions listed, watched and answered."""

from __future__ import annotations

import json
import sys
from io import StringIO
from typing import Any

import pytest
from tests.unit.cli.answers import ID, Terminal

QUESTION = {
    "id": "q1", "task_id": ID, "agent": "deployer", "question": "Restart prod?", "options": ["yes", "no"],
    "status": "open", "deadline": None, "created_at": "2026-01-19T04:21:04Z",
}  # fmt: skip


def test_questions_are_listed_and_answered_with_an_option(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/questions"] = (200, {"questions": [QUESTION]})
    hub.answers["GET /api/v1/questions/q1"] = (200, QUESTION)
    hub.answers["POST /api/v1/questions/q1/answer"] = (200, {**QUESTION, "status": "answered"})
    listed = run("ask", "ls")
    assert "Restart prod?" in listed.out
    assert listed.err.splitlines()[-1] == "  next: dragoman ask answer q1 ANSWER"
    assert hub.asked[0].query == {"status": "open", "limit": "500"}
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


LABELLED = [{"label": "OAuth 2.0", "value": "oauth"}, {"label": "No", "value": False}, {"label": "2", "value": "2"}]


@pytest.mark.parametrize(
    ("said", "meant"), [("oauth", "oauth"), ("OAuth 2.0", "oauth"), ("false", False), ("No", False), ("2", "2")]
)
def test_an_option_with_a_label_is_answered_by_its_value_or_its_label(
    hub: Any, run: Any, said: str, meant: Any
) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, {**QUESTION, "options": LABELLED})
    hub.answers["POST /api/v1/questions/q1/answer"] = (200, QUESTION)
    assert run("ask", "answer", "q1", said).code == 0
    assert hub.asked[-1].body == {"answer": meant}


def test_options_with_labels_are_listed_as_they_are_typed(hub: Any, run: Any) -> None:
    hub.answers["GET /api/v1/questions"] = (200, {"questions": [{**QUESTION, "options": LABELLED}]})
    listed = run("ask", "ls")
    assert "  oauth (OAuth 2.0), false (No), 2  " in listed.out
    assert listed.err.splitlines()[-1] == "  next: dragoman ask answer q1 ANSWER"


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


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("answered", "this question has been answered already"),
        ("expired", "this question has expired: no answer came in time"),
        ("withdrawn", "this question was withdrawn: its task has ended"),
        ("with_agent", "an agent is asked this question; a person is only asked if no agent can answer"),
    ],
)
def test_a_question_that_nobody_may_answer_says_so_before_anybody_types(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch, status: str, said: str
) -> None:
    hub.answers["GET /api/v1/questions/q1"] = (200, {**QUESTION, "status": status})
    monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
    ran = run("ask", "answer", "q1")
    assert (ran.code, [asked.method for asked in hub.asked]) == (4, ["GET"])
    assert ran.err == f"error: {said}\n  next: dragoman task show {ID}\n"


def test_a_long_list_of_questions_names_its_next_page_and_is_watched_to_its_end(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = [(200, {"questions": [QUESTION], "next": "q1"}), (200, {"questions": [{**QUESTION, "id": "q2"}]})]
    hub.answers["GET /api/v1/questions"] = list(pages)
    listed = run("ask", "ls", "--limit", "1")
    assert (listed.out.splitlines()[1].split()[0], "1 question, and more to answer" in listed.err) == ("q2", True)
    assert listed.err.splitlines()[-1] == "  next: dragoman ask ls --status open --cursor q2"
    hub.answers["GET /api/v1/questions"] = list(pages)
    assert run("ask", "ls", "--cursor", "q2").out.splitlines()[1].split()[0] == "q1"
    assert run("ask", "ls", "--cursor", "nonsense").code == 2
    hub.answers["GET /api/v1/questions"] = list(pages)
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    lines = run("ask", "watch", "--for", "0", "-o", "jsonl").out.splitlines()
    assert [json.loads(each)["id"] for each in lines] == ["q1", "q2"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("all", "✓ 2 questions, and more; 0 of them to answer"),
        ("answered", "✓ 2 questions, and more"),
    ],
)
def test_a_list_of_questions_that_were_answered_counts_them(hub: Any, run: Any, status: str, said: str) -> None:
    """It was "0 questions, and more to answer" above two rows."""
    answered = [{**QUESTION, "id": id, "status": "answered"} for id in ("q1", "q2", "q3")]
    hub.answers["GET /api/v1/questions"] = [(200, {"questions": answered})]
    listed = run("ask", "ls", "--status", status, "--limit", "2")
    assert (len(listed.out.splitlines()), listed.err.splitlines()[0]) == (3, said)


def test_watching_goes_on_when_the_hub_was_restarted(
    hub: Any, run: Any, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    away = (503, {"detail": "stopping"})
    both = (200, {"questions": [QUESTION, {**QUESTION, "id": "q2"}]})
    hub.answers["GET /api/v1/questions"] = [(200, {"questions": [QUESTION]}), *[away] * 40, both]
    ran = run("ask", "watch", "--for", "90")
    assert [each.split()[0] for each in ran.out.splitlines()] == ["q1", "q2"]
    assert ran.err.count("the hub is away; waiting for it (questions stay open)") == 1
    hub.answers["GET /api/v1/questions"] = away
    assert run("ask", "watch", "--for", "90").code == 5  # it was never there


def test_watching_shows_each_question_once_and_takes_answers_on_a_terminal(
    hub: Any, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {**QUESTION, "id": "q2", "question": "Really?", "context": {"files": 15}}
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
    assert 'Really?\n  context: {"files":15}\n' in taken.err
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
    message = "the answer must be one of 'not now', 'no'"
    hub.answers["POST /api/v1/questions/q1/answer"] = (422, {"message": message, "field": "answer"})
    assert run("ask", "answer", "q1", "maybe").err.splitlines() == [
        "error: the answer must be one of 'not now', 'no' (field answer)",
        "  next: dragoman ask answer q1 ANSWER",
    ]
