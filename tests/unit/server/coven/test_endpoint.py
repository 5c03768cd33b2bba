"""Coven's endpoint beyond the document: its services, and what operators and callers do."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman.core.commands import RotateToken
from dragoman.core.ids import ADMIN, AgentId, TaskId
from dragoman.core.model.tasks import Status, Task
from dragoman.core.ports import Changes
from dragoman.protocols.coven.types import Done, Error, SendMessage, Text
from dragoman.security.tls import Files, Renewal
from dragoman.server.coven.endpoint import CovenEndpoint
from dragoman.stores.memory import MemoryStore

Code = grpc.StatusCode


# --- services ---


async def test_health_and_reflection_are_served() -> None:
    async with gateway() as hub:
        channel = await hub.channel()
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "coven.CovenControl"):
            said = await outside.soon(health.Check(health_pb2.HealthCheckRequest(service=service)))
            assert said.status == health_pb2.HealthCheckResponse.SERVING
        every = await outside.soon(health.List(health_pb2.HealthListRequest()))
        assert {name: one.status for name, one in every.statuses.items()} == dict.fromkeys(
            ("", "coven.CovenControl", "coven.CovenClient"), health_pb2.HealthCheckResponse.SERVING
        )
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="coven.CovenControl"),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="coven.CovenClient"),
        ]
        for version in ("v1alpha", "v1"):
            ask = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            call = ask(iter(asked))
            answers = [await outside.soon(call.read()) for _ in asked]
            names = {service.name for service in answers[0].list_services_response.service}
            assert {"coven.CovenControl", "coven.CovenClient", "grpc.health.v1.Health"} <= names
            for answer in answers[1:]:
                assert answer.file_descriptor_response.file_descriptor_proto


async def test_a_taken_port_is_named_in_the_error() -> None:
    async with gateway() as hub:
        taken = int(hub.address.rpartition(":")[2])
        second = CovenEndpoint(hub.intake, hub.store, hub.files, port=taken)
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


# --- operators ---


async def test_a_new_token_ends_the_stream_of_the_old_one() -> None:
    async with gateway(guests=False) as hub:
        token = await hub.add("worker")
        agent = await hub.agent("worker", token=token)
        await hub.intake.execute(RotateToken(principal=ADMIN, agent=AgentId("worker"), token_hash="other"))
        assert await agent.code() is Code.UNAUTHENTICATED


async def test_work_that_was_not_sent_when_the_hub_stops_costs_no_attempt() -> None:
    store = MemoryStore()
    async with gateway(store=store) as hub:
        agent = await hub.agent("worker")
        first, second = await hub.submit(), await hub.submit()
        work = await agent.work()
        draining = asyncio.create_task(hub.endpoint.drain(10))
        await agent.hear()
        await agent.respond(work.request_id, done={})
        await hub.status(first.id, "completed")
        await hub.status(second.id, "assigned")
        await agent.leave()
        await outside.soon(draining)
        await hub.until(lambda: not hub.intake.reachable(AgentId("worker")))
        head = await hub.task(second.id)
        assert (head.status, head.attempt.count, head.timing.lost_at) == (Status.ASSIGNED, 1, None)


async def test_a_stopping_hub_asks_a_caller_to_reconnect() -> None:
    async with gateway() as hub:
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        work = await agent.work()
        await agent.respond(work.request_id, text="half")
        assert (await call.next()).event == Text("half")
        draining = asyncio.create_task(hub.endpoint.drain(0.2))
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


async def test_a_follower_of_a_task_that_is_forgotten_meanwhile_learns_so() -> None:
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


async def test_that_no_agent_can_do_it_is_reported_at_once() -> None:
    async with gateway() as hub:
        for to in ("nobody", ""):
            call = await hub.call(SendMessage(request_id=f"q-{to}", content="x", to_agent=to))
            assert await call.code() in (Code.UNAVAILABLE, Code.UNIMPLEMENTED)
        assert not hub.files._kept


async def test_an_agent_with_the_capability_gets_a_message_without_a_receiver() -> None:
    async with gateway() as hub:
        await hub.agent("mute")
        agent = await hub.agent("talker", capabilities=["chat"])
        call = await hub.call(SendMessage(request_id="q", content="x"))
        await agent.respond((await agent.work()).request_id, done={})
        assert [one.event for one in await call.rest()] == [Done()]


async def test_a_call_for_which_the_hub_has_no_room_is_refused_unread_and_retryable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dragoman.server.coven.callers.ROOM_SECONDS", 0.0)
    async with gateway() as hub:
        memory = hub.intake.memory
        memory.add("another", memory.limits.total)
        call = (await hub.channel()).unary_stream("/coven.CovenClient/Send")(b"")
        assert await outside.soon(call.code()) is Code.UNAVAILABLE
        assert ("dragoman-retryable", "1") in tuple(await call.trailing_metadata())
        memory.give_back("another", memory.limits.total)
        agent = await hub.agent("worker")
        call = await hub.call(SendMessage(request_id="q", content="x", to_agent="worker"))
        work = await agent.work()
        assert memory.held == 0  # while the caller still follows
        await agent.respond(work.request_id, done={})
        await call.rest()
