"""Agentmsg over one WebSocket: `/agentmsg/ws`, subprotocol `agentmsg.v1`. The words are the `tongue`'s.

An ACK names one message, by `metadata.correlation_id`, as everybody understands it. Who connects with `?acks=many` is
told of several in one, whose `message_ids` names them all.

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`); a refused handshake has an
ErrorReport as its body. An open link alone says nothing about its agent: heartbeats do, and whatever else it says
(D12).
"""

from __future__ import annotations

from urllib.parse import parse_qs

from dragoman.core.model.agents import Agent
from dragoman.protocols.agentmsg.types import SUBPROTOCOL
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.agentmsg.session import AgentmsgSession
from dragoman.server.asgi import Scope
from dragoman.server.session import Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint


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
