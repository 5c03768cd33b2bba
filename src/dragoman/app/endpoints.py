"""Each protocol's endpoints, made from the settings.

`ENDPOINTS` lists the protocols of the HTTP port: the wiring makes all of them in the same way. Coven has a port of its
own (gRPC).
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dragoman.amqp import Place, place_of
from dragoman.app.settings import AmqpSettings, Settings, is_loopback
from dragoman.core.ports import Files, Store, Vault
from dragoman.core.queries.state import StateView
from dragoman.protocols.forge.ratelimit import Bucket
from dragoman.security import trust
from dragoman.security.tls import Renewal
from dragoman.security.tokens import token_hash
from dragoman.security.urls import PRIVATE
from dragoman.server.a2acp.handler import A2acpHandler
from dragoman.server.a2acp.http import A2acpHttp
from dragoman.server.a2acp.session import A2acpWebSocket
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.agentmsg import http as agentmsg
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.asgi import Hosts
from dragoman.server.chiffon import http as chiffon
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.session import ForgeSession
from dragoman.server.forge.websocket import ForgeWebSocket
from dragoman.server.handler import Endpoint
from dragoman.server.limits import Limits
from dragoman.server.server import GrpcPortBusy
from dragoman.supervisor.environment import Environments
from dragoman.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from dragoman.app.cluster.link.remote_intake import RemoteIntake
    from dragoman.app.intake import Intake
    from dragoman.server.coven.endpoint import CovenEndpoint


class HubParts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What endpoints are made of. `forge` is shared by forge's WebSocket and the hub's own children."""

    settings: Settings
    intake: Intake | RemoteIntake
    store: Store
    files: Files
    vault: Vault
    auth: AuthService
    forge: ForgeHandler
    admin_hash: str
    limits: Limits


def open_chiffon(hub: HubParts) -> tuple[Endpoint, ...]:
    of = hub.settings.chiffon
    handler = ChiffonHandler(hub.intake, hub.store, limits=hub.limits, admin_hash=hub.admin_hash, files=hub.files)
    networks = PRIVATE if of.allow_private_callbacks else ()
    leads = hub.intake.leads  # only the leader of a cluster posts to callback URLs, and uses the broker
    over_http = chiffon.endpoints(handler, negotiation=of.negotiation, callback_networks=networks, posts=leads)
    if hub.settings.amqp.url is None or not leads:
        return over_http
    return *over_http, open_amqp(hub.settings, handler)


def open_amqp(settings: Settings, handler: ChiffonHandler) -> Endpoint:
    """Chiffon's connection to the broker."""
    from dragoman.server.chiffon.amqp import ChiffonAmqp

    place, tls = broker_of(settings.amqp)
    return ChiffonAmqp(
        handler,
        place,
        tls=tls,
        negotiation=settings.chiffon.negotiation,
        presence_seconds=settings.amqp.presence_seconds,
    )


def broker_of(of: AmqpSettings) -> tuple[Place, Callable[[], ssl.SSLContext | None]]:
    """Where the broker is, and how its certificate is checked: read again for each connection."""
    assert of.url is not None
    place = place_of(of.url)
    trusted = {**os.environ, trust.CA: of.ca} if of.ca else os.environ
    return place, lambda: trust.context(environ=trusted) if place.secure else None


def open_forge(hub: HubParts) -> tuple[Endpoint, ...]:
    return (ForgeWebSocket(hub.forge),)


def open_agentmsg(hub: HubParts) -> tuple[Endpoint, ...]:
    handler = AgentmsgHandler(
        hub.intake,
        hub.store,
        StateView(hub.store, hub.intake, hub.intake.rules),
        limits=hub.limits,
        admin_hash=hub.admin_hash,
        heartbeat_seconds=hub.settings.agentmsg.heartbeat_seconds,
        files=hub.files,
    )
    return agentmsg.endpoints(handler)


def open_a2acp(hub: HubParts) -> tuple[Endpoint, ...]:
    handler = A2acpHandler(hub.intake, hub.store, hub.auth, hub.vault, limits=hub.limits, files=hub.files)
    ttl = int(hub.settings.a2acp.token_ttl_seconds)
    return A2acpHttp(handler, ttl=ttl), A2acpWebSocket(handler)


