"""Calls with more metadata than was allowed, of peers that did not listen, are ended before anything is done for them.

gRPC refuses them by itself once a peer has acknowledged what it was told (SETTINGS of HTTP/2). Until then it takes 16
MiB with each call, and keeps them as long as the call lives: a few peers that never acknowledge would fill the memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

FIELD_BYTES = 32
"""What HTTP/2 counts for a field beside its name and its value."""


class MetadataLimit(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """For every service on the port."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        size = sum(len(key) + len(value) + FIELD_BYTES for key, value in details.invocation_metadata)
        return self._refusal if size > self._most else await continuation(details)

    async def _refuse(self, _requests: Any, context: Any) -> None:
        words = f"the metadata has more than {self._most} bytes; send less of it"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)
