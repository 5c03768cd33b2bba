"""The API in front of a whole hub: its own intake and store, a real port on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.api.protocol_routes import CHIFFON
from dragoman.app.settings import Server, Settings
from dragoman.app.wiring import hub


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with (
        asyncio.timeout(120),
        hub(Settings(data=str(tmp_path / "data"), server=Server(port=0, grpc_port=0))) as running,
    ):
        headers = {"Authorization": f"Bearer {running.admin_token}"}
        async with httpx2.AsyncClient(
            base_url=running.serving.url, headers=headers, verify=False, timeout=60
        ) as client:
            yield client


async def test_what_is_documented_for_chiffon_is_served(client: httpx2.AsyncClient) -> None:
    """An address that only falls through to the management API would answer with its problem."""
    for one in CHIFFON:
        path = one.path.replace("{id}", "550e8400-e29b-41d4-a716-446655440004")
        headers = {"Authorization": "Bearer wrong"}
        if path.endswith("/ws"):
            headers |= {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
                        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip
        answer = await client.request(one.method, path, headers=headers)
        assert "problem+json" not in answer.headers.get("content-type", ""), path
        assert answer.status_code in (401, 403), path


async def test_a_task_lives_its_life_over_the_api(client: httpx2.AsyncClient) -> None:
    agent = {"agent_id": "mux-1", "protocol": "chiffon", "kind": "infra"}
    assert (await client.post("/api/v1/agents", json=agent)).status_code == 201
    assert (await client.post("/api/v1/agents", json=agent)).status_code == 409
    wish = {"type": "run_playbook", "input": {"playbook": "x.yml"}, "agent": "mux-1"}
    key = {"Idempotency-Key": "k-1"}
    task = (await client.post("/api/v1/tasks", json=wish, headers=key)).json()
    again = await client.post("/api/v1/tasks", json=wish, headers=key)
    assert (again.status_code, again.json()["id"]) == (202, task["id"])
    other = await client.post("/api/v1/tasks", json={**wish, "input": {}}, headers=key)
    assert (other.status_code, other.json()["kind"], other.json()["field"]) == (409, "mismatch", "Idempotency-Key")
    said = "This Idempotency-Key was used before with other content. Use a new Idempotency-Key for a new request."
    assert other.json()["detail"] == said
    short = (await client.get(f"/api/v1/tasks/{task['id'][:3]}")).json()
    assert "at least 4 characters" in short["detail"]
    told = (await client.get(f"/api/v1/tasks/{task['id'][:13]}/why")).json()
    assert [reason["code"] for reason in told["candidates"][0]["reasons"]] == ["offline"]

    # Followed from the start, broken off, resumed while it changes: every event once.
    seen: list[str] = []
    url = f"/api/v1/tasks/{task['id']}/events"
    async with client.stream("GET", url) as first:
        async for line in first.aiter_lines():
            if line.startswith("id: "):
                seen.append(line)
                break
    cancelled = await client.post(f"/api/v1/tasks/{task['id']}/cancel", json={"reason": "no longer wanted"})
    assert cancelled.json()["status"] == "cancelled"
    async with client.stream("GET", url, headers={"Last-Event-ID": seen[-1].removeprefix("id: ")}) as second:
        lines = [line async for line in second.aiter_lines()]
    seen += [line for line in lines if line.startswith("id: ")]
    assert seen == [f"id: {n}" for n in range(1, len(seen) + 1)]
    assert "event: end" in lines

    whole = (await client.get(f"/api/v1/tasks/{task['id']}?history=1&wait=5")).json()
    assert (whole["status"], whole["error"]["kind"], whole["input"]) == ("cancelled", "cancelled", wish["input"])
    assert len(whole["history"]) == len(seen)
    assert (await client.post(f"/api/v1/tasks/{task['id']}/cancel")).status_code == 409
    assert (await client.post(f"/api/v1/tasks/{task['id']}/retry")).json()["status"] == "queued"
    assert (await client.get("/api/v1/audit/verify")).json()["ok"] is True


async def test_the_desk_of_an_idle_hub_is_empty_and_ready(client: httpx2.AsyncClient) -> None:
    async def get(path: str) -> Any:
        return (await client.get(path)).json()

    assert await get("/api/v1/tasks") == {"tasks": [], "next": None, "total": 0, "searched": None}
    assert await get("/api/v1/agents") == {"agents": []}
    assert await get("/api/v1/questions?status=open") == {"questions": [], "next": None, "tasks": {}}
    assert await get("/api/v1/deadletters") == {"deadletters": [], "next": None}
    assert (await client.get("/api/v1/deadletters/0123abcd")).status_code == 404
    assert (await client.get("/api/v1/questions/0123abcd")).status_code == 404
    assert (await client.get("/api/v1/tasks?cursor=nonsense")).status_code == 422
    assert (await get("/readyz"))["status"] == "ok"
    assert "dragoman_intake_depth 0.0" in (await client.get("/metrics")).text
