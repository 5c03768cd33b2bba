"""Callers: what they hear, resume and cancel, and what is theirs."""

from __future__ import annotations

import asyncio

import grpc
import msgspec
import pytest
from tests.support import coven as outside
from tests.support.coven_world import RULES, gateway

from dragoman.core.commands import Answer, Cancel
from dragoman.core.ids import ADMIN
from dragoman.protocols.coven import codec, coven_pb2
from dragoman.protocols.coven.types import Done, Error, FileData, SendMessage, Text, Thinking, ToolResult, ToolUse

Code = grpc.StatusCode
MIB = 1024 * 1024
LONG = "x" * (MIB * 6 // 10)
"""More than half of a message."""


@pytest.mark.requirement("coven-D6")
async def test_a_caller_hears_error_when_no_attempt_is_left() -> None:
    async with gateway(rules=msgspec.structs.replace(RULES, retry_delays=(0,))) as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q1", content="x", to_agent="worker"))
        await agent.work()
        agent.vanish()
        (last,) = [one for one in await call.rest() if one.last]
        assert isinstance(last.event, Error)
        assert last.fault is not None
        assert last.fault.kind == "unavailable"


@pytest.mark.requirement("coven/all-D1")
async def test_another_callers_task_is_not_there() -> None:
    async with gateway(guests=False) as hub:
        mine, yours = await hub.add("me"), await hub.add("you")
        worker = await hub.agent("worker", token=await hub.add("worker"))
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"), token=mine)
        task = await call.task_id()
        await worker.work()
        assert await (await hub.follow(task, token=yours)).code() is Code.NOT_FOUND
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await hub.cancel(task, token=yours)
        assert refused.value.code() is Code.NOT_FOUND
        for _ in range(2):  # said again, it is the same
            assert (await hub.cancel(task, token=mine)).status == "cancelled"


@pytest.mark.requirement("coven/all-D5")
async def test_the_same_request_again_is_the_same_task_and_other_content_is_refused() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        message = SendMessage(
            request_id="q1", content="x", to_agent="worker", attachments=(FileData("a", "t/x", b"1"),)
        )
        first, second = await hub.call(message), await hub.call(message)
        assert await first.task_id() == await second.task_id()
        await agent.respond((await agent.work()).request_id, done={"full_response": "once"})
        ends = [(await call.rest())[-1].event for call in (first, second, await hub.call(message))]
        assert ends == [Done(full_response="once")] * 3
        other = await hub.call(SendMessage(request_id="q1", content="y", to_agent="worker"))
        assert await other.code() is Code.ALREADY_EXISTS
        assert len(hub.files._kept) == 1


@pytest.mark.requirement("coven/all-D7")
async def test_the_trace_of_the_caller_reaches_the_agent() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    async with gateway() as hub:
        agent = await hub.agent("worker")
        header = f"00-{trace}-00f067aa0ba902b7-01"
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"), traceparent=header)
        data = await outside.soon(agent.call.read())
        said = coven_pb2.ServerMessage.FromString(data).send_message
        assert said.traceparent.split("-")[1] == trace
        assert (await hub.task(await call.task_id())).lineage.trace_id == trace
        body = await hub.call(
            SendMessage(request_id="q2", content="x", to_agent="worker", traceparent=header.replace("4bf9", "5bf9"))
        )
        assert (await hub.task(await body.task_id())).lineage.trace_id == "5" + trace[1:]


@pytest.mark.requirement("CO-EXT-4")
@pytest.mark.requirement("coven/B3")
async def test_a_question_ends_the_turn_and_its_answer_is_the_next_message() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="order", to_agent="worker", thread_id="th"))
        work = await agent.work()
        said = coven_pb2.AgentMessage()
        said.response.request_id = work.request_id
        said.response.done.question.question = "Which colour?"
        said.response.done.question.options_json = '["red", "blue"]'
        await agent.raw(said.SerializeToString())
        task = await hub.status(await call.task_id(), "waiting")
        (question,) = await hub.store.questions(task=task.id)
        assert (question.question, question.options) == ("Which colour?", ("red", "blue"))
        await hub.intake.execute(Answer(principal=ADMIN, question=question.id, answer="blue"))
        data = await outside.soon(agent.call.read())
        again = coven_pb2.ServerMessage.FromString(data).send_message
        assert (again.content, again.answer_json, again.thread_id) == ("blue", '"blue"', "th")
        assert again.request_id != work.request_id
        await agent.respond(again.request_id, done={"full_response": "a blue one"})
        heard = await call.rest()
        assert heard[-1].event == Done(full_response="a blue one")
        assert any(isinstance(one.event, Thinking) and "Which colour?" in one.event.text for one in heard)


