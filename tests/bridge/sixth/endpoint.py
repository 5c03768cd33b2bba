"""Echo at the hub: one WebSocket endpoint, and the session that maps its frames to commands and back."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from dragoman.app.endpoints import HubParts
from dragoman.core import commands
from dragoman.core.ids import AgentId, DeliveryId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.outgoing import Outgoing
from dragoman.messages.faults import Fault, Kind
from dragoman.messages.tasks import Failure, Result, read_request, read_result
from dragoman.server.content import reported_fault, reported_progress
from dragoman.server.handler import Endpoint, Handler
from dragoman.server.session import (
    Acknowledged,
    CommandFrame,
    Connection,
    Decoded,
    Invalid,
    Request,
    Session,
    read_account,
)
from dragoman.server.websocket_endpoint import WebSocketEndpoint
from tests.bridge.sixth import protocol as echo

STATUSES = {Kind.UNAUTHENTICATED: 401, Kind.FORBIDDEN: 403}


class EchoSession(Session):
    protocol = echo.NAME

    def __init__(self, handler: EchoHandler, agent: AgentId, connection: Connection) -> None:
        super().__init__(handler.hub, agent, connection)
        self._handler = handler

    def decode(self, agent: Agent, frame: bytes) -> Decoded:
        try:
            message = echo.decode(frame)
        except msgspec.DecodeError as error:
            return Invalid(Fault(kind=Kind.INVALID, message=str(error)))
        if isinstance(message, echo.Ack):
            return Acknowledged(tuple(map(DeliveryId, message.deliveries)))
        command = command_of(agent.id, message, hashlib.sha256(frame).hexdigest())
        return CommandFrame(command, Request(lane=None if isinstance(message, echo.Ask) else message.task))

    def encode_now(self, outgoing: Outgoing, agent: Agent, now: Instant) -> Sequence[bytes] | None:
        ends = outgoing.delivery.kind is MessageKind.RESULT
        return None if ends and read_result(outgoing.event.body).chunk else self._encode(outgoing)

    async def encode_after_reading(self, outgoing: Outgoing, agent: Agent) -> Sequence[bytes]:
        if outgoing.delivery.kind is not MessageKind.RESULT:
            return self._encode(outgoing)
        account = await read_account(self._handler.store, outgoing.task.id, outgoing.event.seq)
        return self._encode(outgoing, account.output)

    def _encode(self, outgoing: Outgoing, whole: str | None = None) -> Sequence[bytes]:
        task, event, delivery = outgoing.task, outgoing.event, outgoing.delivery.id
        match outgoing.delivery.kind:
            case MessageKind.WORK | MessageKind.HANDOFF:
                return [echo.encode(echo.work_out(task.id, task.type, read_request(event.body), delivery))]
            case MessageKind.PROGRESS:
                return [echo.encode(echo.progress_out(task.id, reported_progress(event), delivery))]
            case MessageKind.CANCEL:
                reason = reported_fault(task, event).message
                return [echo.encode(echo.Cancel(task=task.id, delivery=delivery, reason=reason))]
            case MessageKind.RESULT if task.outcome.fault is None:
                result = read_result(event.body)
                said = result if whole is None else msgspec.structs.replace(result, output=whole)
                return [echo.encode(echo.result_out(task.id, said, delivery))]
        return [echo.encode(echo.fault_out(task.id, reported_fault(task, event), delivery))]

    def encode_refusal(self, fault: Fault, context: Any, agent: Agent) -> bytes:
        return self._handler.encode_refusal(fault)


def command_of(
    agent: AgentId, message: echo.Ask | echo.Report | echo.Done | echo.Failed | echo.Cancel, digest: str
) -> commands.Command:
    """What an agent or a caller asks by a message."""
    if isinstance(message, echo.Ask):
        return commands.Submit(
            principal=agent,
            protocol=echo.NAME,
            request_id=message.id,
            digest=digest,
            type=message.type,
            content=echo.request_in(message),
            task_id=TaskId(message.id),
            routing=commands.Routing(pinned=AgentId(message.to)),
        )
    about: dict[str, Any] = {"principal": agent, "protocol": echo.NAME, "task_id": TaskId(message.task)}
    match message:
        case echo.Report():
            said = echo.progress_in(message)
            return commands.ReportProgress(content=said, percent=said.percent, output=said.output or "", **about)
        case echo.Done():
            done: Result = echo.result_in(message)
            return commands.Finish(digest=digest, content=done, output=done.output or "", **about)
        case echo.Failed():
            fault = echo.fault_in(message)
            return commands.ReportFault(fault=fault, content=Failure(fault=fault), **about)
        case echo.Cancel():
            return commands.Cancel(reason=message.reason or "cancelled on request", **about)


class EchoHandler(Handler):
    protocol = echo.NAME

    def encode_refusal(self, fault: Fault, *, agent: Agent | None = None, context: Any = None) -> bytes:
        return echo.encode(echo.Refused(fault.kind.value, fault.message))

    def status_of(self, fault: Fault) -> int:
        return STATUSES.get(fault.kind, 400)


class EchoWebSocket(WebSocketEndpoint[EchoHandler]):
    path = "/echo/ws"
    subprotocols = ("echo.v1",)

    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        return EchoSession(self._handler, agent.id, connection)


def endpoints(hub: HubParts) -> tuple[Endpoint, ...]:
    return (EchoWebSocket(EchoHandler(hub.intake, hub.store, limits=hub.limits)),)
