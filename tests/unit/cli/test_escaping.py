"""Nothing that came from outside reaches the terminal as a command to it."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.cli import escaping

EVIL = "ok\x1b[2J\x07\r\n\u202egnp\u2066\u200b\x9b31m\u2028\ufeff\U000e0041\x7f"
VERBATIM = ("\x1b", "\x07", "\r", "\u202e", "\u2066", "\u200b", "\x9b", "\u2028", "\ufeff", "\U000e0041", "\x7f")


def test_a_line_shows_what_is_hidden() -> None:
    assert escaping.line("a\x1b[31m\u202eb\nc\t\x9b") == "a\\e[31m\\u{202e}b\\nc\\t\\x9b"
    assert escaping.line("déjà vu ✓ 日本") == "déjà vu ✓ 日本"


def test_a_block_keeps_lines_and_tabs() -> None:
    assert escaping.block("a\r\nb\tc\rd\x1b") == "a\nb\tc\\rd\\e"


@given(st.text(st.characters(exclude_categories=())))
def test_no_control_or_format_character_gets_through(text: str) -> None:
    for shown, kept in ((escaping.line(text), ""), (escaping.block(text), "\n\t"), (escaping.as_json(text), "")):
        assert not [
            char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") and char not in kept
        ]
        assert not [char for char in shown if unicodedata.bidirectional(char) in {"LRE", "RLE", "LRO", "RLO", "PDF"}]
        assert not [char for char in shown if unicodedata.bidirectional(char) in {"LRI", "RLI", "FSI", "PDI"}]


@given(st.recursive(st.none() | st.integers() | st.text(), lambda it: st.lists(it) | st.dictionaries(st.text(), it)))
def test_escaped_json_means_the_same(value: Any) -> None:
    assert json.loads(escaping.as_json(value)) == value
    assert json.loads(escaping.as_json(value, indent=2)) == value


@pytest.mark.parametrize(
    "tokens",
    [
        ("task", "ls"), ("task", "ls", "-o", "json"), ("task", "ls", "-o", "jsonl"), ("task", "show", "t"),
        ("task", "show", "t", "-o", "json"), ("agent", "ls"), ("agent", "show", "a"), ("ask", "ls"), ("dlq", "ls"),
        ("dlq", "show", "d"), ("audit", "query"), ("task", "logs", "t"), ("task", "why", "t"), ("call", "a", "w"),
        ("task", "cancel", "t"), ("tail", "--for", "0"), ("agent", "add", "a", "--protocol", "x"),
    ],
)  # fmt: skip
def test_every_command_escapes_what_the_hub_says(
    hub: Any, run: Any, make_task: Any, make_stream: Any, tokens: tuple[str, ...]
) -> None:
    error = {"kind": EVIL, "message": EVIL, "facts": {EVIL: EVIL}}
    task = make_task(
        id="t", type=EVIL, name=EVIL, agent=EVIL, output=EVIL, result=EVIL, error=error, description=EVIL, step=EVIL,
        requested_by=EVIL, protocol_in=EVIL, protocol_out=EVIL, kind=EVIL, status="failed", input={EVIL: EVIL},
        events=1, updated_at=EVIL, created_at=EVIL,
    )  # fmt: skip
    agent = {"id": EVIL, "kind": EVIL, "protocol": EVIL, "status": EVIL, "capabilities": [EVIL],
             "current_tasks": [EVIL], "breaker": {"state": EVIL, "until": EVIL}, "last_seen": EVIL}  # fmt: skip
    letter = {
        "id": EVIL,
        "task_id": EVIL,
        "receiver": EVIL,
        "cargo": EVIL,
        "error": error,
        "at": EVIL,
        "body": {EVIL: 1},
    }
    question = {"id": EVIL, "agent": EVIL, "question": EVIL, "options": [EVIL], "status": "open", "deadline": EVIL}
    record = {"seq": 1, "at": EVIL, "principal": EVIL, "action": EVIL, "outcome": EVIL, "subject": EVIL, "reason": EVIL}
    why = {"task_id": EVIL, "status": EVIL, "waiting": EVIL, "reasons": [{"text": EVIL}]}
    body = {"percent": EVIL, "output": EVIL, "agent": EVIL, "fault": error, "step": {"number": EVIL, "name": EVIL}}
    hub.answers = {
        "GET /api/v1/tasks": (200, {"tasks": [task], "next": EVIL}),
        "POST /api/v1/tasks": (202, task),
        "GET /api/v1/tasks/t": (200, task),
        "GET /api/v1/tasks/t/why": (200, why),
        "GET /api/v1/tasks/t/events": (200, make_stream((1, "progress", body))),
        "POST /api/v1/tasks/t/cancel": (409, {"detail": EVIL, "field": EVIL}),
        "GET /api/v1/agents": (200, {"agents": [agent]}),
        "POST /api/v1/agents": (200, {"agent_id": EVIL, "token": EVIL}),
        "GET /api/v1/agents/a": (200, agent),
        "GET /api/v1/questions": (200, {"questions": [question]}),
        "GET /api/v1/deadletters": (200, {"deadletters": [letter], "next": EVIL}),
        "GET /api/v1/deadletters/d": (200, letter),
        "GET /api/v1/audit": (200, {"records": [record], "next": EVIL}),
    }
    ran = run(*tokens)
    for hidden in VERBATIM:
        assert hidden not in ran.out
        assert hidden not in ran.err
    assert ran.out + ran.err
