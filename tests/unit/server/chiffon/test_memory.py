"""How many bytes of its messages the hub holds of an agent, over HTTP and over a WebSocket: no more than it may."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx2
import pytest
import websockets

from dragoman.core.commands import ReportProgress, Submit
from dragoman.core.memory import MemoryBudget, MemoryLimits

FRAME = 200_000


@pytest.fixture
def narrow(hub: Any) -> MemoryBudget:
    """Room for two large messages of one agent."""
    hub.memory = MemoryBudget(MemoryLimits(total=10 * FRAME, per_principal=2 * FRAME + FRAME // 2))
    return hub.memory  # type: ignore[no-any-return]


def large(kit: Any, **more: Any) -> str:
    return json.dumps(kit.message("work_status", step={"number": 1, "name": "x", "output": "y" * FRAME}, **more))


async def test_requests_beyond_the_allowance_are_refused_at_once_with_a_chiffon_error(
    narrow: MemoryBudget, opened: Any, hub: Any, kit: Any
) -> None:
    hub.held = []
    headers = {"authorization": f"Bearer {kit.tokens['orch-1']}"}
    message = kit.message("work_request", parameters={"filler": "x" * FRAME})
    async with (
        opened() as serving,
        httpx2.AsyncClient(base_url=serving.url, verify=False, trust_env=False, timeout=60, headers=headers) as http,
    ):
        waiting = [asyncio.ensure_future(http.post("/api/agent/message", json=message)) for _ in range(2)]
        await hub.until(lambda: len(hub.asked_for(Submit)) == 2)
        refused = await kit.soon(http.post("/api/agent/message", json=message))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        error = refused.json()
        assert (error["type"], error["payload"]["error_code"]) == ("error", 5005)
        assert hub.noted == []  # the disk may be what is too slow
        hub.release()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [202, 202]
        assert narrow.held == 0
        assert (await kit.soon(http.post("/api/agent/message", json=message))).status_code == 202


async def test_a_connection_is_read_no_further_than_the_allowance_and_goes_on_when_there_is_room(
    narrow: MemoryBudget, opened: Any, hub: Any, kit: Any
) -> None:
    hub.held = []
    headers = {"authorization": f"Bearer {kit.tokens['infra-1']}"}
    async with opened() as serving:
        url = f"{serving.url.replace('http', 'ws')}/api/agent/ws"
        async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
            sender = asyncio.ensure_future(_pour(socket, large(kit), 250))  # 50 MB
            await hub.until(lambda: len(hub.asked_for(ReportProgress)) >= 2)
            done, _ = await asyncio.wait({sender}, timeout=0.3)
            assert not done
            assert len(hub.asked_for(ReportProgress)) <= 3  # one more may have come whole with the last read
            assert narrow._by.get("infra-1", 0) <= narrow.limits.per_principal + FRAME
            hub.release()
            await hub.until(lambda: len(hub.asked_for(ReportProgress)) == 250)
            await kit.soon(sender)
            assert narrow.held == 0


async def test_a_message_in_fragments_that_finds_no_room_for_the_rest_ends_its_connection_with_1013(
    narrow: MemoryBudget, opened: Any, hub: Any, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.server.websocket.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("dragoman.server.websocket.LOOK_SECONDS", 0.01)
    headers = {"authorization": f"Bearer {kit.tokens['infra-1']}"}
    async with opened() as serving:
        url = f"{serving.url.replace('http', 'ws')}/api/agent/ws"
        async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
            with suppress(websockets.ConnectionClosed):
                await kit.soon(socket.send(_slowly(["y" * FRAME] * 4, socket)))
            await kit.soon(socket.wait_closed())
            assert socket.close_code == 1013
    assert narrow.held == 0


async def _slowly(fragments: list[str], socket: Any) -> Any:
    for fragment in fragments:
        yield fragment
        await socket.ping()


async def _pour(socket: Any, frame: str, times: int) -> None:
    for _ in range(times):
        await socket.send(frame)
