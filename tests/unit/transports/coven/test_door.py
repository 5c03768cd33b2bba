"""Coven's door beyond the document: what attackers, breakdowns and impatient operators do to it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tests.support import coven as outside
from tests.support.coven_world import RULES, gateway

from dragoman.app.clock import Mint, SystemClock
from dragoman.core.commands import Cancel, Finish, RotateToken
from dragoman.core.files import FileRef
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.ports import Changes, StoreFailed
from dragoman.core.tasks.model import Status, Task
from dragoman.protocols.coven.types import Done, Error, FileData, SendMessage, Text
from dragoman.security.tls import Files, Renewal
from dragoman.stores.files import MemoryFiles
from dragoman.stores.memory import MemoryStore
from dragoman.transports.coven_grpc import CovenDoor
from dragoman.transports.coven_grpc.roster import Roster

Code = grpc.StatusCode


# --- services ---


async def test_health_and_reflection_are_served() -> None:
    async with gateway() as hub:
        channel = await hub.channel()
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "coven.CovenControl"):
            said = await outside.soon(health.Check(health_pb2.HealthCheckRequest(service=service)))
            assert said.status == health_pb2.HealthCheckResponse.SERVING
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="coven.CovenControl"),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="coven.CovenClient"),
        ]
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(asked))
        answers = [await outside.soon(call.read()) for _ in asked]
        names = {service.name for service in answers[0].list_services_response.service}
        assert {"coven.CovenControl", "coven.CovenClient", "grpc.health.v1.Health"} <= names
        for answer in answers[1:]:
            assert answer.file_descriptor_response.file_descriptor_proto


async def test_a_port_that_is_taken_is_said_so() -> None:
    async with gateway() as hub:
        taken = int(hub.address.rpartition(":")[2])
        second = CovenDoor(hub.intake, hub.store, hub.files, port=taken)
        with pytest.raises(OSError, match="cannot listen"):
            await second.start()
        await second.stop()


async def test_tls_when_a_certificate_is_configured(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        made = subprocess.run(
            [*command, "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate],
            capture_output=True,
            timeout=60,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate")
    assert made.returncode == 0, made.stderr
    tls = Renewal(Files(certificate=certificate, key=key), int(time.time()))
    async with gateway(tls=tls) as hub:
        port = hub.address.rpartition(":")[2]
        trust = grpc.ssl_channel_credentials(certificate.read_bytes())
        async with grpc.aio.secure_channel(f"localhost:{port}", trust) as channel:
            assert (await outside.stream(channel).register("worker")).agent_id == "worker"
        plain = await hub.stream()
        assert await plain.code() is Code.UNAVAILABLE


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
    async with gateway(limits={"unregistered": 20, "register_seconds": 1.0}) as hub:
        channel = await hub.channel()
        idle = [outside.stream(channel) for _ in range(20)]
        for one in idle:
            await outside.soon(one.call.initial_metadata())
        await hub.until(lambda: hub.door._unregistered.total() == 20)
        more = [outside.stream(channel) for _ in range(30)]
        assert {await one.code() for one in more} == {Code.RESOURCE_EXHAUSTED}
        assert {await one.code() for one in idle} == {Code.DEADLINE_EXCEEDED}
        assert hub.door._unregistered.total() == 0
        await hub.agent("worker")


async def test_one_token_takes_only_a_few_of_the_places_before_registration() -> None:
    async with gateway(guests=False, limits={"unregistered_each": 3}) as hub:
        greedy, modest = await hub.add("greedy"), await hub.add("modest")
        waiting = [await hub.stream(token=greedy) for _ in range(3)]
        await hub.until(lambda: hub.door._unregistered.total() == 3)
        assert await (await hub.stream(token=greedy)).code() is Code.RESOURCE_EXHAUSTED
        assert (await (await hub.stream(token=modest)).register("modest")).agent_id == "modest"
        assert (await waiting[0].register("greedy")).agent_id == "greedy"
        assert hub.door._unregistered.total() == 2


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
        await hub.until(lambda: hub.door._unregistered.total() == 0)
        assert hub.door.streams == 1
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(task.id, "completed")


async def test_a_connection_that_never_speaks_http2_is_closed() -> None:
    async with gateway(limits={"handshake_seconds": 0.5}) as hub:
        host, port = hub.address.split(":")
        with socket.create_connection((host, int(port))) as mute:
            mute.settimeout(outside.PATIENCE)
            while await asyncio.to_thread(mute.recv, 4096):
                pass
        await hub.agent("worker")


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
        await hub.until(lambda: not hub.door._keeping._under_way)
        assert not files._kept


# --- breakdowns ---


async def test_a_handler_that_breaks_ends_its_stream_and_the_door_stays_open(monkeypatch: Any) -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        (link,) = hub.door._links
        monkeypatch.setattr(link.connection, "receive", lambda data: 1 / 0)
        await agent.heartbeat()
        assert await agent.code() is Code.INTERNAL
        again = await hub.agent("worker")
        assert (await again.work()).request_id == work.request_id
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")


class Moody(MemoryStore):
    """A store that can be told to fail."""

    failing = False

    def unit(self) -> Any:
        if self.failing:
            raise StoreFailed("the disk is full")
        return super().unit()


async def test_what_cannot_be_stored_ends_the_stream_and_is_done_again_whole() -> None:
    store = Moody()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="kept ")
        await hub.status(task.id, "running")
        store.failing = True
        await agent.respond(work.request_id, text="not kept")
        assert await agent.code() is Code.UNAVAILABLE
        store.failing = False
        again = await hub.agent("worker")
        work = await again.work()
        await again.respond(work.request_id, text="all of it")
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")
        assert (await hub.bodies(task.id, "completed")) == [{"output": "all of it"}]


async def test_a_slow_store_slows_the_agent_and_loses_nothing() -> None:
    async with gateway(limits={"unanswered": 4, "pending_bytes": 50_000}) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="first")
        await hub.status(task.id, "running")
        (link,) = hub.door._links
        gate = asyncio.Event()
        handed = hub.intake.hand_in
        hub.intake.hand_in = lambda command, then: asyncio.ensure_future(later(command, then))  # type: ignore[method-assign]

        async def later(command: Any, then: Any) -> None:
            await gate.wait()
            handed(command, then)

        piece = "x" * 10_000
        sending = asyncio.create_task(flood(agent, work.request_id, piece, 300))
        await hub.until(lambda: not link._reports._room.is_set())
        held = link._reports._size
        assert held < 100_000
        gate.set()
        await outside.soon(sending)
        await agent.respond(work.request_id, done={})
        await hub.status(task.id, "completed")
        (done,) = await hub.bodies(task.id, "completed")
        assert done["output"] == "first" + piece * 300
        told = "".join(body.get("output", "") for body in await hub.bodies(task.id))
        assert told == done["output"]
        assert link._reports.coalesced > 0


async def flood(agent: outside.Agent, request_id: str, piece: str, times: int) -> None:
    for _ in range(times):
        await agent.respond(request_id, text=piece)


async def test_what_an_agent_held_when_the_hub_was_killed_is_done_again_at_once(monkeypatch: Any) -> None:
    store = MemoryStore()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="half")
        await hub.status(task.id, "running")
        monkeypatch.setattr(hub.door, "_close", lambda link: None)  # nobody is left to say that the link broke
    async with gateway(store=store) as hub:
        again = await hub.agent("worker")
        assert (await again.work()).request_id == work.request_id
        await again.respond(work.request_id, done={"full_response": "whole"})
        await hub.status(task.id, "completed")


async def test_a_health_check_is_answered_by_the_stream_and_never_sent() -> None:
    rules = msgspec.structs.replace(RULES, breaker_threshold=1, breaker_pause=50_000)
    async with gateway(rules=rules) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit(input={"content": "real work"})
        await agent.work()
        agent.vanish()
        await hub.until(lambda: hub.intake.agent(AgentId("worker")).breaker.state != "closed")  # type: ignore[union-attr]
        again = await hub.agent("worker")
        work = await again.work()
        assert work.content == "real work"
        await again.respond(work.request_id, done={})
        await hub.status(task.id, "completed")


# --- given up ---


async def test_an_agent_that_works_on_what_is_over_is_heard_no_more() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await hub.intake.ask(Finish(principal=AgentId("worker"), task_id=task.id, digest="by another way"))
        await agent.respond(work.request_id, text="still at it")
        (link,) = hub.door._links
        await hub.until(lambda: link.connection.abandoned)
        await agent.respond(work.request_id, done={})
        following = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(following.id, "completed")
        assert hub.door.counts["ignored.abandoned_request"] == 1


async def test_an_agent_that_never_ends_a_cancelled_request_is_let_go_when_other_work_waits() -> None:
    async with gateway(limits={"cancel_seconds": 0.2}) as hub:
        agent = await hub.agent("worker")
        first = await hub.submit()
        await agent.work()
        await hub.intake.ask(Cancel(principal=ADMIN, task_id=first.id))
        second = await hub.submit(input={"content": "2"})
        assert await agent.code() is Code.UNAVAILABLE
        again = await hub.agent("worker")
        work = await again.work()
        assert work.content == "2"
        await again.respond(work.request_id, done={})
        await hub.status(second.id, "completed")


async def test_work_cancelled_before_it_could_leave_is_never_sent() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        tasks = [await hub.submit(input={"content": str(n)}) for n in range(3)]
        work = await agent.work()
        await hub.intake.ask(Cancel(principal=ADMIN, task_id=tasks[0].id))
        await hub.status(tasks[1].id, "assigned")
        await hub.intake.ask(Cancel(principal=ADMIN, task_id=tasks[1].id))
        await agent.respond(work.request_id, error="cancelled")
        assert (await agent.work()).content == "2"


async def test_more_output_than_a_task_may_have_fails_it(monkeypatch: Any) -> None:

    async with gateway(rules=msgspec.structs.replace(RULES, output_quota=1000)) as hub:
        agent = await hub.agent("worker")
        task = await hub.submit()
        work = await agent.work()
        await agent.respond(work.request_id, text="x" * 2000)
        failed = await hub.status(task.id, "failed")
        assert failed.fault is not None
        assert failed.fault.kind == "invalid"
        await agent.respond(work.request_id, done={})
        task = await hub.submit()
        await agent.respond((await agent.work()).request_id, done={})
        await hub.status(task.id, "completed")


# --- operators ---


async def test_a_new_token_ends_the_stream_of_the_old_one() -> None:
    async with gateway(guests=False) as hub:
        token = await hub.add("worker")
        agent = await hub.agent("worker", token=token)
        await hub.intake.ask(RotateToken(principal=ADMIN, agent=AgentId("worker"), token_hash="other"))
        assert await agent.code() is Code.UNAUTHENTICATED


async def test_work_that_was_not_sent_when_the_hub_stops_costs_no_attempt() -> None:
    store = MemoryStore()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        first, second = await hub.submit(), await hub.submit()
        work = await agent.work()
        draining = asyncio.create_task(hub.door.drain(10))
        await agent.hear()
        await agent.respond(work.request_id, done={})
        await hub.status(first.id, "completed")
        await hub.status(second.id, "assigned")
        await agent.leave()
        await outside.soon(draining)
        await hub.until(lambda: not hub.intake.reachable(AgentId("worker")))
        head = await hub.task(second.id)
        assert (head.status, head.attempts, head.lost_at) == (Status.ASSIGNED, 1, None)


async def test_a_caller_is_told_to_come_back_when_the_hub_stops() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        work = await agent.work()
        await agent.respond(work.request_id, text="half")
        assert (await call.next()).event == Text("half")
        draining = asyncio.create_task(hub.door.drain(0.2))
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call.rest()
        assert ended.value.code() is Code.UNAVAILABLE
        assert dict(ended.value.trailing_metadata())["dragoman-retryable"] == "1"
        await outside.soon(draining)


async def test_a_caller_that_goes_away_cancels_nothing() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        task_id = await call.task_id()
        work = await agent.work()
        call.call.cancel()
        await agent.respond(work.request_id, done={"full_response": "all the same"})
        await hub.status(task_id, "completed")
        assert [one.event for one in await (await hub.follow(task_id)).rest()] == [Done(full_response="all the same")]


async def test_who_follows_a_task_that_is_forgotten_meanwhile_hears_so() -> None:
    class Forgetting(MemoryStore):
        now = False

        async def events(self, task: TaskId, **more: Any) -> Any:
            page = await super().events(task, **more)
            if self.now:
                async with self.unit() as unit:
                    await unit.commit(Changes(removed=[row for row in self.rows(Task) if row.id == task]))
            return page

    store = Forgetting()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        task_id = await call.task_id()
        await agent.respond((await agent.work()).request_id, done={"full_response": "done"})
        await call.rest()
        store.now = True
        assert await (await hub.follow(task_id)).code() is Code.NOT_FOUND
        assert store.rows(Task) == []


async def test_cancel_ends_the_callers_stream_with_error() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        await agent.work()
        assert (await hub.cancel(await call.task_id())).status == "cancelled"
        (end,) = await call.rest()
        assert isinstance(end.event, Error)
        assert end.fault is not None
        assert end.fault.kind == "cancelled"


async def test_nobody_to_do_it_is_said_at_once() -> None:
    async with gateway() as hub:
        for to in ("nobody", ""):
            call = await hub.call(SendMessage(request_id=f"q-{to}", content="x", to_agent=to))
            assert await call.code() in (Code.UNAVAILABLE, Code.UNIMPLEMENTED)
        assert not hub.files._kept


async def test_whoever_has_the_capability_gets_a_message_to_nobody_in_particular() -> None:
    async with gateway() as hub:
        await hub.agent("mute")
        agent = await hub.agent("talker", capabilities=["chat"])
        call = await hub.call(SendMessage(request_id="q", content="x"))
        await agent.respond((await agent.work()).request_id, done={})
        assert [one.event for one in await call.rest()] == [Done()]


async def test_only_one_newcomer_waits_for_a_silent_stream() -> None:
    class Stream:
        def __init__(self) -> None:
            self.last_heard = -1e9
            self.gone = asyncio.Event()

    roster = Roster(keepalive_seconds=5, keepalive_timeout=5)
    old, first, second = Stream(), Stream(), Stream()
    id = AgentId("a")
    assert await roster.enter(id, old)
    waiting = asyncio.create_task(roster.enter(id, first))
    await asyncio.sleep(0)
    assert not await roster.enter(id, second)
    roster.leave(id, old)
    assert await asyncio.wait_for(waiting, 5)
    roster.leave(id, old)
    assert id in roster
