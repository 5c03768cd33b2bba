"""Wires the parts of the hub together, as in the picture of docs/architecture.md.

    endpoints ──▶ handlers ──▶ intake ──▶ decisions ──▶ store
        ▲                          │
        └───────── outgoing messages ◀───────┘   (only after the commit)

Start order: data directory, store (refuses a second hub, an unknown schema, a damaged file), intake, wake timer,
endpoints. Stop order: the wake timer stops, endpoints accept no more, what was received is answered, the intake commits
what it accepted, the store closes. All of it is one *term*: a process over SQLite has one, a node of a cluster has one
after another (`app.cluster.node`), on the same sockets.

Every object gets all it needs when it is made; nothing is assigned into it afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dragoman.api import Context as ApiContext
from dragoman.api import app as management
from dragoman.api.live import Live
from dragoman.api.oidc_client import OidcClient
from dragoman.api.playground import Playground
from dragoman.api.series import Series
from dragoman.api.sessions import Sessions
from dragoman.app.background import remove_unused_regularly, wake_rows
from dragoman.app.certificates import Certificates
from dragoman.app.clock import Mint, SystemClock
from dragoman.app.cluster.membership import Membership
from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.app.endpoints import (
    ENDPOINTS,
    HubParts,
    abort_coven,
    forge_and_children,
    hosts_of,
    limits_of,
    open_coven,
    start_coven,
    stop_coven,
)
from dragoman.app.free_memory import FreeMemory
from dragoman.app.intake import Intake
from dragoman.app.keys import FILES, VARIABLE, DataVault, SigningKeys, TokenKeys, metrics_token_hash, provider_of
from dragoman.app.metrics import Counters, Gauges, Metrics
from dragoman.app.observers import Observers
from dragoman.app.settings import Settings
from dragoman.app.translator.adapters import ADAPTERS
from dragoman.core.ids import HOUR, SECOND, AgentId, Instant
from dragoman.core.memory import MemoryBudget, MemoryLimits
from dragoman.core.model.agents import Agent as HubAgent
from dragoman.core.model.agents import Profile
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.ports import Files, Store
from dragoman.core.streams import Streams
from dragoman.protocols.a2acp.types import Agent
from dragoman.sdk.address import Address
from dragoman.security.tokens import token_hash
from dragoman.server.a2acp.contracts import version_of
from dragoman.server.a2acp.tokens import AuthService
from dragoman.server.handler import Endpoint
from dragoman.server.server import HttpServer
from dragoman.stores.files import DirectoryFiles, MemoryFiles
from dragoman.supervisor.environment import Environments
from dragoman.supervisor.supervisor import ChildDeclaration, Supervisor

if TYPE_CHECKING:
    from dragoman.app.cluster.link.remote_intake import RemoteIntake

log = structlog.get_logger("dragoman")


REQUESTS_DRAIN = 10.0
"""Seconds in which HTTP requests and WebSockets end at a stop: what they began is the hub's, not theirs."""
COVEN = "coven"
"""The one protocol that has a port of its own."""


class Running(msgspec.Struct):
    """A hub that serves."""

    core: Core
    serving: HttpServer
    grpc: str
    admin_token: str
    data: DataDir
    children: Supervisor
    certificates: Certificates
    sessions: Sessions

    @property
    def intake(self) -> Intake | RemoteIntake:
        return self.core.intake

    @property
    def local(self) -> Intake:
        """The intake of a process that decides itself."""
        assert isinstance(self.core.intake, Intake)
        return self.core.intake

    @property
    def whereabouts(self) -> Whereabouts:
        return Whereabouts(
            http=self.serving.url,
            grpc=self.grpc,
            admin_token=self.admin_token,
            pid=os.getpid(),
            certificate=self.certificates.shown,
            grpc_tls=bool(self.grpc) and self.certificates.coven is not None,
        )

    def with_login(self) -> Whereabouts:
        """The same, with a link that logs the administrator's browser in once."""
        here = self.whereabouts
        return here._replace(login=f"{here.http}/login/{self.sessions.offer_admin_login()}")

    def announce(self) -> None:
        """Tell commands beside the hub where it is, and which certificate it shows."""
        self.data.announce(self.whereabouts)


