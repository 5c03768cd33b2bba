"""Agents and callers of the SDK in all five protocols, at one hub: the same handlers everywhere."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from dragoman import Agent, Client, Retry, RetryPolicy, Task
from tests.bridge.players.neutral import PATIENCE
from tests.bridge.players.stage import Stage

PROTOCOLS = ("chiffon", "agentmsg", "forge", "a2acp", "coven")
VALUES: dict[str, Any] = {
    "int": 2,
    "zero": 0,
    "false": False,
    "str": "some words",
    "empty str": "",
    "list": [1, "two", None],
    "dict": {"a": {"b": [1]}},
    "result": {"result": 2},
    "output": {"output": "x"},
    "none": None,
}
FILE = b"some bytes"
LONG = "0123456789" * 150_000
"""Too long for one message of any protocol."""


async def given_back(n: int) -> int:
    return n


def declared(agent: Agent) -> Agent:
    """The handlers of every agent here."""

    @agent.task("give")
    async def give(what: str) -> Any:
        return VALUES[what]

    @agent.task("late", timeout=0.05)
    async def late() -> None:
        await asyncio.Event().wait()

    @agent.task("typed")
    async def typed(n: int) -> int:
        return n

    @agent.task("refuse")
    async def refuse(task: Task) -> None:
        raise task.reject("not on a Friday")

    @agent.task("crash")
    async def crash() -> None:
        raise ValueError("out of cheese")

    @agent.task("wait")
    async def wait(task: Task) -> None:
        await task.progress(10, "waiting")
        await asyncio.Event().wait()

    @agent.task("steps")
    async def steps(task: Task) -> dict[str, int]:
        await task.progress(50, "half")
        task.used(tokens=7, cost_usd=0.5)
        return {"n": 1}

    @agent.task("stream")
    async def stream(task: Task) -> None:
        for piece in ("one ", "two ", "three"):
            await task.text(piece)

    @agent.task("long")
    async def long() -> str:
        return LONG

    @agent.task("send")
    async def send(task: Task) -> dict[str, int]:
        await task.send_file("a.txt", FILE, "text/plain")
        return {"n": 1}

    @agent.task("around")
    async def around(task: Task) -> dict[str, Any]:
        return {"context": task.context}

    @agent.task("tell")
    async def tell(task: Task) -> dict[str, int]:
        await task.log("a line")
        await task.think("hm")
        use = await task.tool_use("grep", {"for": "x"})
        await task.tool_result(use, "found")
        await task.send_file("a.txt", FILE, "text/plain")
        return {"n": 1}

    @agent.task("again", retry=RetryPolicy(attempts=3, delay=0.01))
    async def again(task: Task) -> list[int]:
        if task.retries < 2:
            raise ConnectionError("refused")
        return [task.attempt, task.retries]

    @agent.task("ask_again")
    async def ask_again(task: Task) -> None:
        raise Retry("the printer is busy", after=0.01)

    agent.task("given_back")(given_back)
    return agent


def address(stage: Stage, protocol: str) -> str:
    if protocol == "coven":
        return f"coven://{stage.grpc}"
    if protocol == "chiffon+amqp":
        return stage.broker.replace("amqp://", "chiffon+amqp://")
    return stage.url.replace("http://", f"{protocol}+ws://")


@asynccontextmanager
async def working(stage: Stage, protocol: str) -> AsyncIterator[str]:
    """An agent at work; its id."""
    id = f"sdk-{protocol}-{uuid.uuid4().hex[:8]}"
    token = await stage.add(id, protocol.partition("+")[0])
    agent = declared(Agent(id, token=token, version="1.0.0"))
    serving = asyncio.ensure_future(agent.serve(address(stage, protocol)))
    try:
        async with asyncio.timeout(PATIENCE):
            while (await stage.get(f"agents/{id}"))["status"] not in ("idle", "busy"):
                assert not serving.done(), serving.exception()
                await asyncio.sleep(0.005)
        yield id
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def calling(stage: Stage, protocol: str) -> AsyncIterator[Client]:
    """A caller that may call."""
    if protocol == "api":
        token = stage.admin.headers["Authorization"].removeprefix("Bearer ")
        async with Client(stage.url, token=token) as client:
            yield client
        return
    id = f"call-{protocol}-{uuid.uuid4().hex[:8]}"
    token = await stage.add(id, protocol.partition("+")[0])
    async with Client(address(stage, protocol), token=token, id=id) as client:
        yield client


class Cast:
    """Every agent and every caller, made once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._held = AsyncExitStack()
        self.agents: dict[str, str] = {}
        self.callers: dict[str, Client] = {}

    async def agent(self, protocol: str) -> str:
        if protocol not in self.agents:
            self.agents[protocol] = await self._held.enter_async_context(working(self.stage, protocol))
        return self.agents[protocol]

    async def caller(self, protocol: str) -> Client:
        if protocol not in self.callers:
            self.callers[protocol] = await self._held.enter_async_context(calling(self.stage, protocol))
        return self.callers[protocol]

    async def close(self) -> None:
        await self._held.aclose()
