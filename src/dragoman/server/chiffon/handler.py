"""Chiffon's handler: who sends, what a message means, and how a refusal is encoded.

HTTP and WebSocket share it, so that the same message is understood, refused and recorded in the same way over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.bindings import chiffon
from dragoman.bindings.chiffon.exchange import PROTOCOL, wire_name
from dragoman.core.commands import Command, Submit
from dragoman.core.ids import ADMIN, AgentId, DeliveryId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import Outgoing
from dragoman.messages.faults import Fault, Kind, Refused
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.types import Correlation
from dragoman.server import authentication
from dragoman.server.asgi import Scope
from dragoman.server.authentication import UNKNOWN
from dragoman.server.files import find_named
from dragoman.server.handler import HttpHandler
from dragoman.server.outgoing import read_account
from dragoman.server.session import Acknowledged, CommandFrame, Decoded, Invalid, LookUp, Request, Session
from dragoman.wire.errors import RemoteProtocolError

MOST_ACKS = 10_000


class Acks(msgspec.Struct, frozen=True):
    ack: tuple[str, ...]


_acks = msgspec.json.Decoder(Acks)
_encode = msgspec.json.Encoder().encode


class ChiffonHandler(HttpHandler):
    """One for all of chiffon's endpoints."""

    protocol = PROTOCOL

    def principal(self, scope: Scope) -> AgentId:
        """Whoever may steer tasks: an agent of any protocol, or the admin."""
        return ADMIN if authentication.is_admin(scope, self._admin_hash) else authentication.holder(self.hub, scope).id

    # -- what

    def decode(self, agent: Agent, data: bytes, *, traceparent: str | None = None) -> CommandFrame | LookUp | Invalid:
        """A message as a command, or the fault to answer with. Never raises."""
        about: Correlation | None = None
        message_id: str | None = None
        try:
            tree = codec.parse(data, self.guard)
            message = codec.interpret(tree, data)
            message_id = message.message_id
            about = Correlation(message.request_id, message.trace_id, message_id)
            command: Command = chiffon.command_of(agent, message, tree, data, traceparent=traceparent)
            named = chiffon.files_named(message)
        except ChiffonError as error:
            return Invalid(chiffon.fault_of(error), message_id, error.about)
        except Refused as refused:
            return Invalid(refused.fault, message_id, about)
        lane = None if isinstance(command, Submit) else command.subject
        request = Request(message_id, about, lane=lane)
        if named:
            return LookUp(partial(self._with_files, agent, command, named), request)
        return CommandFrame(command, request)

    async def _with_files(self, agent: Agent, command: Command, named: Sequence[str]) -> Command:
        """The command with the files it names: they were kept before, by the same agent."""
        return chiffon.with_files(command, tuple(await find_named(self.files, agent.id, named)))

    def json(self, data: bytes) -> dict[str, Any]:
        """A small body of ours; raises `Refused`."""
        try:
            return codec.parse(data, self.guard)
        except ChiffonError as error:
            raise Refused(chiffon.fault_of(error)) from None

    # -- outgoing messages

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        """An outgoing message as its messages."""
        if not chiffon.in_pieces(outgoing):
            return chiffon.wire_of(outgoing, agent, now)
        whole = (await read_account(self.store, outgoing.delivery.task, outgoing.event.seq)).output
        return chiffon.wire_again(outgoing, agent, whole)

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        to_agent = wire_name(agent) if agent is not None else UNKNOWN
        return chiffon.refusal(fault, to_agent=to_agent, now=self.hub.now(), message_id=self.hub.mint(), about=context)

    def status_of(self, fault: Fault) -> int:
        return chiffon.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        return chiffon.fault_of(error) if isinstance(error, ChiffonError) else super().fault_of(error)


class ChiffonSession(Session):
    """Chiffon on an ordered connection: envelopes, `{"ack": […]}` from the peer, `{"accepted": […]}` to it."""

    protocol = PROTOCOL

    def __init__(self, handler: ChiffonHandler, agent: Agent) -> None:
        super().__init__(handler.hub, agent.id)
        self._handler = handler

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        if frame.startswith(b'{"ack"'):
            try:
                acks = _acks.decode(frame).ack
            except msgspec.MsgspecError as error:
                message = f"not an acknowledgment: {error}"
                return Invalid(Fault(kind=Kind.INVALID, message=message, field="ack", facts={"stage": "shape"}))
            return _acknowledged(acks)
        decoded = self._handler.decode(agent, frame)
        if isinstance(decoded, Invalid) and decoded.message_id is None and b'"ack"' in frame:
            return self._other_ack(frame) or decoded
        return decoded

    def _other_ack(self, frame: bytes) -> Decoded | None:
        """An acknowledgment that does not begin with the bytes we look for: spaces, or another order."""
        try:
            tree = self._handler.json(frame)
            if "type" in tree:
                return None
            return _acknowledged(msgspec.convert(tree, Acks).ack)
        except (Refused, msgspec.ValidationError):
            return None

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        return None if chiffon.in_pieces(outgoing) else chiffon.wire_of(outgoing, agent, now)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        return await self._handler.encode(outgoing, agent, self._hub.now())

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        return self._handler.encode_refusal(fault, agent=agent, context=context)

    def encode_receipt(self, message_ids: Sequence[str]) -> bytes:
        return _encode({"accepted": message_ids})


def _acknowledged(acks: Sequence[str]) -> Decoded:
    if len(acks) > MOST_ACKS:
        message = f"{len(acks)} acknowledgments in one frame; send at most {MOST_ACKS}"
        return Invalid(Fault(kind=Kind.TOO_LARGE, message=message, field="ack"))
    return Acknowledged(tuple(map(DeliveryId, acks)))
