"""The peer of agentmsg: RabbitMQ, from one process to another, kept until it is acknowledged.

    rabbitmq         **the peer**: a durable classic queue (version 2), persistent messages, publisher confirms, manual
                     acknowledgment, through aio-pika on both sides
    rabbitmq-quorum  the same with a quorum queue (of one member): every message fsynced before it is confirmed
    rabbitmq-bare    the classic queue between bare AMQP frames, as light as the clients that drive the hub: the
                     strictest reading (`bench/bare_amqp.py`)

Its fastest honest form: Debian's package with no plugins, uvloop, as many publishes under way as there may be messages
between the two, prefetch 256, acknowledgments in batches.

What they promise differs. As counted with strace, the classic queue of version 2 confirms what it has written and
leaves the fsync to the system (2 in 9,000 messages); the quorum queue fsyncs first, in groups, as the hub does. And
aio-pika is the larger part of the cost: between bare frames the broker carries several times as many.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

from bench import broker
from bench.figures import Figure, Settings
from bench.hub import uuid4
from bench.load import Meter
from bench.post import ID, Letters, Receipts, Window, exchange

PREFETCH = 256
CLASSIC: dict[str, Any] = {"x-queue-version": 2}
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}


class Producer:
    """`publish` of the default exchange, which returns when the broker has confirmed."""

    def __init__(self, port: int, queue: str, arguments: dict[str, Any], size: int, receipts: int) -> None:
        self._port, self._queue, self._size, self._fd = port, queue, size, receipts

    async def open(self, meter: Meter, in_flight: int) -> None:
        import aio_pika

        self._letters = Letters(self._size, in_flight, sender="builder-1", receiver="reviewer-1", priority="high")
        self._window = Window(meter, in_flight, self._fd, confirmed=True)
        self._message, self._mode = aio_pika.Message, aio_pika.DeliveryMode.PERSISTENT
        self._connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._port}/")
        channel = await self._connection.channel(publisher_confirms=True)
        self._exchange = channel.default_exchange
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()

    def begin(self, slot: int) -> None:
        task = self._loop.create_task(self._publish(slot))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _publish(self, slot: int) -> None:
        turn = self._window.sent(slot)
        message = self._message(self._letters.make(turn, slot), delivery_mode=self._mode)
        await self._exchange.publish(message, self._queue)
        self._window.confirm(turn, slot)

    def close(self) -> None:
        self._window.close()
        for call in self._calls:
            call.cancel()


class Consumer:
    def __init__(self, port: int, queue: str, arguments: dict[str, Any]) -> None:
        self._port, self._queue, self._arguments = port, queue, arguments

    async def open(self, receipts: int) -> None:
        import aio_pika

        loop = asyncio.get_running_loop()
        last: Any = None
        acks: set[asyncio.Task[None]] = set()

        def acknowledge() -> None:
            task = loop.create_task(last.ack(multiple=True))
            acks.add(task)
            task.add_done_callback(acks.discard)

        arrivals = Receipts(receipts, acknowledge)

        async def take(message: Any) -> None:
            nonlocal last
            last = message
            arrivals.arrived(message.body[ID])

        self._connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{self._port}/")
        channel = await self._connection.channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=PREFETCH)
        queue = await channel.declare_queue(self._queue, durable=True, arguments=self._arguments)
        await queue.consume(take)


def _queue(port: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"port": port, "queue": f"bench-{uuid4()}", "arguments": arguments}


SUITES = {
    "rabbitmq": ("bench.peer_rabbitmq", CLASSIC),
    "rabbitmq-quorum": ("bench.peer_rabbitmq", QUORUM),
    "rabbitmq-bare": ("bench.bare_amqp", CLASSIC),
}


def measure(settings: Settings) -> Iterable[Figure]:
    if not broker.installed():
        print(f"  rabbitmq: {broker.INSTALL}", file=sys.stderr)
        return
    with broker.broker(settings) as (server, port):
        for suite, (clients, arguments) in SUITES.items():
            for in_flight in settings.levels:
                yield exchange(
                    settings,
                    server,
                    f"{clients}:Producer",
                    f"{clients}:Consumer",
                    partial(_queue, port, arguments),
                    suite=suite,
                    in_flight=in_flight,
                )
