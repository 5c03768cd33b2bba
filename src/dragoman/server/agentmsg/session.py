"""Agentmsg over one WebSocket, `/agentmsg/ws`, subprotocol `agentmsg.v1`: messages both ways, one to a frame.

What is kept is acknowledged after its commit, many at once in one ACK. What the hub gives waits for the agent's own
ACK, by the message's id. A STATE_QUERY with `watch` is answered, and then the changes follow as STATE_UPDATEs from the
hub: as fast as the peer reads, without a gap, each with the cursor to resume from. A watch that begins at a `cursor`
gets an answer without entities, for it has them; one for the same things replaces the one before.

An ACK names one message, by `metadata.correlation_id`, as everybody understands it. Who connects with `?acks=many` is
told of several in one, whose `message_ids` names them all.

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`); a refused handshake has an
ErrorReport as its body. An open link alone says nothing about its agent: heartbeats do, and whatever else it says
(D12).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

import structlog

from dragoman.core.commands import Command
from dragoman.core.ids import AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.types import SUBPROTOCOL, Message, StateQuery
from dragoman.server.agentmsg import state
from dragoman.server.agentmsg.answers import state_update
from dragoman.server.agentmsg.handler import About, AgentmsgHandler, ends_in_pieces
from dragoman.server.asgi import Scope
from dragoman.server.session import Decoded, Request, Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

log = structlog.get_logger("dragoman.server")

MOST_WATCHES = 16
"""Watches of one link."""


class AgentmsgSession(Session):
    """One for each connection."""

    protocol = PROTOCOL

    def __init__(self, handler: AgentmsgHandler, agent: AgentId) -> None:
        super().__init__(handler.hub, agent)
        self._handler = handler
        self._watches: dict[tuple[str | None, str | None], asyncio.Task[None]] = {}

    # -- in

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        return self._handler.decode(agent, frame, self._query_state)

    async def _query_state(self, agent: Agent, message: Message) -> Sequence[bytes]:
        asked: StateQuery = message.payload
        self._handler.encode_answer(agent, About(message.id, message=message), None)
        key = (asked.entity_type, asked.entity_id)
        if asked.watch and key not in self._watches and len(self._watches) >= MOST_WATCHES:
            what = f"more than {MOST_WATCHES} watches on one link; watch more at once"
            raise refuse(Kind.RESOURCES, what, field="payload.watch")
        answer = await state.read(self._handler, agent.id, asked)
        if asked.watch:
            self._stop(key)
        if asked.watch and self._connection is not None:  # else the connection ended meanwhile
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
                    await self._write([state_update(cursor, change, at, to=self._agent, about=about)])
        except Refused as refused:
            await self._write([self._handler.encode_error_report(refused.fault, About(about), self._agent)])
        except StoreFailed:
            fault = Fault(kind=Kind.OVERLOADED, message="the shared state cannot be read now; watch it again")
            await self._write([self._handler.encode_error_report(fault, About(about), self._agent)])

    def _stop(self, key: tuple[str | None, str | None]) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.cancel()

    def _ended(self, key: tuple[str | None, str | None], watch: asyncio.Task[None]) -> None:
        if self._watches.get(key) is watch:
            del self._watches[key]
        if not watch.cancelled() and (error := watch.exception()) is not None:
            log.error("watch", agent=self._agent, exc_info=error)

    def closed(self) -> None:
        super().closed()
        for key in tuple(self._watches):
            self._stop(key)

    # -- out

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None if ends_in_pieces(outgoing) else (self._handler.encode_with(outgoing, agent, now),)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return await self._handler.encode(outgoing, agent, self._hub.now())

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        return self._handler.encode_answer(agent, request.context, outcome)

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        return self._handler.encode_error_report(fault, context, agent.id)

    def encode_receipt(self, message_ids: Sequence[str]) -> bytes:
        return self._handler.encode_receipt(message_ids, self._agent)


class AgentmsgWebSocket(WebSocketEndpoint[AgentmsgHandler]):
    path = "/agentmsg/ws"
    subprotocols = (SUBPROTOCOL,)

    def session(self, agent: Agent, subprotocol: str) -> Session:
        return AgentmsgSession(self._handler, agent.id)

    def receipts(self, scope: Scope) -> bool:
        return True  # ACKs: they are part of the protocol

    def one_by_one(self, scope: Scope) -> bool:
        said: dict[str, list[str]] = parse_qs(scope["query_string"].decode("latin-1"))
        return said.get("acks", ["one"])[-1] != "many"
