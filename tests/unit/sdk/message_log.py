"""The messages that a fake hub received from an agent."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, Protocol, TypeVar

from tests.unit.sdk.harness import PATIENCE


class Typed(Protocol):
    @property
    def type(self) -> Any: ...


M = TypeVar("M", bound=Typed)


class MessageLog(Generic[M]):
    def __init__(self) -> None:
        self.said: list[M] = []
        self._news: asyncio.Queue[M] = asyncio.Queue()

    def keep(self, message: M) -> None:
        self.said.append(message)
        self._news.put_nowait(message)

    async def next(self, type: str) -> M:
        """The next message of this type: earlier ones of other types are passed over."""
        async with asyncio.timeout(PATIENCE):
            while True:
                message = await self._news.get()
                if message.type == type:
                    return message

    def count(self, type: str) -> int:
        return sum(message.type == type for message in self.said)
