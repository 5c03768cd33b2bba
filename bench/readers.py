"""Those who read what a fleet streams, and the ledger in which they note what came, what did not, and when.

A piece is `number:microseconds:filling;`. By its number a reader knows whether one is missing or came twice, by the
time, on the clock that all processes of a machine share, how long it was under way; the last one is marked.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

import msgspec

LAST = "and that was all"

_decode = msgspec.json.Decoder().decode


def now() -> int:
    return time.monotonic_ns() // 1000


class Reader:
    """What came of one task, in whatever pieces of pieces it came."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next = 0
        self._rest = ""
        self.complete = False

    def heard(self, output: str) -> None:
        at_hand, ledger = now(), self._ledger
        ledger.events += 1
        *pieces, self._rest = (self._rest + output).split(";")
        for piece in pieces:
            number, at, filling = piece.split(":")
            if int(number) != self._next:
                ledger.wrong(self._next, int(number))
            self._next = int(number) + 1
            ledger.times.append((int(at), at_hand))
            self.complete = self.complete or filling == LAST

    def ended(self) -> None:
        """The task is final; a piece may not come after that."""
        self._ledger.end(self)


class Ledger:
    def __init__(self, tasks: int) -> None:
        self.times: list[tuple[int, int]] = []
        self.events = 0
        self.lost = 0
        self.doubled = 0
        self.resumed = 0
        self.unfinished = tasks
        self.all_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wrong(self, expected: int, got: int) -> None:
        self.lost += max(0, got - expected)
        self.doubled += got < expected

    def end(self, reader: Reader) -> None:
        self.lost += not reader.complete
        self.unfinished -= 1
        if not self.unfinished and not self.all_ended.done():
            self.all_ended.set_result(None)

    def lose(self, why: str) -> None:
        if not self.all_ended.done():
            self.all_ended.set_exception(ConnectionError(why))


class SseReader(asyncio.Protocol):
    """One task's events over one connection: HTTP/1.1 chunks, `id:` and `data:` lines, nothing else."""

    def __init__(self, path: str, token: str, reader: Reader, ledger: Ledger, stay: int) -> None:
        self._head = f"GET {path} HTTP/1.1\r\nhost: hub\r\nauthorization: Bearer {token}\r\n"
        self._reader, self._ledger, self._stay = reader, ledger, stay
        self._last, self._seen = "", 0
        self._done = self._left = False
        self._text = self._raw = b""
        self._in_body = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        again = f"last-event-id: {self._last}\r\n" if self._last else ""
        transport.write(f"{self._head}{again}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        self._raw += data
        if not self._in_body:
            head, split, self._raw = self._raw.partition(b"\r\n\r\n")
            if not split:
                self._raw = head
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self._ledger.lose(f"events: {head[:200]!r}")
                return
            self._in_body = True
        while (at := self._raw.find(b"\r\n")) > 0:
            size = int(self._raw[:at], 16)
            if len(self._raw) < at + size + 4:
                break
            self._text += self._raw[at + 2 : at + 2 + size]
            self._raw = self._raw[at + size + 4 :]
        *frames, self._text = self._text.split(b"\n\n")
        for frame in frames:
            if not self._left:
                self._frame(frame)

    def _frame(self, frame: bytes) -> None:
        fields: dict[str, bytes] = {}
        for line in frame.split(b"\n"):
            name, _, value = line.partition(b": ")
            fields[name.decode()] = fields.get(name.decode(), b"") + value
        kind = fields.get("event")
        if kind == b"end":
            self._done = True
            self._reader.ended()
            self._transport.close()
        elif "id" in fields:
            self._last = fields["id"].decode()
            if kind == b"progress":
                self._reader.heard(_decode(fields["data"])["body"].get("output", ""))
                self._seen += 1
                if self._stay and self._seen % self._stay == 0:
                    self._ledger.resumed += 1
                    self._left = True
                    self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done:
            return
        if not self._left:
            self._ledger.lose(f"events: the hub ended the stream before its end, {exc}")
            return
        self._left = False
        self._text = self._raw = b""
        self._in_body = False
        asyncio.get_running_loop().create_task(self.connect(self.url))

    async def connect(self, url: str) -> None:
        self.url = url
        place = urlsplit(url)
        await asyncio.get_running_loop().create_connection(lambda: self, place.hostname, place.port)
