"""A2acp over one WebSocket: `/a2acp/ws`, subprotocol `a2acp.v1`. The words are the `tongue`'s.

The handshake of the socket takes the agent's own secret; every message has its token beside that, of the same agent. A
refused handshake has an error message as its body. An open link says that its agent is alive: the document has no other
sign of it.
"""

from __future__ import annotations

import contextlib

from dragoman.core.model.agents import Agent
from dragoman.core.ports import StoreFailed
from dragoman.protocols.a2acp.types import SUBPROTOCOL
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.session import A2acpSession
from dragoman.server.asgi import Receive, Scope, Send
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

WARM = 1000
"""Contracts of an agent that are at hand when it connects."""


class A2acpWebSocket(WebSocketEndpoint[A2acpHandler]):
    path = "/a2acp/ws"
    subprotocols = (SUBPROTOCOL,)
    acknowledgment_seconds = FIRST_ACKNOWLEDGMENT_SECONDS
    vouches = True

    def session(self, agent: Agent, subprotocol: str) -> Session:
        return A2acpSession(self._handler, agent)

    async def _serve(self, agent: Agent, scope: Scope, receive: Receive, send: Send, subprotocol: str | None) -> None:
        with contextlib.suppress(StoreFailed):  # then they are read one by one
            await self._handler.threads.recall(agent.id)
            for row in await self._handler.store.contracts(agent=agent.id, limit=WARM):
                self._handler.seals.terms(row)
        await super()._serve(agent, scope, receive, send, subprotocol)
