"""Who sees which task, and in which words; every fault has a code."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from tests.support.heads import task_head

from dragoman.core.commands import Submit
from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent, Breaker, BreakerState
from dragoman.core.model.tasks import Origin, Priority, Status, Task, Waiting
from dragoman.core.routing.routes import Route
from dragoman.messages import error_table
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.codec import RequestReceived
from dragoman.protocols.forge.errors import Code, error_out, fault_in, is_retryable
from dragoman.protocols.forge.mapping import PRIORITIES, PRIORITIES_IN, STATUSES_IN
from dragoman.protocols.forge.types import TaskStatus
from dragoman.server.forge.inbound import command_of
from dragoman.server.forge.outbound import agent_status, status_of, task_view
from dragoman.server.forge.queries import may_see, shown_to
from dragoman.wire.role import Role

NOW = Instant(1)


def agent(id: str = "me", **fields: Any) -> Agent:
    return Agent(id=AgentId(id), protocol="forge", created_at=NOW, token_hash="-", **fields)


def task(**fields: Any) -> Task:
    given: dict[str, Any] = {
        "id": TaskId("t"), "type": "x", "status": Status.QUEUED, "created_at": NOW, "updated_at": NOW,
        "origin": Origin(principal=AgentId("boss"), protocol="forge", request_id="r", digest="-"),
        "route": Route(type="x", role="worker", capabilities=("go",)).queue, "deadline": NOW, "idle_limit": 1,
        "rank": 0, "trace_id": "0" * 32,
    }  # fmt: skip
    return task_head(**(given | fields))


@pytest.mark.parametrize(("who", "shown"), [("me", "[personal]"), ("boss", "Ada's"), ("doer", "Ada's")])
def test_a_planner_sees_that_there_is_personal_work_and_not_its_content(who: str, shown: str) -> None:
    personal = task(personal=True, name="Ada's", description="Ada's", thread="Ada's", owner=AgentId("doer"))
    view = task_view(shown_to(agent(who, role="planner"), personal))
    assert (view.name, view.description, view.thread) == (shown, shown, shown)


@pytest.mark.requirement("forge-D5")
@pytest.mark.parametrize(
    ("who", "what", "sees"),
    [
        (agent("boss"), task(), True),
        (agent(), task(owner=AgentId("me"), status=Status.RUNNING), True),
        (agent(role="planner"), task(status=Status.FAILED), True),
        (agent(role="worker", capabilities=("go", "c")), task(), True),
        (agent(role="worker", capabilities=("c",)), task(), False),
        (agent(role="reviewer", capabilities=("go",)), task(), False),
        (agent(role="worker", capabilities=("go",), work_types=("y",)), task(), False),
        (agent(role="worker", capabilities=("go",)), task(status=Status.RUNNING, owner=AgentId("you")), False),
        (agent(role="worker", capabilities=("go",)), task(status=Status.COMPLETED), False),
        (agent(), task(route=Route(type="x", pinned=AgentId("you")).queue), False),
        (agent(), task(route=Route(type="x", pinned=AgentId("me")).queue), True),
    ],
)
def test_who_may_see_a_task(who: Agent, what: Task, sees: bool) -> None:
    assert may_see(who, what) is sees


@pytest.mark.requirement("forge-all-D8", "forge-D7")
def test_every_status_has_a_name_and_every_name_a_status() -> None:
    assert set(STATUSES_IN) == set(get_args(TaskStatus))
    for status in Status:
        for waiting in (None, *Waiting):
            for attempts in (0, 1):
                word = status_of(task(status=status, waiting=waiting, attempts=attempts))
                assert status in STATUSES_IN[word]
    assert status_of(task(attempts=1)) == "retrying"
    assert status_of(task(status=Status.WAITING, waiting=Waiting.DEPENDENCY)) == "pending"
    assert status_of(task(status=Status.WAITING, waiting=Waiting.PERSON, attempts=1)) == "running"


@pytest.mark.requirement("forge-D7")
def test_priorities_both_ways() -> None:
    assert {PRIORITIES_IN[PRIORITIES[priority]] for priority in Priority} == set(Priority)
    assert [PRIORITIES_IN[n] for n in range(1, 6)] == ["critical", "high", "normal", "low", "low"]


@pytest.mark.requirement("forge-D7")
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_a_task_is_shown_with_the_priority_number_of_its_caller(number: int) -> None:
    said = {"type": "request:submit-task", "id": "r", "timestamp": "2026-01-19T04:21:04Z"}
    [heard] = codec.read(msgspec.json.encode({**said, "payload": {"type": "x", "priority": number}}), Role.HUB)
    assert isinstance(heard, RequestReceived)
    asked = command_of(agent("boss"), heard.message, heard.tree)
    assert isinstance(asked, Submit)
    origin = msgspec.structs.replace(task().origin, priority=asked.own_priority)
    assert task_view(task(priority=asked.priority, origin=origin)).priority == number


def test_an_agents_status() -> None:
    seen = msgspec.structs.replace(agent(), last_seen_at=NOW)
    shy = msgspec.structs.replace(seen, breaker=Breaker(state=BreakerState.OPEN))
    assert agent_status(agent(), reachable=False, load=0) == "initializing"
    assert agent_status(seen, reachable=False, load=0) == "stopped"
    assert agent_status(seen, reachable=True, load=0) == "idle"
    assert agent_status(seen, reachable=True, load=1) == "busy"
    assert agent_status(shy, reachable=True, load=0) == "unhealthy"


@pytest.mark.requirement("FG-ERR-2")
@pytest.mark.parametrize("kind", Kind)
def test_every_fault_has_a_code_a_sentence_and_a_reason(kind: Kind) -> None:
    error = error_out(Fault(kind=kind, message="it did not work", field="task_id", facts={"a": 1, "b": None}))
    assert error.code in set(Code)
    assert error.details["field"] == "payload.taskId"
    assert error.details["reason"] == ("RATE_LIMITED" if kind is Kind.RATE_LIMITED else kind.value)
    assert error.details["a"] == 1
    assert error.message == "it did not work" if kind is Kind.WORK_FAILED else error.message.endswith(".")
    assert is_retryable(error) == error_table.TABLE[kind].retryable


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        (None, Kind.WORK_FAILED, "the work failed"),
        ("broken", Kind.WORK_FAILED, "broken"),
        ({"code": "TIMEOUT", "message": "slow"}, Kind.TIMEOUT, "slow"),
        ({"message": "later", "retryable": True}, Kind.UNAVAILABLE, "later"),
        ({"message": "later", "details": {"retryable": True}}, Kind.UNAVAILABLE, "later"),
        (["odd"], Kind.WORK_FAILED, "['odd']"),
    ],
)
def test_what_an_agent_says_went_wrong(said: Any, kind: Kind, message: str) -> None:
    fault = fault_in(said)
    assert (fault.kind, fault.message) == (kind, message)
    assert fault.retryable == (kind is not Kind.WORK_FAILED)
