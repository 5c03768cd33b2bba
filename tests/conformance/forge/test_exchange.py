"""Requests and their responses, at the real hub and at an agent of the SDK; what each end may say, and how much."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.forge import ForgeHub, forge_hub
from tests.unit.sdk.forge.harness import FakeForge
from tests.unit.sdk.harness import FakeRuntime, settle

from dragoman.protocols.forge import codec
from dragoman.protocols.forge.errors import Code
from dragoman.protocols.forge.ratelimit import Bucket
from dragoman.protocols.forge.types import (
    AskUser,
    Encoding,
    ErrorBody,
    GetTask,
    QueryTasks,
    Shutdown,
    Stamp,
    TaskAssigned,
)
from dragoman.sdk.forge.session import Declined, Session, TooLong

FORMS: list[dict[str, Any]] = [
    {"is_lines": True},
    {"is_lines": False},
    {"is_lines": False, "encoding": Encoding.MSGPACK},
]


@pytest.fixture
async def hub() -> AsyncIterator[ForgeHub]:
    async with forge_hub() as hub:
        await hub.add("planner-1", role="planner")
        yield hub


async def opened(**form: Any) -> tuple[FakeForge, Session]:
    """An orchestrator that answers nothing by itself, and an agent's session with it."""
    orchestrator = FakeForge(FakeRuntime(), **form)
    orchestrator.answers.clear()
    session = Session(orchestrator.dial_wire(), orchestrator.runtime)
    await session.open()
    return orchestrator, session


@pytest.mark.requirement("FG-RSP-2", "FG-PAR-2", "FG-COR-1")
@pytest.mark.parametrize("form", FORMS)
async def test_an_agent_finds_each_response_by_its_request(form: dict[str, Any]) -> None:
    orchestrator, session = await opened(**form)
    asked = [asyncio.ensure_future(session.ask(wish)) for wish in (QueryTasks(), GetTask(task_id="t"))]
    await settle()
    first, second = orchestrator.said
    orchestrator.fail(second, ErrorBody(code=Code.NOT_FOUND, message="no such task"))
    orchestrator.succeed(first, {"tasks": []})
    for _ in range(2):
        assert await session.notices() == []
    assert await asked[0] == {"tasks": []}
    with pytest.raises(Declined, match="no such task"):
        await asked[1]


@pytest.mark.requirement("FG-COR-1")
async def test_an_agent_ignores_a_response_that_comes_twice_or_to_nothing() -> None:
    orchestrator, session = await opened()
    asked = asyncio.ensure_future(session.ask(QueryTasks()))
    await settle()
    [request] = orchestrator.said
    orchestrator.succeed(request, {"n": 1})
    orchestrator.succeed(request, {"n": 2})
    orchestrator.notify(Shutdown())
    told = [await session.notices() for _ in range(3)]
    assert [len(notices) for notices in told] == [0, 0, 1]
    assert await asked == {"n": 1}


@pytest.mark.requirement("FG-RSP-2", "FG-COR-1")
async def test_the_hub_answers_each_request_once_and_names_it(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    requests = [planner.message("request:query-tasks", {}), planner.message("request:get-task", {"taskId": "none"})]
    await planner.say(*requests)
    assert (await planner.response(requests[1]["id"]))["code"] == "NOT_FOUND"
    assert await planner.response(requests[0]["id"]) == {"tasks": []}
    await planner.ask("query-tasks")
    assert planner.received == []  # no response but these three


@pytest.mark.requirement("FG-MSG-5")
async def test_the_hub_takes_what_only_it_may_say_for_a_line_of_the_log(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    await planner.say(planner.message("notify:shutdown", {}))
    await planner.say(planner.message("response:success", {}, correlationId="r"))
    await planner.ask("query-tasks")
    assert planner.received == []


@pytest.mark.requirement("FG-MSG-5")
async def test_an_agent_takes_no_request_of_an_orchestrator_for_a_notice() -> None:
    orchestrator, session = await opened()
    orchestrator.notify(QueryTasks())
    assert await session.notices() == []
    assert orchestrator.said == []


@pytest.mark.requirement("FG-NOT-3")
def test_a_shutdown_says_how_long_there_is() -> None:
    said = codec.write(codec.message(Shutdown(), Stamp("n", datetime(2026, 2, 4, tzinfo=UTC))))
    assert json.loads(said)["payload"] == {"gracePeriod": 30000, "reason": "Orchestrator stopping"}


@pytest.mark.requirement("FG-USE-1")
async def test_the_documents_own_agent_is_understood(hub: ForgeHub) -> None:
    """What the TypeScript of the document prints, and what it looks at in the answer."""
    request = {
        "type": "request:query-tasks",
        "id": "1f0e7f4e-2b5a-4ed0-9d2b-5f0c0a9b8d11",
        "timestamp": "2026-02-04T14:30:00.000Z",
        "payload": {"status": "queued"},
    }
    planner = await hub.connect("planner-1")
    await planner.say(json.dumps(request))
    answer = await planner.hear()
    assert (answer["type"], answer["correlationId"]) == ("response:success", request["id"])
    assert answer["payload"] == {"tasks": []}


@pytest.mark.requirement("FG-SEC-3")
def test_a_bucket_lets_200_through_at_once_and_100_a_second() -> None:
    bucket, granted = Bucket(at=10.0).take(10.0, 250)
    assert granted == 200
    bucket, granted = bucket.take(10.0, 1)
    assert granted == 0
    assert bucket.wait(10.0) == pytest.approx(0.01)
    bucket, granted = bucket.take(10.5, 100)
    assert granted == 50
    bucket, granted = bucket.take(9.0, 100)  # a clock that goes back fills nothing
    assert granted == 0
    bucket, granted = bucket.take(1000.0, 1000)
    assert granted == 200


@pytest.mark.requirement("FG-SEC-3")
async def test_the_hub_does_not_listen_to_more_than_the_bucket_holds(hub: ForgeHub) -> None:
    planner = await hub.connect("planner-1")
    for _ in range(200):
        await planner.tell("progress", taskId="none")
    assert (await planner.ask("query-tasks"))["details"]["reason"] == "RATE_LIMITED"
    hub.ticks += 1
    assert await planner.ask("query-tasks") == {"tasks": []}


@pytest.mark.requirement("forge-D1")
async def test_an_agent_may_receive_longer_lines_than_it_may_send() -> None:
    """The input of a task came from elsewhere, and an agent must not lose it to a limit on lines."""
    orchestrator, session = await opened()
    long = "x" * (2 * 1024 * 1024)
    with pytest.raises(TooLong):
        session.request(AskUser(question=long), lambda response: None)
    orchestrator.notify(TaskAssigned(task_id="t", message="m", task={"payload": {"text": long}}))
    [notice] = await session.notices()
    assert isinstance(notice.payload, TaskAssigned)
    assert notice.payload.task == {"payload": {"text": long}}
