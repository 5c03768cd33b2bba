"""One agent's wire: a port of its own that leads to the hub, wherever that is now, and that can be cut."""

from __future__ import annotations

import asyncio

HOST = "127.0.0.1"


class Relay:
    def __init__(self, target: str) -> None:
        self.target = target
        self.address = ""
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._copies: set[asyncio.Task[None]] = set()
        self._has_target = asyncio.Event()
        self._has_target.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        self.address = f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._has_target.set()
        self.cut()
        await asyncio.gather(*self._copies, return_exceptions=True)

    def disconnect_target(self) -> None:
        """No hub is at the other end: new connections wait for `connect_to`."""
        self._has_target.clear()

    def connect_to(self, target: str) -> None:
        self.target = target
        self._has_target.set()

    def cut(self) -> None:
        """Every connection breaks, without a goodbye; what was on its way is lost. New ones may be made at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._copies.add(task)
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._has_target.wait()
            host, _, port = self.target.rpartition(":")
            there, onward = await asyncio.open_connection(host, int(port))
            self._writers.add(onward)
            await asyncio.gather(_copy(reader, onward), _copy(there, writer))
        except OSError:
            pass
        finally:
            for end in (writer, onward):
                if end is not None:
                    self._writers.discard(end)
                    end.transport.abort()
            self._copies.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except (OSError, RuntimeError):
        writer.transport.abort()
