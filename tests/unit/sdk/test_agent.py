"""An agent and a scripted hub: handlers, results, refusals, progress, cancel, pause, trace."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from typing import Any

import msgspec
import pytest
from tests.unit.sdk.harness import PATIENCE, FakeHub, FakeWorld, Running, settle

from dragoman import Agent, Misconfigured, SyncTask, Task
from dragoman.protocols.chiffon import chunks, errors
from dragoman.sdk import trace


async def test_a_handler_gets_its_input_by_name_and_its_return_value_is_the_result(agent: Agent, hub: FakeHub) -> None:
    @agent.on("add")
    async def add(a: int, b: int = 1) -> dict:
        return {"sum": a + b}

    async with Running(agent, hub):
        request = hub.request("add", {"a": 2})
        result = await hub.next("work_result")
    assert (result.request_id, result.trace_id) == (request.request_id, request.trace_id)
    assert (result.from_agent, result.to_agent) == ("worker", "orchestrator")
    assert result.payload.task_id == request.payload.task_id
    assert (result.payload.status, result.payload.exit_code) == ("success", 0)
    assert result.payload.output == '{"sum":3}'
    assert result.x_custom_fields["result"] == {"sum": 3}


class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Size:
    width: int


@pytest.mark.parametrize(
    ("value", "output", "result"),
    [
        ("text", "text", None),
        (None, "", None),
        (Point(1), '{"x":1}', {"x": 1}),
        (Size(2), '{"width":2}', {"width": 2}),
        ([1, 2], "[1,2]", [1, 2]),
        (7, "7", 7),
    ],
)
async def test_what_a_handler_returns(agent: Agent, hub: FakeHub, value: Any, output: str, result: Any) -> None:
    agent.on("give")(lambda: value)
    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.output == output
    assert said.x_custom_fields.get("result") == result


async def test_a_return_value_without_a_json_form_is_a_failure(agent: Agent, hub: FakeHub) -> None:
    agent.on("give")(lambda: object())
    async with Running(agent, hub):
        hub.request("give")
        said = await hub.next("work_result")
    assert said.payload.exit_code == 1
    assert "object" in said.payload.output


async def test_an_exception_becomes_a_failed_result_with_only_its_last_line(
    agent: Agent, hub: FakeHub, caplog: pytest.LogCaptureFixture
) -> None:
    @agent.on("break")
    async def fail() -> None:
        secret = "a local"  # noqa: F841 - must not reach the hub
        raise ValueError("no such playbook")

    async with Running(agent, hub):
        hub.request("break")
        result = await hub.next("work_result")
    assert (result.payload.status, result.payload.exit_code) == ("failed", 1)
    assert result.payload.output == "ValueError: no such playbook"
    assert result.x_custom_fields["error"] == {"type": "ValueError", "message": "no such playbook"}
    assert "Traceback" in caplog.text


async def test_a_rejection_is_a_failed_result_with_its_reason(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> None:
        raise task.reject("declined by a person")

    async with Running(agent, hub):
        hub.request("deploy")
        result = await hub.next("work_result")
    assert (result.payload.exit_code, result.payload.output) == (1, "declined by a person")


@pytest.mark.parametrize(
    ("given", "field", "why"),
    [
        ({}, "payload.parameters.playbook", "missing"),
        ({"playbook": "x", "playbok": "y"}, "payload.parameters.playbok", "not a parameter of this work"),
        ({"playbook": 3}, "payload.parameters.playbook", "expected `str`, got `int`"),
        ({"playbook": "x", "hosts": ["a", 1]}, "payload.parameters.hosts[1]", "expected `str`, got `int`"),
    ],
)
async def test_unfit_input_is_declined_with_5003_naming_the_field(
    agent: Agent, hub: FakeHub, given: dict[str, Any], field: str, why: str
) -> None:
    @agent.on("run_playbook")
    async def run(playbook: str, hosts: list[str] | None = None) -> None: ...

    async with Running(agent, hub):
        request = hub.request("run_playbook", given)
        error = await hub.next()
    assert (error.type, error.request_id) == ("error", request.request_id)
    assert error.payload.error_code == 5003
    assert error.payload.error_context == {"validation_error": why, "field_name": field}


async def test_unknown_work_is_declined_with_5006_naming_what_is_done(agent: Agent, hub: FakeHub) -> None:
    agent.on("a")(lambda: None)
    agent.on("b")(lambda: None)
    async with Running(agent, hub):
        hub.request("c")
        error = await hub.next()
    assert error.payload.error_code == 5006
    assert error.payload.error_context == {"work_type_requested": "c", "supported_types": ["a", "b"]}


async def test_a_health_check_is_answered_without_a_handler(agent: Agent, hub: FakeHub) -> None:
    agent.on("a")(lambda: None)
    async with Running(agent, hub):
        hub.request("health_check")
        result = await hub.next()
    assert (result.type, result.payload.exit_code) == ("work_result", 0)


async def test_a_plain_function_runs_in_a_thread_with_a_task_of_its_own_kind(agent: Agent, hub: FakeHub) -> None:
    threads: list[int] = []

    @agent.on("crunch")
    def crunch(task: SyncTask, n: int) -> int:
        threads.append(threading.get_ident())
        task.progress(50, "half", output="halfway\n")
        return n * 2

    async with Running(agent, hub):
        hub.request("crunch", {"n": 4})
        status = await hub.next("work_status")
        result = await hub.next("work_result")
    assert threads != [threading.get_ident()]
    assert (status.payload.progress_percent, status.payload.step.name, status.payload.step.output) == (
        50,
        "half",
        "halfway\n",
    )
    assert result.x_custom_fields["result"] == 8


async def test_plain_functions_run_side_by_side(world: FakeWorld, hub: FakeHub) -> None:
    agent = Agent("worker", world=world, concurrency=3)
    together = threading.Barrier(3, timeout=PATIENCE)
    agent.on("meet")(lambda: together.wait() is None)
    async with Running(agent, hub):
        for _ in range(3):
            hub.request("meet")
        results = [await hub.next("work_result") for _ in range(3)]
    assert [result.payload.exit_code for result in results] == [0, 0, 0]


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


async def test_a_cancel_stops_the_handler_and_nothing_more_is_said(agent: Agent, hub: FakeHub) -> None:
    seen: list[bool] = []

    @agent.on("sleep")
    async def sleep(task: Task) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(task.cancelled)
            raise

    async with Running(agent, hub):
        request = hub.request("sleep")
        await settle()
        delivery = hub.cancel(request)
        await settle()
        assert seen == [True]
        assert delivery in hub.acked
        await hub.world.advance(60)
    assert hub.said == []


async def test_a_plain_function_that_waits_for_a_person_is_let_go_by_a_cancel(agent: Agent, hub: FakeHub) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    @agent.on("deploy")
    def deploy(task: SyncTask) -> None:
        try:
            task.ask("Restart?")
        finally:
            loop.call_soon_threadsafe(ended.put_nowait, f"cancelled: {task.cancelled}")

    async with Running(agent, hub), asyncio.timeout(PATIENCE):
        request = hub.request("deploy")
        await hub.next("work_status")
        hub.cancel(request)
        assert await ended.get() == "cancelled: True"


async def test_questions_asked_at_once_are_put_one_after_the_other(agent: Agent, hub: FakeHub) -> None:
    @agent.on("deploy")
    async def deploy(task: Task) -> list[str]:
        return list(await asyncio.gather(task.ask("one?"), task.ask("two?")))

    async with Running(agent, hub):
        request = hub.request("deploy")
        for question, answer in (("one?", "1"), ("two?", "2")):
            asked = await hub.next("work_status")
            assert asked.x_custom_fields["question"]["question"] == question
            await settle()
            assert hub.nothing_more()
            hub.request("deploy", {"answer": answer}, task_id=request.payload.task_id)
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == ["1", "2"]


async def test_an_error_about_our_words_ends_the_work_too(agent: Agent, hub: FakeHub) -> None:
    agent.on("sleep")(_for_ever)
    async with Running(agent, hub) as running:
        request = hub.request("sleep")
        await settle()
        hub.control(request, errors.invalid_message(validation_error="no such task", field_name="payload.task_id"))
        await hub.world.advance(60)
        assert not running.agent._engine._desk.tasks  # type: ignore[union-attr]


async def _for_ever() -> None:
    await asyncio.Event().wait()


async def test_pause_and_resume_reach_the_handler_as_events(agent: Agent, hub: FakeHub) -> None:
    story: list[str] = []

    @agent.on("steps")
    async def steps(task: Task) -> None:
        await task.held.wait()
        story.append("held")
        await task.checkpoint()
        story.append("released")

    async with Running(agent, hub):
        request = hub.request("steps")
        await settle()
        hub.steer(request, "paused")
        await hub.world.advance(60)
        assert story == ["held"]
        assert hub.said == []  # no sign of life while it is held
        hub.steer(request, "running")
        await hub.next("work_result")
    assert story == ["held", "released"]


@pytest.mark.requirement("CH-STA-4")
async def test_a_silent_handler_shows_that_it_lives_every_ten_seconds(agent: Agent, hub: FakeHub) -> None:
    @agent.on("sleep")
    async def sleep(task: Task) -> None:
        await task.progress(30, "long part")
        await asyncio.Event().wait()

    async with Running(agent, hub):
        hub.request("sleep")
        await hub.next("work_status")
        await hub.world.advance(9)
        assert hub.count("work_status") == 1
        await hub.world.advance(60)
        beats = hub.said[1:]
    assert 5 <= len(beats) <= 6
    assert {(b.payload.status, b.payload.progress_percent) for b in beats} == {("running", 30)}  # type: ignore[union-attr]


async def test_a_handler_that_takes_too_long_fails_with_124(agent: Agent, hub: FakeHub) -> None:
    agent.on("sleep", timeout=5)(_for_ever)
    async with Running(agent, hub):
        hub.request("sleep")
        await hub.world.advance(7)
        result = await hub.next("work_result")
    assert (result.payload.exit_code, result.payload.output) == (124, "not done within 5 s")


async def test_silent_work_is_acknowledged_and_answered_work_needs_no_acknowledgment(
    agent: Agent, hub: FakeHub
) -> None:
    agent.on("sleep")(_for_ever)

    @agent.on("quick")
    async def quick() -> str:
        return "done"

    async with Running(agent, hub):
        slow = hub.request("sleep")
        hub.request("quick")
        await hub.next("work_result")
        await hub.world.advance(0.1)
        assert hub.acked == [slow.x_custom_fields["delivery_id"]]


async def test_no_more_than_the_concurrency_run_at_once_and_the_rest_wait_their_turn(
    world: FakeWorld, hub: FakeHub
) -> None:
    agent = Agent("worker", world=world, concurrency=2)
    gates: list[asyncio.Future[None]] = []

    @agent.on("wait")
    async def wait() -> None:
        gates.append(asyncio.get_running_loop().create_future())
        await gates[-1]

    async with Running(agent, hub):
        for _ in range(5):
            hub.request("wait")
        await settle()
        assert len(gates) == 2
        gates[0].set_result(None)
        await hub.next("work_result")
        await settle()
        assert len(gates) == 3


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


async def test_the_agent_introduces_itself(world: FakeWorld, hub: FakeHub) -> None:
    agent = Agent("worker", kind="infra", version="1.2.3", concurrency=5, world=world)
    agent.on("a")(lambda: None)
    async with Running(agent, hub):
        (said,) = hub.registrations
    assert (said.agent_id, said.agent_type, said.supported_versions) == ("worker", "infra", ("1.0",))
    assert (said.work_types, said.limits) == (("a",), {"max_concurrent_tasks": 5})


def test_type_hints_become_json_schema(agent: Agent) -> None:
    @agent.on("run_playbook", timeout=300)
    async def run(task: Task, playbook: str, hosts: list[str] | None = None) -> dict[str, int]:
        """Run a playbook.

        More about it.
        """
        return {}

    (capability,) = agent.capabilities()
    assert capability["work_type"] == "run_playbook"
    assert capability["description"] == "Run a playbook."
    assert capability["timeout_seconds"] == 300
    assert capability["input_schema"]["required"] == ["playbook"]
    assert capability["input_schema"]["additionalProperties"] is False
    assert set(capability["input_schema"]["properties"]) == {"playbook", "hosts"}
    assert capability["output_schema"] == {"type": "object", "additionalProperties": {"type": "integer"}}


def test_a_handler_that_no_input_can_fill_is_refused_when_it_is_declared(agent: Agent) -> None:
    with pytest.raises(Misconfigured, match="name each parameter"):
        agent.on("a")(lambda *args: None)
    agent.on("b")(lambda: None)
    with pytest.raises(Misconfigured, match="already does b"):
        agent.on("b")(lambda: None)

    async def strange(thing: threading.Lock) -> None: ...

    with pytest.raises(Misconfigured, match="cannot be described as JSON"):
        agent.on("c")(strange)


async def test_a_handler_may_take_whatever_else_there_is(agent: Agent, hub: FakeHub) -> None:
    @agent.on("any")
    async def anything(name: str, **rest: Any) -> dict[str, Any]:
        return {"name": name, "rest": rest}

    async with Running(agent, hub):
        hub.request("any", {"name": "n", "x": 1})
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == {"name": "n", "rest": {"x": 1}}


async def test_stop_lets_running_work_end_and_takes_no_more(world: FakeWorld, hub: FakeHub) -> None:
    agent = Agent("worker", world=world, grace=30)
    gate = asyncio.Event()

    @agent.on("wait")
    async def wait() -> str:
        await gate.wait()
        return "finished"

    async with Running(agent, hub) as running:
        hub.request("wait")
        await settle()
        agent.stop()
        late = hub.request("wait")
        await world.advance(5)
        assert not running.serving.done()
        gate.set()
        result = await hub.next("work_result")
        await world.advance(1)
        assert running.serving.done()
    assert result.payload.output == "finished"
    assert hub.count("work_result") == 1
    assert late.x_custom_fields["delivery_id"] not in hub.acked


async def test_stop_does_not_wait_longer_than_the_grace_time(world: FakeWorld, hub: FakeHub) -> None:
    agent = Agent("worker", world=world, grace=30)
    agent.on("sleep")(_for_ever)
    async with Running(agent, hub) as running:
        hub.request("sleep")
        await settle()
        agent.stop()
        await world.advance(29)
        assert not running.serving.done()
        await world.advance(2)
        assert running.serving.done()


async def test_a_task_that_another_agent_began_says_so_and_its_input_is_as_it_was(agent: Agent, hub: FakeHub) -> None:
    @agent.on("write")
    async def write(task: Task, title: str) -> list[Any]:
        assert task.handover is not None
        return [title, task.handover.from_agent, task.handover.reason, task.context, len(task.history)]

    handover = {"from": "junior", "to": "worker", "reason": "escalation", "metadata": {"chapter": 3}, "story": [{}]}
    async with Running(agent, hub):
        hub.request("write", {"title": "X", "handover": handover})
        result = await hub.next("work_result")
    assert result.x_custom_fields["result"] == ["X", "junior", "ESCALATION", {"chapter": 3}, 1]
