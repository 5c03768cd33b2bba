"""Chiffon over one WebSocket: `/api/agent/ws`, subprotocol `chiffon.v1`.

    hub → agent    an envelope; its x_custom_fields.delivery_id is what to acknowledge
                   {"accepted": [message_id, …]} after commits, with ?receipts=1
    agent → hub    an envelope; {"ack": [delivery_id, …]}

The credential is the Authorization header of the handshake; without a good one the answer is HTTP 401, with an
`error` envelope. After that the hub closes a link only for these reasons:

    code   why                                                what to do
    -----  -------------------------------------------------  ------------------------------
    1007   a frame was not UTF-8                              repair the client
    1009   a frame was far too large                          split the output
    1011   pings were not answered                            connect again
    1012   the hub stops or restarts                          connect again, with backoff
    1013   the hub cannot take links now                      connect again, with backoff
    4001   the token was replaced, or the agent removed       get the new token
    4009   a newer connection of the same agent took over     nothing: the newer one serves
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qs

import structlog

from dragoman.bindings import chiffon
from dragoman.bindings.chiffon.exchange import PROTOCOL
from dragoman.core.agents.model import Agent
from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.ids import SessionId
from dragoman.protocols.chiffon.types import SUBPROTOCOL
from dragoman.transports.asgi import JSON, Receive, Scope, Send, answer
from dragoman.transports.desk import ChiffonTongue, Desk
from dragoman.transports.driver import Pump
from dragoman.transports.websocket import EXTENSION, Socket

log = structlog.get_logger("dragoman.transports")

TOO_BIG = 1009
RESTART = 1012
TRY_LATER = 1013
CODES = (("token", 4001), ("removed", 4001), ("newer", 4009), ("stop", RESTART))
"""The close code for the hub's reason to hang up, by a word in it."""


class ChiffonWs:
    """The application behind the path."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._hub = desk.hub
        self._links: dict[SessionId, tuple[Pump, Send]] = {}
        self._closing: set[asyncio.Future[None]] = set()

    @property
    def open_links(self) -> int:
        return len(self._links)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            fault = Fault(kind=Kind.INVALID, message="this path speaks WebSocket; connect with an upgrade")
            await answer(send, 426, self._desk.no(fault), headers=((b"upgrade", b"websocket"),))
            return
        await receive()  # websocket.connect
        try:
            agent = self._desk.agent(scope)
            offered = scope["subprotocols"]
            if offered and SUBPROTOCOL not in offered:
                message = f"none of the offered subprotocols is spoken here; offer {SUBPROTOCOL}"
                raise Refused(Fault(kind=Kind.INVALID, message=message, facts={"stage": "shape"}))
        except Refused as refused:
            await self._turn_away(send, refused.fault)
            return
        await self._serve(agent, scope, receive, send, SUBPROTOCOL if offered else None)

    async def _turn_away(self, send: Send, fault: Fault) -> None:
        await self._desk.refusals.note("agent.connect", fault, principal=None, protocol=PROTOCOL)
        status = chiffon.status_of(fault)
        headers = [JSON, *([(b"www-authenticate", b"Bearer")] if status == 401 else [])]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": self._desk.no(fault)})

    async def _serve(self, agent: Agent, scope: Scope, receive: Receive, send: Send, subprotocol: str | None) -> None:
        session = SessionId(self._hub.mint())
        socket: Socket = scope["extensions"][EXTENSION]
        receipts = parse_qs(scope["query_string"].decode("latin-1")).get("receipts", ["0"])[-1] in ("1", "true")
        pump = Pump(
            self._hub,
            agent.id,
            session,
            ChiffonTongue(self._desk),
            socket,
            hang_up=lambda reason: self._hang_up(send, reason),
            receipts=receipts,
            unanswered=self._desk.limits.unanswered_frames,
        )
        socket.listener = pump
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._hub.attach(session, pump)
        self._links[session] = (pump, send)
        code: int | None = None
        try:
            # The peer acknowledges, or we do for it when its pong comes: either way the hub's window bounds the link.
            await self._hub.ask(
                OpenLink(principal=agent.id, protocol=PROTOCOL, session=session, ordered=True, acknowledges=True)
            )
            log.info("connected", agent=agent.id, session=session)
            while (message := await receive())["type"] != "websocket.disconnect":
                pass
            code = message.get("code")
        except Refused as refused:
            log.warning("no link", agent=agent.id, why=refused.fault.kind.value)
            await _close(send, TRY_LATER, str(refused.fault))
        finally:
            self._links.pop(session, None)
            closed = self._hub.post(CloseLink(principal=agent.id, session=session))
            closed.add_done_callback(lambda done: self._closed(session, done))
            log.info("disconnected", agent=agent.id, session=session, code=code)
        if code == TOO_BIG:
            fault = Fault(kind=Kind.TOO_LARGE, message=f"a frame above {self._desk.limits.ws_bytes} bytes")
            await self._desk.refusals.note("chiffon.frame", fault, principal=agent.id, protocol=PROTOCOL)

    def _closed(self, session: SessionId, closed: asyncio.Future[Any]) -> None:
        self._hub.detach(session)
        if not closed.cancelled():
            closed.exception()

    def _hang_up(self, send: Send, reason: str) -> None:
        code = next((code for word, code in CODES if word in reason), 1000)
        closing = asyncio.ensure_future(_close(send, code, reason))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def drain(self, seconds: float) -> None:
        """Let every link answer what it has heard, then close it: clients connect to whoever serves next."""
        draining = [asyncio.ensure_future(_drain(pump, send)) for pump, send in self._links.values()]
        if draining:
            _, late = await asyncio.wait(draining, timeout=seconds)
            for task in late:
                task.cancel()


async def _drain(pump: Pump, send: Send) -> None:
    await pump.drain()
    await _close(send, RESTART, "the hub stops; connect again")


async def _close(send: Send, code: int, reason: str) -> None:
    try:
        # A close frame has room for 123 bytes of reason.
        await send({"type": "websocket.close", "code": code, "reason": reason.encode()[:120].decode(errors="ignore")})
    except Exception as error:  # it is gone already, in whatever way
        log.debug("already closed", error=type(error).__name__)
