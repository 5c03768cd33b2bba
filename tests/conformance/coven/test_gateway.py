"""The document against a whole hub: agents built from its protobuf text alone, on a real port."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support import coven as outside
from tests.support.coven_world import RULES, gateway

from dragoman.core.commands import Answer, Cancel
from dragoman.core.ids import ADMIN, AgentId
from dragoman.protocols.coven import codec, coven_pb2
from dragoman.protocols.coven.types import Done, Error, FileData, SendMessage, Text, Thinking, ToolResult, ToolUse
from dragoman.stores.files import MemoryFiles
from dragoman.transports.coven_grpc.limits import CovenLimits

Code = grpc.StatusCode
ROOT = Path(__file__).resolve().parents[3]
NEWER = b"\xba\x06\x05later"  # field 103, a string


# --- the opening ---


@pytest.mark.requirement("CO-CON-2")
@pytest.mark.requirement("CO-IMP-1")
@pytest.mark.requirement("coven-D2")
async def test_headers_come_before_anything_is_sent() -> None:
    async with gateway() as hub:
        agent = await hub.stream()
        await outside.soon(agent.call.initial_metadata())
        welcome = await agent.register("worker", "Worker", ["chat"])
        assert (welcome.agent_id, bool(welcome.server_id)) == ("worker", True)
        known = hub.intake.agent(AgentId("worker"))
        assert known is not None
        assert (known.protocol, known.name, known.capabilities) == ("coven", "Worker", ("chat",))
        assert known.max_concurrent == 1


@pytest.mark.requirement("CO-REG-3")
@pytest.mark.requirement("coven-D3")
@pytest.mark.parametrize(
    "first",
    [{"register": {"name": "nobody"}}, {"heartbeat": {"timestamp_ms": 1}}, {"response": {"text": "x"}}, {}],
    ids=["no id", "heartbeat", "response", "nothing"],
)
async def test_anything_but_a_good_register_is_invalid_argument(first: dict[str, Any]) -> None:
    async with gateway() as hub:
        agent = await hub.stream()
        await agent.say(**first)
        assert await agent.code() is Code.INVALID_ARGUMENT
        assert await agent.details()


@pytest.mark.requirement("coven-D3")
async def test_no_register_in_time_is_deadline_exceeded_and_a_second_one_is_ignored_and_logged() -> None:
    with capture_logs() as written:
        async with gateway(limits={"register_seconds": 0.2}) as hub:
            silent = await hub.stream()
            assert await silent.code() is Code.DEADLINE_EXCEEDED
            agent = await hub.agent("worker")
            await agent.say(register={"agent_id": "somebody-else"})
            await agent.say(register={"agent_id": ""})
            task = await hub.submit()
            await agent.respond((await agent.work()).request_id, done={})
            await hub.status(task.id, "completed")
            assert hub.door.counts["ignored.second_register"] == 2
            (line,) = [said for said in written if said["log_level"] == "warning"]
            assert (line["why"], line["agent"]) == ("second_register", "worker")
            assert hub.intake.agent(AgentId("somebody-else")) is None


@pytest.mark.requirement("CO-REG-4")
@pytest.mark.requirement("coven-D4")
async def test_the_id_of_a_live_stream_is_taken() -> None:
    async with gateway() as hub:
        first = await hub.agent("worker")
        second = await hub.stream()
        await second.say(register={"agent_id": "worker"})
        assert await second.code() is Code.ALREADY_EXISTS
        task = await hub.submit()
        await first.respond((await first.work()).request_id, done={"full_response": "still me"})
        await hub.status(task.id, "completed")


@pytest.mark.requirement("coven-D4")
async def test_a_silent_stream_that_answers_pings_keeps_its_id_after_one_cycle() -> None:
    async with gateway(limits={"keepalive_seconds": 0.2, "keepalive_timeout": 0.1}) as hub:
        first = await hub.agent("worker")
        link = next(iter(hub.door._links))
        link.last_heard -= 1.0
        second = await hub.stream()
        await second.say(register={"agent_id": "worker"})
        assert await second.code() is Code.ALREADY_EXISTS
        task = await hub.submit()
        await first.respond((await first.work()).request_id, done={})
        await hub.status(task.id, "completed")


@pytest.mark.requirement("coven-D4")
async def test_a_dead_stream_is_replaced_when_it_ends_and_only_by_its_own_principal() -> None:
    async with gateway(guests=False) as hub:
        token = await hub.add("worker")
        other = await hub.add("other")
        first = await hub.agent("worker", token=token)
        link = next(iter(hub.door._links))
        link.last_heard -= 3600
        thief = await hub.stream(token=other)
        await thief.say(register={"agent_id": "worker"})
        assert await thief.code() is Code.PERMISSION_DENIED
        second = await hub.stream(token=token)
        await second.say(register={"agent_id": "worker"})
        await hub.until(lambda: hub.door._roster._awaited)
        first.vanish()
        assert (await second.hear()).welcome.agent_id == "worker"
        task = await hub.submit()
        await second.respond((await second.work()).request_id, done={})
        await hub.status(task.id, "completed")


FROZEN = """
import asyncio, sys
from tests.support import coven
async def main():
    async with coven.channel(sys.argv[1]) as channel:
        agent = coven.stream(channel)
        await agent.register("worker")
        print("registered", flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.requirement("coven-D4")
async def test_a_stream_whose_client_is_frozen_fails_the_ping_and_is_replaced() -> None:
    async with gateway(limits={"keepalive_seconds": 0.5, "keepalive_timeout": 0.5}) as hub:
        frozen = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FROZEN, hub.address, stdout=asyncio.subprocess.PIPE, cwd=ROOT
        )
        try:
            assert frozen.stdout is not None
            assert await outside.soon(frozen.stdout.readline()) == b"registered\n"
            frozen.send_signal(signal.SIGSTOP)
            task = await hub.submit()
            await hub.status(task.id, "assigned")

            async def welcomed() -> outside.Agent | None:
                agent = await hub.stream()
                await agent.say(register={"agent_id": "worker"})
                try:
                    await agent.hear()
                except grpc.aio.AioRpcError:
                    return None  # the old one spoke too recently, or may still answer
                return agent

            while (agent := await outside.soon(welcomed())) is None:
                pass
            await agent.respond((await agent.work()).request_id, done={"full_response": "done by the living"})
            await hub.status(task.id, "completed")
        finally:
            frozen.kill()
            await frozen.wait()


