"""A2acp's words on one WebSocket: messages both ways, one to a frame.

The hub takes note that what it sent arrived, by the socket's own pings; whoever wants to say so itself sends
`{"ack": [message_id, …]}`. A request's answer comes when it is there, like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.bindings import a2acp
from dragoman.bindings.a2acp.names import PROTOCOL, delivery_named
from dragoman.core.commands import Command
from dragoman.core.ids import Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.a2acp import codec
from dragoman.protocols.a2acp.errors import A2acpError
from dragoman.server.a2acp.handler import A2acpHandler, About
from dragoman.server.ordered_writer import OrderedWriter
from dragoman.server.session import Heard

MOST_ACKS = 10_000


class _Acks(msgspec.Struct, frozen=True):
    ack: tuple[str, ...]


_acks = msgspec.json.Decoder(_Acks).decode


class A2acpSession(OrderedWriter):
    """One for each link."""

    protocol = PROTOCOL

    def __init__(self, handler: A2acpHandler, agent: Agent) -> None:
        super().__init__(handler.hub, agent.id)
        self._handler = handler

    # -- in

    def hear(self, agent: Agent, frame: bytes) -> Heard:
        if frame.startswith(b'{"ack"'):
            return self._acknowledged(frame)
        heard = self._handler.understand(frame, agent)
        if heard.look is None:
            spelt = heard.message_id is None and b'"ack"' in frame and is_ack(frame)
            return self._acknowledged(frame) if spelt else heard
        return msgspec.structs.replace(heard, look=partial(self._look, heard))

    async def _look(self, heard: Heard) -> Sequence[bytes] | Command:
        assert heard.look is not None
        try:
            return await heard.look()
        except Refused as refused:
            await note(self._handler, refused.fault, heard.about)
            raise
        except StoreFailed:
            fault = Fault(kind=Kind.OVERLOADED, message="the hub cannot read its store now; try again", retryable=True)
            raise Refused(fault) from None

    def _acknowledged(self, frame: bytes) -> Heard:
        try:
            named = _acks(frame).ack
        except msgspec.MsgspecError:
            named = None
        if named is None or len(named) > MOST_ACKS:
            what = f"expected a list of at most {MOST_ACKS} message ids"
            return Heard(fault=Fault(kind=Kind.INVALID, message=what, field="ack", facts={"stage": "shape"}))
        return Heard(acks=tuple(delivery_named(id) for id in named))

    def answer(self, heard: Heard, outcome: Any, agent: Agent) -> Sequence[bytes]:
        """A handshake's end comes as a delivery; the broker's other answers need nothing that is not at hand."""
        deciding = self._handler.told(heard.about, outcome)
        return () if deciding is None else (deciding,)

    def refuse(self, fault: Fault, about: Any, agent: Agent, now: Instant, message_id: str) -> bytes:
        told = about if isinstance(about, About) else About(agent=agent)
        return self._handler.complaint(fault, told) if told.asks else b""

    def receipt(self, message_ids: Sequence[str]) -> bytes:
        return b""  # none are given

    # -- out

    def say(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """At once where everything is at hand; else in its turn, when its contract or its output was read."""
        at_hand = self._handler.threads.remembers(agent.id) and not self._handler.is_long(outgoing)
        if self.free and at_hand:
            wanted = a2acp.wanted(outgoing)
            row = None if wanted is None else self._handler.seals.known(wanted)
            if wanted is None or row is not None:
                return (self._handler.put(outgoing, agent, now, row),)
        return self.say_in_turn(outgoing, agent)

    async def put(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return (await self._handler.carry(outgoing, agent, self._handler.hub.now()),)


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
    await handler.refusals.note(refused_as(fault), fault, principal=who, protocol=PROTOCOL, about=about.id)


def refused_as(fault: Fault) -> str:
    """The verb in the audit record: attempts to send personal data in clear have one of their own (D13)."""
    return "pii.refused" if fault.kind is Kind.FORBIDDEN and fault.facts.get("pii") else "a2acp.message"
