"""The two sides of a streaming fleet, each in a process of its own: coven agents that stream, callers that read.

    python -m bench.fleet_load agents '{…}'     connects them, says how many, streams whatever it is asked for
    python -m bench.fleet_load callers '{…}'    one task for each agent, reads it to its end, prints a Figure

A task's text is "RATE SECONDS". The agent answers with pieces of text, `number:microseconds:filling;`, made on the
clock all processes of a machine share, RATE a second whatever becomes of them; the last one is marked. A caller
knows by the numbers whether one is missing or came twice, by the times how long each was under way, and by the mark
that it has seen the end.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench import procs
from bench.coven_load import CovenAgent
from bench.figures import Figure, percentile
from bench.hub import uuid4
from bench.load import WsConnection, ws_connect
from bench.readers import LAST, Ledger, Reader, SseReader, now
from bench.streams import coven_types

FILLING = "the quick brown fox jumps"
SETTLING = 1.0
"""Seconds at either end of a run that count neither for CPU nor for latency: everybody starts and stops then."""
PATIENCE = 20.0
"""Seconds after the last piece was made in which it must have arrived."""

_decode = msgspec.json.Decoder().decode


# --------------------------------------------------------------------------------------------------- agents


class Cast(msgspec.Struct, frozen=True):
    grpc: str
    agents: list[tuple[str, str]]


async def agents(cast: Cast) -> None:
    types = coven_types()
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()

    def lose(why: str) -> None:
        if not lost.done():
            lost.set_exception(ConnectionError(why))

    def work(agent: CovenAgent, order: Any) -> None:
        rate, seconds = map(float, order.content.split())
        count, start = int(rate * seconds), loop.time()

        def piece(number: int) -> None:
            last = number == count - 1
            text = f"{number}:{now()}:{LAST if last else FILLING};"
            agent.say(request_id=order.request_id, text=text)
            if last:
                agent.say(request_id=order.request_id, done=types.Done())
            else:
                loop.call_at(start + (number + 1) / rate, piece, number + 1)

        piece(0)

    fleet = [CovenAgent(cast.grpc, id, token, types, work, lose) for id, token in cast.agents]
    for agent in fleet:
        await agent.welcomed()
    print(msgspec.json.encode({"agents": len(fleet)}).decode(), flush=True)
    await lost


# -------------------------------------------------------------------------------------------------- callers


class Order(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    admin_token: str
    caller_token: str
    agents: list[str]
    suite: str
    rate: float
    seconds: float
    group: int
    """The hub's process group."""
    restless: int = 10
    """Every so many-th reader over SSE leaves again and again, and comes back with Last-Event-ID."""


async def callers(order: Order) -> Figure:
    ledger = Ledger(len(order.agents))
    half = len(order.agents) // 2
    text = f"{order.rate} {order.seconds}"
    readers: dict[str, Reader] = {}
    link = await _websocket(order, readers, ledger)
    start, client = time.perf_counter(), time.process_time()
    before = asyncio.get_running_loop().create_task(_sample(order, SETTLING))
    after = asyncio.get_running_loop().create_task(_sample(order, order.seconds - SETTLING))
    async with _Office(order) as office:
        for number, agent in enumerate(order.agents):
            if number < half:
                stay = 7 if number % order.restless == 0 else 0
                task = await office.submit(agent, text)
                path = f"/api/v1/tasks/{task}/events"
                await SseReader(path, order.admin_token, Reader(ledger), ledger, stay).connect(order.url)
            else:
                task = uuid4()
                readers[task] = Reader(ledger)
                link.send(_work_request(task, agent, text))
    await asyncio.wait_for(ledger.all_ended, order.seconds + PATIENCE)
    took, client = time.perf_counter() - start, time.process_time() - client
    link.close()
    return _figure(order, ledger, await before, await after, took, client)


async def _sample(order: Order, at: float) -> tuple[int, dict[int, procs.Usage]]:
    await asyncio.sleep(at)
    return now(), procs.group_usage(order.group)