# --- one request ---


@pytest.mark.requirement("CO-IMP-2")
@pytest.mark.requirement("coven/all-D8")
async def test_all_seven_events_reach_the_task_in_order() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit(input={"content": "hi"}, thread="t-1")
        work = await agent.work()
        assert (work.content, work.thread_id, work.sender) == ("hi", "t-1", "admin")
        say = work.request_id
        await agent.respond(say, thinking="hm")
        await agent.respond(say, text="Hello")
        await agent.respond(say, tool_use={"id": "t1", "name": "grep", "input_json": '{"q": 1}'})
        await agent.respond(say, tool_result={"id": "t1", "output": "no", "is_error": True})
        await agent.respond(say, file={"filename": "a.txt", "mime_type": "text/plain", "data": b"abc"})
        await agent.respond(say, text=", world")
        await agent.respond(say, done={})
        done = await hub.status(task.id, "completed")
        bodies = await hub.bodies(task.id)
        (file,) = done.files
        assert bodies == [
            {"status": "running", "thinking": "hm"},
            {"status": "running", "output": "Hello"},
            {"status": "running", "tool_use": {"id": "t1", "name": "grep", "input": {"q": 1}}},
            {"status": "running", "tool_result": {"id": "t1", "output": "no", "is_error": True}},
            {"status": "running", "file": msgspec.to_builtins(file)},
            {"status": "running", "output": ", world"},
        ]
        assert await hub.bodies(task.id, "completed") == [{"output": "Hello, world"}]
        assert await hub.files.fetch(file.id) == b"abc"


@pytest.mark.requirement("CO-RSP-5")
async def test_error_ends_a_request_as_a_failure_with_its_words() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, error="out of tokens")
        failed = await hub.status(task.id, "failed")
        assert failed.fault is not None
        assert (failed.fault.kind, failed.fault.message) == ("work_failed", "out of tokens")


