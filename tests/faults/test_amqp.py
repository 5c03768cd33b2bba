"""Chiffon over a message queue, when its parts fail: every message that the broker confirmed has its effect once, in
order, and no token is left anywhere."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from tests.bridge.players.stage import Stage, playing
from tests.e2e.test_amqp import connected, eventually, idle, sdk, status_is
from tests.support import rabbitmq
from tests.support.amqp_agent import PATIENCE, QueueAgent, envelope, result, status, work
from tests.support.hubproc import running, until
from tests.support.rabbitmq import Broker, Host
from tests.support.relay import Relay

from dragoman import Agent, Client
from dragoman.core.ports import Changes, StoreFailed
from dragoman.stores.memory import MemoryStore


@pytest.fixture
def host() -> Iterator[Host]:
    with rabbitmq.host() as made:
        yield made


@asynccontextmanager
async def joined(url: str, hub: Stage, id: str, **options: Any) -> AsyncIterator[QueueAgent]:
    async with QueueAgent(url, id, await hub.add(id, "chiffon"), **options) as agent:
        yield agent


# -- the broker


async def test_a_broken_connection_loses_and_doubles_nothing(tmp_path: Path, host: Host) -> None:
    """The hub's connection and the agents' break again and again under calls of the SDK."""
    ran: list[int] = []
    async with Relay(f"127.0.0.1:{host.broker.port}") as relay:
        through = host.at(int(relay.address.rpartition(":")[2]))
        async with playing(tmp_path, amqp=through) as hub:
            agent = Agent("worker", token=await hub.add("worker", "chiffon"))

            @agent.task("work")
            async def do(n: int) -> int:
                ran.append(n)
                return n

            address = through.replace("amqp://", "chiffon+amqp://")
            serving = asyncio.ensure_future(agent.serve(address))
            try:
                await eventually(lambda: idle(hub, "worker"))
                async with Client(address, id="boss", token=await hub.add("boss", "chiffon")) as client:
                    calls = [asyncio.ensure_future(client.call("worker", "work", n=n)) for n in range(60)]
                    for _ in range(4):
                        await asyncio.sleep(0.15)
                        relay.cut()
                    async with asyncio.timeout(PATIENCE):
                        assert await asyncio.gather(*calls) == list(range(60))
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
    assert sorted(set(ran)) == list(range(60))
    assert len(ran) == 60  # the agent knows a request that comes again


@pytest.mark.soak
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_a_broker_that_is_restarted_loses_nothing_that_it_confirmed(tmp_path: Path, end: str) -> None:
    """Stopped under load, and killed while its queues are quiet. Under load: `test_amqp_cluster`."""
    rabbitmq.need_rabbitmq()
    broker = Broker(rabbitmq.private_directory(end))
    try:
        await asyncio.to_thread(broker.start)
        host = rabbitmq.make_host(broker)
        async with playing(tmp_path, amqp=host.url) as hub:
            agent = Agent("worker", token=await hub.add("worker", "chiffon"))
            agent.on("work")(lambda n: n)
            serving = asyncio.ensure_future(agent.serve(sdk(host)))
            try:
                async with Client(sdk(host), id="boss", token=await hub.add("boss", "chiffon")) as client:
                    assert await asyncio.wait_for(client.call("worker", "work", n=0), PATIENCE) == 0
                    calls = [asyncio.ensure_future(client.call("worker", "work", n=n)) for n in range(50)]
                    if end == "killed":
                        await asyncio.wait_for(asyncio.gather(*calls), PATIENCE)
                        await eventually(lambda: is_quiet(host, hub))
                        await asyncio.to_thread(broker.kill)
                        calls = [asyncio.ensure_future(client.call("worker", "work", n=n)) for n in range(50)]
                    else:
                        await asyncio.to_thread(broker.stop)
                    await asyncio.to_thread(broker.start)
                    try:
                        async with asyncio.timeout(2 * PATIENCE):
                            assert await asyncio.gather(*calls) == list(range(50))
                    except TimeoutError:
                        await rabbitmq.skip_if_broken(host)
                        raise
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)
    finally:
        await asyncio.to_thread(broker.remove)


async def is_quiet(host: Host, hub: Stage) -> bool:
    return await is_settled(host, (await hub.admin.get("/metrics")).text)


# -- the hub


class Deaf(Relay):
    """A relay that stops passing on what its clients say, from the moment that it is told to."""

    def __init__(self, target: str) -> None:
        super().__init__(target)
        self.hears = asyncio.Event()
        self.hears.set()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        onward_reader, onward_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(self._heard(reader, onward_writer), self._pump(onward_reader, writer))

    async def _heard(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while data := await reader.read(65536):
                await self.hears.wait()
                writer.write(data)
                await writer.drain()
            writer.close()
        except (OSError, RuntimeError):
            writer.transport.abort()


@pytest.mark.requirement("chiffon-D5-amqp")
async def test_a_hub_that_is_killed_between_commit_and_acknowledgment_does_the_work_once(
    tmp_path: Path, host: Host
) -> None:
    async with Deaf(f"127.0.0.1:{host.broker.port}") as relay:
        url = host.at(int(relay.address.rpartition(":")[2]))
        with running(tmp_path, DRAGOMAN_AMQP=url) as hub:
            tokens = {id: hub.token(id, id) for id in ("orchestrator", "infra")}
            await asyncio.to_thread(until, lambda: hub.gauge("dragoman_amqp_connected"))
            async with QueueAgent(host.url, "orchestrator", tokens["orchestrator"]) as boss:
                relay.hears.clear()
                request = work()
                await boss.send(request)
                task = request["payload"]["task_id"]
                await asyncio.to_thread(until, lambda: hub.admin.get(f"/api/v1/tasks/{task}").status == 200)
                assert hub.gauge("dragoman_amqp_connected")
                await asyncio.to_thread(hub.kill)
                relay.hears.set()
                relay.cut()
                await asyncio.to_thread(hub.start)
                async with QueueAgent(host.url, "infra", tokens["infra"]) as infra:
                    await infra.registered("infra")
                    assert (await infra.hear())["request_id"] == request["request_id"]
                    await boss.consume()
                    got = {"payload": request["payload"], **{k: request[k] for k in ("request_id", "trace_id")}}
                    await infra.send(result({**request, **got}))
                    assert (await boss.hear())["type"] == "work_result"
                assert len(hub.tasks()) == 1
                metrics = hub.admin.get("/metrics").body.decode()
                assert await is_settled(host, metrics)


async def is_settled(host: Host, metrics: str) -> bool:
    """Whether the hub has acknowledged everything, and nothing waits."""
    connection = await aio_pika.connect(host.url)
    async with connection:
        queue = await (await connection.channel()).declare_queue("chiffon.hub", passive=True)
    return queue.declaration_result.message_count == 0 and "dragoman_amqp_unacknowledged 0.0" in metrics


async def test_the_order_of_a_tasks_messages_holds_while_one_hub_after_the_other_consumes(
    tmp_path: Path, host: Host
) -> None:
    with running(tmp_path, DRAGOMAN_AMQP=host.url) as hub:
        tokens = {id: hub.token(id, id) for id in ("orchestrator", "infra")}
        async with AsyncExitStack() as held:
            boss, infra = [
                await held.enter_async_context(QueueAgent(host.url, id, token)) for id, token in tokens.items()
            ]
            await asyncio.to_thread(until, lambda: hub.gauge("dragoman_amqp_connected"))
            await infra.registered("infra")
            await boss.consume()
            await boss.send(work())
            got = await infra.hear()
            for percent in range(1, 100):
                await infra.send(status(got, percent))
                if percent in (30, 60):
                    await asyncio.to_thread(hub.restart)
            await infra.send(result(got))
            seen: list[int] = []
            while (message := await boss.hear())["type"] != "work_result":
                if message["message_id"] and message["payload"]["progress_percent"] not in seen:
                    seen.append(message["payload"]["progress_percent"])
            assert seen == list(range(1, 100))


# -- queues


async def test_work_for_an_agent_whose_queue_was_deleted_goes_out_when_it_is_back(tmp_path: Path, host: Host) -> None:
    async with (
        playing(tmp_path, amqp=host.url) as hub,
        joined(host.url, hub, "orchestrator") as boss,
        joined(host.url, hub, "infra") as infra,
    ):
        await eventually(lambda: connected(hub))
        await boss.consume()
        await infra.registered("infra")
        await asyncio.to_thread(host.delete, "chiffon.agent.infra")
        request = work()
        await boss.send(request)
        await eventually(lambda: status_is(hub, "infra", "offline"))
        assert (await hub.task(request["payload"]["task_id"]))["status"] == "queued"
        await infra.registered("infra")
        got = await infra.hear()
        assert got["request_id"] == request["request_id"]
        await infra.send(result(got))
        assert (await boss.hear())["type"] == "work_result"


POISON = (
    b"",
    b"not json",
    b"\xff\xfe\x00",
    b"[" * 100_000,
    b'{"type": "work_request"}',
    b'{"type": "nonsense", "x_custom_fields": []}',
    json.dumps(envelope("work_status", {"task_id": "x"})).encode(),
)


async def test_a_poison_message_is_set_aside_and_what_is_behind_it_goes_on(tmp_path: Path, host: Host) -> None:
    async with (
        playing(tmp_path, amqp=host.url) as hub,
        joined(host.url, hub, "orchestrator") as boss,
        joined(host.url, hub, "infra") as infra,
    ):
        await eventually(lambda: connected(hub))
        await infra.registered("infra")
        for poison in POISON:
            await boss.send(poison, key="work_request")
        await boss.send(b"{}", key="register")
        request = work()
        await boss.send(request)
        assert (await infra.hear())["request_id"] == request["request_id"]
        kept = await eventually(lambda: asyncio.to_thread(lambda: len(host.peek("chiffon.dead")) == len(POISON) + 1))
        assert kept
        assert await is_settled(host, (await hub.admin.get("/metrics")).text)


async def test_a_full_queue_delays_notices_and_loses_none(tmp_path: Path, host: Host) -> None:
    async with (
        playing(tmp_path, amqp=host.url) as hub,
        joined(host.url, hub, "orchestrator") as boss,
        joined(host.url, hub, "infra") as infra,
    ):
        await eventually(lambda: connected(hub))
        await infra.registered("infra")
        await boss.consume()
        await boss.queue.channel.set_qos(prefetch_count=1)
        await asyncio.to_thread(
            lambda: host.limit("chiffon.agent.orchestrator", **{"max-length": 2, "overflow": "reject-publish"})
        )
        await boss.send(work())
        got = await infra.hear()
        for percent in range(1, 31):
            await infra.send(status(got, percent))
        await infra.send(result(got))
        seen: list[int] = []
        while (message := await boss.hear())["type"] != "work_result":
            if message["payload"]["progress_percent"] not in seen:
                seen.append(message["payload"]["progress_percent"])
        assert seen == list(range(1, 31))


# -- the token


@pytest.mark.requirement("chiffon-D10-amqp")
async def test_no_token_is_in_any_queue_log_or_file_of_the_hub(tmp_path: Path, host: Host) -> None:
    """Every way in: header and field, accepted and refused, broken, too large, and of agents that are not known."""
    with running(tmp_path, DRAGOMAN_AMQP=host.url, DRAGOMAN_LOG__LEVEL="debug") as hub:
        tokens = {id: hub.token(id, id) for id in ("orchestrator", "infra")}
        stranger = random.Random(1).randbytes(16).hex()
        await asyncio.to_thread(until, lambda: hub.gauge("dragoman_amqp_connected"))
        async with AsyncExitStack() as held:
            enter = held.enter_async_context
            boss = await enter(QueueAgent(host.url, "orchestrator", tokens["orchestrator"]))
            field = await enter(QueueAgent(host.url, "orchestrator", tokens["orchestrator"], in_field=True))
            infra = await enter(QueueAgent(host.url, "infra", tokens["infra"], in_field=True))
            for sender in (boss, field):
                await sender.send(work())
                await sender.send(work("nobody"))
                await sender.send(work(), token=stranger)
                await sender.send({**work(), "protocol_version": 7})
            token = tokens["orchestrator"]
            raw = json.dumps(work() | {"x_custom_fields": {"token": token}}).encode()
            for broken in (raw[:-1], raw.replace(b'"token"', b'"\\u0074oken"'), raw + b"}", raw[:-2] + b',"token":1}}'):
                await boss.send(broken, key="work_request")
            await boss.send(
                raw.replace(b'"parameters": {}', b'"parameters": {"x": "%b"}' % (b"y" * 9_000_000)), key="work_request"
            )
            await infra.send(
                {"agent_id": "infra", "agent_type": "infra", "supported_versions": ["1.0"]}, key="register"
            )
            await eventually(lambda: asyncio.to_thread(lambda: len(host.peek("chiffon.dead")) >= 10))
            await asyncio.to_thread(until, lambda: hub.admin.get("/api/v1/agents/infra").json["status"] != "offline")
            waiting = [
                json.dumps(message)
                for queue in ("chiffon.dead", "chiffon.agent.orchestrator", "chiffon.agent.infra")
                for message in await asyncio.to_thread(host.peek, queue)
            ]
        assert await asyncio.to_thread(hub.stop) == 0
        said = hub.log.read_text()
    assert "Traceback" not in said
    stored = b"".join(path.read_bytes() for path in hub.data.rglob("*") if path.is_file())
    for secret in (*tokens.values(), stranger):
        assert not [one for one in waiting if secret in one]
        assert secret not in said
        assert secret.encode() not in stored
    assert "guest:guest" not in said


# -- overload


async def test_what_the_hub_cannot_take_now_waits_unacknowledged_and_is_decided_in_its_place(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its store fails, the hub answers nothing, acknowledges nothing and puts nothing back."""
    failing = True
    apply = MemoryStore._apply

    async def fail(self: MemoryStore, changes: Changes) -> None:
        if failing:
            raise StoreFailed("the disk is full")
        await apply(self, changes)

    async with (
        playing(tmp_path, amqp=host.url) as hub,
        joined(host.url, hub, "orchestrator") as boss,
        joined(host.url, hub, "infra") as infra,
    ):
        await eventually(lambda: connected(hub))
        await infra.registered("infra")
        await boss.consume()
        await boss.send(work())
        got = await infra.hear()
        monkeypatch.setattr(MemoryStore, "_apply", fail)
        for percent in (10, 20, 30):
            await infra.send(status(got, percent))
        await infra.send(result(got))
        await eventually(lambda: gauge_is(hub, "dragoman_amqp_held", 4))
        assert await gauge_is(hub, "dragoman_amqp_unacknowledged", 4)
        failing = False
        heard = [await boss.hear() for _ in range(4)]
        assert [one["payload"].get("progress_percent") for one in heard] == [10, 20, 30, None]
        assert infra.came.empty()
        assert await is_settled(host, (await hub.admin.get("/metrics")).text)
        assert not await asyncio.to_thread(host.peek, "chiffon.dead")


async def gauge_is(hub: Stage, name: str, value: int) -> bool:
    return f"{name} {value:.1f}" in (await hub.admin.get("/metrics")).text
