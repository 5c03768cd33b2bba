"""A backlog: a million messages in ten thousand lanes wait for an agent that was not there, and then it comes.

`hub-lanes-N` is one claim with N waiting: the agent polls for one message and has it (its lease is committed); then it
acknowledges it, and somebody writes another, so that the backlog stands. Neither of these two is in the time. A small
backlog of equally long lanes stands in a second hub beside, and claims go to the two in turns, so that whatever else
the machine does hits both.

    overtake_ms   the slowest of some critical messages, from when its sender began to send it until the agent that
                  polls has it, past everything that waits
    rss_mb_…      the hub's processes: once they serve, and after all this

The backlog is put into the store through the hub's own adapter, in the rows that `core.delivery.direct_messages` makes
of kept messages about tasks that agents have among themselves; then a real hub starts on it.

    python -m bench lanes --messages 20000 --lanes 200      in seconds
"""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench import procs
from bench.cast import Office
from bench.figures import Figure, Settings, percentile
from bench.hub import hub, uuid4
from bench.post import Letters
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId, uuid7
from dragoman.core.model.deliveries import Delivery, DirectMessage, MessageKind
from dragoman.core.ports import Changes
from dragoman.core.rules import Rules
from dragoman.stores.sqlite.store import SqliteStore

SMALL = 1_000
CLAIMS = 400
CRITICAL = 20
BATCH = 5_000


class Backlog:
    """A hub with so many messages waiting for one agent."""

    def __init__(self, settings: Settings, messages: int, lanes: int, stack: ExitStack) -> None:
        self.messages = messages
        place = Path(settings.data or procs.ROOT / "bench" / "results")
        place.mkdir(parents=True, exist_ok=True)
        data = tempfile.mkdtemp(prefix="lanes-", dir=place)
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        with hub(settings, data=data) as (_, ready):
            sender, receiver = Office(ready).agentmsg(2)
        began = time.monotonic()
        asyncio.run(fill(Path(data, "hub.sqlite"), sender[0], receiver[0], settings.body, messages, lanes))
        self.filled_s = time.monotonic() - began
        self._proc, ready = stack.enter_context(hub(settings, data=data))
        self.start_ms = ready["start_ms"]
        self._sender, self._receiver = Agent(ready["http"], sender), Agent(ready["http"], receiver)
        self._letters = Letters(settings.body, lanes, sender=sender[0], receiver=receiver[0], priority="high")
        self._lanes = lanes
        self._turn = 0
        self.rss_before = self._proc.usage().rss / 1e6
        self.claims: list[float] = []
        self.overtakes: list[float] = []

    def claim(self) -> None:
        began = time.perf_counter()
        (taken,) = self._receiver.poll()
        self.claims.append(time.perf_counter() - began)
        self._receiver.acknowledge(taken["delivery_id"])
        self._turn += 1
        self._sender.write(self._letters.make(self._turn, self._turn % min(self._lanes, 1 << 16)))

    def overtake(self) -> None:
        """A critical message to the head of everything."""
        id = uuid4()
        began = time.perf_counter()
        self._sender.write(critical(id, self._sender.id, self._receiver.id))
        (taken,) = self._receiver.poll()
        self.overtakes.append(time.perf_counter() - began)
        if taken["message"]["id"] != id:
            raise RuntimeError(f"a critical message waits behind {taken['message']}")
        self._receiver.acknowledge(taken["delivery_id"])

    def figure(self) -> Figure:
        times = sorted(self.claims)
        return Figure(
            suite=f"hub-lanes-{self.messages}",
            rate=len(times) / sum(times),
            p50=percentile(times, 0.50) * 1e6,
            p99=percentile(times, 0.99) * 1e6,
            operations=len(times),
            rss_mb=self._proc.usage().rss / 1e6,
            extra={
                "overtake_ms": max(self.overtakes) * 1000,
                "rss_mb_before": self.rss_before,
                "rss_mb_after": self._proc.usage().rss / 1e6,
                "start_ms": self.start_ms,
                "filled_s": self.filled_s,
            },
        )


