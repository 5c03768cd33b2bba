"""Ours: messages from one agent to another over WebSockets, through `dragoman dev` in a process of its own.

    hub-agentmsg-kept   at least once: the hub has fsynced a message before it is confirmed to the sender and before the
                        receiver has it; the receiver's ACK is committed, too
    hub-agentmsg-once   at most once: the same message with normal priority; nobody confirms it, and nothing is written
                        while its receiver is there

One sender, one receiver, a connection and a process each; who has what in flight is as with the peer (bench/post.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from bench.cast import Office
from bench.figures import Figure, Settings
from bench.hub import hub, uuid4
from bench.load import Meter, WsConnection, ws_connect
from bench.post import HEAD, ID, Letters, Receipts, Window, exchange, seat

PRIORITIES = {"kept": "high", "once": "normal"}
"""TASK_UPDATE is normal by itself; a sender may ask for more."""


class _Confirmed(msgspec.Struct):
    message_ids: list[str] = []


class _About(msgspec.Struct):
    correlation_id: str = ""


class _Heard(msgspec.Struct):
    type: str
    payload: msgspec.Raw
    metadata: _About


_hear = msgspec.json.Decoder(_Heard).decode
_ids = msgspec.json.Decoder(_Confirmed).decode


async def link(url: str, token: str, hear: Any, lose: Any) -> WsConnection:
    headers = {"authorization": f"Bearer {token}", "sec-websocket-protocol": "agentmsg.v1"}
    return await ws_connect(url.replace("http://", "ws://", 1) + "/agentmsg/ws?acks=many", hear, lose, headers)


class Sender:
    def __init__(
        self, url: str, sender: list[str], receiver: list[str], priority: str, size: int, receipts: int
    ) -> None:
        self._url, self._sender, self._receiver = url, sender, receiver
        self._priority, self._size, self._fd = priority, size, receipts

    async def open(self, meter: Meter, in_flight: int) -> None:
        self._meter = meter
        self._letters = Letters(
            self._size, in_flight, sender=self._sender[0], receiver=self._receiver[0], priority=self._priority
        )
        self._window = Window(meter, in_flight, self._fd, confirmed=self._priority == "high")
        self._link = await link(self._url, self._sender[1], self._hear, meter.lose)

    def _hear(self, frame: bytes) -> None:
        heard = _hear(frame)
        if heard.type == "ACK":
            for id in _ids(heard.payload).message_ids or [heard.metadata.correlation_id]:
                self._window.confirm(*seat(id.encode()))
        elif heard.type == "ERROR_REPORT":
            about = heard.metadata.correlation_id
            if about:
                self._meter.fail(seat(about.encode())[1], frame[:500].decode())
            else:
                self._meter.lose(frame[:500].decode())

    def begin(self, slot: int) -> None:
        self._link.send(self._letters.make(self._window.sent(slot), slot))

    def close(self) -> None:
        self._window.close()
        self._link.close()


class Receiver:
    def __init__(self, url: str, sender: list[str], receiver: list[str], priority: str) -> None:
        self._url, self._me, self._token = url, *receiver
        self._kept = priority == "high"

    async def open(self, receipts: int) -> None:
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        before = (
            f'","timestamp":"{at}","from":"{self._me}","to":"hub","type":"ACK","payload":{{"message_ids":["'.encode()
        )
        after = b'"]},"metadata":{"priority":"normal","retry_count":0,"max_retries":0,"correlation_id":"'
        ids: list[bytes] = []

        def acknowledge() -> None:
            if self._kept:
                self._link.send(HEAD + uuid4().encode() + before + b'","'.join(ids) + after + ids[0] + b'"}}')
            ids.clear()

        arrivals = Receipts(receipts, acknowledge)

        def hear(frame: bytes) -> None:
            if not frame.startswith(HEAD) or b'"TASK_UPDATE"' not in frame[:400]:
                raise RuntimeError(f"the receiver was told something else: {frame[:500]!r}")
            ids.append(frame[ID])
            arrivals.arrived(frame[ID])

        def lose(why: str) -> None:
            raise RuntimeError(f"the receiver's link: {why}")

        self._link = await link(self._url, self._token, hear, lose)


def measure(settings: Settings) -> Iterable[Figure]:
    for guarantee, priority in PRIORITIES.items():
        for in_flight in settings.levels:
            # A fresh hub for every point, so that none pays for what the last one left in the store.
            with hub(settings) as (proc, ready):
                office = Office(ready)

                def options(office: Office = office, url: str = ready["http"], priority: str = priority) -> Any:
                    sender, receiver = office.agentmsg(2)
                    return {"url": url, "sender": sender, "receiver": receiver, "priority": priority}

                yield exchange(
                    settings,
                    proc,
                    "bench.agentmsg:Sender",
                    "bench.agentmsg:Receiver",
                    options,
                    suite=f"hub-agentmsg-{guarantee}",
                    in_flight=in_flight,
                )
