"""Forge over one WebSocket: `/forge/ws`, for agents elsewhere (D12).

    subprotocol         frames                   without one offered, it is JSON
    ------------------  -----------------------
    forge.v1.json       text, one message or an array of them
    forge.v1.msgpack    binary, likewise

The credential is the Authorization header of the handshake; without a good one the answer is HTTP 401 with a
`response:error` as its body. Compression is used where the client offers it. The hub says `notify:shutdown` before it
stops. It closes a link only for these reasons:

    code   why                                                what to do
    -----  -------------------------------------------------  ------------------------------
    1009   a frame was far too large                          send less at a time
    1011   pings were not answered                            connect again
    1012   the hub stops or restarts                          connect again, with backoff
    1013   the hub cannot take links now                      connect again, with backoff
    4001   the token was replaced, or the agent removed       get the new token
    4009   a newer connection of the same agent took over     nothing: the newer one serves
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from dragoman.bindings import errormap, forge
from dragoman.core.agents.model import Agent
from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.errors import Fault, Kind, Refused, refuse
from dragoman.core.ids import AgentId, SessionId
from dragoman.protocols.forge import codec
from dragoman.protocols.forge.types import SHUTDOWN_GRACE_MS, Encoding
from dragoman.security import tokens
from dragoman.transports.asgi import JSON, ASGIApp, Receive, Scope, Send, answer, header
from dragoman.transports.driver import Pump
from dragoman.transports.forge.desk import ForgeDesk
from dragoman.transports.forge.tongue import ForgeTongue
from dragoman.transports.refusals import Refusals
from dragoman.transports.websocket import EXTENSION, Socket
from dragoman.wire.guard import Limits

log = structlog.get_logger("dragoman.transports")

PATH = "/forge/ws"
TOO_BIG = 1009
RESTART = 1012
TRY_LATER = 1013
CODES = (("token", 4001), ("removed", 4001), ("newer", 4009), ("stop", RESTART))
"""The close code for the hub's reason to hang up, by a word in it."""

FRAMES_AT_ONCE = 1000
REST_SECONDS = 0.25
"""A link that brings more frames than this in so short a time is not read for the rest of it: refusing costs, too."""


class Edge:
    """A socket as the pump needs it, and the pump as the socket needs it.

    Three things may stop us reading: the pump, because the hub is behind; a peer that does not read our answers; one
    that talks far beyond its measure. Reading goes on when none of them holds.
    """

    def __init__(self, socket: Socket, encoding: Encoding) -> None:
        self._socket = socket
        self._binary = encoding is Encoding.MSGPACK
        self._stopped: set[str] = set()
        self._frames = 0
        self._window: asyncio.TimerHandle | None = None
        self.pump: Pump | None = None

    # -- towards the socket

    def heard(self, frame: bytes) -> None:
        if self.pump is None:
            return
        self._frames += 1
        if self._window is None:
            self._window = asyncio.get_running_loop().call_later(REST_SECONDS, self._rested)
        if self._frames >= FRAMES_AT_ONCE:
            self._stop("pace")
        self.pump.heard(frame)
        if not self._socket.has_room:
            self._stop("room")

    def _rested(self) -> None:
        self._window, self._frames = None, 0
        self._go_on("pace")

    def marked(self) -> None:
        if self.pump is not None:
            self.pump.marked()

    def writable(self) -> None:
        if self.pump is not None:
            self.pump.writable()
        if self._socket.has_room:
            self._go_on("room")

    # -- towards the pump

    @property
    def has_room(self) -> bool:
        return self._socket.has_room

    def write(self, frames: Sequence[bytes]) -> None:
        if self._binary:
            self._socket.write_binary(frames)
        else:
            self._socket.write(frames)

    def mark(self) -> None:
        self._socket.mark()

    def stop_reading(self) -> None:
        self._stop("pump")

    def go_on_reading(self) -> None:
        self._go_on("pump")

    def close(self) -> None:
        if self._window is not None:
            self._window.cancel()
        if self.pump is not None:
            self.pump.part()
            self.pump = None

    def _stop(self, why: str) -> None:
        self._stopped.add(why)
        self._socket.stop_reading()

    def _go_on(self, why: str) -> None:
        self._stopped.discard(why)
        if not self._stopped:
            self._socket.go_on_reading()


