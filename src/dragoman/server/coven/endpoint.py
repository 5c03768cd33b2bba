"""Coven's endpoint: a gRPC server for agents' streams and for callers.

Handlers take and give raw bytes: the protocol is ours, gRPC only moves it. An exception in a handler ends that call
with INTERNAL and nothing else.

Stop order: the hub asks agents to finish and leave, and callers to come back; then the port closes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.ids import AgentId, SessionId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Files, Intake, Store, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.coven import types
from dragoman.protocols.coven.connection import Connection, Invalid
from dragoman.protocols.coven.mapping import PROTOCOL
from dragoman.security import tls as secure
from dragoman.server.connection import close_link
from dragoman.server.coven import inbound, outbound
from dragoman.server.coven.authentication import ConnectedAgents, Identity
from dragoman.server.coven.callers import Callers
from dragoman.server.coven.grpc_port import (
    HEALTHY,
    CovenLimits,
    Health,
    MetadataLimit,
    address_of,
    credentials,
    end_call,
    metadata_of,
    reflection_handlers,
    turn_away,
)
from dragoman.server.coven.session import LEFT, AgentStream, StreamEnd
from dragoman.server.files import FileKeeper
from dragoman.server.refusals import CALLER, UNREADABLE, RefusalLog
from dragoman.wire.closing import CloseReason
from dragoman.wire.role import Role

log = structlog.get_logger("dragoman.server")

ABORT_SECONDS = 0.2
"""How long streams have to end when this node decides no more."""


class CovenEndpoint:
    """`start`, then `drain`, then `stop`. `counts` are figures for metrics."""

    def __init__(
        self,
        hub: Intake,
        store: Store,
        files: Files,
        *,
        host: str = "127.0.0.1",
        port: int = types.DEFAULT_PORT,
        guests: bool = False,
        limits: CovenLimits | None = None,
        server_id: str = "dragoman",
        admin_token_hash: str | None = None,
        tls: secure.Renewal | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._hub = hub
        self._store = store
        self._files = FileKeeper(files)
        self._host = host
        self._port = port
        self._limits = limits or CovenLimits()
        self._server_id = server_id
        self._tls = tls
        self._identity = Identity(hub, guests=guests, admin_hash=admin_token_hash)
        self._refusals = RefusalLog(hub)
        self._callers = Callers(
            hub,
            store,
            self._files,
            identity=self._identity,
            limits=self._limits.codec,
            refusals=self._refusals,
            counts=self.counts,
        )
        self._connected = ConnectedAgents(
            keepalive_seconds=self._limits.keepalive_seconds, keepalive_timeout=self._limits.keepalive_timeout
        )
        self._streams: set[AgentStream] = set()
        self._unregistered: Counter[AgentId | None] = Counter()
        self._draining = False
        self._emptied = asyncio.Event()
        self._server: Any = None
        self._health = Health()

    @property
    def streams(self) -> int:
        """Agents connected now."""
        return len(self._streams)

    # -- life

    async def start(self) -> int:
        """Serve; returns the port, which is a free one if 0 was asked for. Raises `OSError` if it is taken."""
        limits = self._limits
        server = grpc.aio.server(
            interceptors=(MetadataLimit(limits.metadata_bytes),),
            options=limits.options(),
            maximum_concurrent_rpcs=limits.streams,
        )
        control = {"AgentStream": grpc.stream_stream_rpc_method_handler(self._agent_stream)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(types.CONTROL, control),
                grpc.method_handlers_generic_handler(types.CLIENT, self._callers.handlers()),
                *reflection_handlers(),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in HEALTHY:
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        try:
            if self._tls is not None:
                port = server.add_secure_port(address, credentials(self._tls))
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if not port:
            raise OSError(f"cannot listen on {address}")
        self._server, self._port = server, int(port)
        await server.start()
        log.info("coven serves", address=f"{self._host}:{self._port}", tls=self._tls is not None)
        return self._port

    async def drain(self, seconds: float | None = None) -> None:
        """Take no new agents, ask all to finish, and wait until they left or the time is up (D10)."""
        self._draining = True
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        self._callers.drain()
        for stream in list(self._streams):
            stream.session.shut_down("the hub is stopping")
        await self._empty(self._limits.shutdown_seconds if seconds is None else seconds)
        for stream in list(self._streams):
            stream.end((grpc.StatusCode.UNAVAILABLE, "the hub is stopping; connect again in a moment"))
        await self._empty(5.0)

    async def _empty(self, seconds: float) -> None:
        """Until the last agent has left, or the time is up."""
        if self._streams:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def stop(self) -> None:
        """Close the port, and every stream that is left."""
        if self._server is None:
            return
        if not self._draining:
            await self.drain(0)
        await self._server.stop(0.5)
        self._server = None

    async def abort(self) -> None:
        """End every stream at once with the status of a restart, and answer nothing: this node decides no more."""
        if self._server is None:
            return
        self._draining = True
        for stream in list(self._streams):
            stream.end((grpc.StatusCode.UNAVAILABLE, CloseReason.HUB_STOPS.sentence))
        await self._empty(ABORT_SECONDS)
        await self._server.stop(0)
        self._server = None

    # -- an agent's stream

    async def _agent_stream(self, _requests: Any, context: Any) -> None:
        self.counts["streams"] += 1
        CALLER.set(address_of(context))
        try:
            await context.send_initial_metadata(())  # D2: clients wait for it before they register
            how = await self._admit(context)
        except Refused as refused:
            self.counts[f"refused.{refused.fault.kind.value}"] += 1
            await turn_away(context, refused.fault)
            return
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except StoreFailed as error:
            log.error("the store cannot be read", why=str(error))
            await turn_away(context, UNREADABLE)
            return
        except Exception:
            log.exception("a stream failed")
            how = (grpc.StatusCode.INTERNAL, "the hub failed to serve this stream; its log says why")
        if how is not LEFT:
            await end_call(context, *how)

    async def _admit(self, context: Any) -> StreamEnd:
        """From a new stream to a registered agent, and on to the stream's end."""
        metadata = metadata_of(context.invocation_metadata())
        connection = Connection(Role.HUB, limits=self._limits.codec)
        if self._draining:
            raise refuse(Kind.OVERLOADED, "the hub is stopping", next="connect again in a moment", retryable=True)
        if self._unregistered.total() >= self._limits.unregistered:
            raise refuse(Kind.RATE_LIMITED, "too many streams wait to register", retryable=True)
        try:
            # A caller that cannot register takes no place among those that wait to; one that can takes only a few.
            holder = self._identity.credential(metadata)
        except Refused as refused:
            await self._record_refusal(refused.fault)
            raise
        if holder is not None and self._unregistered[holder] >= self._limits.unregistered_each:
            raise refuse(
                Kind.RATE_LIMITED,
                f"too many streams of {holder} wait to register",
                next="one is enough",
                retryable=True,
            )
        self._unregistered[holder] += 1
        try:
            registration = await self._registration(connection, context)
            if isinstance(registration, tuple):
                return registration
            agent = await self._registered(metadata, registration)
            stream = AgentStream(
                self._hub,
                self._store,
                self._files,
                agent=agent.id,
                session_id=SessionId(self._hub.mint()),
                stream=connection,
                context=context,
                limits=self._limits,
                counts=self.counts,
            )
            if not await self._connected.enter(agent.id, stream):
                self.counts["refused.already_exists"] += 1
                message = f"{agent.id} is connected already; use another agent_id, or end the other stream"
                return grpc.StatusCode.ALREADY_EXISTS, message
        finally:
            self._unregistered[holder] -= 1
            if not self._unregistered[holder]:
                del self._unregistered[holder]
        return await self._serve(stream, registration, context)

    async def _registration(self, connection: Connection, context: Any) -> types.RegisterAgent | StreamEnd:
        """The first message, in time; or how the stream ends without it."""
        reading = asyncio.ensure_future(context.read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=self._limits.register_seconds)
        finally:
            if not reading.done():
                reading.cancel()
        if not done:
            message = f"no register within {self._limits.register_seconds:g} seconds"
            await self._record_refusal(Fault(kind=Kind.TIMEOUT, message=message))
            return grpc.StatusCode.DEADLINE_EXCEEDED, message
        data = reading.result()
        if data is grpc.aio.EOF:
            return LEFT
        (event,) = connection.receive(data)
        if isinstance(event, types.RegisterAgent):
            return event
        assert isinstance(event, Invalid)  # the first message is a registration or it is refused
        fault = inbound.fault_of(event.error)
        await self._record_refusal(fault)
        return grpc.StatusCode.INVALID_ARGUMENT, outbound.status_of(fault)[1]

    async def _registered(self, metadata: dict[str, str], registration: types.RegisterAgent) -> Agent:
        try:
            return await self._identity.agent(metadata, registration)
        except Refused as refused:
            await self._record_refusal(refused.fault, registration.agent_id)
            raise

    async def _record_refusal(self, fault: Fault, about: str | None = None) -> None:
        await self._refusals.record("agent.connect", fault, principal=None, protocol=PROTOCOL, about=about)

    async def _serve(self, stream: AgentStream, registration: types.RegisterAgent, context: Any) -> StreamEnd:
        """The agent is connected until its stream ends."""
        hub, agent = self._hub, stream.agent
        self._streams.add(stream)
        how: StreamEnd | None = None
        opened = False
        try:
            await hub.execute(inbound.registration_of(agent, registration))
            hub.attach(stream.session_id, stream.loop)
            opened = True
            await hub.execute(
                OpenLink(
                    principal=agent,
                    protocol=PROTOCOL,
                    session=stream.session_id,
                    ordered=True,
                    acknowledges=True,
                    fresh=True,
                    vouches=True,
                )
            )
            # An agent that is welcomed can be reached, too. Nothing leaves before this: `stream.serve` does the rest.
            await context.write(stream.session.stream.send_welcome(self._server_id))
            log.info("connected", agent=agent, session=stream.session_id, protocol=PROTOCOL)
            if self._draining:
                stream.session.shut_down("the hub is stopping")
            how = await stream.serve()
            return how
        finally:
            if opened:
                self._close(stream, how)
            self._streams.discard(stream)
            self._connected.leave(agent, stream)
            if not self._streams:
                self._emptied.set()
            log.info("disconnected", agent=agent, session=stream.session_id, why=how[1] if how else "gone")

    def _close(self, stream: AgentStream, how: StreamEnd | None) -> None:
        """The stream is over: what was open on it has failed, retryably (D6)."""
        is_interrupted = stream.close()
        if is_interrupted:
            self.counts["interrupted"] += 1
        fault = None
        if is_interrupted or not self._draining:
            # Work that had not been sent when the hub stopped is not lost: it leaves again with the next session.
            fault = _gone(stream.agent, how)
        closing = CloseLink(principal=stream.agent, session=stream.session_id, lost=fault is not None, fault=fault)
        close_link(self._hub, closing)


def _gone(agent: AgentId, how: StreamEnd | None) -> Fault:
    """The fault of a task whose agent's stream ended; it says what the agent did wrong, if anything."""
    why = f": {how[1]}" if how is not None and how[0] is grpc.StatusCode.INVALID_ARGUMENT else ""  # it has the advice
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{agent}'s stream ended while it worked on the task{why}",
        next="correct the message and send it again" if why else "",
        retryable=True,
        facts={"agent_id": agent, "last_heartbeat": None},
    )
