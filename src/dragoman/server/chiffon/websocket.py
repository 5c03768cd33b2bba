"""Chiffon over one WebSocket: `/api/agent/ws`, subprotocol `chiffon.v1`.

    hub → agent    an envelope; its x_custom_fields.delivery_id is what to acknowledge
                   {"accepted": [message_id, …]} after commits, with ?receipts=1
    agent → hub    an envelope; {"ack": [delivery_id, …]}

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from dragoman.bindings import chiffon
from dragoman.bindings.chiffon.exchange import PROTOCOL
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Fault
from dragoman.protocols.chiffon.types import SUBPROTOCOL
from dragoman.server.asgi import Scope
from dragoman.server.chiffon.handler import ChiffonHandler, ChiffonSession
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint


class ChiffonWebSocket(WebSocketEndpoint):
    path = "/api/agent/ws"
    protocol = PROTOCOL
    subprotocols = (SUBPROTOCOL,)
    acknowledgment_seconds = FIRST_ACKNOWLEDGMENT_SECONDS

    def __init__(self, handler: ChiffonHandler) -> None:
        super().__init__(handler.hub, limits=handler.limits, refusals=handler.refusals)
        self._handler = handler

    def agent(self, scope: Scope) -> Agent:
        return self._handler.agent(scope)

    def encode_refusal(self, fault: Fault) -> bytes:
        return self._handler.encode_refusal(fault)

    def status_of(self, fault: Fault) -> int:
        return chiffon.status_of(fault)

    def session(self, agent: Agent, subprotocol: str) -> Session:
        return ChiffonSession(self._handler, agent)

    def receipts(self, scope: Scope) -> bool:
        return parse_qs(scope["query_string"].decode("latin-1")).get("receipts", ["0"])[-1] in ("1", "true")
