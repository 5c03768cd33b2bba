"""The SDK as an API, over the management API and all five protocols: handles, typed results, typed events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TypedDict

import msgspec
import pytest
import pytest_asyncio

from dragoman import (
    BadResult,
    Cancelled,
    Client,
    Completed,
    Failed,
    FileSent,
    Output,
    Progress,
    TaskCancelled,
    TaskFailed,
    TaskHandle,
    Thinking,
    ToolReturned,
    ToolUsed,
)
from tests.bridge.players.neutral import PATIENCE, soon
from tests.bridge.players.stage import Stage
from tests.bridge.sdk_pairs import FILE, PROTOCOLS, Cast, given_back

pytestmark = pytest.mark.asyncio(loop_scope="session")

Pair = tuple[Client, str]


class Numbered(msgspec.Struct):
    n: int


@dataclass
class Counted:
    n: int


class Tally(TypedDict):
    n: int


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cast(stage: Stage) -> AsyncIterator[Cast]:
    everybody = Cast(stage)
    yield everybody
    await everybody.close()


@pytest.fixture(params=("api", *PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def both(cast: Cast, protocol: str) -> Pair:
    return await cast.caller(protocol), await cast.agent("chiffon" if protocol == "api" else protocol)


async def test_a_handle_follows_its_task_and_gives_the_result(both: Pair) -> None:
    hub, agent = both
    handle = await soon(hub.submit("steps", {}, agent=agent))
    async with asyncio.timeout(PATIENCE):
        events = [event async for event in handle.events()]
    match events[-1]:
        case Completed(result={"n": 1}, task_id=task_id):
            assert task_id == handle.id
        case other:
            raise AssertionError(other)
    assert any(isinstance(event, Progress) and event.percent == 50 for event in events)
    assert await soon(handle.result()) == {"n": 1}


@pytest.mark.parametrize(("returns", "value"), [(Numbered, Numbered(1)), (Counted, Counted(1)), (Tally, {"n": 1})])
async def test_a_result_has_the_type_that_the_caller_gave(both: Pair, returns: type, value: object) -> None:
    hub, agent = both
    assert await soon(hub.call("steps", {}, agent=agent, returns=returns)) == value


async def test_a_result_that_does_not_fit_says_so_and_keeps_it(both: Pair) -> None:
    hub, agent = both
    with pytest.raises(BadResult, match="does not fit") as caught:
        await soon(hub.call("steps", {}, agent=agent, returns=list[int]))
    assert caught.value.result == {"n": 1}


async def test_a_handler_is_called_by_itself_and_its_hint_is_the_type(both: Pair) -> None:
    """The agents here declare one function each, so the agent is named; `test_client` has the other case."""
    hub, agent = both
    assert await soon(hub.call(given_back, {"n": 3}, agent=agent)) == Counted(3).n


async def test_what_an_agent_reports_comes_as_typed_events(both: Pair, protocol: str) -> None:
    hub, agent = both
    async with asyncio.timeout(PATIENCE):
        events = [event async for event in hub.stream("tell", agent=agent)]
    said: dict[type, object] = {}
    for event in events:
        match event:
            case Output(output=text):
                said[Output] = text
            case Thinking(text=text):
                said[Thinking] = text
            case ToolUsed(name=name, input=given, tool_id=use):
                said[ToolUsed] = name, given
                assert use
            case ToolReturned(result=text, is_error=wrong):
                said[ToolReturned] = text, wrong
            case FileSent(name=name, mime_type=mime_type, size=size, content=content):
                said[FileSent] = name, mime_type, size
                assert content == (FILE if protocol == "coven" else None)
            case Completed(result=result):
                said[Completed] = result
    assert said == {
        Output: "a line\n",
        Thinking: "hm",
        ToolUsed: ("grep", {"for": "x"}),
        ToolReturned: ("found", False),
        FileSent: ("a.txt", "text/plain", len(FILE)),
        Completed: {"n": 1},
    }
    assert [event.kind for event in events][-1] == "completed"


async def test_a_failure_is_an_event_and_an_exception_with_the_same_message(both: Pair) -> None:
    hub, agent = both
    handle = await soon(hub.submit("crash", {}, agent=agent))
    async with asyncio.timeout(PATIENCE):
        *_, last = [event async for event in handle.events()]
    assert isinstance(last, Failed)
    with pytest.raises(TaskFailed) as caught:
        await soon(handle.result())
    assert last.message == caught.value.message == "ValueError: out of cheese"


async def test_a_handle_cancels_its_task(both: Pair) -> None:
    hub, agent = both
    handle = await soon(hub.submit("wait", {}, agent=agent))
    async with asyncio.timeout(PATIENCE):
        async for event in handle.events():
            if isinstance(event, Progress):
                await handle.cancel("enough")
            last = event
    assert isinstance(last, Cancelled)
    assert last.message == "enough"
    with pytest.raises(TaskCancelled, match="enough"):
        await soon(handle.result())


async def test_older_programs_go_on_with_handles_where_they_had_ids(both: Pair) -> None:
    hub, agent = both
    task: TaskHandle[object] = await soon(hub.submit(agent, "steps", {}))
    async with asyncio.timeout(PATIENCE):
        *_, last = [event async for event in hub.events(task)]
    assert (last.kind, last.data["result"], last.is_final) == ("completed", {"n": 1}, True)
    assert {str(task): 1}[task] == 1  # type: ignore[index]
    assert f"{task}" == task.id == task
    assert await soon(hub.result(task.id)) == {"n": 1}


async def test_a_handler_runs_again_within_one_attempt_of_the_hub(both: Pair) -> None:
    hub, agent = both
    assert await soon(hub.call("again", {}, agent=agent)) == [1, 2]


async def test_a_handler_that_asks_too_often_for_another_run_fails_with_its_reason(both: Pair) -> None:
    hub, agent = both
    with pytest.raises(TaskFailed) as caught:
        await soon(hub.call("ask_again", {}, agent=agent))
    assert (caught.value.kind, caught.value.message) == ("work_failed", "the printer is busy")
