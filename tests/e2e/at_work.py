"""Agents of the SDK at a real hub: letting them in, serving them, and waiting for what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from dragoman import Agent, Client, Question
from tests.support.hubproc import PATIENCE, HubProcess, until

T = TypeVar("T")


def url(hub: HubProcess, scheme: str) -> str:
    return hub.url.replace("http://", f"{scheme}://")


def people(hub: HubProcess) -> Client:
    return Client(hub.url, token=hub.ready["admin_token"])


def token(hub: HubProcess, id: str, protocol: str, **fields: Any) -> str:
    made = hub.admin.post("/api/v1/agents", {"agent_id": id, "protocol": protocol, **fields})
    assert made.status == 201, made
    return str(made.json["token"])


async def soon(awaitable: Awaitable[T]) -> T:
    return await asyncio.wait_for(awaitable, 2 * PATIENCE)


async def online(hub: HubProcess, *ids: str) -> None:
    def are() -> bool:
        return all(hub.admin.get(f"/api/v1/agents/{id}").json.get("status") in ("idle", "busy") for id in ids)

    await asyncio.to_thread(until, are, f"{ids} online")


async def open_question(admin: Client) -> Question:
    async with asyncio.timeout(PATIENCE):
        while not (found := await admin.questions()):
            pass
    return found[0]


@asynccontextmanager
async def serving(hub: HubProcess, *agents: Agent, at: str) -> AsyncIterator[list[asyncio.Future[None]]]:
    """From when the hub knows the agents, until they are broken off."""
    tasks = [asyncio.ensure_future(agent.serve(at)) for agent in agents]
    try:
        await online(hub, *[agent.id for agent in agents])
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