class ForgeWs:
    """The application behind the path; a `server.Door`."""

    def __init__(self, desk: ForgeDesk) -> None:
        self._desk = desk
        self._hub = desk.hub
        self._refusals = Refusals(desk.hub)
        self._limits = Limits(bytes=desk.limits.message_bytes, depth=desk.limits.message_depth)
        self._links: dict[SessionId, tuple[Pump, Edge, ForgeTongue, Send]] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def routes(self) -> Mapping[str, ASGIApp]:
        return {PATH: self}

    def under(self) -> Mapping[str, ASGIApp]:
        return {}

    @property
    def open_links(self) -> int:
        return len(self._links)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            fault = Fault(kind=Kind.INVALID, message="this path speaks WebSocket; connect with an upgrade")
            await answer(send, 426, self._no(fault), headers=((b"upgrade", b"websocket"),))
            return
        await receive()  # websocket.connect
        try:
            agent = self._agent(scope)
            encoding, subprotocol = _encoding(scope["subprotocols"])
        except Refused as refused:
            await self._turn_away(send, refused.fault)
            return
        await self._serve(agent, scope, receive, send, encoding, subprotocol)

    def _agent(self, scope: Scope) -> Agent:
        """The forge agent whose token this is; raises `Refused`."""
        token = tokens.bearer(header(scope, b"authorization"))
        agent = None if token is None else self._hub.agent_of(tokens.token_hash(token))
        if agent is None:
            raise refuse(Kind.UNAUTHENTICATED, "no bearer token" if token is None else "nobody here has this token")
        if agent.protocol != forge.PROTOCOL:
            message = f"{agent.id} was added to speak {agent.protocol}; use that protocol's endpoints"
            raise refuse(Kind.FORBIDDEN, message, agent_id=agent.id)
        return agent

    async def _turn_away(self, send: Send, fault: Fault) -> None:
        await self._refusals.note("agent.connect", fault, principal=None, protocol=forge.PROTOCOL)
        status = errormap.TABLE[fault.kind].http
        headers = [JSON, *([(b"www-authenticate", b"Bearer")] if status == 401 else [])]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": self._no(fault)})

    def _no(self, fault: Fault) -> bytes:
        stamp = forge.stamp(self._hub.mint(), self._hub.now())
        return codec.write(codec.failure(None, forge.error_of(fault), stamp))

    async def _serve(
        self, agent: Agent, scope: Scope, receive: Receive, send: Send, encoding: Encoding, subprotocol: str | None
    ) -> None:
        session = SessionId(self._hub.mint())
        socket: Socket = scope["extensions"][EXTENSION]
        edge = Edge(socket, encoding)
        tongue = ForgeTongue(self._desk, agent.id, encoding=encoding, limits=self._limits)
        pump = Pump(
            self._hub,
            agent.id,
            session,
            tongue,
            edge,
            hang_up=lambda reason: self._hang_up(send, reason),
            unanswered=self._desk.limits.unanswered_frames,
        )
        edge.pump = pump
        socket.listener = edge
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._hub.attach(session, pump)
        self._links[session] = (pump, edge, tongue, send)
        code: int | None = None
        try:
            # Notices are acknowledged by the pong behind them, so the hub's window bounds the link.
            await self._hub.ask(
                OpenLink(
                    principal=agent.id,
                    protocol=forge.PROTOCOL,
                    session=session,
                    ordered=True,
                    acknowledges=True,
                    vouches=True,
                )
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
            edge.close()
            closed = self._hub.post(CloseLink(principal=agent.id, session=session))
            closed.add_done_callback(lambda done: self._closed(session, done))
            log.info("disconnected", agent=agent.id, session=session, code=code)
        if code == TOO_BIG:
            await self._note_too_big(agent.id)

    async def _note_too_big(self, agent: AgentId) -> None:
        fault = Fault(kind=Kind.TOO_LARGE, message=f"a frame above {self._desk.limits.ws_bytes} bytes")
        await self._refusals.note("forge.frame", fault, principal=agent, protocol=forge.PROTOCOL)

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
        """Say that the hub stops, let every link answer what it has heard, then close it."""
        grace = int(min(seconds * 1000, SHUTDOWN_GRACE_MS))
        draining = []
        for pump, edge, tongue, send in self._links.values():
            edge.write([tongue.shutdown(grace, "Orchestrator stopping", self._hub.now(), self._hub.mint())])
            draining.append(asyncio.ensure_future(_drain(pump, send)))
        if draining:
            _, late = await asyncio.wait(draining, timeout=seconds)
            for task in late:
                task.cancel()


def _encoding(offered: Sequence[str]) -> tuple[Encoding, str | None]:
    """The first of the client's that we speak."""
    spoken = [encoding.value for encoding in Encoding]
    for name in offered:
        if name in spoken:
            return Encoding(name), name
    if offered:
        message = f"none of the offered subprotocols is spoken here; offer {' or '.join(spoken)}"
        raise refuse(Kind.INVALID, message, stage="shape")
    return Encoding.JSON, None


async def _drain(pump: Pump, send: Send) -> None:
    await pump.drain()
    await _close(send, RESTART, "the hub stops; connect again")


async def _close(send: Send, code: int, reason: str) -> None:
    try:
        # A close frame has room for 123 bytes of reason.
        await send({"type": "websocket.close", "code": code, "reason": reason.encode()[:120].decode(errors="ignore")})
    except Exception as error:  # it is gone already, in whatever way
        log.debug("already closed", error=type(error).__name__)