def _spoken_by(intake: Intake, id: AgentId) -> str | None:
    agent = intake.agent(id)
    return None if agent is None else agent.protocol


def shown_bytes(outgoing: Outgoing, agent: HubAgent, now: Instant) -> list[bytes]:
    """An outgoing message as its receiver's protocol has it, for people to look at. A message that cannot be shown
    without what only its endpoint has (keys, files) is left out."""
    adapter = ADAPTERS.get(agent.protocol)
    if adapter is None:
        return []
    try:
        return [msgspec.json.encode(one) for one in adapter.encode(outgoing, agent, now, {})]
    except Exception as error:
        log.debug("a message is not shown", why=repr(error))
        return []


class Abandoned(Exception):
    """Raised into a term: this node decides no more, and must not answer any more."""


class Process(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What lasts as long as the process, over all its terms."""

    settings: Settings
    data: DataDir
    certificates: Certificates
    keys: TokenKeys
    vault: DataVault
    admin_token: str
    clock: Callable[[], Instant]
    mint: Mint
    counters: Counters
    memory: MemoryBudget
    streams: Streams
    endpoints: Mapping[str, Callable[[HubParts], tuple[Endpoint, ...]]]
    """The protocols of the HTTP port."""
    environments: Environments | None = None
    """Of children: the realm's; None: they lie in the data directory."""
    listener: socket.socket | None = None
    """The socket of the HTTP port, where one term follows another; else the only term opens it."""


def open_process(
    settings: Settings,
    *,
    clock: Callable[[], Instant] | None = None,
    counters: Counters | None = None,
    endpoints: Mapping[str, Callable[[HubParts], tuple[Endpoint, ...]]] = ENDPOINTS,
    listener: socket.socket | None = None,
) -> Process:
    certificates = Certificates(settings)
    data = DataDir(settings.data)
    data.prepare()
    keys = SigningKeys(settings)
    keys.check()
    clock = clock or SystemClock(clock_was_set)
    of = settings.memory
    return Process(
        settings=settings,
        data=data,
        certificates=certificates,
        keys=keys,
        vault=DataVault(Path(settings.data), clock, given=os.environ.get(VARIABLE)),
        admin_token=data.admin_token(),
        clock=clock,
        mint=Mint(clock),
        counters=counters or Counters(),
        memory=MemoryBudget(
            MemoryLimits(total=of.in_flight_bytes, per_principal=of.in_flight_bytes_per_agent), free=FreeMemory()
        ),
        streams=Streams(each=settings.quotas.streams_per_agent, most=settings.quotas.streams),
        endpoints=endpoints,
        listener=listener,
    )


class Core(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What decides in a term, and what sees its commits: here, or at the leader that this node follows."""

    store: Store
    intake: Intake | RemoteIntake
    live: Live
    series: Series
    files: Files


def own_core(process: Process, store: Store, files: Files) -> Core:
    """This process decides."""
    live = Live(process.clock)
    series = Series(process.clock, lambda agent: _spoken_by(intake, agent), lambda: intake.queued)
    intake = Intake(
        store,
        rules=process.settings.core_rules(),
        now=process.clock,
        mint=process.mint,
        observer=Observers(process.counters, series, live),
        memory=process.memory,
        streams=process.streams,
    )
    return Core(store=store, intake=intake, live=live, series=series, files=files)


@asynccontextmanager
async def hub(
    settings: Settings,
    *,
    clock: Callable[[], Instant] | None = None,
    counters: Counters | None = None,
    endpoints: Mapping[str, Callable[[HubParts], tuple[Endpoint, ...]]] = ENDPOINTS,
) -> AsyncIterator[Running]:
    """A hub of one process, which is one term: it serves until the block ends, then drains. `dragoman.testing` brings a
    clock of its own, and counters that look on; `endpoints` are the protocols of the HTTP port."""
    process = open_process(settings, clock=clock, counters=counters, endpoints=endpoints)
    store = open_store(settings, process.vault)
    files = open_files(settings, process.mint, process.clock, process.vault)
    try:
        async with term(process, own_core(process, store, files)) as running:
            yield running
    finally:
        process.data.withdraw()


@asynccontextmanager
async def term(process: Process, core: Core, cluster: Membership | None = None) -> AsyncIterator[Running]:
    """One run of the hub, from its recovery to its drain; `Abandoned`, raised into the block, ends it at once and
    silently. A process with a store of its own has one term; a node of a cluster has one after another."""
    settings, clock, counters, certificates = process.settings, process.clock, process.counters, process.certificates
    memory, streams = process.memory, process.streams
    store, intake, live, series, files = core.store, core.intake, core.live, core.series, core.files
    admin_hash = token_hash(process.admin_token)
    async with contextlib.AsyncExitStack() as stops:
        timer: asyncio.Task[None] | None = None
        if not isinstance(intake, Intake):
            stops.push_async_callback(store.close)
            stops.push_async_callback(intake.stop)
        else:
            await intake.start()
            stops.push_async_callback(intake.stop)
            timer = await stops.enter_async_context(running_beside(wake_rows(intake), "wake timer"))
            keep_unused = int(settings.files.keep_unused_hours * HOUR)
            cleaning = remove_unused_regularly(
                store, files, now=clock, keep_unused=keep_unused, on_removed=counters.files_removed
            )
            await stops.enter_async_context(running_beside(cleaning, "unused files"))
            await stops.enter_async_context(running_beside(series.run(intake, store), "series"))
        draining = False

        def ready() -> tuple[bool, str]:
            if draining:
                return False, "stopping: finishing what was accepted"
            if timer is not None and timer.done():
                return False, "the wake timer has stopped; restart the hub and look into its log"
            if intake.last_failure is not None:
                return False, f"the last commit failed: {intake.last_failure}"
            if (why := intake.why_stalled(settings.server.stalled_seconds)) is not None:
                return False, why
            return True, serving.trouble or ("serving" if cluster is None else cluster.serving)

        limits = limits_of(settings)
        forge, children = forge_and_children(settings, intake, store, files, limits, process.environments)
        auth = open_auth(settings, intake, process.keys, clock)
        await stops.enter_async_context(running_beside(process.keys.follow(auth.use), "signing keys"))
        parts = HubParts(
            settings=settings,
            intake=intake,
            store=store,
            files=files,
            vault=process.vault,
            auth=auth,
            forge=forge,
            admin_hash=admin_hash,
            limits=limits,
        )
        coven = open_coven(parts, certificates.coven)
        gauges = Gauges(
            links_open=lambda: intake.links,
            intake_depth=lambda: intake.depth,
            log_bytes=lambda: store.log_bytes,
            streams_open=lambda: streams.open,
            stalled=lambda: intake.stalled,
            coven=lambda: {} if coven is None else coven.counts,
            endpoints=lambda: serving.counts,
            memory=memory,
            cluster=None if cluster is None else cluster.figures,
        )

        def place_of(protocol: str) -> Address | None:
            return _own_address(protocol, serving.url, grpc, certificates)

        hosts = hosts_of(settings)
        provider = provider_of(settings)
        context = ApiContext(
            intake,
            store,
            admin_token=process.admin_token,
            ready=ready,
            metrics=Metrics(counters, gauges),
            protocols=(*process.endpoints, COVEN),
            max_body_bytes=settings.server.max_message_bytes,
            files=files,
            metrics_token_hash=metrics_token_hash(settings),
            children=children,
            auth=auth,
            live=live,
            series=series,
            encode=shown_bytes,
            playground=Playground(place_of),
            hosts=hosts,
            oidc=None if provider is None else OidcClient(provider, intake.now),
            cluster=cluster,
        )
        serving = HttpServer(
            intake,
            tuple(endpoint for make in process.endpoints.values() for endpoint in make(parts)),
            fallback=management(context),
            host=settings.server.host,
            port=settings.server.port,
            limits=limits,
            tls=certificates.http,
            patience=settings.memory.wait_seconds,
            hosts=hosts,
            listener=process.listener,
        )
        grpc = ""
        abandoned = False
        try:
            await serving.start()
            grpc = await start_coven(coven, settings)
            await children.start(declared(settings))
            running = Running(
                core, serving, grpc, process.admin_token, process.data, children, certificates, context.sessions
            )
            running.announce()
            async with running_beside(certificates.watch(running.announce), "certificates"):
                yield running
        except Abandoned:
            intake.fence()
            abandoned = True
            raise
        finally:
            draining = True
            if timer is not None:
                timer.cancel()  # an agent that cannot reach the hub any more is not late
            intake.part()
            context.waiters.close()
            await context.playground.close()
            if abandoned:
                await asyncio.gather(serving.abort(), abort_coven(coven))
            else:
                await asyncio.gather(
                    serving.stop(min(settings.server.drain_seconds, REQUESTS_DRAIN)),
                    stop_coven(coven, settings),
                    children.drain(settings.server.drain_seconds),
                )
            await children.stop()


EVERYWHERE = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


def _own_address(protocol: str, http: str, grpc: str, certificates: Certificates) -> Address | None:
    """Where the hub itself reaches its endpoint of a protocol."""
    if protocol == COVEN and not grpc:
        return None
    scheme, _, place = http.partition("://")
    if protocol == COVEN:
        scheme, place = "http" if certificates.coven is None else "https", grpc
    host, _, port = place.rpartition(":")
    return Address(
        protocol=protocol,
        transport="grpc" if protocol == COVEN else "ws",
        base=f"{scheme}://{EVERYWHERE.get(host, host)}:{port}",
        certificate=certificates.shown if scheme == "https" else "",
    )


@asynccontextmanager
async def running_beside(loop: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run a loop in the background until the block ends."""
    task = asyncio.create_task(loop, name=name)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def clock_was_set(seconds: int) -> None:
    log.warning(
        "this machine's clock was set: the hub follows it by 1 %; restart the hub to take it over at once",
        seconds=seconds,
    )


def open_store(settings: Settings, vault: DataVault) -> Store:
    if settings.store.kind == "memory":
        from dragoman.stores.memory import MemoryStore

        return MemoryStore()
    from dragoman.stores.sqlite.store import SqliteStore

    return SqliteStore(settings.store_path, vault=vault, keys=vault, log_cap=settings.store.log_limit_bytes)


def open_files(settings: Settings, mint: Callable[[], str], clock: Callable[[], Instant], vault: DataVault) -> Files:
    of = settings.files
    room = {"largest": of.largest_bytes, "quota": of.quota_bytes, "agent_quota": of.agent_quota_bytes}
    if settings.store.kind == "memory":
        return MemoryFiles(mint, now=clock, **room)
    files = DirectoryFiles(Path(settings.data) / FILES, mint, now=clock, vault=vault, **room)
    files.prepare()
    return files


def open_auth(
    settings: Settings, intake: Intake | RemoteIntake, keys: TokenKeys, now: Callable[[], Instant]
) -> AuthService:
    """A2acp's auth service; its keys are made when they are first needed."""
    of = settings.a2acp
    broker = Agent(agent_id=of.broker_id, domain=of.broker_domain, version=version_of(of.broker_version))
    return AuthService(intake, broker, lambda: keys.authority(now() // SECOND), keys.rotate)


def declared(settings: Settings) -> tuple[ChildDeclaration, ...]:
    """What the configuration says of them."""
    return tuple(
        ChildDeclaration(id=one.id, spec=one.spec(), env=one.env, profile=Profile.of(one)) for one in settings.agents
    )
