"""The playground over a whole hub: work goes over the endpoint of each protocol, and the bytes are shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman import Agent, Task
from dragoman.app.settings import Server, Settings
from dragoman.app.wiring import Running, hub


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with (
        asyncio.timeout(120),
        hub(Settings(data=str(tmp_path / "data"), server=Server(port=0, grpc_port=0))) as running,
    ):
        yield running


@pytest.fixture
async def client(running: Running) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {running.admin_token}"}
    async with httpx2.AsyncClient(base_url=running.serving.url, headers=headers, verify=False, timeout=60) as client:
        yield client


@pytest.fixture
async def adder(running: Running, client: httpx2.AsyncClient, tmp_path: Path) -> AsyncIterator[None]:
    """An agent that serves contracts, so that every protocol reaches it."""
    wanted = {"agent_id": "adder", "protocol": "a2acp", "domain": "sums", "version": "1.0.0"}
    token = (await client.post("/api/v1/agents", json=wanted)).json()["token"]
    agent = Agent("adder", token=token, version="1.0.0", state_dir=tmp_path / "adder")

    @agent.on("add")
    async def add(task: Task, a: int, b: int = 0) -> dict[str, int]:
        await task.progress(50, "adding")
        if a < 0:
            raise task.reject("only positive numbers")
        return {"sum": a + b}

    url = running.serving.url.replace("http://", "a2acp+ws://")
    serving = asyncio.create_task(agent.serve(url))
    try:
        async with asyncio.timeout(30):
            while (await client.get("/api/v1/agents/adder")).json()["status"] != "idle":
                await asyncio.sleep(0.02)
        yield
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def exchanged(client: httpx2.AsyncClient, first: dict[str, Any]) -> dict[str, Any]:
    """The exchange once its task is over: then the hub waits itself for the reply on its way to the playground."""
    if first["reply"] is None:
        await client.get(f"/api/v1/tasks/{first['task_id']}", params={"wait": 30})
        first = (await client.get(f"/api/v1/playground/{first['task_id']}")).json()
    assert first["reply"] is not None
    return dict(first)


def wanted(protocol: str, **input: int) -> dict[str, Any]:
    return {"protocol": protocol, "agent": "adder", "work": "add", "input": input}


@pytest.mark.parametrize("protocol", ["chiffon", "agentmsg", "forge", "a2acp", "coven", "api"])
async def test_work_goes_as_the_protocol_and_the_bytes_are_shown(
    client: httpx2.AsyncClient, adder: None, protocol: str
) -> None:
    answer = await client.post("/api/v1/playground", json=wanted(protocol, a=40, b=2))
    assert answer.status_code == 200, answer.text
    shown = await exchanged(client, answer.json())
    task = (await client.get(f"/api/v1/tasks/{shown['task_id']}")).json()
    assert (shown["status"], shown["reply"], task["protocol_in"]) == ("completed", {"sum": 42}, protocol)
    sent, received = ([json.loads(frame["text"]) for frame in shown[side]] for side in ("sent", "received"))
    assert any("add" in json.dumps(frame) and "40" in json.dumps(frame) for frame in sent)
    assert any("42" in json.dumps(frame) for frame in received)
    assert "eyJ" not in json.dumps(shown)
    assert shown["commands"]["cli"] == f"""echo '{{"a": 40, "b": 2}}' | dragoman call adder add - --via {protocol}"""
    agents = {agent["id"]: agent for agent in (await client.get("/api/v1/agents")).json()["agents"]}
    assert set(agents) == ({"adder"} if protocol == "api" else {"adder", f"playground-{protocol}"})


async def test_an_identity_is_used_again_and_gets_no_work(client: httpx2.AsyncClient, adder: None) -> None:
    for number in (1, 2):
        answer = (await client.post("/api/v1/playground", json=wanted("chiffon", a=number))).json()
        assert (await exchanged(client, answer))["reply"] == {"sum": number}
    agent = (await client.get("/api/v1/agents/playground-chiffon")).json()
    assert agent["work_types"] == []
    assert len((await client.get("/api/v1/agents")).json()["agents"]) == 2


async def test_a_failure_is_the_reply(client: httpx2.AsyncClient, adder: None) -> None:
    answer = (await client.post("/api/v1/playground", json=wanted("agentmsg", a=-1))).json()
    shown = await exchanged(client, answer)
    assert (shown["status"], shown["reply"]["error"]) == ("failed", "only positive numbers")


@pytest.mark.parametrize("protocol", ["chiffon", "a2acp"])
async def test_nothing_of_personal_work_is_shown(
    running: Running, client: httpx2.AsyncClient, tmp_path: Path, protocol: str
) -> None:
    wanted = {"agent_id": "clinic", "protocol": "a2acp", "domain": "clinic", "version": "1.0.0"}
    token = (await client.post("/api/v1/agents", json=wanted)).json()["token"]
    agent = Agent("clinic", token=token, version="1.0.0", state_dir=tmp_path / "clinic")

    @agent.task("read", pii=True)
    async def read(task: Task, patient: str) -> dict[str, str]:
        return {"name": f"Ada {patient}"}

    serving = asyncio.create_task(agent.serve(running.serving.url.replace("http://", "a2acp+ws://")))
    try:
        async with asyncio.timeout(30):
            while (await client.get("/api/v1/agents/clinic")).json()["status"] != "idle":
                await asyncio.sleep(0.02)
        asked = {"protocol": protocol, "agent": "clinic", "work": "read", "input": {"patient": "P-101"}}
        answer = await client.post("/api/v1/playground", json=asked)
        if protocol == "chiffon":  # which would carry it in clear
            assert answer.status_code >= 400, answer.text
            return
        shown = await exchanged(client, answer.json())
        assert (shown["status"], shown["reply"]) == ("completed", {"personal": True})
        assert "P-101" not in json.dumps(shown)
        assert "Ada" not in json.dumps(shown)
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def test_what_the_endpoint_refuses_is_refused_here(client: httpx2.AsyncClient, adder: None) -> None:
    answer = await client.post("/api/v1/playground", json=wanted("a2acp", b=1))
    assert (answer.status_code, answer.json()["kind"]) == (422, "invalid"), answer.text
    unknown = await client.post("/api/v1/playground", json={**wanted("chiffon"), "agent": "nobody"})
    assert unknown.status_code == 404
    assert (await client.get("/api/v1/playground/nothing")).status_code == 404
