"""What happens at a hub while its dashboard is looked at: tasks at a given rate, and people who watch.

`PacedWs` is `hub.ChiffonWs` with a clock: a task begins when it is due, however fast the one before ended. `python -m
bench.page_load URL TOKEN N` opens N event streams as a dashboard does, prints a line when all are open, and one when
its stdin ends: how many bytes and digests came, over how many streams that did not break.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.hub import ChiffonWs
from bench.load import Meter

OPEN_AT_ONCE = 20


class PacedWs(ChiffonWs):
    """So many tasks a second, as far as the hub keeps up; one that is late begins at once."""

    def __init__(self, rate: float, **options: Any) -> None:
        super().__init__(**options)
        self._every = 1 / rate
        self._due = 0.0

    async def open(self, meter: Meter, in_flight: int) -> None:
        await super().open(meter, in_flight)
        self._loop = asyncio.get_running_loop()

    def begin(self, slot: int) -> None:
        now = self._loop.time()
        self._due = max(self._due + self._every, now - 0.1)
        if self._due <= now:
            self._begin_now(slot)
        else:
            self._loop.call_at(self._due, self._begin_now, slot)

    def _begin_now(self, slot: int) -> None:
        self._meter.began[slot] = self._meter._clock()
        super().begin(slot)


class Watched(msgspec.Struct):
    bytes: int = 0
    digests: int = 0
    broken: int = 0


async def watch(url: str, token: str, count: int) -> Watched:
    place = urlsplit(url)
    watched = Watched()
    request = (
        f"GET /api/v1/events?detail=digest HTTP/1.1\r\nhost: {place.netloc}\r\nauthorization: Bearer {token}\r\n"
        "accept: text/event-stream\r\n\r\n"
    ).encode()

    class Stream(asyncio.Protocol):
        """Counts what comes. A client that parsed it would be a load of its own."""

        def __init__(self) -> None:
            self.opened = asyncio.get_running_loop().create_future()

        def connection_made(self, transport: Any) -> None:
            transport.write(request)

        def data_received(self, data: bytes) -> None:
            if not self.opened.done():
                if data.startswith(b"HTTP/1.1 200"):
                    self.opened.set_result(None)
                else:
                    self.opened.set_exception(RuntimeError(repr(data[:300])))
            watched.bytes += len(data)
            watched.digests += data.count(b"event: changes")

        def connection_lost(self, exc: Exception | None) -> None:
            watched.broken += 1

    loop = asyncio.get_running_loop()
    streams: list[Stream] = []
    while len(streams) < count:
        some = [
            (await loop.create_connection(Stream, place.hostname, place.port))[1]
            for _ in range(min(OPEN_AT_ONCE, count - len(streams)))
        ]
        await asyncio.gather(*(one.opened for one in some))
        streams += some
    print(len(streams), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    return watched


def main() -> None:
    watched = uvloop.run(watch(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    print(msgspec.json.encode(watched).decode(), flush=True)


if __name__ == "__main__":
    main()
