"""Forge's endpoints: a session for each connection, whatever carries it, and the WebSocket for agents elsewhere.

handler    what all connections share: who may send how fast, where logs go, what is published
session    a line or frame decoded; an outgoing message, an outcome, a refusal encoded
queries    the requests that only read
websocket  `/forge/ws`

Child processes are in `supervisor`; they have a session as well.
"""

from __future__ import annotations

from dragoman.server.endpoint import Endpoint
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.websocket import ForgeWebSocket


def endpoints(handler: ForgeHandler) -> tuple[Endpoint, ...]:
    return (ForgeWebSocket(handler),)
