"""Requests over a stream: their events, files and sizes, and how they end."""

from __future__ import annotations

import asyncio

import grpc
import msgspec
import pytest
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman.core.ids import AgentId
from dragoman.protocols.coven import codec, coven_pb2
from dragoman.protocols.coven.types import Done, FileData, SendMessage, Text, Thinking
from dragoman.server.coven.endpoint import CovenEndpoint
from dragoman.stores.files import MemoryFiles

Code = grpc.StatusCode
NEWER = b"\xba\x06\x05later"  # field 103, a string


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
        (file,) = done.output.files
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
async def test_error_ends_a_request_as_a_failure_with_its_message() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, error="out of tokens")
        failed = await hub.status(task.id, "failed")
        assert failed.outcome.fault is not None
        assert (failed.outcome.fault.kind, failed.outcome.fault.message) == ("work_failed", "out of tokens")


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
async def test_the_caller_of_an_agent_that_broke_the_protocol_learns_how() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q1", content="long", to_agent="worker"))
        await agent.work()
        await agent.raw(b"\xff\xff")
        assert await agent.code() is Code.INVALID_ARGUMENT
        told = await call.next()
        assert told.fault is not None
        assert "stream ended while it worked on the task: Not a message of coven" in told.fault.message


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
        assert task.attempt.count == 2


@pytest.mark.requirement("coven-D10")
async def test_shutdown_lets_work_finish_then_patience_ends_with_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    over = asyncio.Event()

    async def patience(_: CovenEndpoint, seconds: float) -> None:
        waited.append(seconds)
        await over.wait()

    monkeypatch.setattr(CovenEndpoint, "_empty", patience)
    async with gateway() as hub:
        busy, idle = await hub.agent("worker"), await hub.agent("idler")
        task = await hub.submit()
        work = await busy.work()
        draining = asyncio.create_task(hub.endpoint.drain())
        assert (await busy.hear()).WhichOneof("payload") == "shutdown"
        assert (await idle.hear()).WhichOneof("payload") == "shutdown"
        await busy.respond(work.request_id, done={"full_response": "made it"})
        await hub.status(task.id, "completed")
        assert (hub.endpoint.streams, waited) == (2, [30.0])  # also who has nothing to finish may take its time
        over.set()
        assert await busy.code() is Code.UNAVAILABLE
        assert await idle.code() is Code.UNAVAILABLE
        await outside.soon(draining)
        late = await hub.stream()
        assert await late.code() is Code.UNAVAILABLE


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


@pytest.mark.requirement("coven-D9")
async def test_sizes_are_bounded_and_missing_heartbeats_harm_nobody() -> None:
    async with gateway(
        limits={"message_bytes": 100_000, "keepalive_seconds": 0.1, "keepalive_timeout": 5.0},
    ) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        link = next(iter(hub.endpoint._streams))
        link.last_message_at -= 3600
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
        assert failed.outcome.fault is not None
        assert failed.outcome.fault.kind == "too_large"
        await agent.respond(work.request_id, done={})
        following = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(following.id, "completed")
