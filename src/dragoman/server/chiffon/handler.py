"""Chiffon's handler, which HTTP and WebSocket share: both decode, refuse and record the same message alike."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from dragoman.core.commands import Command, Submit
from dragoman.core.ids import ADMIN, AgentId, Instant
from dragoman.core.model.agents import Agent
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Fault, Refused
from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError
from dragoman.protocols.chiffon.mapping import PROTOCOL
from dragoman.protocols.chiffon.requests import files_in
from dragoman.protocols.chiffon.types import Correlation
from dragoman.server.asgi import Scope
from dragoman.server.chiffon import inbound, outbound
from dragoman.server.files import find_named
from dragoman.server.handler import UNKNOWN, HttpHandler
from dragoman.server.session import CommandFrame, Invalid, LookUp, Request, read_account
from dragoman.wire.errors import RemoteProtocolError


class ChiffonHandler(HttpHandler):
    """One for all of chiffon's endpoints."""

    protocol = PROTOCOL

    def principal(self, scope: Scope) -> AgentId:
        """Who may steer tasks: an agent of any protocol, or the administrator."""
        return ADMIN if self.is_admin(scope) else self.holder(scope).id

    def decode(self, agent: Agent, data: bytes, *, traceparent: str | None = None) -> CommandFrame | LookUp | Invalid:
        """A message as a command, or the fault to answer with."""
        about: Correlation | None = None
        message_id: str | None = None
        try:
            tree = codec.parse(data, self.guard)
            message = codec.interpret(tree, data)
            message_id = message.message_id
            about = Correlation(message.request_id, message.trace_id, message_id)
            command: Command = inbound.command_of(agent, message, tree, data, traceparent=traceparent)
            named = files_in(message)
        except ChiffonError as error:
            return Invalid(error.fault, message_id, error.about)
        except Refused as refused:
            return Invalid(refused.fault, message_id, about)
        lane = None if isinstance(command, Submit) else command.subject
        request = Request(message_id, about, lane=lane)
        if named:
            return LookUp(partial(self._with_files, agent, command, named), request)
        return CommandFrame(command, request)

    async def _with_files(self, agent: Agent, command: Command, named: Sequence[str]) -> Command:
        """The command with the files it names, which the same agent uploaded before."""
        field = "x_custom_fields.files" if isinstance(command, Submit) else "x_custom_fields.file"
        return inbound.with_files(command, tuple(await find_named(self.files, agent.id, named, field=field)))

    def json(self, data: bytes) -> dict[str, Any]:
        try:
            return codec.parse(data, self.guard)
        except ChiffonError as error:
            raise Refused(error.fault) from None

    async def encode(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes]:
        if not outbound.needs_whole_output(outgoing):
            return outbound.wire_of(outgoing, agent, now)
        whole = (await read_account(self.store, outgoing.delivery.task, outgoing.event.seq)).output
        return outbound.wire_again(outgoing, agent, whole)

    def receipts(self, outgoing: Outgoing, count: int) -> Sequence[str]:
        return outbound.receipts(outgoing.delivery.id, count)

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        to_agent = agent.called if agent is not None else UNKNOWN
        return outbound.refusal(fault, to_agent=to_agent, now=self.hub.now(), message_id=self.hub.mint(), about=context)

    def status_of(self, fault: Fault) -> int:
        return outbound.status_of(fault)

    def fault_of(self, error: RemoteProtocolError) -> Fault:
        return error.fault if isinstance(error, ChiffonError) else super().fault_of(error)