class Agent:
    """An agentmsg agent over HTTP, one request after the other."""

    def __init__(self, url: str, who: list[str]) -> None:
        self.id, token = who
        place = urlsplit(url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        self._headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

    def poll(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("GET", "/agentmsg/messages?wait=10&max=1", None)["messages"]
        return found

    def acknowledge(self, delivery: str) -> None:
        self._ask("POST", "/agentmsg/ack", msgspec.json.encode({"delivery_ids": [delivery]}))

    def write(self, message: bytes) -> None:
        self._ask("POST", "/agentmsg/messages", message)

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        said = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {said[:500]!r}")
        return msgspec.json.decode(said) if said else None


def critical(id: str, sender: str, receiver: str) -> bytes:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report = {
        "error_id": uuid4(),
        "agent_id": sender,
        "error_type": "INTERNAL_ERROR",
        "severity": "low",
        "message": "The index is broken",
        "context": {},
        "recovery_attempts": [],
        "suggested_actions": [],
    }
    return msgspec.json.encode(
        {
            "id": id,
            "timestamp": at,
            "from": sender,
            "to": receiver,
            "type": "ERROR_REPORT",
            "payload": report,
            "metadata": {"priority": "critical", "retry_count": 0, "max_retries": 3},
        }
    )


def measure(settings: Settings) -> Iterable[Figure]:
    small = min(SMALL, settings.messages)
    depth = max(1, settings.messages // settings.lanes)
    with ExitStack() as stack:
        few = Backlog(settings, small, max(1, small // depth), stack)
        many = Backlog(settings, settings.messages, settings.lanes, stack)
        for count, act in ((CLAIMS // 10 if settings.quick else CLAIMS, Backlog.claim), (CRITICAL, Backlog.overtake)):
            for _ in range(count):
                act(few)
                act(many)
        yield few.figure()
        if settings.messages > small:
            yield many.figure()


async def fill(path: Path, sender: str, receiver: str, size: int, messages: int, lanes: int) -> None:
    """`messages` kept messages that lie waiting in `lanes`, written in turns to one after the other."""
    os.umask(0o077)
    store = SqliteStore(path)
    await store.open()
    for start in range(0, messages, BATCH):
        rows = list(waiting(sender, receiver, size, lanes, start, min(start + BATCH, messages)))
        async with store.unit() as unit:
            await unit.commit(Changes(added=rows))
        if start and start % 100_000 == 0:
            print(f"  filled {start:,} of {messages:,}", file=sys.stderr)
    await store.close()


def waiting(sender: str, receiver: str, size: int, lanes: int, first: int, end: int) -> Iterator[Delivery]:
    letters = Letters(size, 1, sender=sender, receiver=receiver, priority="high")
    head_start = dict(Rules().head_start)["high"]
    now = time.time_ns() // 1000 - 60_000_000
    for n in range(first, end):
        body = letters.make(n, 0)
        id, lane = body[7:43].decode(), n % lanes
        at = Instant(now + n)
        yield Delivery(
            id=DeliveryId(uuid7(at, n)),
            task=TaskId(f"~{lane_name(lane)}"),
            receiver=AgentId(receiver),
            seq=n // lanes + 1,
            kind=MessageKind.DIRECT_MESSAGE,
            event=0,
            rank=at - head_start,
            created_at=at,
            head=n < lanes,
            direct_message=DirectMessage(
                sender=AgentId(sender),
                message_id=id,
                kind="TASK_UPDATE",
                digest=blake2b(body, digest_size=32).hexdigest(),
                raw=msgspec.Raw(body),
                protocol="agentmsg",
            ),
        )


def lane_name(lane: int) -> str:
    return f"00000000-0000-4000-8000-{lane:012x}"
