"""An agent that speaks coven, over streams that break or are refused: what was said is said again, once."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from tests.unit.sdk.coven.gateway import Gateway, Serving
from tests.unit.sdk.coven.workers import Steps, work, worker

from dragoman import Agent, NotAllowed, Task
from dragoman.protocols.coven.types import (
    Done,
    Error,
    Question,
    Text,
)

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_events_from_before_a_stream_broke_are_sent_again_and_the_work_goes_on(gateway: Gateway) -> None:
    agent = worker()
    steps = Steps(agent)
    async with Serving(agent, gateway):
        first = await gateway.stream()
        await work(first, "r", "steps")
        for piece in ("one ", "two "):
            steps.go.put_nowait(piece)
        await first.text("one two ")
        first.cut()
        second = await gateway.stream()
        steps.go.put_nowait("three ")  # said while nobody asks
        await work(second, "r", "steps", attempt=2)
        await second.text("one two three ")
        steps.go.put_nowait("four")
        steps.go.put_nowait(None)
        said, end = await second.said()
    assert [one.event for one in said] == [Text("four")]
    assert end.message.event == Done(full_response="one two three four")
    assert steps.runs == 1


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_result_lost_on_the_wire_is_sent_again_and_the_work_is_not_done_again(
    gateway: Gateway, tmp_path: Path, is_restarted: bool
) -> None:
    """Also by the next process, if it has the first one's journal: with the text that was only streamed."""
    agent = worker(state_dir=tmp_path)
    steps = Steps(agent)
    async with Serving(agent, gateway):
        first = await gateway.stream()
        await work(first, "r", "steps")
        steps.go.put_nowait("the answer")
        steps.go.put_nowait(None)
        ended = await first.end()
        if not is_restarted:
            first.cut()
            second = await gateway.stream()
            await work(second, "r", "steps", attempt=2)
            said, again = await second.said()
    if is_restarted:
        agent = worker(state_dir=tmp_path)
        Steps(agent)
        async with Serving(agent, gateway):
            second = await gateway.stream()
            await work(second, "r", "steps", attempt=2)
            said, again = await second.said()
    assert ended == again.message.event == Done(full_response="the answer")
    assert [one.event for one in said] == ([] if is_restarted else [Text("the answer")])
    assert steps.runs == 1


async def test_a_question_lost_on_the_wire_is_asked_again(gateway: Gateway) -> None:
    agent = worker()
    asked = 0

    @agent.on("ask")
    async def ask(task: Task) -> str:
        nonlocal asked
        asked += 1
        return f"so {await task.ask('Well?', options=['a', 'b'], timeout=60, default='b')}"

    question = Question(question="Well?", options_json='["a","b"]', timeout_seconds=60.0, default_json='"b"')
    async with Serving(agent, gateway):
        first = await gateway.stream()
        await work(first, "r1", "ask", task_id="t")
        assert await first.end() == Done(question=question)
        first.cut()
        second = await gateway.stream()
        await work(second, "r1", "ask", task_id="t")
        assert await second.end() == Done(question=question)
        await work(second, "r2", "ask", task_id="t", answer_json='"a"')
        assert await second.end() == Done(full_response="so a")
    assert asked == 1


async def test_an_answer_reaches_the_next_process(gateway: Gateway, tmp_path: Path) -> None:
    def asking() -> Agent:
        agent = worker(state_dir=tmp_path)

        @agent.on("ask")
        async def ask(task: Task) -> str:
            return f"{await task.ask('one?')}, {await task.ask('two?')}"

        return agent

    async with Serving(asking(), gateway):
        stream = await gateway.stream()
        await work(stream, "r1", "ask", task_id="t")
        await stream.end()
        await work(stream, "r2", "ask", task_id="t", answer_json="1")
        assert await stream.end() == Done(question=Question(question="two?"))
    async with Serving(asking(), gateway):
        stream = await gateway.stream()
        await work(stream, "r3", "ask", task_id="t", answer_json="2")
        assert await stream.end() == Done(full_response="1, 2")


async def test_one_request_id_cannot_mean_two_things(gateway: Gateway) -> None:
    agent = worker()

    @agent.on("echo")
    async def echo(n: int) -> int:
        return n

    async with Serving(agent, gateway):
        first = await gateway.stream()
        await work(first, "r", "echo", {"n": 1})
        assert await first.end() == Done(full_response="1", result_json="1")
        first.cut()
        second = await gateway.stream()
        await work(second, "r", "echo", {"n": 2})
        assert await second.end() == Error("request_id: this request id was used for other content before")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
async def test_a_refused_credential_is_final(gateway: Gateway, code: grpc.StatusCode) -> None:
    agent = worker(token="wrong")
    Steps(agent)
    gateway.turn_away.append((code, "not you"))
    async with Serving(agent, gateway) as serving:
        with pytest.raises(NotAllowed, match="not you"):
            await serving.ended()


async def test_every_other_refusal_is_retried(gateway: Gateway) -> None:
    """Above all ALREADY_EXISTS: the gateway may not know yet that our last stream is dead."""
    agent = worker()
    Steps(agent)
    gateway.turn_away += [
        (grpc.StatusCode.ALREADY_EXISTS, "worker is connected already"),
        (grpc.StatusCode.UNAVAILABLE, "stopping"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many"),
    ]
    async with Serving(agent, gateway):
        stream = await gateway.stream()
    assert stream.who.agent_id == "worker"
    assert gateway.turn_away == []


async def test_bytes_that_make_no_sense_end_the_stream_and_the_agent_comes_back(gateway: Gateway) -> None:
    agent = worker()
    Steps(agent)
    async with Serving(agent, gateway):
        first = await gateway.stream()
        await first.write(b"\xff\xff\xff")
        await gateway.stream()
