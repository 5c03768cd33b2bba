"""A client that speaks chiffon, and a scripted hub."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeRuntime, settle

from dragoman import Client, HubUnreachable, NotSupported, RequestRefused, TaskCancelled, TaskFailed
from dragoman.protocols.chiffon import codec, errors
from dragoman.protocols.chiffon.mapping import results_out
from dragoman.protocols.chiffon.types import (
    Correlation,
    Envelope,
    ErrorPayload,
    Payload,
    Stamp,
    Step,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.sdk import trace
from dragoman.sdk.chiffon.client import ChiffonClient


@pytest.fixture
def client(hub: FakeHub, runtime: FakeRuntime) -> Client:
    return Client(backend=ChiffonClient("planner", hub.dial_pipe, runtime))


def answer(
    hub: FakeHub, request: Envelope[WorkRequest], payload: Payload, *, is_delivery: bool = True, **custom: Any
) -> str:
    delivery = hub.runtime.mint()
    hub.say(
        codec.envelope(
            payload,
            Stamp(hub.runtime.mint(), hub.runtime.now()),
            Correlation(request.request_id, request.trace_id),
            from_agent="deployer",
            to_agent="planner",
            x_custom_fields={**({"delivery_id": delivery} if is_delivery else {}), **custom},
        )
    )
    return delivery


def success(request: Envelope[WorkRequest], output: str = "", label: str | None = None) -> WorkResult:
    return WorkResult(task_id=request.payload.task_id, status="success", exit_code=0, output=output, output_chunk=label)


async def test_a_call_returns_the_structured_result_and_acknowledges_it(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "run_playbook", playbook="x.yml"))
        request = await hub.next("work_request")
        delivery = answer(hub, request, success(request, '{"a":1}'), result={"a": 1})
        assert await calling == {"a": 1}
    assert (request.from_agent, request.to_agent) == ("planner", "deployer")
    assert request.payload.work_type == "run_playbook"
    assert request.payload.parameters == {"playbook": "x.yml"}
    assert hub.acked == [delivery]


async def test_a_call_returns_the_text_where_there_is_no_structure(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "say"))
        request = await hub.next()
        answer(hub, request, success(request, "hello"))
        assert await calling == "hello"


async def test_a_failed_result_raises_with_its_facts(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        failed = WorkResult(
            task_id=request.payload.task_id, status="failed", exit_code=3, output="pulling…\nimage not found"
        )
        answer(hub, request, failed, agent_id="deployer-2")
        with pytest.raises(TaskFailed, match="image not found") as caught:
            await calling
    assert (caught.value.exit_code, caught.value.facts) == (3, {"agent": "deployer-2"})
    assert caught.value.task_id == request.payload.task_id


async def test_an_error_and_a_cancel_raise_too(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        answer(hub, request, errors.error(5001, attempted_retries=3, last_attempt=hub.runtime.now().isoformat()))
        with pytest.raises(TaskFailed) as caught:
            await calling
        assert (caught.value.code, caught.value.facts["attempted_retries"]) == (5001, 3)
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        answer(hub, request, ErrorPayload(error_code=5900, error_message="enough"))
        with pytest.raises(TaskCancelled, match="enough"):
            await calling


async def test_a_request_without_receipt_is_sent_again_with_the_same_ids(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        hub.accepts = False
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        first = await hub.next()
        hub.cut()
        await hub.runtime.advance(1)
        again = await hub.next()
        assert again == first
        answer(hub, again, success(again, "done"))
        assert await calling == "done"


async def test_an_accepted_request_is_not_sent_again_and_its_result_comes_over_the_next_connection(
    client: Client, hub: FakeHub
) -> None:
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        await settle()
        hub.is_down = True
        hub.cut()
        await hub.runtime.advance(20)
        hub.is_down = False
        await hub.runtime.advance(20)
        assert hub.count("work_request") == 1
        answer(hub, request, success(request, "done"))
        assert await calling == "done"


async def test_a_name_that_is_no_kind_is_tried_as_an_agent(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        hub.accepts = False
        calling = asyncio.ensure_future(client.call("deployer-2", "run"))
        first = await hub.next()
        answer(hub, first, errors.error(5002, agent_id="deployer-2", last_heartbeat=None), is_delivery=False)
        second = await hub.next()
        assert second.x_custom_fields["agent_id"] == "deployer-2"
        assert second.request_id != first.request_id
        answer(hub, second, errors.error(5002, agent_id="deployer-2", last_heartbeat=None), is_delivery=False)
        with pytest.raises(RequestRefused, match="5002"):
            await calling


async def test_a_hub_that_cannot_take_it_now_is_asked_again_later(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        hub.accepts = False
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        answer(hub, request, errors.error(5005, limit_name="backlog", available=0, required=1), is_delivery=False)
        await hub.runtime.advance(0.5)
        assert hub.nothing_more()
        await hub.runtime.advance(0.6)
        again = await hub.next()
        assert again == request
        answer(hub, again, success(again, "done"))
        assert await calling == "done"


async def test_a_stream_has_every_event_up_to_the_end(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):

        async def follow() -> list[Any]:
            return [event async for event in client.stream("deployer", "run")]

        following = asyncio.ensure_future(follow())
        request = await hub.next()
        step = Step(number=1, name="fetch", output="a\n")
        for percent in (20, 60):
            said = WorkStatus(task_id=request.payload.task_id, status="running", progress_percent=percent, step=step)
            answer(hub, request, said)
        answer(hub, request, success(request, "done"))
        events = await following
    assert [(event.seq, event.kind) for event in events] == [(1, "progress"), (2, "progress"), (3, "completed")]
    assert events[0].data == {
        "status": "running",
        "percent": 20,
        "step": {"number": 1, "name": "fetch"},
        "output": "a\n",
    }


async def test_what_is_delivered_twice_is_reported_once(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        task_id = asyncio.ensure_future(client.submit("deployer", "run"))
        request = await hub.next()
        said = WorkStatus(task_id=request.payload.task_id, status="running", progress_percent=20)
        message_id = hub.runtime.mint()
        for _ in range(2):
            hub.say(
                codec.envelope(
                    said,
                    Stamp(message_id, hub.runtime.now()),
                    Correlation(request.request_id, request.trace_id),
                    from_agent="deployer",
                    to_agent="planner",
                    x_custom_fields={"delivery_id": hub.runtime.mint()},
                )
            )
        answer(hub, request, success(request))
        kinds = [event.kind async for event in client.events(await task_id)]
    assert kinds == ["progress", "completed"]
    assert len(hub.acked) == 3


async def test_a_split_result_comes_whole(client: Client, hub: FakeHub) -> None:
    text = "é" * 800_000
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "dump"))
        request = await hub.next()
        for part in results_out(request.payload.task_id, 0, text):
            answer(hub, request, part)
        assert await calling == text


async def test_a_split_result_that_begins_again_comes_whole(client: Client, hub: FakeHub) -> None:
    """Who tried first broke off in the middle; the next one has more to say, or cuts it elsewhere."""
    first, text = "é" * 800_000, "ü" * 900_000
    async with client, asyncio.timeout(PATIENCE):
        calling = asyncio.ensure_future(client.call("deployer", "dump"))
        request = await hub.next()
        for part in results_out(request.payload.task_id, 0, first)[:3]:
            answer(hub, request, part)
        for part in results_out(request.payload.task_id, 0, text):
            answer(hub, request, part)
        assert await calling == text


async def test_a_call_inside_a_handler_carries_the_trace_on(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        trace.enter(trace.Span("550e8400e29b41d4a716446655440002", "00f067aa0ba902b7"))
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        request = await hub.next()
        answer(hub, request, success(request))
        await calling
    assert request.trace_id == "550e8400-e29b-41d4-a716-446655440002"
    assert request.x_custom_fields["traceparent"] == "00-550e8400e29b41d4a716446655440002-00f067aa0ba902b7-01"


async def test_a_client_is_asked_for_work_and_says_that_it_does_none(client: Client, hub: FakeHub) -> None:
    async with client, asyncio.timeout(PATIENCE):
        hub.request("anything")
        error = await hub.next()
    assert error.payload.error_code == 5006


async def test_a_hub_that_is_not_there_is_reported_at_once(client: Client, hub: FakeHub) -> None:
    hub.is_down = True
    with pytest.raises(HubUnreachable, match="nobody there"):
        await client.__aenter__()


async def test_closing_the_client_ends_its_waiting_calls(client: Client, hub: FakeHub) -> None:
    async with client:
        calling = asyncio.ensure_future(client.call("deployer", "run"))
        await hub.next()
        await settle()
    with pytest.raises(HubUnreachable, match="closed"):
        await calling


async def test_what_chiffon_cannot_do_is_not_supported(client: Client) -> None:
    async with client:
        with pytest.raises(NotSupported, match="management API"):
            await client.questions()
        with pytest.raises(NotSupported, match="no option `deadline`"):
            await client.submit("deployer", "run", {}, deadline="2026-01-01T00:00:00Z")
