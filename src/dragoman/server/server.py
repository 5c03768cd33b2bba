"""uvicorn, started, watched and drained by us.

uvicorn would take the process's signals, exit it when the port is busy, and wait for ever for clients that do not
read. So this module only uses its protocols and its list of connections; it has its own socket, sweep over stalled
clients, order of the stop, and TLS. With a certificate the port speaks TLS 1.3 and nothing else, and a client has as
little time for its handshake as for its headers.

    stop, in order    accept no more connections; answer parked polls; answer what WebSockets have received, and close
                      them with 1012; let requests under way end; abort what is left when the time is up
    abort             close WebSockets with 1012, cut everything else: no answer leaves any more

A node of a cluster has one server after the other on the same port (`app.cluster`), so the socket that listens may be
kept by another (`listener`): clients that come between two servers wait in its backlog.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import Any, Protocol

import structlog
import uvicorn

from dragoman.core.ids import SECOND, Instant
from dragoman.core.memory import MemoryBudget
from dragoman.security.tls import Renewal
from dragoman.server.asgi import ASGIApp, Hosts, Router
from dragoman.server.handler import Endpoint
from dragoman.server.limits import GuardedHttp, Limits, guarded
from dragoman.server.websocket import watched

log = structlog.get_logger("dragoman.server")

SWEEP_SECONDS = 1.0
BACKLOG = 2048
GOODBYE_SECONDS = 5.0
"""How long a TLS client has to answer a close."""


class PortBusy(OSError):
    """Another process listens on the port; the text says what to do."""


class GrpcPortBusy(PortBusy):
    """Another process listens on coven's port."""


class ServedHub(Protocol):
    """What the server itself asks of the hub: the time for its answers, and the memory that requests share."""

    @property
    def now(self) -> Callable[[], Instant]: ...

    @property
    def memory(self) -> MemoryBudget: ...


class HttpServer:
    """A server that can be started once and stopped once; also an async context manager. `fallback` answers every path
    that no endpoint has."""

    def __init__(
        self,
        hub: ServedHub,
        endpoints: Sequence[Endpoint],
        *,
        fallback: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 8420,
        limits: Limits | None = None,
        tls: Renewal | None = None,
        patience: float = 0.0,
        hosts: Hosts | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """`listener` listens already, and stays open after this server."""
        self.host = host
        self.port = port
        self.limits = limits or Limits()
        self._now = hub.now
        self._tls = tls
        self._listener = listener
        self._endpoints = tuple(endpoints)
        routes: dict[str, ASGIApp] = {}
        prefixes: dict[str, ASGIApp] = {}
        for endpoint in self._endpoints:
            routes.update(endpoint.routes())
            prefixes.update(endpoint.prefixes())
        self.app = Router(routes, fallback, prefixes=prefixes, memory=hub.memory, patience=patience, hosts=hosts)
        self._server: uvicorn.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self._tls is None else 'https'}://{host}:{self.port}"

    @property
    def trouble(self) -> str | None:
        """What an endpoint lacks of the world; the hub serves all the same."""
        return next((endpoint.trouble for endpoint in self._endpoints if endpoint.trouble is not None), None)

    @property
    def counts(self) -> dict[str, int]:
        """What endpoints count, for the metrics."""
        return {name: count for endpoint in self._endpoints for name, count in endpoint.counts.items()}

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections) if self._server is not None else 0

    async def start(self) -> None:
        """Listen. Raises `PortBusy`; `port` is the bound one afterwards."""
        listener = listen(self.host, self.port) if self._listener is None else self._listener.dup()
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app,
            http=guarded(self.limits),
            ws=watched(self.limits.write_seconds, self._compressed()),
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="warning",  # its info lines name paths with their queries
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,  # the sweep writes it
            ws_max_size=self.limits.ws_bytes,
            ws_ping_interval=self.limits.ws_ping_seconds,
            ws_ping_timeout=self.limits.ws_ping_seconds,
            ws_per_message_deflate=False,
            backlog=BACKLOG,
        )
        config.load()
        server = uvicorn.Server(config)
        server.servers = [await self._open(listener, config, server)]
        self._server = server
        self._tick(server)
        self._sweeper = asyncio.create_task(self._sweep(server), name="http sweep")
        for endpoint in self._endpoints:
            endpoint.start()
        log.info("listening", url=self.url)

    def _compressed(self) -> frozenset[str]:
        return frozenset(path for one in self._endpoints if one.compressed for path in one.routes())

    async def _open(self, listener: socket.socket, config: uvicorn.Config, server: uvicorn.Server) -> asyncio.Server:
        """As uvicorn's `startup`, with a limit on the time of a TLS handshake, for which uvicorn has no setting."""
        make, state, shared = config.http_protocol_class, server.server_state, config.lifespan_class(config).state
        patience: dict[str, Any] = {}
        if self._tls is not None:
            patience = {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": self.limits.header_seconds,
                "ssl_shutdown_timeout": GOODBYE_SECONDS,
            }
        return await asyncio.get_running_loop().create_server(
            lambda: make(config=config, server_state=state, app_state=shared),  # type: ignore[call-arg]
            sock=listener,
            backlog=BACKLOG,
            **patience,
        )

    async def stop(self, drain_seconds: float = 10.0) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + drain_seconds
        for listening in server.servers:
            listening.close()
        await asyncio.gather(*(endpoint.drain(drain_seconds) for endpoint in self._endpoints))
        state = server.server_state
        for connection in list(state.connections):
            connection.shutdown()
        while (state.connections or state.tasks) and loop.time() < end:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.02)
        if self._sweeper is not None:
            self._sweeper.cancel()
        late = list(state.tasks)
        for task in late:
            task.cancel()
        for connection in list(state.connections):
            connection.transport.abort()
        if late:
            log.warning("cut off", requests=len(late))
            await asyncio.wait(late, timeout=1)

    def cut(self) -> None:
        """Cut every request that is under way, before its handler can answer it. `abort` is to follow."""
        if self._server is not None:
            _cut(self._server)

    async def abort(self) -> None:
        """Close every connection without an answer to anything."""
        server, self._server = self._server, None
        if server is None:
            return
        for listening in server.servers:
            listening.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        state = server.server_state
        _cut(server)
        await asyncio.gather(*(endpoint.abort() for endpoint in self._endpoints))
        tasks = list(state.tasks)
        for connection in list(state.connections):
            connection.transport.close()  # behind the close frame
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        for connection in list(state.connections):
            connection.transport.abort()

    async def __aenter__(self) -> HttpServer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop(1.0)

    async def _sweep(self, server: uvicorn.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = loop.time()
            for connection in list(server.server_state.connections):
                if isinstance(connection, GuardedHttp):
                    connection.sweep(now)
            self._tick(server)

    def _tick(self, server: uvicorn.Server) -> None:
        """Date answers by the hub's clock, so that a client whose messages are too old can compare it with its own."""
        server.server_state.default_headers = [(b"date", formatdate(self._now() // SECOND, usegmt=True).encode())]


def _cut(server: uvicorn.Server) -> None:
    for connection in list(server.server_state.connections):
        if isinstance(connection, GuardedHttp):
            connection.transport.abort()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `PortBusy`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, asyncio turns Nagle's delay off for what is accepted; uvloop does so in any case.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise PortBusy(
            error.errno,
            f"cannot listen on {host}:{port} ({error.strerror}); stop what listens there, or choose another port with "
            "--port (0 picks a free one)",
        ) from None
    listener.setblocking(False)
    return listener
