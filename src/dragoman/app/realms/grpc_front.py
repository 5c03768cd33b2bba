"""gRPC for all realms at one port: calls are carried whole, as bytes, to a node of the realm that their token names.

gRPC's library shows no host name of a call to its server, so here only tokens name a realm; one that names none is for
the realm `default`. A node that dies ends its calls with UNAVAILABLE, as it does without a front.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from dragoman.app.realms.front import NAME_ONE
from dragoman.app.realms.places import Place, Places
from dragoman.app.realms.route import realm_of
from dragoman.security.tls import Renewal
from dragoman.server.coven.grpc_port import CovenLimits, MetadataLimit, credentials

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
OF_THE_LIBRARY = frozenset({
    "user-agent", "content-type", "te", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-status",
    "grpc-message", "grpc-previous-rpc-attempts",
})  # fmt: skip
"""Metadata that gRPC writes itself."""
STOP_SECONDS = 0.2


class GrpcFront:
    def __init__(
        self, places: Places, *, host: str, port: int, tls: Renewal | None = None, ca: Path | None = None
    ) -> None:
        self.port = port
        self._places = places
        self._host = host
        self._tls = tls
        self._ca = ca
        self._server: Any = None
        self._channels: dict[str, Any] = {}

    async def start(self) -> None:
        """Raises `OSError`; `port` is the bound one afterwards."""
        limits = CovenLimits()
        server = grpc.aio.server(interceptors=(MetadataLimit(limits.metadata_bytes),), options=limits.options())
        server.add_generic_rpc_handlers((_Every(self),))
        address = f"[{self._host}]:{self.port}" if ":" in self._host else f"{self._host}:{self.port}"
        try:
            if self._tls is not None:
                self.port = int(server.add_secure_port(address, credentials(self._tls)))
            else:
                self.port = int(server.add_insecure_port(address))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        self._server = server
        await server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_SECONDS)
        for channel in self._channels.values():
            await channel.close()

    async def carry(self, method: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        metadata = tuple(context.invocation_metadata() or ())
        token = next((value for key, value in metadata if key == "authorization"), "")
        realm = realm_of(None, token.encode(), self._places.realms)
        if realm is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"this token names no realm here; {NAME_ONE}")
        node = next((one for one in self._places.of(str(realm)) if one.grpc), None)
        if node is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"no node of the realm {realm} can be reached")
            return
        passed = _plain(metadata)
        call = self._channel(node).stream_stream(method)(metadata=passed, timeout=context.time_remaining())
        there = asyncio.create_task(_send(requests, call))
        try:
            initial = await call.initial_metadata()
            await context.send_initial_metadata(_plain(initial))
            async for answer in call:
                yield answer
            await _end(call, context)
        except grpc.aio.AioRpcError:
            await _end(call, context)
        finally:
            there.cancel()
            call.cancel()

    def _channel(self, node: Place) -> Any:
        if node.grpc not in self._channels:
            if node.is_secure:
                roots = self._ca.read_bytes() if self._ca is not None else _system_roots()
                channel = grpc.aio.secure_channel(node.grpc, grpc.ssl_channel_credentials(roots), OPTIONS)
            else:
                channel = grpc.aio.insecure_channel(node.grpc, OPTIONS)
            self._channels[node.grpc] = channel
        return self._channels[node.grpc]


class _Every(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes every method, as a stream in both directions: on the wire the other kinds are no different."""

    def __init__(self, front: GrpcFront) -> None:
        self._front = front

    def service(self, details: Any) -> Any:
        method = details.method

        async def carried(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            async for answer in self._front.carry(method, requests, context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(carried)


async def _send(requests: AsyncIterator[bytes], call: Any) -> None:
    try:
        async for request in requests:
            await call.write(request)
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        pass  # the call has ended, which its answers tell


async def _end(call: Any, context: Any) -> None:
    """As the node ended it."""
    code = await call.code()
    context.set_trailing_metadata(_plain(await call.trailing_metadata()))
    context.set_code(code)
    context.set_details(await call.details() or "")


def _plain(metadata: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in metadata or () if key not in OF_THE_LIBRARY)


def _system_roots() -> bytes | None:
    file = ssl.get_default_verify_paths().cafile
    return Path(file).read_bytes() if file else None
