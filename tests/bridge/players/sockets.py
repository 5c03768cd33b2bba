"""A WebSocket with JSON frames, read in the background."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PATIENCE = 60.0


class JsonSocket:
    """`hear` gets every frame, in order."""

    def __init__(self, raw: ClientConnection, hear: Callable[[dict[str, Any]], Any]) -> None:
        self._raw = raw
        self._hear = hear
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, url: str, hear: Callable[[dict[str, Any]], Any], *, subprotocol: str, headers: Mapping[str, str]
    ) -> JsonSocket:
        raw = await connect(
            url,
            subprotocols=[subprotocol],  # type: ignore[list-item]
            additional_headers=headers,
            open_timeout=PATIENCE,
            max_size=None,
            compression=None,
        )
        return cls(raw, hear)

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for frame in self._raw:
                told = self._hear(json.loads(frame))
                if asyncio.iscoroutine(told):
                    await told

    async def send(self, message: Any) -> None:
        await asyncio.wait_for(self._raw.send(json.dumps(message, ensure_ascii=False)), PATIENCE)

    async def close(self) -> None:
        await self._raw.close()
        await self._reading

    def cut(self) -> None:
        """Gone without a word, as when a process is killed."""
        self._raw.transport.abort()
        self._reading.cancel()