@pytest.mark.requirement("CO-SND-2")
@pytest.mark.requirement("CO-SUP-2")
async def test_attachments_and_files_travel_byte_for_byte() -> None:
    data = bytes(range(256)) * 1000
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(
            SendMessage(
                request_id="q1",
                content="look",
                to_agent="worker",
                attachments=(FileData("../../etc/passwd", "application/x", data), FileData("b", "text/plain", b"")),
            )
        )
        work = await agent.work()
        assert [(one.filename, one.data) for one in work.attachments] == [("passwd", data), ("b", b"")]
        await agent.respond(
            work.request_id, file={"filename": "/elsewhere/out.bin", "mime_type": "x/y", "data": data[::-1]}
        )
        await agent.respond(work.request_id, done={})
        heard = await call.rest()
        assert [type(one.event) for one in heard] == [FileData, Done]
        assert heard[0].event == FileData("out.bin", "x/y", data[::-1])


@pytest.mark.requirement("coven-D5")
async def test_one_message_at_a_time_and_the_rest_waits_in_the_store() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        tasks = [await hub.submit(input={"content": str(n)}) for n in range(3)]
        assert [(await hub.task(task.id)).status for task in tasks] == ["assigned", "queued", "queued"]
        for number in range(3):
            work = await agent.work()
            assert work.content == str(number)
            await agent.heartbeat()
            await agent.respond(work.request_id, done={})
        for task in tasks:
            await hub.status(task.id, "completed")


# --- ends ---


@pytest.mark.requirement("CO-REC-1")
@pytest.mark.requirement("CO-REC-2")
@pytest.mark.requirement("coven-D6")
async def test_a_stream_that_ends_with_a_request_open_is_a_retryable_failure() -> None:
    async with gateway() as hub:
        first = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q1", content="long", to_agent="worker"))
        work = await first.work()
        await first.respond(work.request_id, text="half")
        assert (await call.next()).event == Text("half")
        first.vanish()
        await hub.until(lambda: not hub.intake.reachable(AgentId("worker")))
        told = await call.next()
        assert isinstance(told.event, Thinking)
        assert told.fault is not None
        assert (told.fault.kind, told.fault.retryable) == ("unavailable", True)
        second = await hub.agent("worker")
        again = await second.work()
        assert again.request_id == work.request_id
        await second.respond(again.request_id, done={"full_response": "whole"})
        assert [one.event for one in await call.rest()] == [Done(full_response="whole")]
        task = await hub.task(await call.task_id())
        assert task.attempts == 2


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


@pytest.mark.requirement("coven-D10")
async def test_shutdown_lets_work_finish_then_patience_ends_with_unavailable() -> None:
    assert CovenLimits().shutdown_seconds == 30
    async with gateway(limits={"shutdown_seconds": 1.0, "idle_shutdown_seconds": 0.1}) as hub:
        busy, idle = await hub.agent("worker"), await hub.agent("idler")
        task = await hub.submit()
        work = await busy.work()
        draining = asyncio.create_task(hub.door.drain())
        assert (await busy.hear()).WhichOneof("payload") == "shutdown"
        assert (await idle.hear()).WhichOneof("payload") == "shutdown"
        assert await idle.code() is Code.UNAVAILABLE  # it has nothing to finish
        await busy.respond(work.request_id, done={"full_response": "made it"})
        await hub.status(task.id, "completed")
        assert await busy.code() is Code.UNAVAILABLE
        await outside.soon(draining)
        late = await hub.stream()
        assert await late.code() is Code.UNAVAILABLE


# --- who ---


@pytest.mark.requirement("coven-D11")
async def test_a_token_is_needed_unless_guests_are_let_in() -> None:
    async with gateway(guests=False) as hub:
        token = await hub.add("worker")
        stranger = await hub.stream()
        assert await stranger.code() is Code.UNAUTHENTICATED
        wrong = await hub.stream(token="f" * 32)
        await wrong.say(register={"agent_id": "worker"})
        assert await wrong.code() is Code.UNAUTHENTICATED
        assert (await (await hub.stream(token=token)).register("worker")).agent_id == "worker"
    async with gateway(guests=True) as hub:
        await hub.add("owned")
        guest = await hub.stream()
        await guest.say(register={"agent_id": "owned"})
        assert await guest.code() is Code.UNAUTHENTICATED
        await hub.agent("anybody")


