"""A real hub in this process, and chiffon agents that are nothing but a WebSocket and the document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import websockets
from tests.bridge.players.stage import Stage, playing
from tests.support import chiffon
from websockets.asyncio.client import ClientConnection

PATIENCE = 60.0


class Socket:
    """One agent's WebSocket, with receipts: `said` sends a message and gives the receipt or the error."""

    def __init__(self, hub: Stage, token: str, raw: ClientConnection) -> None:
        self._hub = hub
        self._bearer = {"authorization": f"Bearer {token}"}
        self._raw = raw
        self._kept: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        frame = message if isinstance(message, bytes) else json.dumps(message).encode()
        await asyncio.wait_for(self._raw.send(frame, text=False), PATIENCE)

    async def _frame(self) -> dict[str, Any]:
        return dict(json.loads(await asyncio.wait_for(self._raw.recv(), PATIENCE)))

    async def hear(self) -> dict[str, Any]:
        """The next delivery; nothing is acknowledged."""
        while not self._kept:
            frame = await self._frame()
            if "delivery_id" in frame.get("x_custom_fields", {}):
                self._kept.append(frame)
        return self._kept.pop(0)

    async def said(self, message: Any) -> dict[str, Any]:
        """The answer to a message: `{"accepted": […]}` or an error; deliveries in between are kept for `hear`."""
        await self.send(message)
        while "delivery_id" in (frame := await self._frame()).get("x_custom_fields", {}):
            self._kept.append(frame)
        return frame

    async def tells(self, message: dict[str, Any]) -> None:
        """Send a message that the hub accepts."""
        assert await self.said(message) == {"accepted": [message["message_id"]]}

    async def refused(self, message: Any) -> dict[str, Any]:
        """Send a message that the hub refuses: the payload of its error."""
        answer = await self.said(message)
        assert answer.get("type") == "error", answer
        return dict(answer["payload"])

    async def acks(self, message: dict[str, Any]) -> int:
        """Acknowledge a delivery over HTTP: how many the hub still waited for."""
        ids = {"delivery_ids": [message["x_custom_fields"]["delivery_id"]]}
        answer = await self._hub.http.post("/api/agent/ack", json=ids, headers=self._bearer)
        return int(answer.json()["acknowledged"])


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Stage]:
    async with playing(tmp_path) as stage:
        yield stage


Join = Callable[..., Any]


@pytest.fixture
async def join(hub: Stage) -> AsyncIterator[Join]:
    """`await join("infra")`: an agent that is added and connected."""
    async with AsyncExitStack() as held:

        async def make(id: str) -> Socket:
            token = await hub.add(id, "chiffon")
            url = f"{hub.ws}/api/agent/ws?receipts=1"
            headers = {"authorization": f"Bearer {token}"}
            opening = websockets.connect(url, additional_headers=headers, proxy=None, max_size=None, max_queue=None)
            return Socket(hub, token, await held.enter_async_context(opening))

        yield make


@pytest.fixture
async def boss(join: Join) -> Socket:
    socket: Socket = await join("orchestrator")
    return socket


@pytest.fixture
async def infra(join: Join) -> Socket:
    socket: Socket = await join("infra")
    return socket


@pytest.fixture
async def work(boss: Socket, infra: Socket) -> dict[str, Any]:
    """A request of `boss` that `infra` has in hand."""
    await boss.tells(chiffon.work_request())
    return await infra.hear()