ENDPOINTS: Mapping[str, Callable[[HubParts], tuple[Endpoint, ...]]] = {
    "chiffon": open_chiffon,
    "forge": open_forge,
    "agentmsg": open_agentmsg,
    "a2acp": open_a2acp,
}
"""The protocols of the HTTP port."""


def forge_and_children(
    settings: Settings,
    intake: Intake | RemoteIntake,
    store: Store,
    files: Files,
    limits: Limits,
    environments: Environments | None = None,
) -> tuple[ForgeHandler, Supervisor]:
    """Forge's handler, and the children that the hub runs. Each child has a session of the handler, and the handler
    asks the supervisor how a child's process is."""
    of = settings.forge
    handler = ForgeHandler(
        intake,
        store,
        files=files,
        bus=intake.bus,
        limits=limits,
        rate=Bucket(tokens=of.burst, rate=of.messages_per_second, burst=of.burst),
        request_seconds=of.request_seconds,
        process_status=lambda agent: None if (state := children.status(agent)) is None else state.value,
        agent_log=lambda agent: children.logs.of(agent),
    )
    children = Supervisor(
        intake,
        data=Path(settings.data),
        session=lambda agent, connection, log, whole: ForgeSession(handler, agent, connection, log, whole_tasks=whole),
        task=store.task,
        sandbox_rules=settings.sandbox.child_rules(),
        environments=environments,
        node=settings.cluster.node or "",
    )
    return handler, children


def open_coven(hub: HubParts, tls: Renewal | None) -> CovenEndpoint | None:
    """The gRPC endpoint, not yet listening. gRPC is imported only where it is wanted."""
    settings, of = hub.settings, hub.settings.coven
    if not of.enabled:
        return None
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers crash a process that forks; we only spawn
    from dragoman.server.coven.endpoint import CovenEndpoint
    from dragoman.server.coven.grpc_port import CovenLimits

    return CovenEndpoint(
        hub.intake,
        hub.store,
        hub.files,
        host=settings.server.host,
        port=settings.server.grpc_port,
        guests=of.guests and is_loopback(settings.server.host),
        limits=CovenLimits(
            message_bytes=of.max_message_bytes,
            register_seconds=of.register_seconds,
            keepalive_seconds=of.keepalive_seconds,
            keepalive_timeout=of.keepalive_timeout_seconds,
            shutdown_seconds=of.shutdown_seconds,
            streams=of.max_streams,
        ),
        server_id=f"dragoman-{token_hash(hub.admin_hash)[:12]}",  # this hub's, also after a restart
        admin_token_hash=hub.admin_hash,
        tls=tls,
    )


async def start_coven(endpoint: CovenEndpoint | None, settings: Settings) -> str:
    """The address at which it is reached."""
    if endpoint is None:
        return ""
    host, port = settings.server.host, settings.server.grpc_port
    try:
        bound = await endpoint.start()
    except OSError as error:
        raise GrpcPortBusy(
            errno.EADDRINUSE,
            f"cannot listen on {host}:{port} for gRPC ({error}); stop what listens there, or choose another port with "
            "--grpc-port (0 picks a free one)",
        ) from None
    return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"


async def stop_coven(endpoint: CovenEndpoint | None, settings: Settings) -> None:
    if endpoint is not None:
        await endpoint.drain(min(settings.coven.shutdown_seconds, settings.server.drain_seconds))
        await endpoint.stop()


async def abort_coven(endpoint: CovenEndpoint | None) -> None:
    if endpoint is not None:
        await endpoint.abort()


def limits_of(settings: Settings) -> Limits:
    server = settings.server
    return Limits(
        message_bytes=server.max_message_bytes,
        max_connections=server.max_connections,
        header_seconds=server.header_seconds,
        body_seconds=server.body_seconds,
        idle_seconds=server.idle_seconds,
        poll_seconds=server.max_poll_seconds,
    )


def hosts_of(settings: Settings) -> Hosts:
    """The names this hub answers to. Where only this machine reaches it, no page of a browser does by another name."""
    server = settings.server
    if not server.allowed_hosts and not is_loopback(server.host):
        return Hosts(None)
    return Hosts((server.host, *server.allowed_hosts))
