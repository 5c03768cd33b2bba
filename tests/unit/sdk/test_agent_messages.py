"""What an agent says while it works: progress, long outputs, signs of life, receipts, traces."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.sdk.harness import FakeHub, FakeRuntime, Running, for_ever, settle

from dragoman import Agent, Task
from dragoman.protocols.chiffon import chunks, errors
from dragoman.sdk import trace


async def test_progress_carries_percent_step_and_output(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> None:
        await task.progress(20, "fetch")
        await task.progress(40.4, "configure", output="3 monitors\n")
        await task.log("a line")

    async with Running(agent, hub):
        request = hub.request("deploy")
        said = [await hub.next("work_status") for _ in range(3)]
        await hub.next("work_result")
    assert {message.request_id for message in said} == {request.request_id}
    assert [(m.payload.progress_percent, m.payload.step.number, m.payload.step.name) for m in said] == [
        (20, 1, "fetch"),
        (40, 2, "configure"),
        (40, 2, "configure"),
    ]
    assert [m.payload.step.output for m in said] == ["", "3 monitors\n", "a line\n"]


async def test_progress_beyond_a_hundred_is_the_handlers_mistake(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> None:
        await task.progress(101)

    async with Running(agent, hub):
        hub.request("deploy")
        result = await hub.next("work_result")
    assert result.payload.output == "ValueError: progress is a percentage from 0 to 100, not 101"


async def test_three_megabytes_of_output_travel_in_blocks(agent: Agent, hub: FakeHub) -> None:
    text = "é0123456789" * 300_000
    agent.on("dump")(lambda: text)
    async with Running(agent, hub):
        hub.request("dump")
        whole = chunks.Reassembly()
        blocks = 0
        while not whole.complete:
            part = (await hub.next("work_result")).payload
            whole = whole.feed(chunks.Block(chunks.parse(part.output_chunk), part.output))
            blocks += 1
        await settle()
    assert whole.finish() == text
    assert blocks == -(-len(text.encode()) // 262_144)


async def test_long_output_in_progress_travels_in_blocks_of_its_own_step(agent: Agent, hub: FakeHub) -> None:
    @agent.on("dump")
    async def dump(task: Task) -> str:
        await task.progress(10, "one", output="a" * 1_200_000)
        await task.progress(20, "one", output="b" * 1_200_000)
        return "done"

    async with Running(agent, hub):
        hub.request("dump")
        parts = [await hub.next("work_status") for _ in range(10)]
        result = await hub.next("work_result")
    numbers = [part.payload.step.number for part in parts]
    assert numbers == [2] * 5 + [3] * 5
    assert all(part.payload.step.output_chunk for part in parts)
    assert result.payload.output == "done"


@pytest.mark.requirement("CH-STA-4")
async def test_a_silent_handler_shows_that_it_lives_every_ten_seconds(agent: Agent, hub: FakeHub) -> None:
    @agent.on("sleep")
    async def sleep(task: Task) -> None:
        await task.progress(30, "long part")
        await asyncio.Event().wait()

    async with Running(agent, hub):
        hub.request("sleep")
        await hub.next("work_status")
        await hub.runtime.advance(9)
        assert hub.count("work_status") == 1
        await hub.runtime.advance(60)
        beats = hub.said[1:]
    assert 5 <= len(beats) <= 6
    assert {(b.payload.status, b.payload.progress_percent) for b in beats} == {("running", 30)}  # type: ignore[union-attr]


async def test_silent_work_is_acknowledged_and_answered_work_needs_no_acknowledgment(
    agent: Agent, hub: FakeHub
) -> None:
    agent.on("sleep")(for_ever)

    @agent.on("quick")
    async def quick() -> str:
        return "done"

    async with Running(agent, hub):
        slow = hub.request("sleep")
        hub.request("quick")
        await hub.next("work_result")
        await hub.runtime.advance(0.1)
        assert hub.acked == [slow.x_custom_fields["delivery_id"]]


async def test_the_trace_goes_in_and_out(agent: Agent, hub: FakeHub) -> None:
    spans: list[trace.Span | None] = []
    trace_id = "550e8400-e29b-41d4-a716-446655440002"

    @agent.on("look")
    async def look(task: Task) -> str:
        spans.append(trace.current())
        return task.trace_id

    @agent.on("look_sync")
    def look_sync() -> None:
        spans.append(trace.current())

    async with Running(agent, hub):
        flat = trace_id.replace("-", "")
        said = {"traceparent": f"00-{flat}-00f067aa0ba902b7-01"}
        hub.request("look", trace_id=trace_id, custom=said)
        result = await hub.next("work_result")
        hub.request("look_sync", trace_id=trace_id)
        await hub.next("work_result")
    assert result.payload.output == flat
    assert result.x_custom_fields["traceparent"].startswith(f"00-{flat}-")
    assert [span.trace_id for span in spans if span] == [flat, flat]
    assert trace.current() is None


async def test_nothing_overtakes_what_was_refused_for_now(agent: Agent, hub: FakeHub, runtime: FakeRuntime) -> None:
    """What the handler says meanwhile waits, and all of it is said again in order, once however many were refused."""
    goes_on = asyncio.Event()

    @agent.on("deploy")
    async def deploy(task: Task) -> None:
        await task.log("one")
        await task.progress(20)  # worth its moment only; but the hub waits for it, too
        await task.log("two")
        await goes_on.wait()
        await task.log("three")
        await task.progress(30)

    hub.accepts = False
    async with Running(agent, hub):
        request = hub.request("deploy")
        said = [(await hub.next("work_status")) for _ in range(3)]
        down = errors.error(5002, agent_id="hub", last_heartbeat=None)
        for _ in said:
            hub.control(request, down)
        await settle()
        goes_on.set()
        await settle()
        assert hub.nothing_more()
        hub.accepts = True
        await runtime.advance(1)
        again = [await hub.next() for _ in range(6)]
        await runtime.advance(5)
        assert hub.nothing_more()
    assert [message.message_id for message in again[:3]] == [message.message_id for message in said]
    told = [(m.payload.progress_percent, m.payload.step and m.payload.step.output) for m in again[:5]]
    assert told == [(0, "one\n"), (20, None), (20, "two\n"), (20, "three\n"), (30, None)]
    assert again[5].type == "work_result"
