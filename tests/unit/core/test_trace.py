"""One trace: who said what to whom, step by step, in the order of a tree."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.support.heads import task_head

from dragoman.core.ids import SECOND, AgentId, Instant, TaskId
from dragoman.core.model.tasks import Event, EventKind, Origin, Status, Task
from dragoman.core.queries.trace import in_tree_order, trace_task
from dragoman.core.routing.routes import Route

NOW = Instant(1_768_796_464_000_000)
PROTOCOLS = {"mux-1": "coven", "bob": "agentmsg"}


def no_losses(caller: str, agent: str) -> dict[Any, Any]:
    return {}


def task(id: str = "t-1", **changes: Any) -> Task:
    base = {
        "id": TaskId(id), "type": "a", "status": Status.RUNNING, "created_at": NOW, "updated_at": NOW,
        "origin": Origin(principal=AgentId("planner"), protocol="chiffon", request_id="r", digest="d"),
        "route": Route("a", "infra").queue, "deadline": NOW, "idle_limit": 30 * SECOND, "rank": 0,
        "trace_id": "0" * 32, "owner": AgentId("mux-1"),
    }  # fmt: skip
    return task_head(**{**base, **changes})


def events(*said: tuple[EventKind, str | None, dict[str, Any]]) -> list[Event]:
    return [
        Event(
            task=TaskId("t-1"),
            seq=seq,
            at=Instant(NOW + seq * SECOND),
            kind=kind,
            agent=None if agent is None else AgentId(agent),
            body=msgspec.Raw(msgspec.json.encode(body)),
        )
        for seq, (kind, agent, body) in enumerate(said, 1)
    ]


HISTORY = (
    (EventKind.SUBMITTED, None, {"input": {}}),
    (EventKind.ASSIGNED, "mux-1", {"agent": "mux-1", "attempt": 1}),
    (EventKind.PROGRESS, "mux-1", {"percent": 10}),
    (EventKind.PROGRESS, "mux-1", {"percent": 20}),
    (EventKind.ASKED, "mux-1", {"question": "which way?", "asked_of": "bob"}),
    (EventKind.ASKED, "mux-1", {"question": "which way?"}),
    (EventKind.ANSWERED, None, {"answer": "left"}),
    (EventKind.HANDED_OVER, "bob", {"handover": {"from": "mux-1", "to": "bob", "reason": "load_balancing"}}),
    (EventKind.ATTEMPT_FAILED, "bob", {"fault": {"kind": "timeout", "message": "too slow"}}),
    (EventKind.RETRIED, None, {"input": {}}),
    (EventKind.COMPLETED, "bob", {"result": 1}),
)


def test_each_step_says_who_spoke_to_whom_in_which_protocol() -> None:
    told = trace_task(
        task(owner=AgentId("bob"), seq=11), events(*HISTORY), lambda agent: PROTOCOLS.get(agent), no_losses
    )
    assert [(step.kind.value, step.count, step.source, step.protocol, step.target) for step in told.steps] == [
        ("submitted", 1, "planner", "chiffon", "hub"),
        ("assigned", 1, "hub", "coven", "mux-1"),
        ("progress", 2, "mux-1", "coven", "hub"),
        ("asked", 1, "mux-1", "coven", "bob"),
        ("asked", 1, "mux-1", "coven", "person"),
        ("answered", 1, "hub", "agentmsg", "bob"),
        ("handed_over", 1, "hub", "agentmsg", "bob"),
        ("attempt_failed", 1, "hub", None, "hub"),
        ("retried", 1, "person", None, "hub"),
        ("completed", 1, "bob", "agentmsg", "planner"),
    ]
    assert [told.steps[place].text for place in (2, 3, 6)] == [
        "20 %",
        "of bob · which way?",
        "from mux-1 to bob (load balancing)",
    ]
    assert (told.steps[2].at < told.steps[2].until, told.steps_left_out) == (True, 0)


def test_personal_content_is_not_shown_and_what_is_left_out_is_counted() -> None:
    told = trace_task(
        task(personal=True, seq=20, name="Ada's"), events(*HISTORY), lambda agent: PROTOCOLS.get(agent), no_losses
    )
    assert {step.text for step in told.steps} == {""}
    assert (told.name, told.steps_left_out) == ("[personal]", 9)


def test_tasks_stand_after_their_cause_by_birth() -> None:
    family = {
        TaskId(id): task(id, created_at=Instant(NOW + at))
        for id, at in (("late", 9), ("root", 0), ("first", 1), ("second", 2), ("deep", 3))
    }
    causes = {"first": "root", "second": "root", "late": "root", "deep": "first"}
    found = in_tree_order(family, causes)  # type: ignore[arg-type]
    assert [one.id for one in found] == ["root", "first", "deep", "second", "late"]


@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_of_event_has_a_step(kind: EventKind) -> None:
    assert trace_task(task(), events((kind, "mux-1", {})), lambda agent: None, no_losses).steps[0].kind is kind
