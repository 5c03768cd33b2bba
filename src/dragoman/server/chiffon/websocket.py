"""Chiffon over one WebSocket: `/api/agent/ws`, subprotocol `chiffon.v1`.

    hub → agent    an envelope; its x_custom_fields.delivery_id is what to acknowledge
                   {"accepted": [message_id, …]} after commits, with ?receipts=1
    agent → hub    an envelope; {"ack": [delivery_id, …]}

The handshake and the reasons to close are every WebSocket's (`websocket_endpoint`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

import msgspec

from dragoman.core.ids import DeliveryId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Fault, Kind, Refused, new_fault
from dragoman.protocols.chiffon.mapping import PROTOCOL
from dragoman.protocols.chiffon.types import SUBPROTOCOL, Acknowledgment, Receipt
from dragoman.server.asgi import Scope
from dragoman.server.chiffon import outbound
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Acknowledged, Connection, Decoded, Invalid, Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

MOST_ACKS = 10_000

_acknowledgment = msgspec.json.Decoder(Acknowledgment).decode
_encode = msgspec.json.Encoder().encode


class ChiffonWebSocket(WebSocketEndpoint[ChiffonHandler]):
    path = "/api/agent/ws"
    subprotocols = (SUBPROTOCOL,)
    acknowledgment_seconds = FIRST_ACKNOWLEDGMENT_SECONDS

    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        return ChiffonSession(self._handler, agent, connection)

    def receipts(self, scope: Scope) -> bool:
        return parse_qs(scope["query_string"].decode("latin-1")).get("receipts", ["0"])[-1] in ("1", "true")


class ChiffonSession(Session):
    protocol = PROTOCOL

    def __init__(self, handler: ChiffonHandler, agent: Agent, connection: Connection) -> None:
        super().__init__(handler.hub, agent.id, connection)
        self._handler = handler

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        if frame.startswith(b'{"ack"'):
            try:
                acks = _acknowledgment(frame).ack
            except msgspec.MsgspecError as error:
                message = f"not an acknowledgment: {error}"
                return Invalid(Fault(kind=Kind.INVALID, message=message, field="ack", facts={"stage": "shape"}))
            return _acknowledged(acks)
        decoded = self._handler.decode(agent, frame)
        if isinstance(decoded, Invalid) and decoded.message_id is None and b'"ack"' in frame:
            return self._other_ack(frame) or decoded
        return decoded

    def _other_ack(self, frame: bytes) -> Decoded | None:
        """An acknowledgment that does not begin with the usual bytes: spaces, or another order."""
        try:
            tree = self._handler.json(frame)
            if "type" in tree:
                return None
            return _acknowledged(msgspec.convert(tree, Acknowledgment).ack)
        except (Refused, msgspec.ValidationError):
            return None

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None if outbound.needs_whole_output(outgoing) else outbound.wire_of(outgoing, agent, now)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return await self._handler.encode(outgoing, agent, self._hub.now())

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        return self._handler.encode_refusal(fault, agent=agent, context=context)

    def encode_receipt(self, message_ids: Sequence[str]) -> bytes:
        return _encode(Receipt(tuple(message_ids)))


def _acknowledged(acks: Sequence[str]) -> Decoded:
    if len(acks) > MOST_ACKS:
        message = f"{len(acks)} acknowledgments in one frame"
        return Invalid(new_fault(Kind.TOO_LARGE, message, next=f"send at most {MOST_ACKS}", field="ack"))
    return Acknowledged(tuple(map(DeliveryId, acks)))
