"""A closed-loop load generator that costs little itself, in a process of its own.

N operations are in flight at any moment; when one ends the next begins at once. What an operation *is* belongs
to a `Scenario`: it opens its connections, begins an operation for a slot, and tells the meter when that slot's
operation has ended, by whatever road the answer came (same connection, a poll, another socket). So one request
and one reply, and a task that travels client → hub → agent → hub → client, are measured by the same loop.

    from bench.load import measure
    figure = measure("bench.load:HttpPost", {"url": …, "path": "/", "body": …}, suite="echo-http",
                     in_flight=32, settings=settings, server=proc)

runs `python -m bench.load` and returns its figure. HTTP is spoken by hand here (status line, content-length,
nothing else) and only here, where the client must be cheaper than every server it measures; WebSocket by
picows (README: the cheaper of the two by measurement).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

import msgspec
import picows
import uvloop

from bench import procs
from bench.figures import Figure, Settings, median_run, percentile


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the parent asks of the load process."""

    scenario: str
    """`module:Class`, constructed with **options."""
    options: dict[str, Any]
    suite: str
    in_flight: int
    seconds: float
    warmup: float
    group: int = 0
    """Process group whose CPU is charged to the operations; 0: none; -1: the scenario's own children."""
    companion: int = 0
    """Process group of whoever else is a client: its CPU is the client's, too."""


class Meter:
    """Slots, latencies and the measured window. `finish` begins the slot's next operation by itself."""

    def __init__(self, in_flight: int) -> None:
        self.began = array("d", bytes(8 * in_flight))
        self.latencies = array("d")
        self.errors = 0
        self.last_error = ""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begin: Callable[[int], None] = lambda slot: None
        self._clock = time.perf_counter

    def run(self, begin: Callable[[int], None]) -> None:
        self._begin = begin
        for slot in range(len(self.began)):
            self.began[slot] = self._clock()
            begin(slot)

    def finish(self, slot: int, at: float = 0.0) -> None:
        """The operation has ended now, or ended `at` already, by the clock that every process reads."""
        now = self._clock()
        self.latencies.append((at or now) - self.began[slot])
        self.began[slot] = now
        self._begin(slot)

    def fail(self, slot: int, why: str) -> None:
        """Count an operation that was answered wrongly, and go on: a figure with errors is marked as void."""
        self.errors += 1
        self.last_error = why
        self.began[slot] = self._clock()
        self._begin(slot)

    def lose(self, why: str) -> None:
        """A connection is gone: the run cannot be completed honestly."""
        if not self.broken.done():
            self.broken.set_exception(ConnectionError(why))

    def stop(self) -> None:
        self._begin = lambda slot: None


class Scenario(Protocol):
    """One kind of operation. Constructed with the order's options."""

    async def open(self, meter: Meter, in_flight: int) -> None:
        """Connect everything; keep the meter."""

    def begin(self, slot: int) -> None:
        """Send the operation of this slot. Later: meter.finish(slot) or meter.fail(slot, why)."""

    def close(self) -> None:
        """Drop the connections."""


# ---------------------------------------------------------------------------------------------- connections


class HttpConnection(asyncio.Protocol):
    """HTTP/1.1 keep-alive: requests out, (status, body) in, first in first out.

    Only what the measured servers send: a content-length body. Anything else is a lost connection.
    """

    def __init__(self, lose: Callable[[str], None]) -> None:
        self._lose = lose
        self._waiting: deque[Callable[[int, bytes], None]] = deque()
        self._buffer = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def request(self, message: bytes, on_reply: Callable[[int, bytes], None]) -> None:
        self._waiting.append(on_reply)
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while buffer:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            at = buffer.find(b"content-length: ", 0, end)
            if at < 0:
                at = buffer[:end].lower().find(b"content-length: ")
            if at < 0:
                self._lose(f"no content-length in {buffer[:end]!r}")
                return
            stop = end + 4 + int(buffer[at + 16 : buffer.find(b"\r", at)])
            if len(buffer) < stop:
                break
            status, body = int(buffer[9:12]), buffer[end + 4 : stop]
            buffer = buffer[stop:]
            self._waiting.popleft()(status, body)
        self._buffer = buffer

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"connection lost: {exc}")

    def close(self) -> None:
        self._lose = lambda why: None
        self._transport.close()


