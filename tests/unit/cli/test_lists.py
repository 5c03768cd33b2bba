"""Lists: the newest first, as far back as one asks; and things by a part of their id."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.cli.answers import ID

from dragoman.cli.errors import CommandError
from dragoman.cli.lists import begin

NOW = datetime(2026, 1, 19, 12, tzinfo=UTC)


def ago(**age: float) -> str:
    return (datetime.now(UTC) - timedelta(**age)).isoformat()


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90s", timedelta(seconds=90)), ("15m", timedelta(minutes=15)), ("15min", timedelta(minutes=15)),
        ("1h", timedelta(hours=1)), ("1.5h", timedelta(minutes=90)), ("2d", timedelta(days=2)),
        ("1w", timedelta(weeks=1)), ("2026-01-19T11:00", timedelta(hours=1)), ("2026-01-19", timedelta(hours=12)),
        ("2026-01-19T11:00:00+02:00", timedelta(hours=3)),
    ],
)  # fmt: skip
def test_since_is_an_age_or_a_time(text: str, age: timedelta) -> None:
    assert begin(text, NOW) == NOW - age


@pytest.mark.parametrize("text", ["", "1", "1y", "yesterday", "-1h", "h"])
def test_another_since_is_a_usage_error(text: str) -> None:
    with pytest.raises(CommandError) as stopped:
        begin(text, NOW)
    assert (stopped.value.code, "15m" in str(stopped.value.next)) == (2, True)


def test_the_hub_is_asked_for_tasks_by_age_protocol_and_words(hub: Any, run: Any, make_task: Any) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task()], "next": "c"})
    run("task", "ls", "--since", "1h", "--protocol", "forge", "--search", "invoice backup", "-o", "json")
    query = hub.asked[-1].query
    assert (query["protocol"], query["q"]) == ("forge", "invoice backup")
    assert abs(datetime.fromisoformat(query["since"]) - datetime.fromisoformat(ago(hours=1))) < timedelta(minutes=5)
    assert "--since 6h" in run("task", "ls", "--since", "6h").err  # there may be more
    assert run("task", "ls", "--since", "soon").code == 2


@pytest.mark.parametrize(
    ("command", "key", "field", "more"),
    [
        (("dlq", "ls"), "deadletters", "at", {"receiver": "w1", "cargo": "work", "task_id": "t"}),
        (("contract", "ls"), "contracts", "created_at", {"source": {}, "target": {}, "standing": "active"}),
        (("ask", "ls"), "questions", "created_at", {"agent": "a", "question": "?", "status": "open"}),
    ],
)  # fmt: skip
def test_every_list_of_things_with_a_time_takes_since(
    hub: Any, run: Any, command: tuple[str, ...], key: str, field: str, more: Any
) -> None:
    young, old = {"id": "b", field: ago(minutes=5), **more}, {"id": "a", field: ago(hours=5), **more}
    hub.answers[f"GET /api/v1/{key}"] = (200, {key: [young, old], "next": None})
    assert [one["id"] for one in json.loads(run(*command, "--since", "1h", "-o", "json").out)[key]] == ["b"]
    assert [one["id"] for one in json.loads(run(*command, "-o", "json").out)[key]] == ["b", "a"]


class Records(dict[str, Any]):
    """An audit record of so many entries, one a minute, listed from the oldest on as the hub does."""

    def __init__(self, hub: Any, count: int) -> None:
        self.hub = hub
        at = datetime.now(UTC)
        self.all = [
            {"seq": seq, "at": (at - timedelta(minutes=count - seq)).isoformat(), "principal": f"p{seq % 2}"}
            for seq in range(1, count + 1)
        ]

    def get(self, route: str, default: Any = None) -> Any:
        query = self.hub.asked[-1].query
        wanted = [one for one in self.all if one["seq"] > int(query.get("cursor", 0))]
        wanted = [one for one in wanted if query.get("principal") in (None, one["principal"])]
        return 200, {"records": wanted[: int(query["limit"])], "next": None, "newest": len(self.all)}


def test_audit_records_are_listed_from_the_newest_on(hub: Any, run: Any) -> None:
    hub.answers = Records(hub, 1200)

    def listed(*options: str) -> list[int]:
        return [one["seq"] for one in json.loads(run("audit", "query", "-o", "json", *options).out)["records"]]

    assert listed("--limit", "3") == [1200, 1199, 1198]
    assert listed("--limit", "3", "--before", "1198") == [1197, 1196, 1195]
    assert listed("--limit", "3", "--principal", "p1") == [1199, 1197, 1195]
    assert listed("--since", "150s") == [1200, 1199, 1198]
    assert listed("--limit", "2", "--cursor", "5") == [6, 7]  # as before: from the oldest on
    assert len(listed("--limit", "500", "--principal", "p1")) == 500
    assert "--limit 3" not in run("audit", "query", "--limit", "3", "--before", "3").err  # that was all of them
    assert "audit query --before 1198" in run("audit", "query", "--limit", "3").err


# -- parts of ids


def test_a_task_is_found_by_the_end_of_its_id(hub: Any, run: Any, make_task: Any) -> None:
    other = make_task(id="0199f3a0-0000-7000-8000-0000000029d7")
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task(), other], "next": None})
    hub.answers[f"GET /api/v1/tasks/{other['id']}"] = (200, other)
    hub.answers[f"POST /api/v1/tasks/{other['id']}/cancel"] = (200, other)
    for typed in ("29d7", "…29d7", "0029D7"):
        assert json.loads(run("task", "show", typed, "-o", "json").out)["id"] == other["id"]
    assert run("task", "cancel", "29d7").code == 0
    assert hub.asked[-1].path == f"/api/v1/tasks/{other['id']}/cancel"


def test_an_end_that_several_have_names_them(hub: Any, run: Any, make_task: Any) -> None:
    ids = [f"0199f3a0-0000-7000-8000-{number:08}29d7" for number in range(7)]
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task(id=id) for id in ids], "next": None})
    ran = run("task", "why", "29d7")
    assert ran.code == 2
    assert ran.err.splitlines() == [
        "error: 7 tasks begin or end with '29d7':",
        *[f"  - {id}  run_playbook  completed" for id in ids[:5]],
        "  - and 2 more",
        "  next: dragoman task ls",
    ]


@pytest.mark.parametrize("typed", ["9d7", "beef", ID.replace("0199", "0198")])
def test_what_nothing_begins_or_ends_with_is_not_found(hub: Any, run: Any, make_task: Any, typed: str) -> None:
    hub.answers["GET /api/v1/tasks"] = (200, {"tasks": [make_task()], "next": None})
    assert run("task", "show", typed).code == 3


@pytest.mark.parametrize(
    ("command", "key", "verb"),
    [
        (("dlq", "show"), "deadletters", ""), (("dlq", "redrive"), "deadletters", "/redrive"),
        (("dlq", "discard"), "deadletters", "/discard"), (("contract", "end"), "contracts", "/end"),
        (("contract", "renew"), "contracts", "/renew"),
        (("ask", "answer"), "questions", "/answer"), (("task", "retry"), "tasks", "/retry"),
        (("task", "pause"), "tasks", "/pause"), (("task", "resume"), "tasks", "/resume"),
        (("trace",), "tasks", "/trace"),
    ],
)  # fmt: skip
def test_a_part_of_an_id_is_enough_for_every_command(
    hub: Any, run: Any, make_task: Any, command: tuple[str, ...], key: str, verb: str
) -> None:
    thing = make_task(kind="work", receiver="w", status="open", question="?")
    hub.answers[f"GET /api/v1/{key}"] = (200, {key: [thing], "next": None})
    for method in ("GET", "POST"):
        for rest in ("", verb):
            hub.answers[f"{method} /api/v1/{key}/{ID}{rest}"] = (200, thing)
    ran = run(*command, "0001", *(("yes",) if key == "questions" else ()), "-o", "json")
    assert (ran.code, hub.asked[-1].path) == (0, f"/api/v1/{key}/{ID}{verb}"), ran.err
