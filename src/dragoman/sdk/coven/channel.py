"""The channel to a hub's gRPC port, for agents and clients of coven, and the one module in which the SDK loads gRPC.

Other modules import gRPC from here, so that the environment is set before it is loaded.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

# gRPC's fork handlers crash children that a handler starts by fork (subprocess with a preexec_fn, multiprocessing).
# Without them such children, which do not use this channel, are safe.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# gRPC writes to stderr by itself, a line for each handshake that fails. What matters of it is in the status, which the
# SDK raises or logs; a user who wants the rest sets this to DEBUG.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from dragoman.protocols.coven.types import DEFAULT_PORT
from dragoman.sdk.address import Address
from dragoman.sdk.network import tls

__all__ = ["BROKEN", "Ending", "grpc", "in_brief", "never_connected", "open_channel"]

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own, whose failures are not held against the next
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),  # gRPC's own pauses would outlast a hub's restart by minutes
    ("grpc.max_reconnect_backoff_ms", 2_000),
]

BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""The exceptions of a call that is over."""


class Ending:
    """How a call ended: the hub's status and details.

    gRPC replaces them by an INTERNAL of its own when a write fails after the end, so they are stored when they come.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: tuple[grpc.StatusCode, str] | None = None
        call.add_done_callback(self._take_down)

    async def status(self) -> tuple[grpc.StatusCode, str]:
        """The code and its details; waits for them."""
        last = await self._call.code(), await self._call.details() or ""
        return self._first or last

    def _take_down(self, call: Any) -> None:
        if self._first is None:
            self._first = _at_once(call.code()), _at_once(call.details()) or ""


def _at_once(answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits."""
    try:
        answer.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a call that is over has no status")


_unproved = re.compile(r"(failed to connect).*(CERTIFICATE_VERIFY_FAILED: [^:;]+)", re.DOTALL)


def in_brief(text: str) -> str:
    """gRPC's message about a connection that was not made, without gRPC's internals where TLS gives the reason."""
    found = _unproved.search(text)
    return text if found is None else f"{found[1]}: {found[2].strip()}"


def never_connected(error: Exception) -> bool:
    """Whether no server listens at the address. gRPC has no other sign of it than this sentence."""
    return "failed to connect" in str(error)


def open_channel(address: Address, largest: int) -> grpc.aio.Channel:
    """A channel to the hub's gRPC port; `https` in the base means TLS. `largest`: bytes of a message that may come."""
    place = urlsplit(address.base)
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    target = f"{host}:{place.port or DEFAULT_PORT}"
    options = [*OPTIONS, ("grpc.max_receive_message_length", largest)]
    if address.is_loopback:
        options.append(("grpc.enable_http_proxy", 0))
    if place.scheme == "https":
        mine = tls.files(address)
        credentials = grpc.ssl_channel_credentials(mine.roots, mine.key, mine.chain)
        return grpc.aio.secure_channel(target, credentials, options)
    return grpc.aio.insecure_channel(target, options)