def http_head(method: str, path: str, host: str, headers: dict[str, str] | None = None) -> bytes:
    """Everything before the content-length's value; a request is head + b"%d\\r\\n\\r\\n" + body."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {host}", "content-type: application/json"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\ncontent-length: ").encode()


async def http_connect(url: str, lose: Callable[[str], None]) -> HttpConnection:
    place = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: HttpConnection(lose), place.hostname, place.port)
    return connection


class WsConnection(picows.WSListener):
    """A WebSocket of text messages; `on_message` gets each one's bytes."""

    def __init__(self, on_message: Callable[[bytes], None], lose: Callable[[str], None]) -> None:
        super().__init__()
        self._on_message = on_message
        self._lose = lose
        self._transport: Any = None

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self._transport = transport

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.CLOSE:
            self._lose(f"closed by the server: {frame.get_close_code()} {frame.get_close_message()!r}")
            transport.disconnect()
        else:
            self._on_message(frame.get_payload_as_bytes())

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        self._lose("connection lost")

    def send(self, message: bytes) -> None:
        self._transport.send(picows.WSMsgType.TEXT, message)

    def close(self) -> None:
        self._lose = lambda why: None
        self._transport.disconnect()


async def ws_connect(
    url: str,
    on_message: Callable[[bytes], None],
    lose: Callable[[str], None],
    headers: dict[str, str] | None = None,
) -> WsConnection:
    _, listener = await picows.ws_connect(lambda: WsConnection(on_message, lose), url, extra_headers=headers or {})
    assert isinstance(listener, WsConnection)
    return listener


# ------------------------------------------------------------------------------------------------ scenarios


class HttpPost:
    """POST one body, await the status. `%(id)s` in the body becomes a fresh 12-digit number each time."""

    def __init__(
        self,
        url: str,
        path: str,
        body: str,
        headers: dict[str, str] | None = None,
        status: int = 200,
        contains: str = "",
        connections: int = 0,
    ) -> None:
        self._url = url
        self._status = status
        self._contains = contains.encode()
        self._wanted = connections
        self._pieces = body.encode().split(b"%(id)s")
        length = sum(map(len, self._pieces)) + 12 * (len(self._pieces) - 1)
        host = urlsplit(url).netloc
        self._pieces[0] = http_head("POST", path, host, headers) + b"%d\r\n\r\n" % length + self._pieces[0]
        self._count = 0
        self._connections: list[HttpConnection] = []
        self._ends: list[Callable[[int, bytes], None]] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        for _ in range(self._wanted or in_flight):
            self._connections.append(await http_connect(self._url, meter.lose))
        self._ends = [self._end(meter, slot) for slot in range(in_flight)]

    def _end(self, meter: Meter, slot: int) -> Callable[[int, bytes], None]:
        def end(status: int, body: bytes) -> None:
            if status == self._status and self._contains in body:
                meter.finish(slot)
            else:
                meter.fail(slot, f"{status} {body[:300]!r}")

        return end

    def begin(self, slot: int) -> None:
        self._count += 1
        message = (b"%012d" % self._count).join(self._pieces)
        self._connections[slot % len(self._connections)].request(message, self._ends[slot])

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class WsEcho:
    """Send a text message, await its echo; the slot travels in its first twelve bytes."""

    def __init__(self, url: str, path: str, size: int, connections: int = 0) -> None:
        self._url = url.replace("http://", "ws://", 1) + path
        self._wanted = connections
        self._filling = b"x" * (size - 12)
        self._connections: list[WsConnection] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        def on_message(message: bytes) -> None:
            meter.finish(int(message[:12]))

        for _ in range(self._wanted or in_flight):
            self._connections.append(await ws_connect(self._url, on_message, meter.lose))

    def begin(self, slot: int) -> None:
        self._connections[slot % len(self._connections)].send(b"%012d" % slot + self._filling)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


