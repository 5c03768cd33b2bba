"""What both intakes, that of a hub that decides and that of a node that follows, share of `core.ports.Intake`: a caller
may wait for the outcome of a command. How a command gets to its decision is each intake's own (`enqueue_then`)."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from dragoman.core.commands import Command
from dragoman.core.pipelining import Then
from dragoman.messages.faults import Refused


class CommandQueue(ABC):
    @abstractmethod
    def enqueue_then(self, command: Command, then: Then) -> None: ...

    async def execute(self, command: Command) -> Any:
        return await self.enqueue(command)

    def enqueue(self, command: Command) -> asyncio.Future[Any]:
        """`execute` without waiting: the future of the outcome. Commands are decided in the order they are enqueued. At
        a node whose stream ends before the outcome is known, the future is never done."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def then(outcome: Any, refusal: Refused | None) -> None:
            if future.done():
                return
            if refusal is not None:
                future.set_exception(refusal)
            else:
                future.set_result(outcome)

        self.enqueue_then(command, then)
        return future
