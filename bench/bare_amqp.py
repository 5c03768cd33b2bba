"""RabbitMQ between clients that cost next to nothing: AMQP 0-9-1 frames put together and taken apart by hand.

aio-pika is a large part of what a message costs that goes through it. These two are as light as the WebSocket clients
that drive the hub, so the broker alone is measured. Only what this exchange needs: pamqp (which aio-pika brings along)
makes the frames of the opening, the loop makes and reads the rest itself.

    frame     type (1) channel (2) size (4) payload 0xCE        types: 1 method, 2 header, 3 body, 8 heartbeat
    publish   method 60,40 | header 60: size, delivery_mode 2 | body
    confirm   method 60,80: tag (8), multiple (1)
    deliver   method 60,60: consumer (short string), tag (8), … | header | body
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

from pamqp import commands, frame

from bench.load import Meter
from bench.post import ID, Letters, Receipts, Window

METHOD, BODY = 1, 3
DELIVER, ACK, CLOSE = (60, 60), (60, 80), (20, 40)
PREFETCH = 256
_FRAME = struct.Struct(">BHI")
_NAME = struct.Struct(">HH")
_TAG = struct.Struct(">Q")


class Line(asyncio.Protocol):
    """A connection with channel 1 open. `on_method(name, arguments)` and `on_body(bytes)` get what comes after that."""

    def __init__(self) -> None:
        self._buffer = b""
        self.transport: Any = None
        self.on_method: Callable[[tuple[int, int], memoryview], None] = self._opening
        self.on_body: Callable[[memoryview], None] = lambda body: None
        self.lose: Callable[[str], None] = lambda why: None
        self._answers: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(f"connection lost: {exc}")

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= 8:
            kind, _, size = _FRAME.unpack_from(data, at)
            stop = at + 8 + size
            if stop > end:
                break
            if kind == METHOD:
                self.on_method(_NAME.unpack_from(data, at + 7), view[at + 11 : stop - 1])
            elif kind == BODY:
                self.on_body(view[at + 7 : stop - 1])
            at = stop
        self._buffer = data[at:]

    def _opening(self, name: tuple[int, int], arguments: memoryview) -> None:
        self._answers.put_nowait(name)

    async def ask(self, method: Any, channel: int = 1) -> None:
        self.transport.write(frame.marshal(method, channel))
        if getattr(method, "synchronous", False):
            await asyncio.wait_for(self._answers.get(), 10)


async def connect(port: int) -> Line:
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(Line, "127.0.0.1", port)
    line.transport.write(b"AMQP\0\0\x09\x01")
    await asyncio.wait_for(line._answers.get(), 10)  # Start
    line.transport.write(
        frame.marshal(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0),
    )
    await asyncio.wait_for(line._answers.get(), 10)  # Tune
    line.transport.write(frame.marshal(commands.Connection.TuneOk(2047, 131072, 0), 0))
    await line.ask(commands.Connection.Open("/"), 0)
    await line.ask(commands.Channel.Open())
    return line


class Producer:
    def __init__(self, port: int, queue: str, arguments: dict[str, Any], size: int, receipts: int) -> None:
        self._port, self._queue, self._size, self._fd = port, queue, size, receipts

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._letters = Letters(self._size, in_flight, sender="builder-1", receiver="reviewer-1", priority="high")
        self._window = Window(meter, in_flight, self._fd, confirmed=True)
        self._line = await connect(self._port)
        await self._line.ask(commands.Confirm.Select())
        length = len(self._letters.make(0, 0))
        properties = struct.pack(">HHQHB", 60, 0, length, 0x1000, 2)
        self._head = (
            frame.marshal(commands.Basic.Publish(exchange="", routing_key=self._queue), 1)
            + _FRAME.pack(2, 1, len(properties))
            + properties
            + b"\xce"
            + _FRAME.pack(BODY, 1, length)
        )
        self._tag = 0
        self._unconfirmed: dict[int, tuple[int, int]] = {}
        self._out: list[bytes] = []
        self._soon = asyncio.get_running_loop().call_soon
        self._line.on_method, self._line.lose = self._hear, meter.lose

    def begin(self, slot: int) -> None:
        turn = self._window.sent(slot)
        self._tag += 1
        self._unconfirmed[self._tag] = turn, slot
        if not self._out:
            self._soon(self._flush)
        self._out += (self._head, self._letters.make(turn, slot), b"\xce")

    def _flush(self) -> None:
        data = b"".join(self._out)
        self._out.clear()
        self._line.transport.write(data)

    def _hear(self, name: tuple[int, int], arguments: memoryview) -> None:
        if name != ACK:
            self._line.lose(f"the broker says {name}: {bytes(arguments)!r}")
            return
        tag = _TAG.unpack_from(arguments)[0]
        tags = [t for t in self._unconfirmed if t <= tag] if arguments[8] & 1 else [tag]
        for found in tags:
            self._window.confirm(*self._unconfirmed.pop(found))

    def close(self) -> None:
        self._window.close()
        self._line.lose = lambda why: None
        self._line.transport.close()


class Consumer:
    def __init__(self, port: int, queue: str, arguments: dict[str, Any]) -> None:
        self._port, self._queue, self._arguments = port, queue, arguments

    async def open(self, receipts: int) -> None:
        line = await connect(self._port)
        await line.ask(commands.Queue.Declare(queue=self._queue, durable=True, arguments=self._arguments))
        await line.ask(commands.Basic.Qos(prefetch_count=PREFETCH))
        last = b""

        def acknowledge() -> None:
            line.transport.write(_FRAME.pack(METHOD, 1, 13) + _NAME.pack(*ACK) + last + b"\x01\xce")

        arrivals = Receipts(receipts, acknowledge)

        def hear(name: tuple[int, int], arguments: memoryview) -> None:
            nonlocal last
            if name == DELIVER:
                start = 1 + arguments[0]
                last = bytes(arguments[start : start + 8])

        await line.ask(commands.Basic.Consume(queue=self._queue))
        line.on_method = hear
        line.on_body = lambda body: arrivals.arrived(bytes(body[ID]))
