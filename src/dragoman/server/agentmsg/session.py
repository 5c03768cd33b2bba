"""Agentmsg over one WebSocket, `/agentmsg/ws`, subprotocol `agentmsg.v1`: one message a frame, both ways.

The hub acknowledges what it keeps after the commit; the agent acknowledges what the hub delivers by the message's id.
An ACK names one message, by `metadata.correlation_id`; with `?acks=many` one ACK may name several, in `message_ids`.

A STATE_QUERY with `watch` is answered, and then the changes follow as STATE_UPDATEs from the hub: as fast as the agent
reads, without a gap, each with the cursor to resume from. A watch that begins at a `cursor` gets an answer without
entities; one for the same entities replaces the one before.

A refused handshake has an ErrorReport as its body. An open connection alone says nothing about its agent: heartbeats
do, and every other message (D12).
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
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.protocols.agentmsg.mapping import PROTOCOL
from dragoman.protocols.agentmsg.types import SUBPROTOCOL, Message, StateQuery
from dragoman.server.agentmsg import state
from dragoman.server.agentmsg.answers import state_update
from dragoman.server.agentmsg.handler import About, AgentmsgHandler, ends_in_pieces
from dragoman.server.asgi import Scope
from dragoman.server.session import Connection, Decoded, Request, Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

log = structlog.get_logger("dragoman.server")

MOST_WATCHES = 16
"""Watches of one connection."""

Watched = tuple[str | None, str | None]
"""The registry and the entity that a watch is for."""


class AgentmsgSession(Session):
    protocol = PROTOCOL

    def __init__(self, handler: AgentmsgHandler, agent: AgentId, connection: Connection) -> None:
        super().__init__(handler.hub, agent, connection)
        self._handler = handler
        self._watches: dict[Watched, asyncio.Task[None]] = {}

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        return self._handler.decode(agent, frame, self._query_state)

    # -- shared state

    async def _query_state(self, agent: Agent, message: Message) -> Sequence[bytes]:
        query: StateQuery = message.payload
        self._handler.encode_answer(agent, About(message.id, message=message), None)
        key = (query.entity_type, query.entity_id)
        if query.watch and key not in self._watches and len(self._watches) >= MOST_WATCHES:
            raise refuse(
                Kind.RESOURCES,
                f"more than {MOST_WATCHES} watches on one link",
                next="watch more at once",
                field="payload.watch",
            )
        answer = await state.read(self._handler, agent.id, query)
        if query.watch:
            self._stop(key)
        if query.watch and not self._is_closed:  # else the connection ended meanwhile
            after = query.cursor if query.cursor is not None else answer.cursor
            watch = asyncio.ensure_future(self._watch(query, after, message.id))
            self._watches[key] = watch
            watch.add_done_callback(lambda done: self._ended(key, done))
        return [answer.message(self._handler, agent.id, message.id)]

    async def _watch(self, query: StateQuery, after: int | None, about: str) -> None:
        try:
            async with aclosing(state.changes(self._handler, self._agent, query, after)) as changes:
                async for cursor, change, at in changes:
                    await self._write([state_update(cursor, change, at, to=self._agent, about=about)])
            return
        except Refused as refused:
            fault = refused.fault
        except StoreFailed:
            fault = new_fault(Kind.OVERLOADED, "the shared state cannot be read now", next="watch it again")
        await self._write([self._handler.encode_error_report(fault, About(about), self._agent)])

    def _stop(self, key: Watched) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None:
            watch.cancel()

    def _ended(self, key: Watched, watch: asyncio.Task[None]) -> None:
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

    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        return AgentmsgSession(self._handler, agent.id, connection)

    def receipts(self, scope: Scope) -> bool:
        return True  # ACKs are part of the protocol

    def one_by_one(self, scope: Scope) -> bool:
        query: dict[str, list[str]] = parse_qs(scope["query_string"].decode("latin-1"))
        return query.get("acks", ["one"])[-1] != "many"
