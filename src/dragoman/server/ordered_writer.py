"""Outgoing messages that cannot be put into words at once, on a link that keeps its order.

Some words need something read first: a contract, an output that came in pieces. Until they are written, whatever comes
after them waits behind, so that no lane is overtaken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from dragoman.core.ids import AgentId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import Intake, StoreFailed
from dragoman.server.session import LATER
from dragoman.server.unencodable import unspeakable

log = structlog.get_logger("dragoman.server")


class OrderedWriter(ABC):
    """The out side of a session that has to read some of what it says (`session.Streaming`); one for each link."""

    def __init__(self, hub: Intake, agent: AgentId) -> None:
        self._hub = hub
        self._agent = agent
        self._tell: Callable[..., bool] | None = None
        self._room = asyncio.Event()
        self._waiting: deque[tuple[Outgoing, Agent]] = deque()
        self._speaking: asyncio.Task[None] | None = None

    @abstractmethod
    async def put(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        """An outgoing message as its frames, after whatever has to be read."""

    @property
    def free(self) -> bool:
        """Whether nobody waits: what is at hand may be said at once."""
        return self._speaking is None

    def say_in_turn(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        self._waiting.append((outgoing, agent))
        if self._speaking is None:
            self._speaking = asyncio.ensure_future(self._speak())
        return LATER

    # -- the link

    def meet(self, tell: Callable[..., bool]) -> None:
        self._tell = tell

    def room(self) -> None:
        self._room.set()

    def part(self) -> None:
        self._tell = None
        self._room.set()
        if self._speaking is not None:
            self._speaking.cancel()

    # -- speaking

    async def _speak(self) -> None:
        try:
            while self._waiting:
                outgoing, agent = self._waiting[0]
                try:
                    await self._write(await self.put(outgoing, agent), outgoing)
                except StoreFailed:
                    log.warning("unread", task=outgoing.delivery.task)  # it was not acknowledged: it is offered again
                except Exception as error:
                    unspeakable(self._hub, self._agent, outgoing, error)
                self._waiting.popleft()
        finally:
            self._speaking = None

    async def _write(self, frames: Sequence[bytes], outgoing: Outgoing) -> None:
        """Each when there is room for it. The outgoing message has arrived when its last frame has."""
        last = len(frames) - 1
        for index, frame in enumerate(frames):
            while self._tell is not None:
                self._room.clear()
                if self._tell([frame], outgoing if index == last else None):
                    break
                await self._room.wait()
