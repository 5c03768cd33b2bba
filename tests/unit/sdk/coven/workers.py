"""Agents that the tests give work to."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.unit.sdk.coven.gateway import Hasty, Stream

from dragoman import Agent, Task

TRACE = "0af7651916cd43dd8448eb211c80319c"


def worker(**more: Any) -> Agent:
    return Agent("worker", runtime=Hasty(), **more)


async def work(stream: Stream, request_id: str, type: str, input: Any = None, **more: Any) -> None:
    """As our hub says it."""
    more.setdefault("task_id", f"task-of-{request_id}")
    await stream.give(request_id, work_type=type, input_json=json.dumps(input or {}), **more)


class Steps:
    """A handler that says its steps one by one, when it is told to."""

    def __init__(self, agent: Agent) -> None:
        self.runs = 0
        self.go: asyncio.Queue[str | None] = asyncio.Queue()

        @agent.on("steps")
        async def steps(task: Task) -> None:
            self.runs += 1
            while (said := await self.go.get()) is not None:
                await task.text(said)
