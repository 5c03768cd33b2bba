"""Chiffon over a message queue: a fleet on RabbitMQ, by the document and by the SDK."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import trustme
import websockets

from dragoman import Agent, Client, DragomanError, NotAllowed, RequestRefused, Task, TaskCancelled
from dragoman.amqp import Broker, Lost, place_of
from dragoman.security import trust
from tests.bridge.players.stage import Stage, playing
from tests.support import rabbitmq
from tests.support.amqp_agent import PATIENCE, QueueAgent, result, status, work
from tests.support.rabbitmq import Host


@pytest.fixture
def host() -> Any:
    with rabbitmq.host() as made:
        yield made


@pytest.fixture
async def hub(tmp_path: Path, host: Host) -> AsyncIterator[Stage]:
    async with playing(tmp_path, amqp=host.url) as stage:
        await eventually(lambda: connected(stage))
        yield stage


Join = Callable[..., Awaitable[QueueAgent]]


@pytest.fixture
async def join(hub: Stage, host: Host) -> AsyncIterator[Join]:
    async with AsyncExitStack() as held:

        async def make(id: str, **options: Any) -> QueueAgent:
            agent = QueueAgent(host.url, id, await hub.add(id, "chiffon"), **options)
            return await held.enter_async_context(agent)

        yield make


async def eventually(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await look()):
            await asyncio.sleep(0.02)
    return found


async def connected(hub: Stage) -> bool:
    return "dragoman_amqp_connected 1.0" in (await hub.admin.get("/metrics")).text


async def idle(hub: Stage, id: str) -> bool:
    return (await hub.get(f"agents/{id}"))["status"] == "idle"


def sdk(host: Host) -> str:
    return host.url.replace("amqp://", "chiffon+amqp://")


def dead(host: Host) -> list[dict[str, Any]]:
    return host.peek("chiffon.dead")


@pytest.mark.requirement("CH-AUT-3")
@pytest.mark.requirement("chiffon-D10")
@pytest.mark.requirement("chiffon-D10-amqp")
@pytest.mark.parametrize("in_field", [False, True], ids=["header", "field"])
async def test_work_goes_through_queues_with_the_token_in_a_header_or_a_field(join: Join, in_field: bool) -> None:
    boss = await (await join("orchestrator", in_field=in_field)).consume()
    infra = await join("infra", in_field=in_field)
    await infra.consume()
    await infra.send({"agent_id": "infra", "agent_type": "infra", "supported_versions": ["1.0"]}, key="register")
    request = work(playbook="a.yml")
    await boss.send(request)

    got = await infra.hear()
    assert (got["request_id"], got["payload"]) == (request["request_id"], request["payload"])
    assert "token" not in got["x_custom_fields"]
    await infra.send(status(got, 20))
    await infra.send(result(got, "deployed"))

    first, last = await boss.hear(), await boss.hear()
    assert (first["type"], first["payload"]["progress_percent"]) == ("work_status", 20)
    assert (last["type"], last["payload"]["output"]) == ("work_result", "deployed")
    assert last["trace_id"] == request["trace_id"]


@pytest.mark.requirement("chiffon-D5-amqp")
async def test_a_sender_that_names_a_reply_queue_gets_a_receipt_after_the_commit(hub: Stage, join: Join) -> None:
    boss = await join("orchestrator")
    await join("infra")
    request = work()
    assert await boss.ask(None, request) == {"accepted": [request["message_id"]]}
    assert (await hub.task(request["payload"]["task_id"]))["status"] == "queued"


@pytest.mark.requirement("CH-AUT-4")
async def test_a_message_without_a_valid_token_is_answered_5004_and_kept_without_it(
    hub: Stage, join: Join, host: Host
) -> None:
    boss = await join("orchestrator")
    wrong = "f" * 32
    answer = await boss.ask(None, work(), token=wrong)
    assert (answer["type"], answer["payload"]["error_code"]) == ("error", 5004)
    (kept,) = await eventually(lambda: asyncio.to_thread(dead, host))
    assert kept["properties"]["headers"]["x-refused"] == "unauthenticated"
    assert wrong not in json.dumps(kept)


async def test_a_refused_message_goes_to_its_senders_queue_as_an_error_and_to_the_dead(join: Join, host: Host) -> None:
    boss = await (await join("orchestrator", in_field=True)).consume()
    request = work("nobody-here")
    await boss.send(request)
    error = await boss.hear()
    assert (error["type"], error["payload"]["error_code"]) == ("error", 5002)
    assert error["x_custom_fields"]["refused_message_id"] == request["message_id"]
    (kept,) = await eventually(lambda: asyncio.to_thread(dead, host))
    assert json.loads(kept["payload"]) == request
    assert boss.token not in json.dumps(kept)
    assert kept["properties"]["headers"]["x-agent-id"] == "orchestrator"


async def test_an_agent_is_offline_when_nobody_consumes_its_queue_and_gets_its_work_when_it_is_back(
    hub: Stage, join: Join
) -> None:
    infra = await (await join("infra")).registered("infra")
    assert await idle(hub, "infra")
    await infra.queue.cancel(infra.consumer)
    await eventually(lambda: status_is(hub, "infra", "offline"))
    await infra.consume()  # says nothing: the hub looks
    await eventually(lambda: idle(hub, "infra"))


async def status_is(hub: Stage, id: str, status: str) -> bool:
    return bool((await hub.get(f"agents/{id}"))["status"] == status)


async def test_a_websocket_takes_the_place_of_the_queue_until_it_ends(hub: Stage, join: Join) -> None:
    boss = await (await join("orchestrator")).consume()
    infra = await (await join("infra")).registered("infra")
    headers = {"authorization": f"Bearer {infra.token}"}
    async with websockets.connect(f"{hub.ws}/api/agent/ws", additional_headers=headers, proxy=None) as socket:
        await boss.send(work(way="websocket"))
        async with asyncio.timeout(PATIENCE):
            first = json.loads(await socket.recv())
        await socket.send(json.dumps(result(first)))
        assert (await boss.hear())["type"] == "work_result"
    await eventually(lambda: idle(hub, "infra"))
    await boss.send(work(way="queue"))
    second = await infra.hear()
    assert [one["payload"]["parameters"]["way"] for one in (first, second)] == ["websocket", "queue"]


async def test_a_task_is_cancelled_through_the_queue(hub: Stage, join: Join) -> None:
    boss = await (await join("orchestrator")).consume()
    infra = await (await join("infra")).registered("infra")
    request = work()
    await boss.send(request)
    await infra.hear()
    answer = await boss.ask("cancel", {"task_id": request["payload"]["task_id"], "reason": "no need"})
    assert answer == {"task_id": request["payload"]["task_id"], "status": "cancelled"}
    stop = await infra.hear()
    assert (stop["type"], stop["payload"]["error_code"]) == ("error", 5900)
    assert (await infra.ask("cancel", {"task_id": "none"}))["payload"]["error_code"] == 5003


async def test_a_classic_queue_is_refused_with_what_to_do(join: Join) -> None:
    infra = await join("infra")
    channel = await infra.connection.channel()
    await channel.declare_queue("chiffon.agent.infra", durable=True)
    answer = await infra.ask("listen", {})
    assert "is not a durable quorum queue" in answer["payload"]["error_message"]


async def test_a_hub_whose_own_queue_is_classic_serves_without_a_broker_and_says_so(tmp_path: Path, host: Host) -> None:
    connection = await aio_pika.connect(host.url)
    async with connection:
        await (await connection.channel()).declare_queue("chiffon.hub", durable=True)
    async with playing(tmp_path, amqp=host.url) as hub:
        ready = await hub.http.get("/readyz")
        assert ready.status_code == 200
        assert "without a connection to the broker" in ready.json()["detail"]
        assert not await connected(hub)


# -- the SDK


async def test_agents_and_clients_of_the_sdk_work_over_a_broker(hub: Stage, host: Host) -> None:
    agent = Agent("worker", token=await hub.add("worker", "chiffon"))

    @agent.task("double")
    async def double(n: int) -> int:
        return 2 * n

    @agent.task("long")
    async def long() -> str:
        return "0123456789" * 150_000

    @agent.task("wait")
    async def wait(task: Task) -> None:
        await task.progress(10, "waiting")
        await asyncio.Event().wait()

    serving = asyncio.ensure_future(agent.serve(sdk(host)))
    try:
        await eventually(lambda: idle(hub, "worker"))
        async with asyncio.timeout(PATIENCE):
            async with Client(sdk(host), id="boss", token=await hub.add("boss", "chiffon")) as client:
                assert await client.call("worker", "double", n=4) == 8
                assert await client.call("worker", "long") == "0123456789" * 150_000
                calls = (client.call("worker", "double", n=n) for n in range(100))
                assert await asyncio.gather(*calls) == [2 * n for n in range(100)]
                with pytest.raises(RequestRefused, match="No agent is called 'nobody'"):
                    await client.call("nobody", "double")
                handle = await client.submit("worker", "wait")
                await eventually(lambda: status_is(hub, "worker", "busy"))
                await handle.cancel()
                with pytest.raises(TaskCancelled):
                    await handle.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert {one["type"] for one in host.queues().values()} == {"quorum"}


async def test_an_agent_that_leaves_is_offline_at_once(hub: Stage, host: Host) -> None:
    agent = Agent("worker", token=await hub.add("worker", "chiffon"))
    agent.on("work")(lambda: 1)
    serving = asyncio.ensure_future(agent.serve(sdk(host)))
    await eventually(lambda: idle(hub, "worker"))
    agent.stop()
    await asyncio.wait_for(serving, PATIENCE)
    assert await status_is(hub, "worker", "offline")


async def test_an_agent_whose_token_is_wrong_or_replaced_ends(hub: Stage, host: Host) -> None:
    token = await hub.add("worker", "chiffon")
    wrong = Agent("worker", token="f" * 32)
    wrong.on("work")(lambda: 1)
    with pytest.raises(NotAllowed, match="5004"):
        await asyncio.wait_for(wrong.serve(sdk(host)), PATIENCE)
    agent = Agent("worker", token=token)
    agent.on("work")(lambda: 1)
    serving = asyncio.ensure_future(agent.serve(sdk(host)))
    await eventually(lambda: idle(hub, "worker"))
    assert (await hub.admin.post("/api/v1/agents/worker/token")).is_success
    with pytest.raises(NotAllowed, match="replaced"):
        await asyncio.wait_for(serving, PATIENCE)
    assert await status_is(hub, "worker", "offline")


@pytest.mark.requirement("chiffon-D5-amqp")
async def test_the_brokers_confirm_settles_a_notice_and_never_work(hub: Stage, join: Join) -> None:
    boss = await (await join("orchestrator")).consume()
    infra = await (await join("infra")).registered("infra")
    request = work()
    await boss.send(request)
    await infra.hear()
    assert await waiting(hub) == 1  # the work, that its queue has: the agent has not begun
    await infra.send(status(request, 5))
    await boss.hear()
    await eventually(lambda: none_waits(hub))


async def waiting(hub: Stage) -> float:
    """The deliveries that the hub has not settled."""
    lines = (await hub.admin.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("dragoman_deliveries{"))


async def none_waits(hub: Stage) -> bool:
    return await waiting(hub) == 0


# -- TLS


@asynccontextmanager
async def tls_before(host: Host, oldest: ssl.TLSVersion, newest: ssl.TLSVersion) -> AsyncIterator[tuple[str, Path]]:
    """The broker behind TLS of these versions; its address, and the CA to trust."""
    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = oldest, newest
    ca.issue_cert("localhost", "127.0.0.1").configure_cert(context)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", host.broker.port)
        await asyncio.gather(pump(reader, onward_writer), pump(onward_reader, writer))

    server = await asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    with ca.cert_pem.tempfile() as file:
        port = server.sockets[0].getsockname()[1]
        yield f"amqps://guest:guest@localhost:{port}/{host.name}", Path(file)
    server.close()


async def test_over_amqps_the_hub_and_the_sdk_check_the_brokers_certificate(
    tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        tls_before(host, ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3) as (url, ca),
        playing(tmp_path, amqp=url, amqp_ca=str(ca)) as hub,
    ):
        await eventually(lambda: connected(hub))
        agent = Agent("worker", token=await hub.add("worker", "chiffon"), give_up_after=0)
        agent.on("work")(lambda: 1)
        address = url.replace("amqps://", "chiffon+amqps://")
        with pytest.raises(DragomanError, match=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            await asyncio.wait_for(agent.serve(address), PATIENCE)
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        async with Client(address, id="boss", token=await hub.add("boss", "chiffon")) as client:
            with pytest.raises(RequestRefused, match="No agent is called 'nobody'"):
                await asyncio.wait_for(client.call("nobody", "work"), PATIENCE)


async def test_a_broker_that_speaks_no_tls_1_3_is_not_connected_to(tmp_path: Path, host: Host) -> None:
    async with (
        tls_before(host, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2) as (url, ca),
        playing(tmp_path, amqp=url, amqp_ca=str(ca)) as hub,
    ):
        assert "without a connection to the broker" in (await hub.http.get("/readyz")).json()["detail"]
        with pytest.raises(Lost):
            await Broker.connect(place_of(url), tls=trust.context(environ={trust.CA: str(ca)}), name="test")
        assert not await connected(hub)
