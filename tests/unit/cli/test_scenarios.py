"""The scenario runner behind `play` and `conformance`: outcomes of steps, the inbox of a fake agent, the clean-up."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from dragoman.cli.errors import CommandError, Exit
from dragoman.cli.hubclient import Hub
from dragoman.cli.printing import Report
from dragoman.cli.scenarios.fake_agents import FakeAgent, FakeAgents
from dragoman.cli.scenarios.steps import NotTried, Step, Unmet, run

UNREACHABLE = CommandError(Exit.UNREACHABLE, "no hub answers")


def raising(error: Exception) -> Callable[[None], None]:
    def step(_: None) -> None:
        raise error

    return step


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unmet("it was accepted with 202"), (False, ("it was accepted with 202",))),
        (NotTried("it is not there"), (None, ("it is not there",))),
        (UNREACHABLE, (False, ("no hub answers",))),
        (TimeoutError(), (False, ("nothing came in time",))),
        (ConnectionResetError("gone"), (False, ("the connection broke: gone",))),
        (KeyError("payload"), (False, ("an answer in another form: KeyError: 'payload'",))),
    ],
)
def test_what_a_check_raises_is_its_outcome_and_the_next_check_is_run(error: Exception, outcome: Any) -> None:
    first, second = run([Step("A", "first", raising(error)), Step("B", "second", lambda _: "shown")], None)
    assert (first.good, first.why) == outcome
    assert (second.good, second.why, second.shown) == (True, (), "shown")


def test_the_first_failure_ends_a_play_and_a_hub_that_is_gone_is_raised() -> None:
    steps = [Step("", "", lambda _: 1), Step("", "", raising(Unmet("other"))), Step("", "", lambda _: 3)]
    assert [one.good for one in run(steps, None, until_failure=True)] == [True, False]
    with pytest.raises(CommandError):
        list(run([Step("", "", raising(UNREACHABLE))], None, until_failure=True))


@pytest.mark.parametrize(
    ("form", "printed"),
    [("table", "one\n  a\n  b\ntwo\n  c\n"), ("jsonl", '{"n":1}\n{"n":2}\n{"n":3}\n')],
)
def test_a_report_prints_a_heading_once_or_a_record_a_line(
    form: Any, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Report(form)
    for number, (heading, text) in enumerate((("one", "  a"), ("one", "  b"), ("two", "  c")), 1):
        report.add(heading, [text], {"n": number})
    report.end("steps", ok=True)
    assert capsys.readouterr().out == printed


def test_a_report_in_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("json")
    report.add("one", ["  a"], {"n": 1})
    report.end("steps", ok=True)
    assert json.load(io.StringIO(capsys.readouterr().out)) == {"ok": True, "steps": [{"n": 1}]}


@pytest.fixture
def agent(hub: Any) -> FakeAgent:
    hub.answers["GET /a2acp/messages"] = (200, {"messages": []})
    hub.answers["POST /a2acp/ack"] = (200, {})
    return FakeAgent(Hub(hub.url, None), "a", "0" * 32, "a2acp")


def test_an_inbox_acknowledges_what_it_polls_and_keeps_what_no_step_wants(hub: Any, agent: FakeAgent) -> None:
    held = [{"delivery_id": str(n), "message": {"n": n}} for n in (1, 2)]
    hub.answers["GET /a2acp/messages"] = (200, {"messages": held})
    assert agent.inbox.find(lambda one: one["n"] == 2) == {"n": 2}
    assert agent.inbox.find(lambda one: one["n"] == 1, seconds=0) == {"n": 1}


def test_the_answer_to_a_request_in_the_background_comes_to_the_inbox(agent: FakeAgent) -> None:
    asked = threading.Event()

    def send() -> dict[str, Any]:
        asked.wait(10)
        return {"intent": "square"}

    agent.post_in_background(send)
    asked.set()
    assert agent.inbox.find(lambda one: one["intent"] == "square") == {"intent": "square"}


def test_what_went_wrong_in_the_background_is_raised_by_the_step_that_waits(agent: FakeAgent) -> None:
    def send() -> dict[str, Any]:
        raise UNREACHABLE

    agent.post_in_background(send)
    with pytest.raises(CommandError, match="no hub answers"):
        agent.inbox.find(lambda _: True)


def test_fake_agents_leave_nothing_behind(hub: Any) -> None:
    hub.answers["POST /api/v1/agents"] = (201, {"agent_id": "a", "token": "0" * 32})
    hub.answers["GET /api/v1/tasks"] = (
        200,
        {"tasks": [{"id": "t1", "status": "running"}, {"id": "t2", "status": "failed"}]},
    )
    hub.answers["GET /api/v1/contracts"] = (200, {"contracts": [{"id": "c1", "standing": "active"}]})
    hub.answers["GET /a2acp/messages"] = (200, {"messages": []})
    old, new, other = (
        {"id": id, "receiver": to, "task_id": "t9"} for id, to in (("old", "a"), ("new", "a"), ("x", "b"))
    )
    hub.answers["GET /api/v1/deadletters"] = (200, {"deadletters": [old, other]})
    with FakeAgents(Hub(hub.url, None)) as fakes:
        fakes.admit("a2acp", "", id="a")
        hub.answers["GET /api/v1/deadletters"] = (200, {"deadletters": [old, new, other]})
        for path in (
            "POST /api/v1/tasks/t1/cancel",
            "POST /api/v1/contracts/c1/end",
            "POST /api/v1/deadletters/new/discard",
        ):
            hub.answers[path] = (200, {})
        hub.answers["DELETE /api/v1/agents/a"] = (204, None)
    changed = [f"{one.method} {one.path}" for one in hub.asked if one.method != "GET"]
    assert changed == [
        "POST /api/v1/agents", "POST /api/v1/tasks/t1/cancel", "POST /api/v1/contracts/c1/end",
        "DELETE /api/v1/agents/a", "POST /api/v1/deadletters/new/discard", "POST /api/v1/deadletters/new/discard",
    ]  # fmt: skip
