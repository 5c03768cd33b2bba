"""A2acp over one WebSocket, `/a2acp/ws`, subprotocol `a2acp.v1`: messages both ways, one to a frame.

The hub takes note that what it sent arrived, by the socket's own pings; whoever wants to say so itself sends
`{"ack": [message_id, …]}`. A request's answer comes when it is there, like everything else.

The handshake of the socket takes the agent's own secret; every message has its token beside that, of the same agent. A
refused handshake has an error message as its body. An open link says that its agent is alive: the document has no other
sign of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.core.commands import Command
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.protocols.a2acp.types import SUBPROTOCOL
from dragoman.server.a2acp import outbound
from dragoman.server.a2acp.handler import A2acpHandler, About
from dragoman.server.a2acp.names import PROTOCOL, delivery_named
from dragoman.server.asgi import Receive, Scope, Send
from dragoman.server.connection import FIRST_ACKNOWLEDGMENT_SECONDS
from dragoman.server.session import Acknowledged, Decoded, Invalid, LookUp, Request, Session
from dragoman.server.websocket_endpoint import WebSocketEndpoint

MOST_ACKS = 10_000


class _Acks(msgspec.Struct, frozen=True):
    ack: tuple[str, ...]


_acks = msgspec.json.Decoder(_Acks).decode


class A2acpSession(Session):
    """One for each link."""

    protocol = PROTOCOL

    def __init__(self, handler: A2acpHandler, agent: Agent) -> None:
        super().__init__(handler.hub, agent.id)
        self._handler = handler

    # -- in

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        if frame.startswith(b'{"ack"'):
            return self._acknowledged(frame)
        decoded = self._handler.decode(frame, agent)
        if isinstance(decoded, Invalid):
            other_ack = decoded.message_id is None and b'"ack"' in frame and is_ack(frame)
            return self._acknowledged(frame) if other_ack else decoded
        return msgspec.structs.replace(decoded, find=partial(self._find, decoded))

    async def _find(self, lookup: LookUp) -> Sequence[bytes] | Command:
        try:
            return await lookup.find()
        except Refused as refused:
            await note(self._handler, refused.fault, lookup.request.context)
            raise
        except StoreFailed:
            fault = Fault(kind=Kind.OVERLOADED, message="the hub cannot read its store now; try again", retryable=True)
            raise Refused(fault) from None

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
        """A handshake's end comes as a delivery; the broker's other answers need nothing that is not at hand."""
        answer = self._handler.encode_answer(request.context, outcome)
        return () if answer is None else (answer,)

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        about = context if isinstance(context, About) else About(agent=agent)
        return self._handler.encode_refusal(fault, context=about) if about.asks else b""

    # -- out

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        """Where its contract and its output are at hand."""
        if not self._handler.threads.remembers(agent.id) or self._handler.is_long(outgoing):
            return None
        wanted = outbound.wanted(outgoing)
        row = None if wanted is None else self._handler.seals.known(wanted)
        if wanted is not None and row is None:
            return None
        return (self._handler.encode_under(outgoing, agent, now, row),)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return await self._handler.encode(outgoing, agent, self._hub.now())


def is_ack(frame: bytes) -> bool:
    """Whether it is an acknowledgment that does not begin as ours do: with spaces in it, or in another order."""
    try:
        tree = codec.parse(frame)
    except A2acpError:
        return False
    return "ack" in tree and "message_type" not in tree


async def note(handler: A2acpHandler, fault: Fault, about: About) -> None:
    """What was refused before the hub decided anything is in the audit record too."""
    who = None if about.agent is None else about.agent.id
    await handler.refusals.record(refused_as(fault), fault, principal=who, protocol=PROTOCOL, about=about.id)


def refused_as(fault: Fault) -> str:
    """The verb in the audit record: attempts to send personal data in clear have one of their own (D13)."""
    return "pii.refused" if fault.kind is Kind.FORBIDDEN and fault.facts.get("pii") else "a2acp.message"


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
