"""The life of a WebSocket link, the same for every protocol that has one: authenticate, open, serve, close.

The credential is the Authorization header of the handshake. Without a valid one the hub answers with an HTTP status and
the protocol's own error as the body. After that the hub closes a link only for these reasons (those of the core are a
table, `wire.closing`):

    code   why                                                what to do
    -----  -------------------------------------------------  ------------------------------
    1007   a frame was not UTF-8                              repair the client
    1009   a frame was far too large                          send less at a time
    1011   pings were not answered                            connect again
    1012   the hub stops or restarts                          connect again, with backoff
    1013   the hub cannot take links now                      connect again, with backoff
    4001   the token was replaced, or the agent removed       get the new token
    4009   a newer connection of the same agent took over     nothing: the newer one serves

A protocol's handler authenticates agents and encodes refusals; its endpoint makes the session. The rest is here.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Generic, TypeVar

import msgspec
import structlog

from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.ids import AgentId, SessionId
from dragoman.core.model.agents import Agent
from dragoman.messages.faults import Fault, Kind, Refused, new_fault, refuse
from dragoman.server.asgi import JSON, ASGIApp, Receive, Scope, Send, answer
from dragoman.server.connection import ConnectionLoop, close_link
from dragoman.server.handler import Endpoint, Handler, instance_in
from dragoman.server.session import Connection, Session
from dragoman.server.websocket import EXTENSION, WebSocketConnection
from dragoman.wire.closing import CloseReason

log = structlog.get_logger("dragoman.server")

TOO_BIG = 1009
IN_ORDER = (1000, 1001)
"""The codes of a peer that closes on purpose. Without a code (1005) it may have crashed."""
TRY_LATER = 1013

LINGER = 0.9
"""The share of the drain time that a link at work has to finish; the rest is for closing it."""
LOOK_SECONDS = 0.05
CLOSE_SECONDS = 0.2
"""How long the close frames of an abort may take to be written."""


class Link(msgspec.Struct, frozen=True):
    """An open link."""

    agent: AgentId
    loop: ConnectionLoop[Session]
    wire: WebSocketConnection
    session: Session
    send: Send


H = TypeVar("H", bound=Handler)


class WebSocketEndpoint(Endpoint, ABC, Generic[H]):
    """The ASGI application of one path."""

    speaks_websocket: ClassVar = True
    path: ClassVar[str]
    subprotocols: ClassVar[tuple[str, ...]]
    """The subprotocols of this path. A client that offers none speaks the first."""
    vouches: ClassVar[bool] = False
    """Whether an open link alone proves that the agent is alive (`OpenLink.vouches`)."""
    frames_at_once: ClassVar[int | None] = None
    measured: ClassVar[bool] = False
    """Whether the protocol limits how fast its agents send (`connection.ConnectionLoop`)."""
    acknowledgment_seconds: ClassVar[float] = 0.0
    """How long a peer may take for its first acknowledgment, where the protocol has one
    (`connection.FIRST_ACKNOWLEDGMENT_SECONDS`)."""

    def __init__(self, handler: H) -> None:
        self._handler = handler
        self._hub = handler.hub
        self._links: dict[SessionId, Link] = {}
        self._closing: set[asyncio.Future[None]] = set()

    # -- what a protocol overrides

    @abstractmethod
    def session(self, agent: Agent, subprotocol: str, connection: Connection) -> Session:
        """The protocol's side of a new connection."""

    def binary(self, subprotocol: str) -> bool:
        """Whether frames are binary."""
        return False

    def receipts(self, scope: Scope) -> bool:
        """Whether the peer gets receipts for accepted messages."""
        return False

    def one_by_one(self, scope: Scope) -> bool:
        """Whether each accepted message gets a receipt of its own, rather than one for all messages of a commit."""
        return False

    def farewell(self, link: Link, seconds: float) -> None:
        """Announce that the hub stops, where the protocol has a message for that."""

    async def at_work(self, link: Link) -> bool:
        """Whether the peer still has something to finish before the time that `farewell` gave it."""
        return False

    # -- a link's life

    def routes(self) -> Mapping[str, ASGIApp]:
        return {self.path: self}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            fault = new_fault(Kind.INVALID, "this path speaks WebSocket", next="connect with an upgrade")
            await answer(send, 426, self._handler.encode_refusal(fault), headers=((b"upgrade", b"websocket"),))
            return
        await receive()  # websocket.connect
        try:
            agent = self._handler.agent(scope)
            subprotocol = self._chosen(scope["subprotocols"])
            instance_in(scope)
        except Refused as refused:
            await self._turn_away(send, refused.fault)
            return
        await self._serve(agent, scope, receive, send, subprotocol)

    def _chosen(self, offered: Sequence[str]) -> str | None:
        """The first offered subprotocol that this path has."""
        for name in offered:
            if name in self.subprotocols:
                return name
        if offered:
            raise refuse(
                Kind.INVALID,
                "none of the offered subprotocols is spoken here",
                next=f"offer {' or '.join(self.subprotocols)}",
                stage="shape",
            )
        return None

    async def _turn_away(self, send: Send, fault: Fault) -> None:
        await self._handler.refusals.record("agent.connect", fault, principal=None, protocol=self._handler.protocol)
        status = self._handler.status_of(fault)
        headers = [JSON, *([(b"www-authenticate", b"Bearer")] if status == 401 else [])]
        await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": self._handler.encode_refusal(fault)})

    async def _serve(self, agent: Agent, scope: Scope, receive: Receive, send: Send, subprotocol: str | None) -> None:
        session = SessionId(self._hub.mint())
        spoken = subprotocol or self.subprotocols[0]
        link = self._linked(agent, session, scope, send, spoken)
        await send({"type": "websocket.accept", "subprotocol": subprotocol})
        self._hub.attach(session, link.loop)
        self._links[session] = link
        code: int | None = None
        try:
            # The peer acknowledges, or its pong does so for it: either way the hub's window bounds the link.
            await self._hub.execute(
                OpenLink(
                    principal=agent.id,
                    protocol=self._handler.protocol,
                    session=session,
                    ordered=True,
                    acknowledges=True,
                    paced=True,
                    instance=instance_in(scope),
                    vouches=self.vouches,
                )
            )
            log.info("connected", agent=agent.id, session=session)
            while (message := await receive())["type"] != "websocket.disconnect":
                pass
            code = message.get("code")
            if code in IN_ORDER:  # it had read everything it got
                link.loop.acknowledge_arrived()
        except Refused as refused:
            log.warning("no link", agent=agent.id, why=refused.fault.kind.value)
            await _close(send, TRY_LATER, str(refused.fault))
        finally:
            self._links.pop(session, None)
            link.loop.close()
            close_link(self._hub, CloseLink(principal=agent.id, session=session))
            log.info("disconnected", agent=agent.id, session=session, code=code)
        if code == TOO_BIG:
            await self._note_too_big(agent.id)

    def _linked(self, agent: Agent, session: SessionId, scope: Scope, send: Send, spoken: str) -> Link:
        socket: WebSocketConnection = scope["extensions"][EXTENSION]
        loop = ConnectionLoop(
            self._hub,
            agent.id,
            session,
            partial(self.session, agent, spoken),
            socket,
            hang_up=self._hanging_up(send),
            receipts=self.receipts(scope),
            one_by_one=self.one_by_one(scope),
            unanswered=self._handler.limits.unanswered_frames,
            acknowledgment_seconds=self.acknowledgment_seconds,
            measured=self.measured,
        )
        binary = self.binary(spoken)
        socket.attach(loop, agent.id, self._hub.memory, binary=binary, frames_at_once=self.frames_at_once)
        return Link(agent.id, loop, socket, loop.session, send)

    async def _note_too_big(self, agent: AgentId) -> None:
        fault = Fault(kind=Kind.TOO_LARGE, message=f"a frame above {self._handler.limits.ws_bytes} bytes")
        await self._handler.refusals.record(
            f"{self._handler.protocol}.frame", fault, principal=agent, protocol=self._handler.protocol
        )

    def _hanging_up(self, send: Send) -> Callable[[CloseReason], None]:
        def hang_up(reason: CloseReason) -> None:
            closing = asyncio.ensure_future(_close(send, reason.websocket, reason.sentence))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

        return hang_up

    async def drain(self, seconds: float) -> None:
        """Answer what every link has received, then close it: clients connect again after the restart."""
        draining = []
        for session, link in self._links.items():
            self.farewell(link, seconds)
            draining.append(asyncio.ensure_future(self._leave(session, link, seconds * LINGER)))
        if draining:
            _, late = await asyncio.wait(draining, timeout=seconds)
            for task in late:
                task.cancel()

    async def abort(self) -> None:
        for link in list(self._links.values()):
            link.loop.hang_up(CloseReason.HUB_STOPS)
        if self._closing:
            await asyncio.wait(tuple(self._closing), timeout=CLOSE_SECONDS)

    async def _leave(self, session: SessionId, link: Link, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (  # noqa: ASYNC110 - there is no event to wait for
            session in self._links and loop.time() < end and await self.at_work(link)
        ):
            await asyncio.sleep(LOOK_SECONDS)
        try:
            async with asyncio.timeout_at(end + seconds * (1 - LINGER) / 2):
                await link.loop.drain()
        except TimeoutError:
            log.info("not all was answered", agent=link.agent, session=session)
        await _close(link.send, CloseReason.HUB_STOPS.websocket, CloseReason.HUB_STOPS.sentence)


async def _close(send: Send, code: int, reason: str) -> None:
    try:
        # A close frame has room for 123 bytes of reason.
        await send({"type": "websocket.close", "code": code, "reason": reason.encode()[:120].decode(errors="ignore")})
    except Exception as error:  # the connection is gone already
        log.debug("already closed", error=type(error).__name__)
