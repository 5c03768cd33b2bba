"""What an event of a task says: every kind has a form, and reading forgives what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from dragoman.core.model.tasks import EventKind
from dragoman.messages import tasks
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.files import FileRef

FILE = FileRef(id="f1", name="plot.png", mime_type="image/png", size=3, sha256="0" * 64)
LATE = Fault(kind=Kind.TIMEOUT, message="m")


def test_every_kind_of_event_has_a_reader() -> None:
    assert set(tasks.READERS) == {kind.value for kind in EventKind}


@pytest.mark.parametrize(
    ("kind", "content", "stored"),
    [
        ("submitted", tasks.Request(input={}), {"input": {}}),
        (
            "submitted",
            tasks.Request(input=None, attachments=(FILE,)),
            {"input": None, "attachments": [msgspec.to_builtins(FILE)]},
        ),
        (
            "progress",
            tasks.Progress(status="running", percent=0, output=""),
            {"status": "running", "percent": 0, "output": ""},
        ),
        ("progress", tasks.Progress(step="compile", chunk=(0, 3, None)), {"step": "compile", "chunk": [0, 3, None]}),
        ("completed", tasks.Result(result=None, exit_code=0), {"result": None, "exit_code": 0}),
        (
            "handed_over",
            tasks.Request(input=1, handover=tasks.Handoff(source="a", to="b")),
            {"input": 1, "handover": {"from": "a", "to": "b"}},
        ),
        (
            "asked",
            tasks.Question(question_id="q", question="?", options=()),
            {"question_id": "q", "question": "?", "options": []},
        ),
        (
            "dead_lettered",
            tasks.DeadLettered(fault=LATE, dead_letter="d", message_kind="work"),
            {"fault": {"kind": "timeout", "message": "m"}, "letter": "d", "cargo": "work"},
        ),
    ],
)
def test_the_json_of_a_content_is_what_earlier_versions_stored(
    kind: str, content: tasks.Content, stored: dict[str, object]
) -> None:
    body = tasks.written(content)
    assert msgspec.json.decode(body) == stored
    assert msgspec.json.decode(tasks.written(tasks.READERS[kind](body))) == stored


def test_an_answer_is_the_next_round_of_its_task_or_what_its_agent_waits_for() -> None:
    assert tasks.read_answered(b'{"question_id":"q","answer":null}') == tasks.Answer(question_id="q", answer=None)
    assert tasks.read_answered(b'{"input":{},"answer":1}') == tasks.Request(input={}, answer=1)


def test_a_field_that_does_not_fit_leaves_the_others_readable() -> None:
    said = tasks.read_progress(b'{"percent":"half","step":{"number":1.5,"name":"build"},"output":"a","other":1}')
    assert said == tasks.Progress(step=tasks.Step(name="build"), output="a")
    assert tasks.read_request(b"[1]") == tasks.Request()
    assert tasks.fitting(tasks.ToolUse, {"id": 3, "name": "grep"}) == tasks.ToolUse(name="grep")
    assert tasks.fitting(tasks.ToolUse, "grep") is None


def test_a_later_round_keeps_what_the_caller_said_and_not_the_last_answer() -> None:
    first = tasks.Request(input={"n": 1}, hints={"a": 1}, extra={}, answer="yes", question="?", asked_by="ada")
    assert first.next_round(answer="no") == tasks.Request(input={"n": 1}, hints={"a": 1}, answer="no")
    assert tasks.Request().next_round() == tasks.Request(input={})
    assert tasks.Request().input is UNSET


STORED = [json.loads(line) for line in (Path(__file__).parent / "stored" / "events.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("event", STORED, ids=lambda event: event["kind"])
def test_an_event_that_an_earlier_version_stored_is_read_whole(event: dict[str, Any]) -> None:
    """One event of each shape that a hub wrote before contents had types: the five protocols, play and conformance."""
    read = tasks.READERS[event["kind"]](json.dumps(event["body"]).encode())
    assert json.loads(bytes(tasks.written(read))) == event["body"]
