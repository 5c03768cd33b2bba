"""What attackers do to coven's endpoint beyond the document."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import pytest
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman.app.clock import Mint, SystemClock
from dragoman.core.ids import AgentId
from dragoman.messages.files import FileRef
from dragoman.protocols.coven.types import FileData, SendMessage
from dragoman.server.coven.authentication import ConnectedAgents
from dragoman.stores.files import MemoryFiles

Code = grpc.StatusCode


# --- hostile ---


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x12\x05\x0a\x03\xff\xfe\xfd", b"\x0a\xff\xff\xff\xff\x07"])
async def test_bytes_that_are_no_message_end_their_stream_and_nothing_else(data: bytes) -> None:
    async with gateway() as hub:
        good = await hub.agent("good")
        stranger = await hub.stream()
        await stranger.raw(data)
        assert await stranger.code() is Code.INVALID_ARGUMENT
        bad = await hub.agent("bad")
        task = await hub.submit("bad")
        await bad.work()
        await bad.raw(data)
        assert await bad.code() is Code.INVALID_ARGUMENT
        await hub.status(task.id, "queued")
        channel = await hub.channel()
        call = channel.unary_stream("/coven.CovenClient/Send")(data)
        assert await outside.soon(call.code()) is Code.INVALID_ARGUMENT
        task = await hub.submit("good")
        await good.respond((await good.work()).request_id, done={})
        await hub.status(task.id, "completed")


async def test_streams_that_never_register_are_capped_and_do_not_keep_others_out() -> None:
    async with gateway(limits={"unregistered": 20, "register_seconds": 1000}) as hub:
        channel = await hub.channel()
        idle = [outside.stream(channel) for _ in range(20)]
        for one in idle:
            await outside.soon(one.call.initial_metadata())
        await hub.until(lambda: hub.endpoint._unregistered.total() == 20)
        more = [outside.stream(channel) for _ in range(30)]
        assert {await one.code() for one in more} == {Code.RESOURCE_EXHAUSTED}
        for one in idle:
            one.vanish()
        await hub.until(lambda: hub.endpoint._unregistered.total() == 0)
        await hub.agent("worker")


async def test_one_token_takes_only_a_few_of_the_places_before_registration() -> None:
    async with gateway(guests=False, limits={"unregistered_each": 3}) as hub:
        greedy, modest = await hub.add("greedy"), await hub.add("modest")
        waiting = [await hub.stream(token=greedy) for _ in range(3)]
        await hub.until(lambda: hub.endpoint._unregistered.total() == 3)
        assert await (await hub.stream(token=greedy)).code() is Code.RESOURCE_EXHAUSTED
        assert (await (await hub.stream(token=modest)).register("modest")).agent_id == "modest"
        assert (await waiting[0].register("greedy")).agent_id == "greedy"
        assert hub.endpoint._unregistered.total() == 2


async def test_streams_opened_and_reset_at_once_leave_nothing_behind() -> None:
    async with gateway() as hub:
        channel = await hub.channel()
        for _ in range(5):
            streams = [outside.stream(channel) for _ in range(100)]
            for one in streams:
                one.vanish()
            for one in streams:
                await outside.soon(one.call.code())
        agent = await hub.agent("worker")
        await hub.until(lambda: hub.endpoint._unregistered.total() == 0)
        assert hub.endpoint.streams == 1
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(task.id, "completed")


async def test_a_connection_that_never_speaks_http2_is_closed() -> None:
    async with gateway(limits={"handshake_seconds": 0.5}) as hub:
        agent = await hub.agent("worker")
        host, port = hub.address.split(":")
        with socket.create_connection((host, int(port))) as mute:
            mute.settimeout(outside.PATIENCE)
            while await asyncio.to_thread(mute.recv, 4096):
                pass
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(task.id, "completed")


async def test_an_agent_cannot_take_a_name_of_the_hubs_own() -> None:
    async with gateway() as hub:
        for name in ("admin", "hub"):
            agent = await hub.stream()
            await agent.say(register={"agent_id": name})
            assert await agent.code() is Code.PERMISSION_DENIED


@pytest.mark.parametrize("name", ["../x", "a b", "<b>", "x" * 129, "é"])
async def test_a_guest_has_a_name_that_anybody_could_have(name: str) -> None:
    async with gateway() as hub:
        agent = await hub.stream()
        await agent.say(register={"agent_id": name})
        assert await agent.code() is Code.INVALID_ARGUMENT


class Gate(MemoryFiles):
    """Files that are kept only when the test says so."""

    def __init__(self, mint: Any) -> None:
        super().__init__(mint)
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    async def keep(self, data: bytes, **more: Any) -> FileRef:
        self.reached.set()
        await self.opened.wait()
        return await super().keep(data, **more)


async def test_a_caller_cut_off_in_the_middle_has_asked_whole() -> None:
    files = Gate(Mint(SystemClock()))
    async with gateway(files=files) as hub:
        agent = await hub.agent("worker")
        attached = (FileData("a", "text/plain", b"abc"),)
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker", attachments=attached))
        await outside.soon(files.reached.wait())
        call.call.cancel()
        await call.code()
        files.opened.set()
        work = await agent.work()
        assert [file.data for file in work.attachments] == [b"abc"]


async def test_a_file_of_a_stream_that_broke_meanwhile_is_not_kept() -> None:
    files = Gate(Mint(SystemClock()))
    async with gateway(files=files) as hub:
        agent = await hub.agent("worker")
        await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, file={"filename": "a", "data": b"abc"})
        await outside.soon(files.reached.wait())
        agent.vanish()
        await hub.until(lambda: not hub.intake.reachable(AgentId("worker")))
        files.opened.set()
        await hub.until(lambda: not hub.endpoint._files._under_way)
        assert not files._kept


async def test_only_one_newcomer_waits_for_a_silent_stream() -> None:
    class Stream:
        def __init__(self) -> None:
            self.last_message_at = -1e9
            self.gone = asyncio.Event()

    roster = ConnectedAgents(keepalive_seconds=5, keepalive_timeout=5)
    old, first, second = Stream(), Stream(), Stream()
    id = AgentId("a")
    assert await roster.enter(id, old)
    waiting = asyncio.create_task(roster.enter(id, first))
    await asyncio.sleep(0)
    assert not await roster.enter(id, second)
    roster.leave(id, old)
    assert await asyncio.wait_for(waiting, 60)
    roster.leave(id, old)
    assert id in roster
