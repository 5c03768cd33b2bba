"""Both sides of the attacks: agents and callers of any name, and what the hub says of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from tests.support import coven as outside
from tests.support.hubproc import HubProcess, until

MIB = 1024 * 1024
QUOTA = 8 * MIB
"""Of all files together; a file's own description beside it may exceed it by a little, once."""


@contextlib.asynccontextmanager
async def agent_of(hub: HubProcess, id: str, token: str | None = None) -> AsyncIterator[outside.Agent]:
    async with outside.channel(hub.ready["grpc"]) as channel:
        agent = outside.stream(channel, token=token)
        await agent.register(id, id, ["chat"])
        yield agent


async def outcome(call: Any) -> Any:
    """How a caller's stream ended, once everything in it was read."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        while await outside.soon(call.read()) is not grpc.aio.EOF:
            pass
    return await outside.soon(call.code())


def submit(hub: HubProcess, to: str, content: str = "hello") -> str:
    made = hub.admin.post("/api/v1/tasks", {"type": "chat", "agent": to, "input": {"content": content}})
    assert made.status == 202, made
    return str(made.json["id"])


async def done_by(hub: HubProcess, agent: outside.Agent, id: str, *events: Any, text: str = "") -> dict[str, Any]:
    """A task that the agent does with these events; how it ended."""
    task = submit(hub, id)
    request = (await agent.work()).request_id
    for event in events:
        await agent.respond(request, **event)
    if text:
        await agent.respond(request, text=text)
    await agent.respond(request, done={})
    until(lambda: hub.status(task) in ("completed", "failed"), "the task has ended")
    return hub.task(task)
