"""The stream between a following node and the leader."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest
import websockets
from tests.support.nodes import FollowedWorld, soon
from tests.support.scripted import elsewhere

from dragoman.core.commands import AddAgent, RegisterAgent
from dragoman.core.ids import ADMIN, AgentId
from dragoman.core.model.agents import Agent
from dragoman.security.tokens import token_hash
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.limits import Limits
from dragoman.server.server import HttpServer

TOKEN = "0" * 32


@pytest.fixture
async def world() -> AsyncIterator[FollowedWorld]:
    world = await FollowedWorld().start()
    await world.add("boss", "orchestrator")
    await world.add("i1", "infra")
    yield world
    await world.stop()


async def test_a_task_goes_from_one_node_through_the_leader_to_an_agent_of_the_node(world: FollowedWorld) -> None:
    agent = await world.connect("i1")
    task = await world.submit()
    await soon(lambda: agent.work)
    assert agent.work == [task.id]
    assert world.intake.load_of(AgentId("i1")) == [task.id]
    assert world.leader.load_of(AgentId("i1")) == [task.id]


async def test_a_chiffon_websocket_works_there_and_back_through_a_node(world: FollowedWorld) -> None:
    agent = Agent(id=AgentId("infra-1"), protocol="chiffon", created_at=world.time, token_hash=token_hash(TOKEN))
    await world.ask(AddAgent(principal=ADMIN, agent=agent))
    await world.ask(RegisterAgent(principal=AgentId("infra-1"), kind="lab", max_concurrent=4))
    endpoints = chiffon.endpoints(ChiffonHandler(world.intake, world.store, limits=Limits()))
    async with HttpServer(world.intake, endpoints, fallback=elsewhere, port=0) as serving:
        url = serving.url.replace("http", "ws") + "/api/agent/ws?receipts=1"
        async with websockets.connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}, proxy=None) as ws:
            task = await world.submit(kind="lab")
            order = json.loads(await asyncio.wait_for(ws.recv(), 10))
            assert (order["type"], order["payload"]["task_id"]) == ("work_request", task.id)
            answer = {
                "protocol_version": "1.0",
                "message_id": str(uuid.uuid4()),
                "from_agent": "lab",
                "to_agent": "orchestrator",
                "timestamp": "2026-01-19T04:21:04Z",
                "trace_id": str(uuid.uuid4()),
                "request_id": order["request_id"],
                "type": "work_status",
                "payload": {"task_id": task.id, "status": "running", "progress_percent": 10},
                "x_custom_fields": {},
            }
            await ws.send(json.dumps(answer))
            assert json.loads(await asyncio.wait_for(ws.recv(), 10))["accepted"] == [answer["message_id"]]
    found = await world.store.task(task.id)
    assert found is not None
    assert found.status == "running"
