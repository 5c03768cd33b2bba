"""Forge over one WebSocket: `/forge/ws`, for agents elsewhere (D12).

    subprotocol         frames                   without one offered, it is JSON
    ------------------  -----------------------
    forge.v1.json       text, one message or an array of them
    forge.v1.msgpack    binary, likewise

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`); a refused handshake has a
`response:error` as its body. Compression is used where the client offers it. The hub sends `notify:shutdown` before it
stops; an agent at work then has the time that this names, and the hub closes the other connections at once.
"""

from __future__ import annotations

from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import Status
from dragoman.core.ports import StoreFailed
from dragoman.protocols.forge.types import SHUTDOWN_GRACE_MS, Encoding
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.session import ForgeSession
from dragoman.server.session import Connection, Session
from dragoman.server.websocket_endpoint import Link, WebSocketEndpoint

FRAMES_AT_ONCE = 1000
"""The hub does not read a connection for the rest of a quarter of a second in which it brought more frames."""


class ForgeWebSocket(WebSocketEndpoint[ForgeHandler]):
    path = "/forge/ws"
    subprotocols = (Encoding.JSON.value, Encoding.MSGPACK.value)
    vouches = True
    measured = True
    compressed = True
    frames_at_once = FRAMES_AT_ONCE

    def binary(self, subprotocol: str) -> bool:
        return subprotocol == Encoding.MSGPACK.value

    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        encoding = Encoding(subprotocol)
        return ForgeSession(self._handler, agent.id, connection, encoding=encoding, limits=self._handler.guard)

    def farewell(self, link: Link, seconds: float) -> None:
        assert isinstance(link.session, ForgeSession)
        grace = int(min(seconds * 1000, SHUTDOWN_GRACE_MS))
        link.wire.write([link.session.encode_shutdown(grace, "Orchestrator stopping")])

    async def at_work(self, link: Link) -> bool:
        """A task that waits for a person waits for longer than a stop does."""
        try:
            held = [await self._handler.store.task(id) for id in self._hub.load_of(link.agent)]
        except StoreFailed:  # a stop does not wait for a store that cannot be read
            return False
        return any(task is not None and task.status in (Status.ASSIGNED, Status.RUNNING) for task in held)
