"""Ours: durable task round trips through a real hub, `dragoman dev` in a process of its own.

One operation is a whole task: the client sends a work_request, the hub commits it and gives it to an agent, the
agent answers with a work_result, the hub commits that and brings it to the client, the client acknowledges it,
and the hub commits that, too. Client and agents live in the load process. Ids are random (version 4), as
strangers' are.

    commits a round trip   WebSocket 3 (request, result, acknowledgment)
                           HTTP      3, and more when a poll finds work waiting (its lease is a commit)
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench import procs, raw_sqlite
from bench.figures import Figure, Settings
from bench.load import HttpConnection, Meter, WsConnection, http_connect, http_head, ws_connect
from bench.load import measure as load

MIX = (
    # the client submits: the task, its request word for word, who got it, the work order, the audit record
    (
        ("insert", "tasks", 950),
        ("insert", "events", 1250),
        ("insert", "events", 120),
        ("insert", "deliveries", 480),
        ("insert", "audit", 420),
    ),
    # the agent answers: the result, the work order is done with, the news for the client, the audit record
    (
        ("update", "tasks", 1000),
        ("insert", "events", 850),
        ("delete", "deliveries", 0),
        ("insert", "deliveries", 480),
        ("insert", "audit", 420),
    ),
    # the client acknowledges
    (("delete", "deliveries", 0),),
)
"""The hub's own rows of a round trip over WebSocket, with the sizes found in its database, for the raw limit."""

ROWS = float(sum(len(step) for step in MIX))

_decode = msgspec.json.Decoder().decode


def uuid4() -> str:
    text = os.urandom(16).hex()
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-8{text[17:20]}-{text[20:]}"


def request(size: int, kind: str = "infra") -> bytes:
    """A work_request of about `size` bytes with four places for ids."""
    head = (
        b'{"protocol_version":"1.0","message_id":"%b","from_agent":"orchestrator","to_agent":"' + kind.encode() + b'",'
        b'"timestamp":"2026-01-19T04:21:04Z","trace_id":"%b","request_id":"%b","type":"work_request",'
        b'"payload":{"task_id":"%b","work_type":"run_playbook","parameters":{"playbook":"deploy_kuma.yml","text":"'
    )
    tail = b'"},"hints":{"max_duration_seconds":300,"max_memory_mb":512}},"x_custom_fields":{}}'
    return head + b"x" * max(1, size - len(head) - len(tail) - 4 * 34) + tail


RESULT = (
    b'{"protocol_version":"1.0","message_id":"%b","from_agent":"infra","to_agent":"orchestrator",'
    b'"timestamp":"2026-01-19T04:22:31Z","trace_id":"%b","request_id":"%b","type":"work_result",'
    b'"payload":{"task_id":"%b","status":"success","exit_code":0,'
    b'"output":"Deployment completed successfully.\\nKuma instance running.\\nMonitored services: 5",'
    b'"resources_used":{"duration_seconds":87,"gpu_vram_mb":0,"cpu_time_ms":12450}}}'
)


