"""One end of a chiffon link: envelopes and two control frames, in either role.

A link carries many exchanges at once, each in its own state (`state`). The connection checks order on both sides:
what we are about to say raises `LocalProtocolError`, what the peer said wrongly becomes an `Invalid` event with the
error to answer.

Exchanges outlive links. After a reconnection the hub's truth is its store and an agent's is its journal, so
a connection's memory is a convenience with a bound, never the truth:

- an answer in an exchange we do not remember is believed and remembered from there;
- the hub may send in an exchange it does not remember; an agent must `adopt` it first, because an answer
  to a request that never came is a bug;
- exchanges that are over, beyond the last few, are forgotten.

The control frames are ours, not the document's, and have no `type`: a client acknowledges with
`{"ack": [delivery_id, …]}`, and the hub confirms with `{"accepted": [message_id, …]}`, only to a client that asked
for receipts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, TypeVar, cast

import msgspec

from dragoman.protocols.chiffon import codec
from dragoman.protocols.chiffon.errors import ChiffonError, InvalidMessage, resource_limit
from dragoman.protocols.chiffon.events import (
    AckReceived,
    ErrorReceived,
    Event,
    Invalid,
    ReceiptReceived,
    RequestReceived,
    ResultReceived,
    StatusReceived,
    delivery_id,
)
from dragoman.protocols.chiffon.exchanges import Exchange, Exchanges
from dragoman.protocols.chiffon.state import EXCHANGE, SPEAKER, Said, Side, State, said
from dragoman.protocols.chiffon.types import (
    PROTOCOL_VERSION,
    Correlation,
    Envelope,
    ErrorPayload,
    Payload,
    Stamp,
    WorkRequest,
    WorkResult,
    WorkStatus,
)
from dragoman.protocols.chiffon.versions import SUPPORTED
from dragoman.wire.connection import Connection as BaseConnection
from dragoman.wire.errors import LocalProtocolError, Stage
from dragoman.wire.guard import Limits
from dragoman.wire.role import Role

Body = TypeVar("Body", bound=Payload)

_encode = msgspec.json.Encoder().encode


class Connection(BaseConnection[Event, Envelope[Payload]]):
    """A chiffon link as seen from one end.

    `version` is what negotiation chose; `receipts` whether this link carries `accepted` frames. `remember` bounds
    both the open exchanges and the finished ones that are kept.
    """

    def __init__(
        self,
        role: Role,
        *,
        limits: Limits = codec.LIMITS,
        version: str = PROTOCOL_VERSION,
        versions: Collection[str] = SUPPORTED,
        receipts: bool = False,
        remember: int = 10_000,
    ) -> None:
        super().__init__(role)
        self.version = version
        self.receipts = receipts
        self._limits = limits
        self._versions = versions
        self._exchanges = Exchanges(remember)

    # --- from the peer ---

    def receive(self, data: bytes) -> list[Event]:
        """One frame from the peer. Never raises for what the peer did."""
        try:
            tree = codec.parse(data, self._limits)
            if "type" not in tree:
                control = self._control(tree)
                if control is not None:
                    return [control]
            return [self._hear(codec.interpret(tree, data, self._versions), data)]
        except ChiffonError as error:
            return [Invalid.of(error)]

    def _control(self, tree: dict[str, Any]) -> Event | None:
        name = "ack" if self.role is Role.HUB else "accepted"
        if name not in tree:
            return None
        ids = tree[name]
        if type(ids) is not list or not all(type(one) is str for one in ids):
            raise InvalidMessage("expected a list of ids", name, stage=Stage.SHAPE)
        return AckReceived(tuple(ids)) if self.role is Role.HUB else ReceiptReceived(tuple(ids))

    def _hear(self, message: Envelope[Payload], raw: bytes) -> Event:
        payload = message.payload
        exchange = self._exchanges.find(message)
        if exchange is None:
            if type(payload) is ErrorPayload:
                return ErrorReceived(cast("Envelope[ErrorPayload]", message), raw)
            we = Side.PERFORMER if type(payload) is WorkRequest else Side.REQUESTER
            if type(payload) is WorkRequest and self.role is Role.AGENT and self._exchanges.full:
                return self._overloaded(message)
            exchange = self._exchanges.open(message, we)
        word = said(payload, exchange.we.other)
        self._check_peer(exchange, message, word)
        acknowledges, exchange.delivery_id = exchange.delivery_id, None
        if type(payload) is WorkRequest:
            return RequestReceived(cast("Envelope[WorkRequest]", message), raw)
        if type(payload) is WorkStatus:
            return StatusReceived(cast("Envelope[WorkStatus]", message), raw, acknowledges)
        if type(payload) is WorkResult:
            last = word is Said.RESULT
            return ResultReceived(cast("Envelope[WorkResult]", message), raw, acknowledges, last)
        return ErrorReceived(cast("Envelope[ErrorPayload]", message), raw, acknowledges)

    def _check_peer(self, exchange: Exchange, message: Envelope[Payload], word: Said) -> None:
        """Advance the exchange by what the peer said, or refuse it."""
        payload = message.payload
        following = EXCHANGE.after(exchange.state, word)
        if SPEAKER[word] is exchange.we:
            what, field, stage = f"the {exchange.we.other} does not send {message.type}", "type", Stage.ORDER
        elif not isinstance(payload, ErrorPayload) and payload.task_id != exchange.task_id:
            what, field, stage = f"the request was for {exchange.task_id}", "payload.task_id", Stage.MEANING
        elif following is not None:
            return self._exchanges.advance(exchange, following, message.message_id)
        elif exchange.closed_by == message.message_id:
            return None
        else:
            what = f"{word} is not allowed when the exchange is {exchange.state}"
            field, stage = "type", Stage.ORDER
        about = Correlation(message.request_id, message.trace_id)
        raise InvalidMessage(what, field, stage=stage, about=about)

    def _overloaded(self, message: Envelope[Payload]) -> Event:
        most = self._exchanges.most
        return Invalid(
            answer=resource_limit(limit_name="open_exchanges", available=0, required=1),
            about=Correlation(message.request_id, message.trace_id),
            what=f"more than {most} open exchanges",
            field=None,
            stage=Stage.ORDER,
        )

    # --- to the peer ---

    def send(self, message: Envelope[Payload], data: bytes | None = None) -> bytes:
        """The frame for `message`; `data` is its bytes when it is somebody else's (see `codec.reissue`)."""
        fault = codec.contradiction(message.payload)
        if fault is not None:
            raise LocalProtocolError(fault[1], field=f"payload.{fault[0]}")
        self._advance_ours(message)
        return codec.encode(message) if data is None else data

    def _advance_ours(self, message: Envelope[Payload]) -> None:
        payload = message.payload
        exchange = self._exchanges.find(message)
        if exchange is None:
            if type(payload) is ErrorPayload:
                return
            if type(payload) is not WorkRequest and self.role is Role.AGENT:
                raise LocalProtocolError(f"no request {message.request_id} to answer", field="request_id")
            we = Side.REQUESTER if type(payload) is WorkRequest else Side.PERFORMER
            exchange = self._exchanges.open(message, we)
        word = said(payload, exchange.we)
        if SPEAKER[word] is not exchange.we:
            raise LocalProtocolError(f"the {exchange.we} does not send {message.type}", field="type")
        following = EXCHANGE.after(exchange.state, word)
        if following is None and exchange.closed_by != message.message_id:
            raise LocalProtocolError(f"{word} is not allowed when the exchange is {exchange.state}", field="type")
        if following is not None:
            self._exchanges.advance(exchange, following, message.message_id)
        if type(payload) is WorkRequest:
            exchange.delivery_id = delivery_id(message)

    def send_request(
        self,
        payload: WorkRequest,
        stamp: Stamp,
        about: Correlation,
        *,
        from_agent: str,
        to_agent: str,
        custom: dict[str, Any] | None = None,
    ) -> bytes:
        """Ask for work. Say it again with the same `about` to retry."""
        return self.send(self._wrap(payload, stamp, about, from_agent, to_agent, custom))

    def send_status(
        self, request_id: str, payload: WorkStatus, stamp: Stamp, *, custom: dict[str, Any] | None = None
    ) -> bytes:
        """Tell the requester how its work goes."""
        return self.send(self._answer(request_id, payload, stamp, custom))

    def send_result(
        self, request_id: str, payload: WorkResult, stamp: Stamp, *, custom: dict[str, Any] | None = None
    ) -> bytes:
        """Tell the requester how its work ended; a long output goes through `chunks.split_result` first."""
        return self.send(self._answer(request_id, payload, stamp, custom))

    def send_error(
        self,
        payload: ErrorPayload,
        stamp: Stamp,
        *,
        about: Correlation | None,
        from_agent: str,
        to_agent: str,
        custom: dict[str, Any] | None = None,
    ) -> bytes:
        """Report an error. What it answers had no readable ids: then the error's own id stands for both (D11)."""
        about = about or Correlation(stamp.message_id, stamp.message_id)
        return self.send(self._wrap(payload, stamp, about, from_agent, to_agent, custom))

    def repeat(self, frames: Iterable[bytes]) -> list[bytes]:
        """Answer a repeated request with the frames that answered it first (`idempotency`)."""
        return [self.send(codec.decode(frame, self._limits), frame) for frame in frames]

    def send_ack(self, delivery_ids: Iterable[str]) -> bytes:
        """Acknowledge deliveries; only a client does."""
        if self.role is Role.HUB:
            raise LocalProtocolError("the hub does not acknowledge, it sends receipts", field="ack")
        return _encode({"ack": list(delivery_ids)})

    def send_receipt(self, message_ids: Iterable[str]) -> bytes:
        """Confirm what has been committed; only the hub does, and only to a client that asked for it."""
        if self.role is Role.AGENT or not self.receipts:
            raise LocalProtocolError("this link carries no receipts", field="accepted")
        return _encode({"accepted": list(message_ids)})

    def adopt(self, request: Envelope[WorkRequest]) -> None:
        """Remember a request that came by an earlier link, so that it can be answered on this one."""
        if self._exchanges.find(request) is None:
            exchange = self._exchanges.open(request, Side.PERFORMER)
            self._exchanges.advance(exchange, State.REQUESTED, request.message_id)

    def state(self, request_id: str) -> State:
        """Where an exchange is; IDLE if it is unknown or forgotten."""
        exchange = self._exchanges.get(request_id)
        return State.IDLE if exchange is None else exchange.state

    def __len__(self) -> int:
        """How many exchanges are remembered."""
        return len(self._exchanges)

    def _answer(self, request_id: str, payload: Body, stamp: Stamp, custom: dict[str, Any] | None) -> Envelope[Body]:
        exchange = self._exchanges.get(request_id)
        if exchange is None:
            raise LocalProtocolError(f"no request {request_id} to answer", field="request_id")
        about = Correlation(request_id, exchange.trace_id)
        return self._wrap(payload, stamp, about, exchange.performer, exchange.requester, custom)

    def _wrap(
        self,
        payload: Body,
        stamp: Stamp,
        about: Correlation,
        from_agent: str,
        to_agent: str,
        custom: dict[str, Any] | None,
    ) -> Envelope[Body]:
        return codec.envelope(
            payload,
            stamp,
            about,
            from_agent=from_agent,
            to_agent=to_agent,
            protocol_version=self.version,
            x_custom_fields=custom,
        )
