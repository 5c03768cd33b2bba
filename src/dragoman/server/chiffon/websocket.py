"""Chiffon over one WebSocket: `/api/agent/ws`, subprotocol `chiffon.v1`.

    hub → agent    an envelope; its x_custom_fields.delivery_id is what to acknowledge
                   {"accepted": [message_id, …]} after commits, with ?receipts=1
    agent → hub    an envelope; {"ack": [delivery_id, …]}

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from dragoman.core.model.agents import Agent
from dragoman.protocols.chiffon.types import SUBPROTOCOL
from dragoman.server.asgi import Scope
from dragoman.server.chiffon.handler import ChiffonHandler, ChiffonSession
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint


class ChiffonWebSocket(WebSocketEndpoint[ChiffonHandler]):
    path = "/api/agent/ws"
    subprotocols = (SUBPROTOCOL,)
    acknowledgment_seconds = FIRST_ACKNOWLEDGMENT_SECONDS

    def session(self, agent: Agent, subprotocol: str) -> Session:
        return ChiffonSession(self._handler, agent)

    def receipts(self, scope: Scope) -> bool:
        return parse_qs(scope["query_string"].decode("latin-1")).get("receipts", ["0"])[-1] in ("1", "true")
