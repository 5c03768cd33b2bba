"""One contract for outcomes: whatever an agent of the SDK and its caller speak, the caller gets the value that was
returned, or the same exception with the same kind, exit code and message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from dragoman import (
    CapabilityNotFound,
    Client,
    NotSupported,
    RequestRefused,
    SchemaMismatch,
    TaskCancelled,
    TaskFailed,
)
from dragoman.messages.features import Carriage, Feature, carried
from dragoman.protocols.features import FEATURES
from tests.bridge.players.neutral import PATIENCE, soon
from tests.bridge.players.stage import Stage
from tests.bridge.sdk_pairs import LONG, PROTOCOLS, VALUES, Cast

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLERS = ("api", *PROTOCOLS)
Pair = tuple[Client, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def cast(stage: Stage) -> AsyncIterator[Cast]:
    everybody = Cast(stage)
    yield everybody
    await everybody.close()


@pytest.fixture(params=PROTOCOLS, ids=[f"to-{name}" for name in PROTOCOLS])
def agent_protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CALLERS, ids=[f"from-{name}" for name in CALLERS])
def caller_protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(loop_scope="session")
async def both(cast: Cast, caller_protocol: str, agent_protocol: str) -> Pair:
    return await cast.caller(caller_protocol), await cast.agent(agent_protocol)


async def failure_of(both: Pair, work: str, **given: Any) -> TaskFailed:
    caller, agent = both
    with pytest.raises(TaskFailed) as caught:
        await soon(caller.call(agent, work, **given))
    return caught.value


def facts(error: TaskFailed) -> tuple[type[TaskFailed], str | None, int | None, str]:
    return type(error), error.kind, error.exit_code, error.message


async def test_a_returned_value_arrives_as_it_was_returned(both: Pair) -> None:
    caller, agent = both
    came = {what: await soon(caller.call(agent, "give", what=what)) for what in VALUES}
    assert came == VALUES
    assert [type(value) for value in came.values()] == [type(value) for value in VALUES.values()]


async def test_an_answer_that_was_streamed_is_what_the_call_returns(both: Pair) -> None:
    caller, agent = both
    assert await soon(caller.call(agent, "stream")) == "one two three"


async def test_a_text_too_long_for_one_message_is_what_the_call_returns(
    both: Pair, caller_protocol: str, agent_protocol: str
) -> None:
    caller, agent = both
    if "a2acp" in (caller_protocol, agent_protocol):  # a payload there is one message
        assert (await failure_of(both, "long")).kind in ("too_large", "work_failed")
    else:
        assert await soon(caller.call(agent, "long")) == LONG


async def test_every_failure_is_the_same(both: Pair) -> None:
    assert facts(await failure_of(both, "late")) == (TaskFailed, "work_failed", 124, "not done within 0.05 s")
    assert facts(await failure_of(both, "refuse")) == (TaskFailed, "work_failed", 1, "not on a Friday")
    assert facts(await failure_of(both, "crash")) == (TaskFailed, "work_failed", 1, "ValueError: out of cheese")


async def test_bad_input_is_invalid(both: Pair, agent_protocol: str) -> None:
    """An a2acp agent declares its schemas, so the hub says no before the agent sees it, in its own words."""
    words = "n: expected `int`, got `str`"
    if agent_protocol == "a2acp":
        words = 'the payload does not fit the input schema: /n: the value is not of type "integer"'
    error = await failure_of(both, "typed", n="x")
    assert facts(error) == (SchemaMismatch, "invalid", None, words)
    assert isinstance(error, RequestRefused)  # the same exception where the hub refuses it at once


async def test_work_that_the_agent_does_not_do_is_unsupported(both: Pair) -> None:
    error = await failure_of(both, "knit")
    assert facts(error)[:3] == (CapabilityNotFound, "unsupported_work", None)
    assert "knit" in error.message  # in the words of a handshake where the caller speaks a2acp
    assert isinstance(error, RequestRefused)


async def test_a_cancelled_task_is_cancelled_with_its_reason(both: Pair) -> None:
    caller, agent = both
    task_id = await soon(caller.submit(agent, "wait", {}))
    async with asyncio.timeout(PATIENCE):
        async for event in caller.events(task_id):
            if event.kind == "progress":
                break
    await soon(caller.cancel(task_id, "enough"))
    with pytest.raises(TaskCancelled) as caught:
        await soon(caller.result(task_id))
    assert facts(caught.value) == (TaskCancelled, "cancelled", None, "enough")


async def test_a_task_can_be_followed_and_then_its_result_fetched(both: Pair) -> None:
    caller, agent = both
    task_id = await soon(caller.submit(agent, "steps", {}))
    async with asyncio.timeout(PATIENCE):
        events = [event async for event in caller.events(task_id)]
    assert events[-1].kind == "completed"
    assert await soon(caller.result(task_id)) == {"n": 1}


async def used(caller: Client, agent: str) -> bool:
    task_id = await soon(caller.submit(agent, "steps", {}))
    *_, last = [event async for event in caller.events(task_id)]
    told = last.data.get("usage") or {}
    return (told.get("tokens_used"), told.get("cost_usd")) == (7, 0.5)


async def brought(caller: Client, agent: str) -> bool:
    task_id = await soon(caller.submit(agent, "send", {}))
    files = [event.data["file"] async for event in caller.events(task_id) if event.data.get("file")]
    return [(file["name"], file["size"]) for file in files] == [("a.txt", 10)]


async def exited(caller: Client, agent: str) -> bool:
    return (await failure_of((caller, agent), "late")).exit_code == 124


async def continued(caller: Client, agent: str) -> bool:
    try:
        task_id = await soon(caller.submit(agent, "around", {}, thread="th-1"))
    except NotSupported:
        return False
    return bool((await soon(caller.result(task_id)))["context"].get("thread") == "th-1")


TRIALS = {Feature.USAGE: used, Feature.FILE: brought, Feature.EXIT_CODE: exited, Feature.THREAD: continued}


@pytest.mark.parametrize("feature", TRIALS, ids=lambda feature: feature.name.lower())
@pytest.mark.parametrize("caller_protocol", PROTOCOLS, indirect=True)
async def test_the_table_of_losses_is_true_of_the_sdk(
    both: Pair, caller_protocol: str, agent_protocol: str, feature: Feature
) -> None:
    """What our own agents and callers can say and hear is what the table says that their protocols can."""
    async with asyncio.timeout(PATIENCE):
        arrived = await TRIALS[feature](*both)
    cell = carried(feature, FEATURES[caller_protocol], FEATURES[agent_protocol])
    assert arrived == (cell.how is not Carriage.LOST), cell


async def test_a_thread_and_metadata_are_seen_by_the_handler(cast: Cast, agent_protocol: str) -> None:
    agent, people, caller = await cast.agent(agent_protocol), await cast.caller("api"), await cast.caller("agentmsg")
    task_id = await soon(people.submit(agent, "around", {}, thread="th-1"))
    assert (await soon(people.result(task_id)))["context"]["thread"] == "th-1"
    task_id = await soon(caller.submit(agent, "around", {}, thread="th-2", metadata={"ticket": 7}))
    context = (await soon(caller.result(task_id)))["context"]
    assert (context["thread"], context["ticket"]) == ("th-2", 7)
