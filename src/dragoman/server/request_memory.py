"""The bytes of one request that the hub holds, from before its body is read until it is answered (`core.memory`).

The router gives every HTTP request a `RequestMemory` in its scope and releases it when the request is over, however it
ends. A request for which there is no room waits a moment, unread, and is refused then: retryable, in its protocol's
words.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from dragoman.core.memory import STRANGERS, MemoryBudget
from dragoman.messages.faults import Refused

HOLD = "dragoman.hold"
"""Where a handler finds it in its ASGI scope."""


class RequestMemory:
    __slots__ = ("_budget", "_patience", "_principal", "size")

    def __init__(self, budget: MemoryBudget, patience: float) -> None:
        self._budget = budget
        self._patience = patience
        self._principal = STRANGERS
        self.size = 0

    async def take(self, principal: str, size: int) -> None:
        """Take so many bytes more; raises `Refused` when there was no room for so long."""
        if not self.size:
            self._principal = principal
        fault = self._budget.take(self._principal, size, self.size)
        if fault is not None and (self._patience <= 0 or not await self._room(size)):
            self._budget.refused += 1
            raise Refused(self._budget.misfit(self._principal, size, self.size) or fault)
        self.size += size

    async def _room(self, size: int) -> bool:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._budget.wait(self._principal, size, lambda: room.set_result(None), self.size)
        if waiting is None:
            return False
        try:
            await asyncio.wait({room}, timeout=self._patience)
        except asyncio.CancelledError:
            if room.done():
                self._budget.give_back(self._principal, size)
            else:
                self._budget.forget(waiting)
            raise
        if not room.done():
            self._budget.forget(waiting)
        return room.done()

    def release(self) -> None:
        size, self.size = self.size, 0
        self._budget.give_back(self._principal, size)


async def hold(scope: MutableMapping[str, Any], principal: str, size: int) -> None:
    """Take bytes for the request of this scope; raises `Refused`. Without a router around it, nothing is counted."""
    held: RequestMemory | None = scope.get(HOLD)
    if held is not None and size:
        await held.take(principal, size)


async def room_for(budget: MemoryBudget, principal: str, seconds: float | None = None) -> bool:
    """Until a link of this principal should go on reading, or the time is up; whether it should."""
    if budget.has_room(principal):
        return True
    room: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def then() -> None:
        if not room.done():
            room.set_result(None)

    budget.when_room(principal, then)
    try:
        await asyncio.wait({room}, timeout=seconds)
    finally:
        budget.no_matter(then)
    return room.done()
