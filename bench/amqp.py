"""Chiffon over RabbitMQ beside bare aio-pika: a request and its result, every message on a disk before it is confirmed.

    amqp-bare     **the peer**: no hub. The client publishes to the worker's quorum queue, the worker to the client's
    amqp-relayed  the same through one more aio-pika process, which takes each message from one queue, publishes it to
                  the next and acknowledges when that is confirmed: as many queues as with the hub, and no task
    hub-amqp      the hub in that place: it commits the task, its result and what was delivered

Client and worker are one load process, aio-pika in all three: persistent messages, publisher confirms, prefetch 256,
an acknowledgment for each message. So the difference is what stands between the queues.
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from collections.abc import Iterable
from typing import Any

import msgspec

from bench import broker, procs
from bench.figures import Figure, Settings
from bench.hub import Tasks, hub, uuid4
from bench.load import Meter
from bench.load import measure as load

PREFETCH = 256
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
_decode = msgspec.json.Decoder().decode


class Queues:
    """A client and a worker. `to_worker` and `to_client` are (exchange, routing key, headers) of their messages;
    `worker` and `client` the queues that they consume."""

    def __init__(
        self, port: int, worker: str, client: str, to_worker: list[Any], to_client: list[Any], size: int
    ) -> None:
        self._port, self._queues, self._ways = port, (worker, client), (to_worker, to_client)
        self._tasks = Tasks(size)

    async def open(self, meter: Meter, in_flight: int) -> None:
        import aio_pika

        self._pika, self._meter = aio_pika, meter
        self._tasks.bind(meter)
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()
        self._connections, self._channels = [], []
        for queue, take in zip(self._queues, (self._work, self._result), strict=True):
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._port}/")
            channel = await connection.channel()
            self._connections.append(connection)
            self._channels.append(channel)
            consuming = await connection.channel()
            await consuming.set_qos(prefetch_count=PREFETCH)
            await (await consuming.declare_queue(queue, durable=True, arguments=QUORUM)).consume(take)
        self._exchanges = [
            await channel.get_exchange(exchange, ensure=False) if exchange else channel.default_exchange
            for channel, (exchange, _, _) in zip(reversed(self._channels), self._ways, strict=True)
        ]
        for channel, (_, _, headers) in zip(reversed(self._channels), self._ways, strict=True):
            if headers:  # the hub opens the links of agents that it hears of
                exchange = await channel.get_exchange("chiffon", ensure=False)
                await exchange.publish(self._message(b"{}", headers), "hub.listen")
        await asyncio.sleep(1.0 if self._ways[0][2] else 0)

    def _message(self, body: bytes, headers: dict[str, str]) -> Any:
        mode = self._pika.DeliveryMode.PERSISTENT
        return self._pika.Message(body, headers=headers or None, message_id=uuid4(), delivery_mode=mode)

    async def _publish(self, way: int, body: bytes) -> None:
        _, key, headers = self._ways[way]
        await self._exchanges[way].publish(self._message(body, headers), key)

    def begin(self, slot: int) -> None:
        task = self._loop.create_task(self._publish(0, self._tasks.order(slot)))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work(self, message: Any) -> None:
        said = _decode(message.body)
        if said["type"] == "work_request":
            await self._publish(1, self._tasks.answer(said))
        await message.ack()

    async def _result(self, message: Any) -> None:
        slot = self._tasks.heard(_decode(message.body))
        await message.ack()
        if slot is not None:
            self._meter.finish(slot)

    def close(self) -> None:
        for task in self._running:
            task.cancel()


RELAY = """
import asyncio, sys
import aio_pika, uvloop
PORT, PAIRS = sys.argv[1], [pair.split(":") for pair in sys.argv[2:]]
async def main():
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{PORT}/")
    for source, target in PAIRS:
        channel, out = await connection.channel(), await connection.channel()
        await channel.set_qos(prefetch_count=256)
        async def take(message, out=out, target=target):
            made = aio_pika.Message(message.body, message_id=message.message_id, delivery_mode=2)
            await out.default_exchange.publish(made, target)
            await message.ack()
        for name in (source, target):
            queue = await channel.declare_queue(name, durable=True, arguments={"x-queue-type": "quorum"})
        queue = await channel.get_queue(source, ensure=False)
        await queue.consume(take)
    print("{}", flush=True)
    await asyncio.Event().wait()
uvloop.run(main())
"""


def agent(ready: dict[str, Any], kind: str) -> str:
    """Add an agent of this kind; its token."""
    body = {"agent_id": f"the-{kind}", "protocol": "chiffon", "kind": kind, "max_concurrent": 1024}
    headers = {"authorization": f"Bearer {ready['admin_token']}", "content-type": "application/json"}
    request = urllib.request.Request(f"{ready['http']}/api/v1/agents", msgspec.json.encode(body), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        token: str = _decode(answer.read())["token"]
        return token


def measure(settings: Settings) -> Iterable[Figure]:
    if not broker.installed():
        print(f"  amqp: {broker.INSTALL}", file=sys.stderr)
        return
    levels = [level for level in settings.levels if level == 32] or settings.levels
    scenario = "bench.amqp:Queues"
    with broker.broker(settings) as (server, port):
        options = {"port": port, "size": settings.body}
        for in_flight in levels:
            ways = {"to_worker": ["", "w1", {}], "to_client": ["", "c1", {}]}
            yield load(
                scenario, {**options, "worker": "w1", "client": "c1", **ways},
                suite="amqp-bare", in_flight=in_flight, settings=settings, server=server,
            )  # fmt: skip
            relay = [sys.executable, "-c", RELAY, str(port), "in-w2:w2", "in-c2:c2"]
            with procs.Proc(relay) as proc:
                proc.ready()
                ways = {"to_worker": ["", "in-w2", {}], "to_client": ["", "in-c2", {}]}
                yield load(
                    scenario, {**options, "worker": "w2", "client": "c2", **ways},
                    suite="amqp-relayed", in_flight=in_flight, settings=settings, server=proc,
                )  # fmt: skip
            with hub(settings, DRAGOMAN_AMQP=f"amqp://guest:guest@127.0.0.1:{port}") as (proc, ready):
                ways = {
                    name: ["chiffon", f"hub.{type}", {"authorization": f"Bearer {agent(ready, kind)}"}]
                    for name, type, kind in (
                        ("to_worker", "work_request", "orchestrator"),
                        ("to_client", "work_result", "infra"),
                    )
                }
                queues = {"worker": "chiffon.agent.the-infra", "client": "chiffon.agent.the-orchestrator"}
                yield load(
                    scenario, {**options, **queues, **ways},
                    suite="hub-amqp", in_flight=in_flight, settings=settings, server=proc,
                )  # fmt: skip
