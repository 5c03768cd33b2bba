"""Coven's endpoint: a gRPC server for agents' streams and callers, with health and reflection.

Handlers take and give raw bytes: the protocol is ours, gRPC only moves it. An exception in a handler ends that call
with INTERNAL and nothing else.

TLS is 1.3 only where whoever starts us has put `security.tls.grpc_cipher_suites` into the environment before gRPC was
loaded, since it cannot be told in any other way. A renewed certificate is handed to whoever connects next.

Stop order: agents are asked to finish and leave, callers are told to come back, then the port closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from dragoman.core.commands import CloseLink, OpenLink
from dragoman.core.ids import AgentId, SessionId
from dragoman.core.model.agents import Agent
from dragoman.core.ports import Files, Intake, Store, StoreFailed
from dragoman.messages.faults import Fault, Kind, Refused, refuse
from dragoman.protocols.coven import codec, types
from dragoman.protocols.coven.connection import Connection
from dragoman.protocols.coven.events import Invalid, Registered
from dragoman.protocols.coven.mapping import PROTOCOL
from dragoman.security import tls as secure
from dragoman.server.connection import close_link
from dragoman.server.coven import inbound, outbound
from dragoman.server.coven.authentication import Identity, address_of, metadata_of
from dragoman.server.coven.callers import Callers, end_call, turn_away
from dragoman.server.coven.connected_agents import ConnectedAgents
from dragoman.server.coven.file_keeper import FileKeeper
from dragoman.server.coven.limits import CovenLimits
from dragoman.server.coven.session import LEFT, StreamEnd
from dragoman.server.coven.stream import AgentStream
from dragoman.server.refusals import CALLER, UNREADABLE, RefusalLog
from dragoman.wire.role import Role

log = structlog.get_logger("dragoman.server")

REFLECTION = (reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
"""The same words under an old name and a new one: newer clients ask by that first, and not all ask again."""
SERVICES = (types.CONTROL, types.CLIENT, health.SERVICE_NAME, reflection.SERVICE_NAME)


HEALTHY = ("", types.CONTROL, types.CLIENT)
"""Of which health is told; the first is the whole."""


FIELD_BYTES = 32
"""What HTTP/2 counts for a field beside its name and its value."""


class MetadataLimit(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Calls with more metadata than was allowed, of peers that did not listen, are ended before anything is done for
    them.

    gRPC refuses them by itself once a peer has acknowledged what it was told (SETTINGS of HTTP/2). Until then it takes
    16 MiB with each call, and keeps them as long as the call lives: a few peers that never acknowledge would fill the
    memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        size = sum(len(key) + len(value) + FIELD_BYTES for key, value in details.invocation_metadata)
        return self._refusal if size > self._most else await continuation(details)

    async def _refuse(self, _requests: Any, context: Any) -> None:
        words = f"the metadata has more than {self._most} bytes; send less of it"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, words)


class Health(health.aio.HealthServicer):  # type: ignore[misc]
    """With the one call of the service that the package leaves open."""

    async def List(self, request: Any, context: Any) -> Any:
        asked = {service: health_pb2.HealthCheckRequest(service=service) for service in HEALTHY}
        told = {service: await self.Check(one, context) for service, one in asked.items()}
        return health_pb2.HealthListResponse(statuses=told)


class CovenEndpoint:
    """`start`, then `drain`, then `stop`. `counts` are figures for whoever measures."""

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
        self._keeping = FileKeeper(files)
        self._host = host
        self._port = port
        self._limits = limits or CovenLimits()
        self._server_id = server_id
        self._tls = tls
        self._identity = Identity(hub, guests=guests, admin_hash=admin_token_hash)
        self._refusals = RefusalLog(hub)
        self._roster = ConnectedAgents(
            keepalive_seconds=self._limits.keepalive_seconds, keepalive_timeout=self._limits.keepalive_timeout
        )
        self._links: set[AgentStream] = set()
        self._unregistered: Counter[AgentId | None] = Counter()
        self._draining = False
        self._emptied = asyncio.Event()
        self._server: Any = None
        self._health: Any = None
        self._callers: Callers

    @property
    def streams(self) -> int:
        """Agents connected now."""
        return len(self._links)

    # -- life

    async def start(self) -> int:
        """Serve; the port, which is a free one if 0 was asked for. Raises `OSError` if it is taken."""
        limits = self._limits
        self._callers = Callers(
            self._hub,
            self._store,
            self._keeping,
            identity=self._identity,
            limits=limits,
            refusals=self._refusals,
            counts=self.counts,
        )
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
            )
        )
        self._health = Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in HEALTHY:
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        server.add_generic_rpc_handlers(_reflection())
        address = f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"
        try:
            credentials = self._credentials()
            port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}: {error}") from error
        if not port:
            raise OSError(f"cannot listen on {address}")
        self._server, self._port = server, int(port)
        await server.start()
        log.info("coven serves", address=f"{self._host}:{self._port}", tls=self._tls is not None)
        return self._port

    def _credentials(self) -> Any:
        """TLS, where there is a certificate. It is asked again before every handshake, by a thread of gRPC's."""
        tls = self._tls
        if tls is None:
            return None
        shown = tls.pair
        suites = secure.grpc_cipher_suites(shown)
        if os.environ.get(secure.GRPC_SUITES) != suites:
            log.warning("gRPC was not told to refuse TLS 1.2 before it was loaded")
        required = tls.files.clients == "required" and tls.files.client_ca is not None

        def configuration(pair: secure.Pair) -> Any:
            roots = tls.files.client_ca.read_bytes() if required and tls.files.client_ca is not None else None
            return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], roots)

        def newest() -> Any:
            nonlocal shown
            pair = tls.pair
            if pair is shown:
                return None
            shown = pair
            if secure.grpc_cipher_suites(pair) != suites:
                log.warning("coven keeps its old certificate: the new key is of another kind. Restart the hub.")
                return None
            try:
                return configuration(pair)
            except OSError as error:
                log.warning("coven keeps its old certificate", why=error.strerror)
                return None

        return grpc.dynamic_ssl_server_credentials(configuration(shown), newest, required)

    async def drain(self, seconds: float | None = None) -> None:
        """Take nobody new, ask everybody to finish, and wait until they left or patience is over (D10)."""
        self._draining = True
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        self._callers.drain()
        for link in list(self._links):
            link.session.shut_down("the hub is stopping")
        await self._empty(self._limits.shutdown_seconds if seconds is None else seconds)
        for link in list(self._links):
            link.end((grpc.StatusCode.UNAVAILABLE, "the hub is stopping; connect again in a moment"))
        await self._empty(5.0)

    async def _empty(self, seconds: float) -> None:
        """Until the last agent has left, or the time is up."""
        if self._links:
            self._emptied.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._emptied.wait()

    async def stop(self) -> None:
        """Close the port. Whoever is still there is cut off."""
        if self._server is None:
            return
        if not self._draining:
            await self.drain(0)
        await self._server.stop(0.5)
        self._server = None

    # -- an agent's stream

    async def _agent_stream(self, _requests: Any, context: Any) -> None:
        self.counts["streams"] += 1
        CALLER.set(address_of(context))
        try:
            await context.send_initial_metadata(())  # D2: clients wait for it before they register
            verdict = await self._serve(context)
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
            verdict = (grpc.StatusCode.INTERNAL, "the hub failed to serve this stream; its log says why")
        if verdict is not LEFT:
            await end_call(context, *verdict)

    async def _serve(self, context: Any) -> StreamEnd:
        metadata = metadata_of(context.invocation_metadata())
        connection = Connection(
            Role.HUB,
            limits=codec.Limits(message_bytes=self._limits.message_bytes, attachments=self._limits.attachments),
        )
        if self._draining:
            raise refuse(Kind.OVERLOADED, "the hub is stopping; connect again in a moment", retryable=True)
        if self._unregistered.total() >= self._limits.unregistered:
            raise refuse(Kind.RATE_LIMITED, "too many streams wait to register", retryable=True)
        try:
            # Who cannot register takes nobody's place among those who wait to, and who can takes only a few.
            holder = self._identity.credential(metadata)
        except Refused as refused:
            await self._record_refusal(refused.fault, None)
        if holder is not None and self._unregistered[holder] >= self._limits.unregistered_each:
            what = f"too many streams of {holder} wait to register; one is enough"
            raise refuse(Kind.RATE_LIMITED, what, retryable=True)
        self._unregistered[holder] += 1
        try:
            said = await self._registration(connection, context)
            if isinstance(said, tuple):
                return said
            agent = await self._known(metadata, said)
            link = AgentStream(
                self._hub,
                self._store,
                self._keeping,
                agent=agent.id,
                session_id=SessionId(self._hub.mint()),
                connection=connection,
                context=context,
                limits=self._limits,
                counts=self.counts,
            )
            if not await self._roster.enter(agent.id, link):
                self.counts["refused.already_exists"] += 1
                message = f"{agent.id} is connected already; use another agent_id, or end the other stream"
                return grpc.StatusCode.ALREADY_EXISTS, message
        finally:
            self._unregistered[holder] -= 1
            if not self._unregistered[holder]:
                del self._unregistered[holder]
        return await self._linked(link, said, context)

    async def _registration(self, connection: Connection, context: Any) -> types.RegisterAgent | StreamEnd:
        """What the first message says, in time."""
        reading = asyncio.ensure_future(context.read())
        try:
            done, _ = await asyncio.wait({reading}, timeout=self._limits.register_seconds)
        finally:
            if not reading.done():
                reading.cancel()
        if not done:
            message = f"no register within {self._limits.register_seconds:g} seconds"
            await self._note(Fault(kind=Kind.TIMEOUT, message=message), None)
            return grpc.StatusCode.DEADLINE_EXCEEDED, message
        data = reading.result()
        if data is grpc.aio.EOF:
            return LEFT
        (event,) = connection.receive(data)
        if isinstance(event, Registered):
            return event.message
        assert isinstance(event, Invalid)  # the first message is a registration or it is refused
        fault = inbound.fault_of(event.error)
        await self._note(fault, None)
        return grpc.StatusCode.INVALID_ARGUMENT, outbound.status_of(fault)[1]

    async def _known(self, metadata: dict[str, str], said: types.RegisterAgent) -> Agent:
        try:
            return await self._identity.agent(metadata, said)
        except Refused as refused:
            await self._record_refusal(refused.fault, said.agent_id)

    async def _record_refusal(self, fault: Fault, agent_id: str | None) -> NoReturn:
        await self._note(fault, agent_id)
        raise Refused(fault)

    async def _note(self, fault: Fault, about: str | None) -> None:
        await self._refusals.record("agent.connect", fault, principal=None, protocol=PROTOCOL, about=about)

    async def _linked(self, link: AgentStream, said: types.RegisterAgent, context: Any) -> StreamEnd:
        """The agent is ours until its stream ends."""
        hub, agent = self._hub, link.agent
        self._links.add(link)
        verdict: StreamEnd | None = None
        opened = False
        try:
            await hub.execute(inbound.registration_of(agent, said))
            hub.attach(link.session_id, link.loop)
            opened = True
            await hub.execute(
                OpenLink(
                    principal=agent,
                    protocol=PROTOCOL,
                    session=link.session_id,
                    ordered=True,
                    acknowledges=True,
                    fresh=True,
                    vouches=True,
                )
            )
            # Who is welcome is reachable, too. Nothing is sent before this: `serve` does the rest.
            await context.write(link.session.stream.send_welcome(self._server_id))
            log.info("connected", agent=agent, session=link.session_id, protocol=PROTOCOL)
            if self._draining:
                link.session.shut_down("the hub is stopping")
            verdict = await link.serve()
            return verdict
        finally:
            if opened:
                self._close(link, verdict)
            self._links.discard(link)
            self._roster.leave(agent, link)
            if not self._links:
                self._emptied.set()
            log.info("disconnected", agent=agent, session=link.session_id, why=verdict[1] if verdict else "gone")

    def _close(self, link: AgentStream, verdict: StreamEnd | None) -> None:
        """The stream is over: what was open on it has failed, retryably (D6)."""
        interrupted = link.close()
        if interrupted:
            self.counts["interrupted"] += 1
        fault = None
        if interrupted or not self._draining:
            # Work that had not been sent when the hub stopped is not lost: it leaves again with the next link.
            fault = _gone(link.agent, verdict)
        closing = CloseLink(principal=link.agent, session=link.session_id, lost=fault is not None, fault=fault)
        close_link(self._hub, closing)


def _reflection() -> tuple[Any, ...]:
    said = reflection_pb2
    handler = grpc.stream_stream_rpc_method_handler(
        reflection.aio.ReflectionServicer(service_names=SERVICES).ServerReflectionInfo,
        request_deserializer=said.ServerReflectionRequest.FromString,
        response_serializer=said.ServerReflectionResponse.SerializeToString,
    )
    return tuple(
        grpc.method_handlers_generic_handler(service, {"ServerReflectionInfo": handler}) for service in REFLECTION
    )


def _gone(agent: AgentId, verdict: StreamEnd | None) -> Fault:
    """Whoever waits for the task is told what the agent did wrong, if anything."""
    why = f": {verdict[1]}" if verdict is not None and verdict[0] is grpc.StatusCode.INVALID_ARGUMENT else ""
    return Fault(
        kind=Kind.UNAVAILABLE,
        message=f"{agent}'s stream ended while it worked on the task{why}",
        retryable=True,
        facts={"agent_id": agent, "last_heartbeat": None},
    )
