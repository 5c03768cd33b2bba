"""Which agents are connected, and whether a newcomer may take the place of an old stream (D4).

A stream that said something within the keepalive interval is alive. A silent one is asked by the server's own HTTP/2
pings: within one whole cycle of them a dead connection ends by itself. So a newcomer waits that long for the old
stream to end; if it does not, the old one answered, and it is the newcomer who must go.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from dragoman.core.ids import AgentId


class ConnectedStream(Protocol):
    """A stream that is there."""

    last_heard: float
    gone: asyncio.Event


class ConnectedAgents:
    """The streams by agent. `now` is the event loop's clock."""

    def __init__(self, *, keepalive_seconds: float, keepalive_timeout: float) -> None:
        self._interval = keepalive_seconds
        self._cycle = 1.1 * (keepalive_seconds + keepalive_timeout)  # the end must also be noticed
        self._here: dict[AgentId, ConnectedStream] = {}
        self._awaited: set[AgentId] = set()

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, agent: AgentId) -> bool:
        return agent in self._here

    async def enter(self, agent: AgentId, stream: ConnectedStream) -> bool:
        """Take the agent's place; False if somebody alive has it."""
        old = self._here.get(agent)
        if old is not None:
            silent = asyncio.get_running_loop().time() - old.last_heard
            if silent < self._interval or agent in self._awaited:
                return False
            self._awaited.add(agent)
            try:
                async with asyncio.timeout(self._cycle):
                    await old.gone.wait()
            except TimeoutError:
                return False
            finally:
                self._awaited.discard(agent)
            if agent in self._here:
                return False
        self._here[agent] = stream
        return True

    def leave(self, agent: AgentId, stream: ConnectedStream) -> None:
        if self._here.get(agent) is stream:
            del self._here[agent]
        stream.gone.set()