class Bystanders:
    """The ids and tokens of the cast, made through the API before the load starts."""

    @staticmethod
    def cast(hub: procs.Proc, ready: dict[str, Any], clients: int, agents: int, kind: str = "infra") -> dict[str, Any]:
        import http.client

        place = urlsplit(ready["http"])
        connection = http.client.HTTPConnection(place.hostname or "", place.port)

        def ask(path: str, body: dict[str, Any], token: str) -> dict[str, Any]:
            headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
            connection.request("POST", path, msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{path}: {answer.status} {said[:300]!r}")
            return msgspec.json.decode(said)

        made: dict[str, list[str]] = {"clients": [], "agents": []}
        for role, type, count in (("clients", "orchestrator", clients), ("agents", kind, agents)):
            for _ in range(count):
                id = f"{type}-{uuid4()[:8]}"
                body = {"agent_id": id, "protocol": "chiffon", "kind": type}
                token = ask("/api/v1/agents", body, ready["admin_token"])["token"]
                made[role].append(token)
                if role == "agents":
                    registration = {
                        "agent_id": id,
                        "agent_type": type,
                        "supported_versions": ["1.0"],
                        "work_types": ["run_playbook"],
                        "limits": {"max_concurrent_tasks": 1024},
                    }
                    ask("/api/agent/register", registration, token)
        connection.close()
        return {"url": ready["http"], **made}


class Tasks:
    """Which slot waits for which task."""

    def __init__(self, size: int, kind: str = "infra") -> None:
        self._request = request(size, kind)
        self._result = RESULT.replace(b'"infra"', b'"%b"' % kind.encode())
        self._slots: dict[str, int] = {}
        self._meter: Meter

    def bind(self, meter: Meter) -> None:
        self._meter = meter

    def order(self, slot: int) -> bytes:
        task = uuid4()
        self._slots[task] = slot
        return self._request % (uuid4().encode(), uuid4().encode(), uuid4().encode(), task.encode())

    def answer(self, order: dict[str, Any]) -> bytes:
        ids = (uuid4(), order["trace_id"], order["request_id"], order["payload"]["task_id"])
        return self._result % tuple(id.encode() for id in ids)

    def heard(self, message: dict[str, Any]) -> int | None:
        """The slot whose task this ends, or None."""
        if message["type"] == "work_result":
            return self._slots.pop(message["payload"]["task_id"], None)
        if message["type"] == "error":
            task = message.get("x_custom_fields", {}).get("task_id")
            slot = self._slots.pop(task, None) if task else None
            if slot is None:
                self._meter.lose(f"{message['payload']}")
            else:
                self._meter.fail(slot, f"{message['payload']}")
        return None


class ChiffonWs:
    """Requests, results and acknowledgments over WebSockets."""

    def __init__(self, url: str, clients: list[str], agents: list[str], size: int, kind: str = "infra") -> None:
        self._url = url.replace("http://", "ws://", 1) + "/api/agent/ws"
        self._tokens = clients, agents
        self._tasks = Tasks(size, kind)
        self._clients: list[WsConnection] = []
        self._agents: list[WsConnection] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._meter = meter
        self._tasks.bind(meter)
        for token in self._tokens[1]:
            self._agents.append(await self._connect(token, self._agent()))
        for token in self._tokens[0]:
            self._clients.append(await self._connect(token, self._client()))

    async def _connect(self, token: str, hear: Callable[[bytes], None]) -> WsConnection:
        headers = {"authorization": f"Bearer {token}", "sec-websocket-protocol": "chiffon.v1"}
        return await ws_connect(self._url, hear, self._meter.lose, headers)

    def _agent(self) -> Callable[[bytes], None]:
        index, tasks = len(self._agents), self._tasks

        def hear(frame: bytes) -> None:
            message = _decode(frame)
            if message["type"] == "work_request":
                self._agents[index].send(tasks.answer(message))
            else:
                tasks.heard(message)

        return hear

    def _client(self) -> Callable[[bytes], None]:
        index, tasks, meter = len(self._clients), self._tasks, self._meter
        loop = asyncio.get_running_loop()
        acks: list[bytes] = []

        def flush() -> None:
            self._clients[index].send(b'{"ack":["' + b'","'.join(acks) + b'"]}')
            acks.clear()

        def hear(frame: bytes) -> None:
            message = _decode(frame)
            slot = tasks.heard(message)
            if slot is not None:
                if not acks:
                    loop.call_soon(flush)
                acks.append(message["x_custom_fields"]["delivery_id"].encode())
                meter.finish(slot)

        return hear

    def begin(self, slot: int) -> None:
        self._clients[slot % len(self._clients)].send(self._tasks.order(slot))

    def close(self) -> None:
        for connection in (*self._clients, *self._agents):
            connection.close()


class ChiffonHttp:
    """Requests and results by POST, work and news by long poll, acknowledgments by POST."""

    def __init__(self, url: str, clients: list[str], agents: list[str], size: int) -> None:
        self._url = url
        self._host = urlsplit(url).netloc
        self._tokens = clients, agents
        self._tasks = Tasks(size)
        self._connections: list[HttpConnection] = []
        self._senders: list[tuple[bytes, HttpConnection]] = []

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._meter = meter
        self._tasks.bind(meter)
        for token in self._tokens[1]:
            outlets = [await self._connect() for _ in range(max(1, min(8, in_flight // len(self._tokens[1]))))]
            self._poll(token, await self._connect(), self._worker(token, outlets))
        for token in self._tokens[0]:
            self._poll(token, await self._connect(), self._reader(token, await self._connect()))
        post = [self._head("POST", "/api/agent/message", token) for token in self._tokens[0]]
        for index in range(in_flight):
            self._senders.append((post[index % len(post)], await self._connect()))

    async def _connect(self) -> HttpConnection:
        connection = await http_connect(self._url, self._meter.lose)
        self._connections.append(connection)
        return connection

    def _head(self, method: str, path: str, token: str) -> bytes:
        return http_head(method, path, self._host, {"authorization": f"Bearer {token}"})

    def _poll(self, token: str, connection: HttpConnection, take: Callable[[list[dict[str, Any]]], None]) -> None:
        again = self._head("GET", "/api/agent/messages?wait=20&max=64", token) + b"0\r\n\r\n"

        def hear(status: int, body: bytes) -> None:
            if status != 200:
                self._meter.lose(f"poll: {status} {body[:300]!r}")
                return
            messages = _decode(body)["messages"]
            connection.request(again, hear)
            if messages:
                take(messages)

        connection.request(again, hear)

    def _worker(self, token: str, outlets: list[HttpConnection]) -> Callable[[list[dict[str, Any]]], None]:
        head = self._head("POST", "/api/agent/message", token)
        turn = 0

        def take(messages: list[dict[str, Any]]) -> None:
            nonlocal turn
            for said in messages:
                if said["message"]["type"] == "work_request":
                    body = self._tasks.answer(said["message"])
                    turn += 1
                    outlets[turn % len(outlets)].request(head + b"%d\r\n\r\n" % len(body) + body, self._accepted)

        return take

    def _reader(self, token: str, outlet: HttpConnection) -> Callable[[list[dict[str, Any]]], None]:
        head = self._head("POST", "/api/agent/ack", token)

        def take(messages: list[dict[str, Any]]) -> None:
            ids = b'","'.join(said["delivery_id"].encode() for said in messages)
            body = b'{"delivery_ids":["' + ids + b'"]}'
            outlet.request(head + b"%d\r\n\r\n" % len(body) + body, self._accepted)
            for said in messages:
                slot = self._tasks.heard(said["message"])
                if slot is not None:
                    self._meter.finish(slot)

        return take

    def _accepted(self, status: int, body: bytes) -> None:
        if status >= 300:
            self._meter.lose(f"{status} {body[:300]!r}")

    def begin(self, slot: int) -> None:
        head, connection = self._senders[slot]
        body = self._tasks.order(slot)
        connection.request(head + b"%d\r\n\r\n" % len(body) + body, self._accepted)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


@contextmanager
def hub(
    settings: Settings, *, data: str | None = None, command: str = "", **environment: str
) -> Iterator[tuple[procs.Proc, dict[str, Any]]]:
    """A fresh hub on a real disk, ready."""
    place = Path(settings.data or procs.ROOT / "bench" / "results")
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hub-", dir=place) as scratch:
        arguments = [
            command or str(procs.ROOT / ".venv/bin/dragoman"),
            "dev",
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--data",
            data or scratch,
            "--ready-json",
        ]
        with procs.Proc(arguments, env={"DRAGOMAN_LOG_LEVEL": "warning", **environment}) as proc:
            ready = proc.ready()
            ready["start_ms"] = (time.perf_counter() - proc.started_at) * 1000
            yield proc, ready


SIDES = {1: 1, 32: 4, 256: 8}
"""Connections on each side, by operations in flight."""


def round_trips(
    settings: Settings, transport: str, in_flight: int, proc: procs.Proc, ready: dict[str, Any], suite: str
) -> Figure:
    sides = SIDES.get(in_flight, 4)
    options = Bystanders.cast(proc, ready, sides, sides)
    scenario = {"ws": "bench.hub:ChiffonWs", "http": "bench.hub:ChiffonHttp"}[transport]
    figure = load(
        scenario,
        {**options, "size": settings.body},
        suite=suite,
        in_flight=in_flight,
        settings=settings,
        server=proc,
    )
    # A lonely task is two exchanges of the hub with the outside before its result is here: request, result.
    return msgspec.structs.replace(figure, extra={**figure.extra, "rows": ROWS, "durable_steps": 2.0, "echoes": 2.0})


def measure(settings: Settings) -> Iterable[Figure]:
    yield from raw_sqlite.measure(settings, mix=MIX, suite="sqlite-hub")
    # What random ids, as strangers choose them, cost a plain schema; for comparison, no target is judged by it.
    yield from raw_sqlite.measure(settings, mix=MIX, suite="sqlite-hub-random", random_keys=True)
    for transport in ("ws", "http"):
        for in_flight in settings.levels:
            with hub(settings) as (proc, ready):
                yield round_trips(settings, transport, in_flight, proc, ready, f"hub-{transport}")
