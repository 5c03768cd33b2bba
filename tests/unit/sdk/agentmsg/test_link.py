"""An agent over agentmsg, and a scripted hub: work, results, receipts, repetitions, steering, questions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.sdk.agentmsg.harness import FakeAgentmsg, Serving, plain
from tests.unit.sdk.harness import PATIENCE, FakeRuntime, settle

from dragoman import Agent, NotAllowed, Task
from dragoman.protocols.agentmsg import types as agentmsg
from dragoman.protocols.agentmsg.connection import Inbox
from dragoman.protocols.agentmsg.records import ErrorType
from dragoman.sdk import trace
from dragoman.sdk.agentmsg.link import PIECE

COMPLETE, FAILED, UPDATE, HELP = "TASK_COMPLETE", "TASK_FAILED", "TASK_UPDATE", "HELP_REQUEST"


@pytest.fixture
def hub(runtime: FakeRuntime) -> FakeAgentmsg:
    return FakeAgentmsg(runtime)


@pytest.mark.parametrize("confirms", [False, True])
async def test_work_is_done_acknowledged_and_its_result_sent(
    agent: Agent, runtime: FakeRuntime, confirms: bool
) -> None:
    hub = FakeAgentmsg(runtime, confirms=confirms)

    @agent.on("add")
    async def add(task: Task, a: int, b: int = 1) -> dict:
        task.used(tokens=40, cost_usd=0.5)
        return {"sum": a + b}

    async with Serving(agent, hub):
        register = await hub.next("REGISTER")
        order = hub.assign("add", {"a": 2})
        done = await hub.next(COMPLETE)
        await runtime.advance(0.1)
    assert plain(register.payload) == {
        "agent_id": "worker",
        "capabilities": [],
        "task_types": ["add"],
        "max_concurrent": 8,
    }
    task_id = order.payload.task.task_id
    assert plain(done.payload) == {
        "task_id": task_id,
        "result": {"sum": 3},
        "usage": {"tokens_used": 40, "cost_usd": 0.5},
    }
    assert (done.sender, done.to) == ("worker", "hub")
    assert trace.parse(done.metadata.traceparent) is not None
    assert hub.acked == [f"delivery-{order.id}" if confirms else order.id]


async def test_the_trace_of_the_work_goes_on(agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime) -> None:
    seen: list[Any] = []

    @agent.on("look")
    async def look(task: Task) -> None:
        seen.append(trace.current())

    parent = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with Serving(agent, hub):
        task = agentmsg.Assignment(task_id="t1", task_type="look")
        hub.say(agentmsg.TaskAssignment(task=task), traceparent=parent)
        done = await hub.next(COMPLETE)
    assert seen[0].trace_id == "ab" * 16
    told = trace.parse(done.metadata.traceparent)
    assert told is not None
    assert told.trace_id == "ab" * 16


async def test_a_failure_is_a_whole_report(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("break")
    async def fail(task: Task) -> None:
        task.used(tokens=7)
        raise ValueError("no such file")

    async with Serving(agent, hub):
        order = hub.assign("break")
        failed = await hub.next(FAILED)
    said = plain(failed.payload)
    assert said.pop("usage") == {"tokens_used": 7, "cost_usd": 0}
    assert said.pop("task_id") == said["error"].pop("task_id") == order.payload.task.task_id
    assert said["error"].pop("error_id")
    assert said["error"] == {
        "agent_id": "worker",
        "error_type": "EXTERNAL_SERVICE_ERROR",
        "severity": "medium",
        "message": "ValueError: no such file",
        "context": {
            "details": {"kind": "work_failed", "retryable": False, "type": "ValueError", "exit_code": 1},
        },
        "recovery_attempts": [],
        "suggested_actions": ["Read its details for what failed."],
    }


async def test_what_cannot_be_begun_fails_and_names_the_field(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("add")(lambda a: None)
    async with Serving(agent, hub):
        hub.assign("add", {"b": 1})
        unfit = (await hub.next(FAILED)).payload.error
        hub.assign("subtract")
        unknown = (await hub.next(FAILED)).payload.error
    assert unfit.error_type == unknown.error_type == ErrorType.VALIDATION_ERROR
    assert unfit.context.details["field"].startswith("task.input")
    assert unknown.context.details["supported_types"] == ["add"]


async def test_output_is_kept_until_acknowledged_and_bare_progress_is_not(agent: Agent, hub: FakeAgentmsg) -> None:
    @agent.on("run")
    async def run(task: Task) -> None:
        await task.progress(25, "fetch")
        await task.progress(50, "build", output="one\n")
        await task.think("hm")

    async with Serving(agent, hub):
        hub.assign("run")
        done = await hub.next(COMPLETE)
    updates = [message for message in hub.said if message.type == UPDATE]
    assert [(u.payload.progress, u.payload.message, u.payload.output) for u in updates] == [
        (25, "fetch", None),
        (50, "build", "one\n"),
        (50, "build", None),
    ]
    assert [u.metadata.priority for u in updates] == ["normal", "high", "high"]
    assert hub.trees[updates[2].id]["payload"]["thinking"] == "hm"
    assert done.payload.result is None


async def test_a_long_text_goes_in_pieces_whose_ids_stay_the_same(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    text = "x" * (PIECE * 2 + 5)
    agent.on("write")(lambda: text)
    async with Serving(agent, hub):
        hub.accepts = False
        hub.assign("write")
        await hub.next(COMPLETE)
        first = [message.id for message in hub.said if message.type == UPDATE]
        hub.accepts = True
        hub.cut()
        await runtime.advance(1)
        await settle()
        assert hub.repeated == 4
    outputs = [message.payload.output for message in hub.said if message.type == UPDATE]
    assert "".join(outputs) == text
    assert len(set(first)) == 3


async def test_a_repeated_order_is_done_once(agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime) -> None:
    runs: list[int] = []

    @agent.on("count")
    async def count() -> int:
        runs.append(1)
        return len(runs)

    async with Serving(agent, hub):
        order = hub.assign("count")
        await hub.next(COMPLETE)
        await runtime.advance(0.1)
        hub.say_again(order)
        await settle()
        hub.cut()
        await runtime.advance(1)
        hub.say_again(order)
        await settle()
    assert runs == [1]
    assert hub.acked == [order.id] * 3  # a lost ACK is said again


async def test_a_result_is_sent_again_until_it_is_acknowledged(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub):
        hub.accepts = False
        hub.assign("say")
        await hub.next(COMPLETE)
        await runtime.advance(0.9)
        await runtime.advance(1.9)
        assert hub.repeated == 2
        hub.accepts = True
        await runtime.advance(4)
        assert hub.repeated == 3
        await runtime.advance(60)
        assert hub.repeated == 3


async def test_the_client_reconnects_to_a_hub_that_never_acknowledges(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub):
        hub.accepts = False
        hub.assign("say")
        await hub.next(COMPLETE)
        await runtime.advance(30)
        assert hub.dialled > 1
        hub.accepts = True
        await runtime.advance(30)
    assert hub.count(COMPLETE) == 1
    assert hub.repeated > 3


async def test_a_result_survives_a_restart_and_is_sent(runtime: FakeRuntime, tmp_path: Path) -> None:
    first = FakeAgentmsg(runtime)
    runs: list[int] = []

    def make() -> Agent:
        agent = Agent("worker", runtime=runtime, state_dir=tmp_path)

        @agent.on("count")
        async def count() -> int:
            runs.append(1)
            return len(runs)

        return agent

    async with Serving(make(), first):
        first.accepts = False
        order = first.assign("count")
        told = await first.next(COMPLETE)
    again = FakeAgentmsg(runtime)
    async with Serving(make(), again):
        assert (await again.next(COMPLETE)).id == told.id
        again.say_again(order)
        await settle()
        await runtime.advance(1)
    assert runs == [1]
    assert order.id in again.acked


async def test_a_cancel_stops_the_work_and_a_pause_holds_it(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    held: list[bool] = []

    @agent.on("wait")
    async def wait(task: Task) -> None:
        started.set()
        await task.held.wait()
        held.append(task.is_held)
        await task.released.wait()
        held.append(task.is_held)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Serving(agent, hub), asyncio.timeout(PATIENCE):
        order = hub.assign("wait")
        await started.wait()
        task_id = order.payload.task.task_id
        steered = []
        for status in ("paused", "in_progress", "cancelled"):
            steered.append(hub.say(agentmsg.TaskUpdate(task_id=task_id, status=status), priority="high"))  # type: ignore[arg-type]
            await settle()
        await stopped.wait()
        await runtime.advance(0.1)
    assert held == [True, False]
    assert hub.count(COMPLETE) == hub.count(FAILED) == 0
    assert {message.id for message in steered} <= set(hub.acked)


async def test_a_person_is_asked_through_the_hub(agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime) -> None:
    @agent.on("ask")
    async def ask(task: Task) -> str:
        return f"{await task.ask('Shall I?', options=['yes', 'no'], timeout=60, default='no')}"

    async with Serving(agent, hub):
        hub.assign("ask")
        asked = await hub.next(HELP)
        assert hub.trees[asked.id]["payload"]["options"] == ["yes", "no"]
        hub.cut()
        await runtime.advance(1)
        answer = hub.say(
            agentmsg.HelpResponse(
                responder_id="person",
                request_id=asked.id,
                response_type=agentmsg.HelpResponseType.DIRECT_ANSWER,
                content="yes",
                follow_up_required=False,
                estimated_effort=0,
            )
        )
        done = await hub.next(COMPLETE)
        await settle()
    assert done.payload.result == "yes"
    assert answer.id in hub.acked


async def test_a_refused_result_is_given_up_and_a_passing_refusal_is_not(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub):
        hub.accepts = False
        hub.assign("say")
        told = await hub.next(COMPLETE)
        hub.refuse(told, ErrorType.RATE_LIMIT)
        await settle()
        await runtime.advance(1.1)
        assert hub.repeated == 1
        hub.refuse(told, ErrorType.VALIDATION_ERROR, "it is not yours")
        await settle()
        await runtime.advance(60)
        assert hub.repeated == 1


async def test_it_shows_that_it_lives_as_often_as_the_hub_wants(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub):
        hub.say(agentmsg.Welcome(agent_id="worker", heartbeat_interval_ms=2000))
        first = await hub.next("STATUS_UPDATE")
        await runtime.advance(10)
    assert first.payload.status.state == "IDLE"
    assert hub.count("HEARTBEAT") + hub.count("STATUS_UPDATE") == 6
    assert hub.count("STATUS_UPDATE") == 2


async def test_a_token_that_is_not_accepted_ends_the_agent(agent: Agent, hub: FakeAgentmsg) -> None:
    agent.on("say")(lambda: "hello")
    async with Serving(agent, hub) as serving:
        register = await hub.next("REGISTER")
        hub.refuse(register, ErrorType.AUTHENTICATION_ERROR, "who are you?")
        with pytest.raises(NotAllowed, match="who are you"):
            await asyncio.wait_for(serving, PATIENCE)


async def test_nothing_overtakes_an_update_that_was_refused_for_now(
    agent: Agent, hub: FakeAgentmsg, runtime: FakeRuntime
) -> None:
    """The update is said again in its place, though it is promised at most once; one that was not refused is not."""
    goes_on = asyncio.Event()

    @agent.on("deploy")
    async def deploy(task: Task) -> str:
        await task.progress(10)
        await task.progress(20)
        await goes_on.wait()
        await task.log("three")
        return "done"

    async with Serving(agent, hub):
        hub.assign("deploy")
        first, second = [await hub.next(UPDATE) for _ in range(2)]
        assert (first.payload.progress, second.payload.progress) == (10, 20)
        hub.inbox = hub.pipe.connection.inbox = Inbox()  # a refused message counts as new when it comes again
        hub.refuse(second, ErrorType.RESOURCE_EXHAUSTED)
        await settle()
        goes_on.set()
        await settle()
        assert hub.count(UPDATE) == 2
        await runtime.advance(1)
        done = await hub.next(COMPLETE)
        await runtime.advance(5)
    again, log = [message for message in hub.said if message.type == UPDATE][2:]
    assert (again.id, again.payload) == (second.id, second.payload)
    assert (log.payload.output, done.payload.result) == ("three\n", "done")
    assert hub.said.index(again) < hub.said.index(log) < hub.said.index(done)
