"""Forge, as the hub serves it: a session for each connection, and the WebSocket for agents elsewhere.

inbound    a message of an agent becomes a command
outbound   an outgoing message becomes messages; what forge shows of tasks and agents
handler    what all connections share: rate limits, logs, the bus
session    one connection: decodes its lines or frames, encodes answers
queries    the requests that only read, and which tasks an agent may see
bus        publish and subscribe
websocket  `/forge/ws`

Child processes are in `supervisor`; they have a session as well.
"""

from __future__ import annotations

from dragoman.server.endpoint import Endpoint
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.websocket import ForgeWebSocket


def endpoints(handler: ForgeHandler) -> tuple[Endpoint, ...]:
    return (ForgeWebSocket(handler),)