@pytest.mark.requirement("coven/all-D1")
async def test_nobody_speaks_under_another_name() -> None:
    async with gateway(guests=False) as hub:
        token = await hub.add("me")
        await hub.add("you")
        await hub.add("lines", protocol="forge")
        agent = await hub.stream(token=token)
        await agent.say(register={"agent_id": "you"})
        assert await agent.code() is Code.PERMISSION_DENIED
        call = await hub.call(SendMessage(request_id="q", sender="you", to_agent="you"), token=token)
        assert await call.code() is Code.PERMISSION_DENIED
        audit = await hub.store.audit()
        assert any(record.outcome != "ok" and record.action == "agent.connect" for record in audit)


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
        assert (await hub.cancel(task, token=mine)).status == "cancelled"


@pytest.mark.requirement("coven/all-D4")
async def test_a_token_goes_nowhere() -> None:
    async with gateway(guests=False) as hub:
        secret = await hub.add("worker")
        caller = await hub.add("me")
        agent = await hub.agent("worker", token=secret)
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"), token=caller)
        work = await agent.work()
        await agent.respond(work.request_id, done={})
        heard = await call.rest()
        kept = [*await hub.events(await call.task_id()), *await hub.store.audit(), work, *heard]
        assert not any(token in repr(one) for token in (secret, caller) for one in kept)


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


# --- what travels ---


@pytest.mark.requirement("coven/all-D6")
async def test_fields_nobody_knows_travel_both_ways() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        known = codec.encode_send(SendMessage(request_id="q1", content="x", to_agent="worker"))
        channel = await hub.channel()
        call = channel.unary_stream("/coven.CovenClient/Send")(known + NEWER)
        data = await outside.soon(agent.call.read())
        assert NEWER in data
        request = coven_pb2.ServerMessage.FromString(data).send_message.request_id
        inner = outside.document().MessageResponse(request_id=request, text="hi").SerializeToString() + NEWER
        await agent.raw(b"\x12" + bytes([len(inner)]) + inner)
        assert NEWER in await outside.soon(call.read())


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
        assert (await hub.task(await call.task_id())).trace_id == trace
        body = await hub.call(
            SendMessage(request_id="q2", content="x", to_agent="worker", traceparent=header.replace("4bf9", "5bf9"))
        )
        assert (await hub.task(await body.task_id())).trace_id == "5" + trace[1:]


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
        await hub.intake.ask(Answer(principal=ADMIN, question=question.id, answer="blue"))
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
async def test_cancel_is_told_to_agents_that_hear_it_and_the_result_is_ignored(hears: bool) -> None:
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
        await hub.intake.ask(Cancel(principal=ADMIN, task_id=first.id))
        second = await hub.submit(input={"content": "2"})
        if hears:
            told = coven_pb2.ServerMessage.FromString(await outside.soon(agent.call.read()))
            assert told.cancel.request_id == work.request_id
        await agent.respond(work.request_id, text="too late")
        await agent.respond(work.request_id, done={"full_response": "too late"})
        following = await agent.work()
        assert following.content == "2"
        await agent.respond(following.request_id, done={})
        await hub.status(second.id, "completed")
        assert (await hub.task(first.id)).status == "cancelled"
        assert hub.door.counts["ignored.abandoned_request"] == 2


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
        assert (await hub.status(task_id, "completed")).attempts == 1
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


@pytest.mark.requirement("coven-D9")
async def test_sizes_are_bounded_and_missing_heartbeats_harm_nobody() -> None:
    async with gateway(
        limits={"message_bytes": 100_000, "keepalive_seconds": 0.1, "keepalive_timeout": 5.0},
    ) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        link = next(iter(hub.door._links))
        link.last_heard -= 3600
        await agent.respond(work.request_id, text="x" * 90_000)
        await agent.respond(work.request_id, done={})
        await hub.status(task.id, "completed")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="x" * 110_000)
        assert await agent.code() is Code.INVALID_ARGUMENT
        call = await hub.call(SendMessage(request_id="q", content="x" * 110_000, to_agent="worker"))
        assert await call.code() is Code.RESOURCE_EXHAUSTED


@pytest.mark.requirement("coven-D9")
async def test_a_file_above_the_quota_fails_the_task_and_not_the_stream() -> None:
    files = MemoryFiles(mint=lambda: "00000000-0000-7000-8000-000000000000", largest=1000)
    async with gateway(files=files) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, file={"filename": "big", "data": b"x" * 2000})
        failed = await hub.status(task.id, "failed")
        assert failed.fault is not None
        assert failed.fault.kind == "too_large"
        await agent.respond(work.request_id, done={})
        following = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(following.id, "completed")