# ------------------------------------------------------------------------------------------------- the loop


async def closed_loop(scenario: Scenario, order: Order) -> Figure:
    """Open, warm up, measure for `seconds`, stop. Only what ended inside the window counts."""
    meter = Meter(order.in_flight)
    await scenario.open(meter, order.in_flight)
    gc.freeze()
    meter.run(scenario.begin)
    await _elapse(order.warmup, meter)

    first, errors = len(meter.latencies), meter.errors
    client, server, beside = time.process_time(), _usage(order.group), procs.group_usage(order.companion)
    start = time.perf_counter()
    await _elapse(order.seconds, meter)
    seconds = time.perf_counter() - start
    last = len(meter.latencies)
    client, after = time.process_time() - client, _usage(order.group)
    companion = procs.total(procs.group_usage(order.companion)).cpu - procs.total(beside).cpu
    errors = meter.errors - errors

    meter.stop()
    scenario.close()
    if meter.errors:
        print(f"{order.suite}: {meter.errors} errors, the last: {meter.last_error}", file=sys.stderr)

    window = sorted(meter.latencies[first:last])
    count = max(1, len(window))
    cpu = {pid: usage.cpu - (server[pid].cpu if pid in server else 0.0) for pid, usage in after.items()}
    leader = cpu.get(order.group, 0.0)
    return Figure(
        suite=order.suite,
        in_flight=order.in_flight,
        rate=len(window) / seconds,
        p50=percentile(window, 0.50) * 1e6,
        p99=percentile(window, 0.99) * 1e6,
        server_cpu=sum(cpu.values()) / count * 1e6,
        client_cpu=(client + companion) / count * 1e6,
        rss_mb=procs.total(after).rss / 1e6,
        # A window in which nothing ended is not a slow one, it is a broken one.
        errors=errors if window else max(1, errors),
        operations=len(window),
        # The hub's own process, without its helpers; and how busy the two sides were (1.0 = a whole core).
        extra={
            "leader_cpu": leader / count * 1e6,
            "server_busy": sum(cpu.values()) / seconds,
            "client_busy": client / seconds,
            **({"companion_busy": companion / seconds} if order.companion else {}),
        },
    )


def _usage(group: int) -> dict[int, procs.Usage]:
    if group != -1:
        return procs.group_usage(group)
    found = procs.group_usage(os.getpgrp())
    found.pop(os.getpid(), None)
    return found


async def _elapse(seconds: float, meter: Meter) -> None:
    done, _ = await asyncio.wait([meter.broken], timeout=seconds)
    if done:
        meter.broken.result()


def measure(
    scenario: str,
    options: dict[str, Any],
    *,
    suite: str,
    in_flight: int,
    settings: Settings,
    server: procs.Proc | Literal["children"] | None = None,
    interpreter: str = sys.executable,
    companion: procs.Proc | None = None,
    pass_fds: Sequence[int] = (),
) -> Figure:
    """Run the scenario in load processes of its own, `settings.repeats` times; the run of median rate."""
    order = Order(
        scenario=scenario,
        options=options,
        suite=suite,
        in_flight=in_flight,
        seconds=settings.seconds,
        warmup=settings.warmup,
        group=-1 if server == "children" else server.group if server else 0,
        companion=companion.group if companion else 0,
    )
    timeout = settings.seconds + settings.warmup + 30
    runs = [
        msgspec.convert(
            procs.ask("bench.load", order, timeout=timeout, interpreter=interpreter, pass_fds=pass_fds), Figure
        )
        for _ in range(settings.repeats)
    ]
    return median_run(runs)


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    module, _, name = order.scenario.partition(":")
    scenario = getattr(importlib.import_module(module), name)(**order.options)
    figure = uvloop.run(closed_loop(scenario, order))
    print(msgspec.json.encode(figure).decode(), flush=True)


if __name__ == "__main__":
    main()