def _figure(
    order: Order,
    ledger: Ledger,
    before: tuple[int, dict[int, procs.Usage]],
    after: tuple[int, dict[int, procs.Usage]],
    took: float,
    client: float,
) -> Figure:
    (first, usage), (last, then) = before, after
    window = [(made, got) for made, got in ledger.times if first <= made < last]
    delays = sorted(got - made for made, got in window)
    seconds = (last - first) / 1e6
    cpu = {pid: used.cpu - usage[pid].cpu for pid, used in then.items() if pid in usage}
    in_time = sum(first <= got < last for _, got in ledger.times)
    return Figure(
        suite=order.suite,
        rate=in_time / seconds,
        p50=percentile(delays, 0.50),
        p99=percentile(delays, 0.99),
        server_cpu=sum(cpu.values()) / max(1, in_time) * 1e6,
        client_cpu=client / max(1, len(ledger.times)) * 1e6,
        rss_mb=procs.total(then).rss / 1e6,
        errors=ledger.lost + ledger.doubled,
        operations=len(window),
        extra={
            "offered_a_second": order.rate * len(order.agents),
            "lost": ledger.lost,
            "doubled": ledger.doubled,
            "resumed": ledger.resumed,
            "pieces_an_event": len(ledger.times) / max(1, ledger.events),
            "hub_busy": cpu.get(order.group, 0.0) / seconds,
            "hub_and_writer_busy": sum(cpu.values()) / seconds,
            "callers_busy": client / took,
        },
    )


# ------------------------------------------------------------------------------------- how callers hand in


class _Office:
    """Submits tasks over one HTTP connection."""

    def __init__(self, order: Order) -> None:
        self._order = order

    async def __aenter__(self) -> _Office:
        place = urlsplit(self._order.url)
        self._in, self._out = await asyncio.open_connection(place.hostname, place.port)
        return self

    async def submit(self, agent: str, text: str) -> str:
        body = msgspec.json.encode({"type": "chat", "agent": agent, "input": {"content": text}})
        self._out.write(
            b"POST /api/v1/tasks HTTP/1.1\r\nhost: hub\r\ncontent-type: application/json\r\n"
            + f"authorization: Bearer {self._order.admin_token}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._in.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        said = await self._in.readexactly(length)
        if not head.startswith(b"HTTP/1.1 202"):
            raise RuntimeError(f"{head[:40]!r} {said[:300]!r}")
        task: str = _decode(said)["id"]
        return task

    async def __aexit__(self, *_: object) -> None:
        self._out.close()


async def _websocket(order: Order, readers: dict[str, Reader], ledger: Ledger) -> WsConnection:
    """One chiffon WebSocket for all who read that way. Acknowledgments ride together, as in bench/hub.py."""
    loop, acks = asyncio.get_running_loop(), list[str]()
    link: WsConnection

    def flush() -> None:
        link.send(msgspec.json.encode({"ack": acks}))
        acks.clear()

    def hear(frame: bytes) -> None:
        message = _decode(frame)
        delivery = message.get("x_custom_fields", {}).get("delivery_id")
        if delivery:
            if not acks:
                loop.call_soon(flush)
            acks.append(delivery)
        reader = readers.get(message["payload"].get("task_id", ""))
        if message["type"] == "error":
            ledger.lose(f"{message['payload']}")
        elif reader and message["type"] == "work_status":
            reader.heard((message["payload"].get("step") or {}).get("output") or "")
        elif reader and message["type"] == "work_result":
            reader.ended()

    url = order.url.replace("http://", "ws://", 1) + "/api/agent/ws"
    headers = {"authorization": f"Bearer {order.caller_token}", "sec-websocket-protocol": "chiffon.v1"}
    link = await ws_connect(url, hear, ledger.lose, headers)
    return link


def _work_request(task: str, agent: str, text: str) -> bytes:
    return msgspec.json.encode(
        {
            "protocol_version": "1.0",
            "message_id": uuid4(),
            "from_agent": "orchestrator",
            "to_agent": agent.partition("-")[0],
            "timestamp": "2026-01-19T04:21:04Z",
            "trace_id": uuid4(),
            "request_id": uuid4(),
            "type": "work_request",
            "payload": {"task_id": task, "work_type": "chat", "parameters": {"content": text}},
            "x_custom_fields": {"agent_id": agent},
        }
    )


def main() -> None:
    roles: dict[str, Callable[[], Any]] = {
        "agents": lambda: agents(msgspec.json.decode(sys.argv[2], type=Cast)),
        "callers": lambda: callers(msgspec.json.decode(sys.argv[2], type=Order)),
    }
    figure = uvloop.run(roles[sys.argv[1]]())
    print(msgspec.json.encode(figure).decode(), flush=True)


if __name__ == "__main__":
    main()
