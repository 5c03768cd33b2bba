"""A stream is opened: the headers, the register, whose id it is, and who may come in."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs
from tests.support import coven as outside
from tests.support.coven_world import gateway

from dragoman.core.ids import AgentId
from dragoman.protocols.coven.types import SendMessage

Code = grpc.StatusCode
ROOT = Path(__file__).resolve().parents[3]


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
    async with gateway(limits={"register_seconds": 0.2}) as hub:
        silent = await hub.stream()
        assert await silent.code() is Code.DEADLINE_EXCEEDED
    with capture_logs() as written:
        async with gateway() as hub:
            agent = await hub.agent("worker")
            await agent.say(register={"agent_id": "somebody-else"})
            await agent.say(register={"agent_id": ""})
            task = await hub.submit()
            await agent.respond((await agent.work()).request_id, done={})
            await hub.status(task.id, "completed")
            assert hub.endpoint.counts["ignored.second_register"] == 2
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
        link = next(iter(hub.endpoint._streams))
        link.last_message_at -= 1.0
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
        link = next(iter(hub.endpoint._streams))
        link.last_message_at -= 3600
        thief = await hub.stream(token=other)
        await thief.say(register={"agent_id": "worker"})
        assert await thief.code() is Code.PERMISSION_DENIED
        second = await hub.stream(token=token)
        await second.say(register={"agent_id": "worker"})
        await hub.until(lambda: hub.endpoint._connected._awaited)
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
