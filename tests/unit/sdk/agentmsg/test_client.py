"""A client that speaks agentmsg, over a scripted hub: calls, events, refusals, cancels, broken connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg, plain
from tests.unit.sdk.harness import PATIENCE, FakeRuntime, settle

from dragoman import (
    Client,
    HubUnreachable,
    NotAllowed,
    NotSupported,
    RequestRefused,
    TaskCancelled,
    TaskFailed,
)
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.errors import new_report
from dragoman.protocols.agentmsg.records import ErrorType
from dragoman.protocols.agentmsg.types import Message
from dragoman.sdk.agentmsg.client import AgentmsgClient

ASSIGN = "TASK_ASSIGNMENT"


@pytest.fixture
def hub(runtime: FakeRuntime) -> FakeAgentmsg:
    return FakeAgentmsg(runtime, "planner")


@pytest.fixture
async def client(hub: FakeAgentmsg, runtime: FakeRuntime) -> AsyncIterator[Client]:
    async with asyncio.timeout(PATIENCE):
        async with Client(runtime=runtime, backend=AgentmsgClient("planner", hub.dial_pipe, runtime)) as client:
            yield client


def complete(hub: FakeAgentmsg, order: Message, result: Any) -> Message:
    return hub.say(agentmsg.TaskComplete(task_id=order.payload.task.task_id, result=result))


async def test_a_call_is_an_assignment_and_its_result_comes_back(client: Client, hub: FakeAgentmsg) -> None:
    calling = asyncio.ensure_future(client.call("editor", "edit", title="X"))
    order = await hub.next(ASSIGN)
    told = complete(hub, order, {"words": 3})
    assert await calling == {"words": 3}
    await settle()
    assert (order.sender, order.to, order.metadata.priority) == ("planner", "editor", "high")
    task = plain(order.payload.task)
    task_id = task["task_id"]
    assert task == {
        "task_id": task_id,
        "task_type": "edit",
        "input": {"title": "X"},
        "context": {
            "task_id": task_id,
            "task_type": "edit",
            "priority": "normal",
            "metadata": {},
            "dependencies": [],
            "history": [],
        },
        "constraints": {"required_capabilities": []},
    }
    assert hub.acked == [told.id]


async def test_options_become_context_and_constraints(client: Client, hub: FakeAgentmsg) -> None:
    await client.submit(
        None,
        "edit",
        {},
        priority="critical",
        dependencies=["a"],
        metadata={"chain": "A"},
        required_capabilities=["prose"],
        budget_usd=2.5,
    )
    order = await hub.next(ASSIGN)
    assert (order.to, order.metadata.priority) == ("hub", "critical")
    task = order.payload.task
    assert (task.context.priority, task.context.dependencies, task.context.metadata) == (
        "critical",
        ("a",),
        {"chain": "A"},
    )
    assert plain(task.constraints) == {"required_capabilities": ["prose"], "budget_usd": 2.5}
    with pytest.raises(NotSupported, match="no option `hints`"):
        await client.submit("editor", "edit", {}, hints={})


async def test_what_happens_meanwhile_are_events(client: Client, hub: FakeAgentmsg) -> None:
    task_id = (await client.submit("editor", "edit", {})).id
    update = agentmsg.TaskUpdate(task_id=task_id, progress=50, message="half", output="one\n", status="in_progress")
    hub.say(update, sender="hub")
    hub.say(agentmsg.TaskUpdate(task_id=task_id, status="paused"))
    hub.say(agentmsg.TaskComplete(task_id=task_id, result=None))
    events = [event async for event in client.events(task_id)]
    assert [(event.seq, event.kind) for event in events] == [(1, "progress"), (2, "paused"), (3, "completed")]
    assert events[0].data["percent"] == 50
    assert events[0].data["output"] == "one\n"
    assert events[2].data == {"result": None, "output": "one\n"}


async def test_a_failure_has_the_facts(client: Client, hub: FakeAgentmsg) -> None:
    calling = asyncio.ensure_future(client.call("editor", "edit"))
    task_id = (await hub.next(ASSIGN)).payload.task.task_id
    details = {"exit_code": 1, "kind": "work_failed"}
    error = new_report(
        ErrorType.INTERNAL_ERROR, "no ink", error_id="e1", agent_id="editor", task_id=task_id, details=details
    )
    hub.say(agentmsg.TaskFailed(task_id=task_id, error=error))
    with pytest.raises(TaskFailed, match="no ink") as failed:
        await calling
    assert (failed.value.kind, failed.value.exit_code, failed.value.facts["agent_id"]) == ("work_failed", 1, "editor")


async def test_a_cancel_is_an_update_and_its_outcome_is_reported(client: Client, hub: FakeAgentmsg) -> None:
    task_id = (await client.submit("editor", "edit", {})).id
    await client.cancel(task_id, "enough")
    said = await hub.next("TASK_UPDATE")
    assert plain(said.payload) == {"task_id": task_id, "status": "cancelled", "message": "enough"}
    assert said.metadata.priority == "high"
    hub.say(agentmsg.TaskUpdate(task_id=task_id, status="cancelled", message="enough"), priority="high")
    with pytest.raises(TaskCancelled):
        await client.result(task_id)


@pytest.mark.parametrize(
    ("error_type", "raised"),
    [(ErrorType.VALIDATION_ERROR, RequestRefused), (ErrorType.AUTHENTICATION_ERROR, NotAllowed)],
)
async def test_a_request_that_is_not_taken_is_raised(
    client: Client, hub: FakeAgentmsg, error_type: ErrorType, raised: type[Exception]
) -> None:
    hub.accepts = False
    calling = asyncio.ensure_future(client.call("editor", "edit"))
    hub.refuse(await hub.next(ASSIGN), error_type, "not so")
    with pytest.raises(raised, match="not so"):
        await calling


async def test_a_request_is_sent_again_over_a_new_connection_until_it_is_accepted(
    client: Client, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    hub.accepts = False
    calling = asyncio.ensure_future(client.call("editor", "edit"))
    order = await hub.next(ASSIGN)
    hub.accepts = True
    hub.cut()
    await runtime.advance(1)
    await settle()
    assert hub.repeated == 1
    hub.cut()
    await runtime.advance(1)
    told = complete(hub, order, "done")
    hub.say_again(told)
    assert await calling == "done"
    assert hub.count(ASSIGN) == 1


async def test_work_for_a_client_is_refused_because_it_does_none(client: Client, hub: FakeAgentmsg) -> None:
    hub.assign("edit")
    failed = await hub.next("TASK_FAILED")
    assert failed.payload.error.error_type is ErrorType.VALIDATION_ERROR


async def test_a_hub_that_is_not_there_is_reported_at_once(hub: FakeAgentmsg, runtime: FakeRuntime) -> None:
    hub.is_down = True
    with pytest.raises(HubUnreachable):
        async with Client(runtime=runtime, backend=AgentmsgClient("planner", hub.dial_pipe, runtime)):
            pass
