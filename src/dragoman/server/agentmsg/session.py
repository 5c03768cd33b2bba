"""Agentmsg's words on one WebSocket: messages both ways, one to a frame.

What is kept is acknowledged after its commit, many at once in one ACK. What the hub gives waits for the agent's own
ACK, by the message's id. A STATE_QUERY with `watch` is answered, and then the changes follow as STATE_UPDATEs from the
hub: as fast as the peer reads, without a gap, each with the cursor to resume from. A watch that begins at a `cursor`
gets an answer without entities, for it has them; one for the same things replaces the one before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any

import structlog

from dragoman.bindings import agentmsg
from dragoman.bindings.agentmsg.names import PROTOCOL
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.agentmsg.types import Message, StateQuery
from dragoman.server.agentmsg import state
from dragoman.server.agentmsg.handler import About, AgentmsgHandler, in_pieces
from dragoman.server.session import Heard

log = structlog.get_logger("dragoman.server")

MOST_WATCHES = 16
"""Watches of one link."""


class AgentmsgSession:
    """One for each link."""

    protocol = PROTOCOL

    def __init__(self, handler: AgentmsgHandler, agent: AgentId) -> None:
        self._handler = handler
        self._agent = agent
        self._tell: Callable[[Sequence[bytes]], bool] | None = None
        self._room = asyncio.Event()
        self._gathering: set[asyncio.Future[None]] = set()
        self._watches: dict[tuple[str | None, str | None], asyncio.Task[None]] = {}

    # -- in

    def hear(self, agent: Agent, frame: bytes) -> Heard:
        return self._handler.understand(agent, frame, self._look)

    async def _look(self, agent: Agent, message: Message) -> Sequence[bytes]:
        asked: StateQuery = message.payload
        self._handler.decided(agent, About(message.id, message=message), None)
        if not asked.watch:
            return [(await state.read(self._handler, agent.id, asked)).message(self._handler, agent.id, message.id)]
        key = (asked.entity_type, asked.entity_id)
        if key not in self._watches and len(self._watches) >= MOST_WATCHES:
            what = f"more than {MOST_WATCHES} watches on one link; watch more at once"
            raise refuse(Kind.RESOURCES, what, field="payload.watch")
        answer = await state.read(self._handler, agent.id, asked)
        self._stop(key)
        if self._tell is not None:  # else the link ended meanwhile
            after = asked.cursor if asked.cursor is not None else answer.cursor
            watch = asyncio.ensure_future(self._watch(asked, after, message.id))
            self._watches[key] = watch
            watch.add_done_callback(lambda done: self._ended(key, done))
        return [answer.message(self._handler, agent.id, message.id)]

    # -- watches

    async def _watch(self, asked: StateQuery, after: int | None, about: str) -> None:
        try:
            async with aclosing(state.changes(self._handler, self._agent, asked, after)) as changes:
                async for cursor, change, at in changes:
                    await self._say([agentmsg.state_update(cursor, change, at, to=self._agent, about=about)])
        except Refused as refused:
            await self._say([self._handler.refuse(refused.fault, About(about), self._agent)])
        except StoreFailed:
            fault = Fault(kind=Kind.OVERLOADED, message="the shared state cannot be read now; watch it again")
            await self._say([self._handler.refuse(fault, About(about), self._agent)])

    async def _say(self, frames: Sequence[bytes]) -> None:
        """Waits until there is room for them."""
        while self._tell is not None:
            self._room.clear()
            if self._tell(frames):
                return
            await self._room.wait()

    def _stop(self, key: tuple[str | None, str | None]) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.cancel()

    def _ended(self, key: tuple[str | None, str | None], watch: asyncio.Task[None]) -> None:
        if self._watches.get(key) is watch:
            del self._watches[key]
        if not watch.cancelled() and (error := watch.exception()) is not None:
            log.error("watch", agent=self._agent, exc_info=error)

    def meet(self, tell: Callable[[Sequence[bytes]], bool]) -> None:
        self._tell = tell

    def room(self) -> None:
        self._room.set()

    def part(self) -> None:
        self._tell = None
        self._room.set()
        for key in tuple(self._watches):
            self._stop(key)

    # -- out

    def say(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        if in_pieces(outgoing):
            gathering = asyncio.ensure_future(self._gather(outgoing, agent))
            self._gathering.add(gathering)
            gathering.add_done_callback(self._gathering.discard)
            return ()
        return (self._handler.carry(outgoing, agent, now),)

    async def _gather(self, outgoing: Outgoing, agent: Agent) -> None:
        """A result whose output must be put together follows when it is. If that fails it is offered again."""
        try:
            whole = await self._handler.whole(outgoing)
        except StoreFailed:
            return
        await self._say([self._handler.carry(outgoing, agent, self._handler.hub.now(), whole)])

    def answer(self, heard: Heard, outcome: Any, agent: Agent) -> Sequence[bytes]:
        return self._handler.decided(agent, heard.about, outcome)

    def refuse(self, fault: Fault, about: Any, agent: Agent, now: Instant, message_id: str) -> bytes:
        return self._handler.refuse(fault, about, agent.id)

    def receipt(self, message_ids: Sequence[str]) -> bytes:
        return self._handler.acknowledgment(message_ids, self._agent)
