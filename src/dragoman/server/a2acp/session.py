"""A2acp over one WebSocket, `/a2acp/ws`, subprotocol `a2acp.v1`: messages both ways, one to a frame.

The pongs of the socket acknowledge the hub's messages; an agent that acknowledges them itself sends
`{"ack": [message_id, …]}`. The answer to a request comes when it is there, like every other message.

The handshake of the socket takes the agent's own secret. Every message has its token besides, of the same agent. A
refused handshake has an error message as its body. An open connection shows that its agent is alive: the document has
no other sign of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import PROTOCOL, SUBPROTOCOL
from dragoman.server.a2acp.frames import delivery_named
from dragoman.server.a2acp.handler import A2acpHandler, About
from dragoman.server.asgi import Receive, Scope, Send
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Acknowledged, Connection, Decoded, Invalid, Request, Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

MOST_ACKS = 10_000
WARM = 1000
"""Contracts of an agent that the hub reads when the agent connects."""


class _Acks(msgspec.Struct, frozen=True):
    ack: tuple[str, ...]


_acks = msgspec.json.Decoder(_Acks).decode


class A2acpSession(Session):
    """One for each connection."""

    protocol = PROTOCOL

    def __init__(self, handler: A2acpHandler, agent: Agent, connection: Connection) -> None:
        super().__init__(handler.hub, agent.id, connection)
        self._handler = handler

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        if frame.startswith(b'{"ack"'):
            return self._acknowledged(frame)
        decoded = self._handler.decode(frame, agent)
        if isinstance(decoded, Invalid) and decoded.message_id is None and b'"ack"' in frame and is_ack(frame):
            return self._acknowledged(frame)
        return decoded

    def _acknowledged(self, frame: bytes) -> Decoded:
        try:
            named = _acks(frame).ack
        except msgspec.MsgspecError:
            named = None
        if named is None or len(named) > MOST_ACKS:
            what = f"expected a list of at most {MOST_ACKS} message ids"
            return Invalid(Fault(kind=Kind.INVALID, message=what, field="ack", facts={"stage": "shape"}))
        return Acknowledged(tuple(delivery_named(id) for id in named))

    def encode_answer(self, command: Command, request: Request, outcome: Any, agent: Agent) -> Sequence[bytes]:
        """The end of a handshake comes as a delivery; the broker has its other answers at once."""
        answer = self._handler.encode_answer(request.context, outcome)
        return () if answer is None else (answer,)

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        about = context if isinstance(context, About) else About(agent)
        return self._handler.encode_refusal(fault, context=about) if about.asks else b""

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return self._handler.encode_now(outgoing, agent, now)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return await self._handler.encode(outgoing, agent, self._hub.now())


def is_ack(frame: bytes) -> bool:
    """Whether it is an acknowledgment that does not begin as ours do: with spaces in it, or in another order."""
    try:
        tree = codec.parse(frame)
    except A2acpError:
        return False
    return "ack" in tree and "message_type" not in tree


class A2acpWebSocket(WebSocketEndpoint[A2acpHandler]):
    path = "/a2acp/ws"
    subprotocols = (SUBPROTOCOL,)
    acknowledgment_seconds = FIRST_ACKNOWLEDGMENT_SECONDS
    vouches = True

    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        return A2acpSession(self._handler, agent, connection)

    async def _serve(self, agent: Agent, scope: Scope, receive: Receive, send: Send, subprotocol: str | None) -> None:
        with contextlib.suppress(StoreFailed):  # then the hub reads them one by one
            await self._handler.sent.recall(agent.id)
            for row in await self._handler.store.contracts(agent=agent.id, limit=WARM):
                self._handler.keys.terms(row)
        await super()._serve(agent, scope, receive, send, subprotocol)
