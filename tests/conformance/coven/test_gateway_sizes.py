"""A piece of content travels once in a message (coven-D9): measured by grpcio clients with a receive limit."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
import msgspec
import pytest
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman import Agent, Client
from dragoman.core.ids import AgentId
from dragoman.protocols.coven import coven_pb2
from dragoman.protocols.coven.types import Done, SendMessage

MIB = 1024 * 1024
NINE_MILLION = 9_000_000
DEFAULTS: tuple[tuple[str, Any], ...] = ()
"""grpcio reads messages of up to 4 MiB."""
LARGE = (("grpc.max_receive_message_length", 16 * MIB),)


def inputs(size: int) -> dict[str, dict[str, Any]]:
    return {
        "words": {"content": "x" * size},
        "words and more": {"prompt": "x" * size, "n": 1},
        "no words": {"data": "x" * size},
    }


@pytest.mark.requirement("coven-D9")
@pytest.mark.parametrize("form", inputs(0))
@pytest.mark.parametrize(("options", "size"), [(DEFAULTS, 4 * MIB - 2048), (LARGE, NINE_MILLION)], ids=["4M", "16M"])
async def test_work_arrives_at_a_client_with_a_receive_limit(options: Any, size: int, form: str) -> None:
    given = inputs(size)[form]
    async with gateway() as hub, grpc.aio.insecure_channel(hub.address, options=options) as channel:
        agent = outside.stream(channel)
        await agent.register("worker")
        await hub.until(lambda: hub.intake.reachable(AgentId("worker")))
        task = await hub.submit(input=given)
        work = await agent.work()
        assert work.content.count("x") == size
        await agent.respond(work.request_id, done={"full_response": "seen"})
        await hub.status(task.id, "completed")


@pytest.mark.requirement("coven-D9")
@pytest.mark.parametrize(
    ("given", "content", "input_json"),
    [
        ({"content": "hi"}, "hi", ""),
        ({"content": "hi", "n": 1}, 'hi\n\n{"n":1}', '{"content":"hi","n":1}'),
        ({"content": "hi", "n": "x" * 70_000}, 'hi\n\n{"n":"%s"}' % ("x" * 70_000), ""),
    ],
    ids=["the content says it all", "a short input says more", "a long input is not repeated"],
)
async def test_input_json_is_there_where_it_says_more_and_is_short(given: Any, content: str, input_json: str) -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        await hub.submit(input=given)
        work = coven_pb2.ServerMessage.FromString(await outside.soon(agent.call.read())).send_message
        assert (work.content, work.input_json) == (content, input_json)


@pytest.mark.requirement("coven-D9")
async def test_an_agent_that_declares_input_gets_every_field_of_it_once() -> None:
    given = {"content": "x" * 70_000, "n": 1}
    async with gateway() as hub:
        agent = await hub.stream()
        said = coven_pb2.AgentMessage(register={"agent_id": "worker", "extensions": ["input"]})
        await agent.raw(said.SerializeToString())
        assert (await agent.hear()).WhichOneof("payload") == "welcome"
        await hub.until(lambda: hub.intake.reachable(AgentId("worker")))
        for sent, heard in (
            (given, (given["content"], '{"n":1}', "")),
            ({"n": 1}, ("", '{"n":1}', '{"thread":"th"}')),
            ({}, ("", "{}", "")),
        ):
            await hub.submit(input=sent, thread="th" if "content" not in sent and sent else None)
            work = coven_pb2.ServerMessage.FromString(await outside.soon(agent.call.read())).send_message
            assert (work.content, work.input_json, work.context_json) == heard
            await agent.respond(work.request_id, done={})


@pytest.mark.requirement("coven-D9")
async def test_a_result_reaches_a_caller_with_a_receive_limit_once() -> None:
    result = msgspec.json.encode({"data": "x" * 3 * MIB}).decode()
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q1", content="x", to_agent="worker"))
        request = (await agent.work()).request_id
        done = {"full_response": result, "is_json": True}
        await agent.raw(coven_pb2.AgentMessage(response={"request_id": request, "done": done}).SerializeToString())
        (end,) = [one.event for one in await call.rest()]
        assert end == Done(full_response=result, is_json=True)


@pytest.mark.requirement("coven-D9")
async def test_an_sdk_agent_gets_its_input_whole_and_a_caller_its_result() -> None:
    agent = Agent("echo")

    @agent.on("measure")
    async def measure(content: str, n: int) -> dict[str, Any]:
        return {"size": len(content), "n": n}

    @agent.on("wrap")
    async def wrap(data: str) -> dict[str, str]:
        return {"data": data}

    async with gateway() as hub:
        running = asyncio.ensure_future(agent.serve(f"coven://{hub.address}"))
        try:
            await hub.until(lambda: hub.intake.reachable(AgentId("echo")))
            message = SendMessage(
                request_id="q1",
                content="\n" * NINE_MILLION,  # as JSON it would be longer than a message may be
                input_json='{"n":2}',
                work_type="measure",
                to_agent="echo",
            )
            *_, end = await (await hub.call(message)).rest()
            assert json.loads(end.event.result_json) == {"size": NINE_MILLION, "n": 2}
            async with Client(f"coven://{hub.address}") as caller:
                data = "y" * 3 * MIB
                assert await outside.soon(caller.call("echo", "wrap", data=data)) == {"data": data}
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
