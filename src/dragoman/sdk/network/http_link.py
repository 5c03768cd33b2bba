"""What a link over HTTP does side by side: fetch, say, acknowledge. Whatever of it fails takes the link down, with the
reason. What is said goes one after the other in a lane, and lanes go side by side over a few connections."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from dragoman.sdk.errors import DragomanError
from dragoman.sdk.links import LinkDown
from dragoman.sdk.network.connect_errors import sentence

LANES = 8

Heard = TypeVar("Heard")
Item = TypeVar("Item")


class HttpLink(ABC, Generic[Heard, Item]):
    """The middle of a link: `Heard` is what it brings, `Item` what stands in its lanes."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Sequence[Heard] | None] = asyncio.Queue()
        self._lanes: list[asyncio.Queue[Item]] = []
        self._acks: list[str] = []
        self._acking: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._serving: list[asyncio.Task[None]] = []
        self._down: Exception | None = None

    async def receive(self) -> Sequence[Heard]:
        """At least one; raises when the link is over."""
        arrived = await self._arrived.get()
        if arrived is None:
            self._arrived.put_nowait(None)
            raise self._down or LinkDown("the link is closed")
        return arrived

    def acknowledge(self, receipt: str) -> None:
        self._acks.append(receipt)
        if self._acking is None:
            self._acking = self._start(self._acknowledge)

    def quiesce(self) -> None:
        """Fetch nothing more."""
        if self._fetching is not None:
            self._fetching.cancel()

    async def _end(self) -> None:
        tasks = [task for task in (self._fetching, self._acking, *self._serving) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- how each is done ---

    @abstractmethod
    async def _fetch(self) -> None:
        """Put what comes into `_arrived`, for ever."""

    @abstractmethod
    async def _say(self, item: Item) -> None: ...

    @abstractmethod
    async def _confirm(self, receipts: Sequence[str]) -> None: ...

    # --- the jobs ---

    def _begin(self) -> None:
        self._fetching = self._start(self._fetch)

    def _put(self, lane: str, item: Item) -> None:
        """Never blocks."""
        if not self._lanes:
            self._lanes = [asyncio.Queue() for _ in range(LANES)]
            self._serving = [self._start(self._serve, queue) for queue in self._lanes]
        self._lanes[hash(lane) % LANES].put_nowait(item)

    def _start(self, job: Callable[..., Awaitable[None]], *given: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self._guard(job, *given))

    async def _guard(self, job: Callable[..., Awaitable[None]], *given: Any) -> None:
        try:
            await job(*given)
        except Exception as error:
            if self._down is None:
                self._down = error if isinstance(error, DragomanError) else LinkDown(sentence(error))
                self._arrived.put_nowait(None)

    async def _serve(self, lane: asyncio.Queue[Item]) -> None:
        while True:
            await self._say(await lane.get())

    async def _acknowledge(self) -> None:
        try:
            while self._acks:
                acks, self._acks = self._acks, []
                await self._confirm(acks)
        finally:
            self._acking = None