@pytest.mark.requirement("coven/B4")
@pytest.mark.parametrize("hears", [True, False])
async def test_a_cancel_goes_to_agents_that_understand_it_and_the_result_is_ignored(hears: bool) -> None:
    async with gateway() as hub:
        agent = await hub.stream()
        register = coven_pb2.AgentMessage()
        register.register.agent_id = "worker"
        register.register.extensions.extend(["cancel"] if hears else [])
        await agent.raw(register.SerializeToString())
        await agent.hear()
        first = await hub.submit(input={"content": "1"})
        work = await agent.work()
        await agent.respond(work.request_id, text="on it")
        await hub.status(first.id, "running")
        await hub.intake.execute(Cancel(principal=ADMIN, task_id=first.id, reason="too expensive"))
        second = await hub.submit(input={"content": "2"})
        if hears:
            told = coven_pb2.ServerMessage.FromString(await outside.soon(agent.call.read()))
            assert (told.cancel.request_id, told.cancel.reason) == (work.request_id, "too expensive")
        await agent.respond(work.request_id, text="too late")
        await agent.respond(work.request_id, done={"full_response": "too late"})
        following = await agent.work()
        assert following.content == "2"
        await agent.respond(following.request_id, done={})
        await hub.status(second.id, "completed")
        assert (await hub.task(first.id)).status == "cancelled"
        assert hub.endpoint.counts["ignored.abandoned_request"] == 2


# --- callers ---


@pytest.mark.requirement("CO-EXT-3")
async def test_a_caller_hears_everything_and_resumes_without_a_gap() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        work = await agent.work()
        assert work.sender == "guest"
        await agent.respond(work.request_id, thinking="one")
        await agent.respond(work.request_id, text="two")
        first = [await call.next(), await call.next()]
        call.call.cancel()
        await agent.respond(work.request_id, tool_use={"id": "t", "name": "n"})
        await agent.respond(work.request_id, tool_result={"id": "t", "output": "o"})
        await agent.respond(work.request_id, done={"full_response": "two"})
        task_id = first[-1].task_id
        assert (await hub.status(task_id, "completed")).attempt.count == 1
        rest = await (await hub.follow(task_id, first[-1].cursor)).rest()
        assert [one.event for one in (*first, *rest)] == [
            Thinking("one"),
            Text("two"),
            ToolUse("t", "n"),
            ToolResult("t", "o"),
            Done(full_response="two"),
        ]
        cursors = [one.cursor for one in (*first, *rest)]
        assert cursors == sorted(set(cursors))
        again = await (await hub.follow(task_id, cursors[-1])).rest()
        assert [one.event for one in again] == [Done(full_response="two")]


@pytest.mark.requirement("CO-EXT-3")
async def test_the_end_of_a_stream_names_the_task_too() -> None:
    """gRPC's client for Python forgets the initial metadata of a stream whose end it hears of first."""
    async with gateway() as hub:
        worker = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        task = await call.task_id()
        await worker.work()
        draining = asyncio.create_task(hub.endpoint.drain(0))
        assert await call.code() is Code.UNAVAILABLE
        ended = dict(await call.call.trailing_metadata())
        assert (ended["dragoman-task-id"], ended["dragoman-retryable"]) == (task, "1")
        await draining


@pytest.mark.requirement("coven-D12")
async def test_a_reader_that_does_not_read_loses_nothing_and_holds_up_nobody() -> None:
    pieces = [f"{number:06d}" * 2000 for number in range(200)]
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        work = await agent.work()
        for piece in pieces:
            await agent.respond(work.request_id, text=piece)
        await agent.respond(work.request_id, done={})
        await hub.status(await call.task_id(), "completed")  # the agent was not held up by the caller
        heard = await call.rest()
        assert "".join(one.event.text for one in heard if isinstance(one.event, Text)) == "".join(pieces)


@pytest.mark.requirement("coven-D9", "coven-D8")
@pytest.mark.parametrize("streamed", [LONG, LONG + LONG, ""], ids=["text", "more text than a message holds", "none"])
@pytest.mark.parametrize("result", [{"is": LONG}, LONG, None], ids=["object", "words", "no result"])
async def test_no_message_to_a_caller_is_longer_than_one_may_be(streamed: str, result: object) -> None:
    async with gateway(limits={"message_bytes": MIB}) as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q1", content="x", to_agent="worker"))
        request = (await agent.work()).request_id
        for start in range(0, len(streamed), len(LONG)):
            await agent.respond(request, text=streamed[start : start + len(LONG)])
        done = coven_pb2.Done(result_json="" if result is None else msgspec.json.encode(result).decode())
        await agent.raw(coven_pb2.AgentMessage(response={"request_id": request, "done": done}).SerializeToString())
        heard = await call.rest()
        assert max(len(codec.encode_response(one)) for one in heard) <= MIB
        end = heard[-1].event
        assert isinstance(end, Done)
        text = end.full_response or "".join(one.event.text for one in heard if isinstance(one.event, Text))
        assert text == streamed or (not streamed and text == result)
        assert end.result_json in (done.result_json, "" if text == result else done.result_json)
