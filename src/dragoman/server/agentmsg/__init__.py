"""Agentmsg's endpoints on the HTTP port.

handler    who sends, what a message means, how to encode a refusal: the same over HTTP and WebSocket
memory     what came before, and what was delivered: ids of messages ⇄ deliveries
session    messages on a WebSocket, `/agentmsg/ws`
http       messages, polls, ACKs          state      the shared state: read, write, watch
"""

from __future__ import annotations

from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.agentmsg.http import AgentmsgHttp
from dragoman.server.agentmsg.session import AgentmsgWebSocket
from dragoman.server.agentmsg.state import AgentmsgState
from dragoman.server.handler import Endpoint


def endpoints(handler: AgentmsgHandler) -> tuple[Endpoint, ...]:
    http = AgentmsgHttp(handler)
    return (http, AgentmsgWebSocket(handler), AgentmsgState(handler, http))
