"""The front of all realms as a process: its ports, its logs, its signals."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import structlog

from dragoman.app.certificates import Certificates
from dragoman.app.logs import set_up_logs
from dragoman.app.realms.front import Front
from dragoman.app.realms.grpc_front import GrpcFront
from dragoman.app.realms.places import Places, opener
from dragoman.app.service_manager import ServiceManager
from dragoman.app.settings import Settings
from dragoman.app.wiring import running_beside

log = structlog.get_logger("dragoman.realms")


class Serving(msgspec.Struct, frozen=True):
    http: str
    grpc: str
    realms: tuple[str, ...]


def run(settings: Settings, url: str, ca: Path | None, greet: Callable[[Serving], None]) -> int:
    """Serve until a signal. Raises `StoreFailed` where PostgreSQL does not answer at the start, `OSError` where a port
    is taken, `TlsProblem` and `ssl.SSLError` for certificates."""
    import uvloop

    set_up_logs(level=settings.log.level, form="json" if settings.log.format == "json" else "console")
    return uvloop.run(_serve(settings, url, ca, greet))


async def _serve(settings: Settings, url: str, ca: Path | None, greet: Callable[[Serving], None]) -> int:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    manager = ServiceManager(os.environ)
    certificates = Certificates(settings)
    open_ = opener(ssl.create_default_context(cafile=None if ca is None else str(ca)))
    places = Places(url, open_)
    await places.look()
    of = settings.server
    front = Front(
        places, open_, host=of.host, port=of.port, tls=certificates.http, max_connections=of.max_connections
    )  # fmt: skip
    async with AsyncExitStack() as stops:
        await front.start()
        stops.push_async_callback(front.stop)
        grpc = ""
        if settings.coven.enabled:
            for_grpc = GrpcFront(places, host=of.host, port=of.grpc_port, tls=certificates.coven, ca=ca)
            await for_grpc.start()
            stops.push_async_callback(for_grpc.stop)
            grpc = f"{of.host}:{for_grpc.port}"
        await stops.enter_async_context(running_beside(places.run(), "realms"))
        await stops.enter_async_context(running_beside(certificates.watch(lambda: None), "certificates"))
        greet(Serving(front.url, grpc, tuple(sorted(places.realms))))
        manager.serving(f"serving at {front.url}")
        await stopped.wait()
        manager.stopping()
    log.info("stopped; the realms go on")
    return 0
