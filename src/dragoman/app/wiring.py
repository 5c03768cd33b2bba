"""Everything, put together: reads like the picture in docs/architecture.md.

    transports ──▶ bindings ──▶ intake ──▶ decisions ──▶ store
        ▲                          │
        └───────── outgoing messages ◀───────┘   (only after the commit)

Start order: data directory, store (refuses a second hub, an unknown schema, a damaged file), intake, wake timer,
doors. Stop order: the wake timer stops, doors stop taking, what was heard is answered, the intake commits what
it accepted, the store closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from dragoman.api import Context as ApiContext
from dragoman.api import app as management
from dragoman.app import unused_files, wake_timer
from dragoman.app.broker import Keys, open_auth, open_broker
from dragoman.app.callers import hosts_of, metrics_token
from dragoman.app.certificates import Certificates
from dragoman.app.clock import Mint, SystemClock
from dragoman.app.datadir import DataDir, Whereabouts
from dragoman.app.free_memory import FreeMemory
from dragoman.app.intake import Intake
from dragoman.app.settings import Settings, is_loopback
from dragoman.app.telemetry import Metrics, set_up_logs
from dragoman.app.vault import FILES, DataVault
from dragoman.buses.inproc import Bus
from dragoman.core.ids import HOUR, AgentId, Instant
from dragoman.core.memory import MemoryBudget, MemoryLimits
from dragoman.core.model.agents import Profile
from dragoman.core.ports import Files, Store
from dragoman.core.queries.state import StateView
from dragoman.core.streams import Streams
from dragoman.protocols.forge.ratelimit import Bucket
from dragoman.protocols.forge.types import AgentStatus
from dragoman.security.private import leave_no_dumps
from dragoman.security.tokens import token_hash
from dragoman.security.urls import PRIVATE
from dragoman.server import agentmsg, chiffon
from dragoman.server import forge as forge_endpoints
from dragoman.server.agentmsg.handler import AgentmsgHandler
from dragoman.server.chiffon.handler import ChiffonHandler
from dragoman.server.endpoint import Endpoint
from dragoman.server.forge.handler import ForgeHandler
from dragoman.server.forge.session import ForgeSession
from dragoman.server.limits import Limits
from dragoman.server.server import GrpcPortBusy, HttpServer
from dragoman.stores.files import DirectoryFiles, MemoryFiles
from dragoman.supervisor.supervisor import ChildDeclaration, Supervisor

if TYPE_CHECKING:
    from dragoman.server.coven.endpoint import CovenEndpoint

log = structlog.get_logger("dragoman")


REQUESTS_DRAIN = 10.0
"""Seconds in which HTTP requests and WebSockets end at a stop: what they began is the hub's, not theirs."""
PROTOCOLS = ("chiffon", "coven", "forge", "agentmsg", "a2acp")
"""What agents may be added to speak."""


class Running(msgspec.Struct):
    """A hub that serves."""

    intake: Intake
    serving: HttpServer
    grpc: str
    admin_token: str
    data: DataDir
    children: Supervisor
    certificates: Certificates

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

    def announce(self) -> None:
        """For whoever is beside it: where it is, and what it shows them."""
        self.data.announce(self.whereabouts)


@asynccontextmanager
async def hub(
    settings: Settings, *, clock: Callable[[], Instant] | None = None, metrics: Metrics | None = None
) -> AsyncIterator[Running]:
    """A hub from its settings; serves until the block ends, then drains. `dragoman.testing` brings a clock of its own,
    and metrics that look on."""
    certificates = Certificates(settings)
    data = DataDir(settings.data)
    data.prepare()
    Keys(settings).check()
    admin_token = data.admin_token()
    clock = clock or SystemClock(_clock_was_set)
    metrics = metrics or Metrics()
    vault = DataVault(Path(settings.data), clock)
    store = open_store(settings, vault)
    mint = Mint(clock)
    memory = MemoryBudget(
        MemoryLimits(total=settings.memory.in_flight_bytes, per_principal=settings.memory.in_flight_bytes_per_agent),
        free=FreeMemory(),
    )
    streams = Streams(each=settings.quotas.streams_per_agent, most=settings.quotas.streams)
    rules = settings.core_rules()
    intake = Intake(store, rules=rules, now=clock, mint=mint, observer=metrics, memory=memory, streams=streams)
    files = open_files(settings, mint, clock, vault)
    metrics.links_open = lambda: intake.links
    metrics.intake_depth = lambda: intake.depth
    metrics.log_bytes = lambda: store.log_bytes
    metrics.stalled = lambda: intake.stalled
    metrics.memory = memory
    metrics.streams_open = lambda: streams.open
    admin_hash = token_hash(admin_token)
    async with contextlib.AsyncExitStack() as stops:
        await intake.start()
        stops.callback(data.withdraw)
        stops.push_async_callback(intake.stop)
        ringing = await stops.enter_async_context(turning(wake_timer.run(intake), "wake timer"))
        keep_unused = int(settings.files.keep_unused_hours * HOUR)
        tidy = unused_files.remove_unused_regularly(
            store, files, now=clock, keep_unused=keep_unused, on_removed=metrics.dropped_files
        )
        await stops.enter_async_context(turning(tidy, "unused files"))
        draining = False

        def ready() -> tuple[bool, str]:
            if draining:
                return False, "stopping: finishing what was accepted"
            if ringing.done():
                return False, "the wake timer has stopped; restart the hub and look into its log"
            if intake.last_failure is not None:
                return False, f"the last commit failed: {intake.last_failure}"
            if (why := intake.why_stalled(settings.server.stalled_seconds)) is not None:
                return False, why
            return True, "serving"

        forge = open_forge(settings, intake, store, files, lambda: children)
        children = Supervisor(
            intake,
            data=Path(settings.data),
            session=lambda agent, log, whole: ForgeSession(forge, agent, log, whole_tasks=whole),
            task=store.task,
            sandbox_rules=settings.sandbox.child_rules(),
        )
        auth = open_auth(settings, intake, clock)
        context = ApiContext(
            intake,
            store,
            admin_token_hash=admin_hash,
            ready=ready,
            metrics=metrics,
            protocols=PROTOCOLS,
            max_body_bytes=settings.server.max_message_bytes,
            files=files,
            metrics_token_hash=metrics_token(settings),
            children=children,
            auth=auth,
        )
        limits = limits_of(settings)
        endpoints: tuple[Endpoint, ...] = (
            *open_chiffon(settings, intake, store, files, admin_hash),
            *forge_endpoints.endpoints(forge),
            *agentmsg.endpoints(open_agentmsg(settings, intake, store, files, admin_hash)),
            *open_broker(settings, intake, store, auth, vault, limits, files),
        )
        serving = HttpServer(
            intake,
            endpoints,
            fallback=management(context),
            host=settings.server.host,
            port=settings.server.port,
            limits=limits,
            tls=certificates.http,
            patience=settings.memory.wait_seconds,
            hosts=hosts_of(settings),
        )
        coven = open_coven(settings, intake, store, files, admin_hash, certificates)
        metrics.coven = {} if coven is None else coven.counts
        try:
            await serving.start()
            grpc = await start_coven(coven, settings)
            await children.start(declared(settings))
            running = Running(intake, serving, grpc, admin_token, data, children, certificates)
            running.announce()
            async with turning(certificates.watch(running.announce), "certificates"):
                yield running
        finally:
            draining = True
            ringing.cancel()  # whoever cannot reach us any more is not late
            intake.part()
            context.waiters.close()
            await asyncio.gather(
                serving.stop(min(settings.server.drain_seconds, REQUESTS_DRAIN)),
                stop_coven(coven, settings),
                children.drain(settings.server.drain_seconds),
            )
            await children.stop()


@asynccontextmanager
async def turning(clockwork: Coroutine[Any, Any, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Something that goes on beside all else, until the block ends."""
    task = asyncio.create_task(clockwork, name=name)
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _clock_was_set(seconds: int) -> None:
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


def open_chiffon(
    settings: Settings, intake: Intake, store: Store, files: Files, admin_hash: str
) -> tuple[Endpoint, ...]:
    handler = ChiffonHandler(intake, store, limits=limits_of(settings), admin_hash=admin_hash, files=files)
    return chiffon.endpoints(
        handler,
        negotiation=settings.chiffon.negotiation,
        callback_networks=PRIVATE if settings.chiffon.allow_private_callbacks else (),
    )


def open_forge(
    settings: Settings, intake: Intake, store: Store, files: Files, children: Callable[[], Supervisor]
) -> ForgeHandler:
    """The desk that forge's two doors share. It asks of `children`, who speak by it, how they are."""
    of = settings.forge

    def condition(agent: AgentId) -> AgentStatus | None:
        state = children().status(agent)
        return None if state is None else state.value

    return ForgeHandler(
        intake,
        store,
        files=files,
        bus=Bus(),
        limits=limits_of(settings),
        measure=Bucket(tokens=of.burst, rate=of.messages_per_second, burst=of.burst),
        request_seconds=of.request_seconds,
        condition=condition,
        notebook=lambda agent: children().logs.of(agent),
    )


def open_agentmsg(settings: Settings, intake: Intake, store: Store, files: Files, admin_hash: str) -> AgentmsgHandler:
    return AgentmsgHandler(
        intake,
        store,
        StateView(store, intake, settings.core_rules()),
        limits=limits_of(settings),
        admin_hash=admin_hash,
        heartbeat_seconds=settings.agentmsg.heartbeat_seconds,
        files=files,
    )


def declared(settings: Settings) -> tuple[ChildDeclaration, ...]:
    """What the configuration says of them."""
    return tuple(
        ChildDeclaration(id=one.id, spec=one.spec(), env=one.env, profile=Profile.of(one)) for one in settings.agents
    )


def open_coven(
    settings: Settings, intake: Intake, store: Store, files: Files, admin_hash: str, certificates: Certificates
) -> CovenEndpoint | None:
    """Coven's door, not yet open. gRPC is imported only where it is wanted."""
    of = settings.coven
    if not of.enabled:
        return None
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers crash whoever forks; we only spawn
    from dragoman.server.coven.endpoint import CovenEndpoint
    from dragoman.server.coven.limits import CovenLimits

    return CovenEndpoint(
        intake,
        store,
        files,
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
        server_id=f"dragoman-{token_hash(admin_hash)[:12]}",  # this hub's, also after a restart
        admin_token_hash=admin_hash,
        tls=certificates.coven,
    )


async def start_coven(door: CovenEndpoint | None, settings: Settings) -> str:
    """Where it is reached."""
    if door is None:
        return ""
    host, port = settings.server.host, settings.server.grpc_port
    try:
        bound = await door.start()
    except OSError as error:
        raise GrpcPortBusy(
            errno.EADDRINUSE,
            f"cannot listen on {host}:{port} for gRPC ({error}); stop what listens there, or choose another port with "
            "--grpc-port (0 picks a free one)",
        ) from None
    return f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"


async def stop_coven(door: CovenEndpoint | None, settings: Settings) -> None:
    if door is not None:
        await door.drain(min(settings.coven.shutdown_seconds, settings.server.drain_seconds))
        await door.stop()


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


Greet = Callable[[Whereabouts], None]
"""Says to whoever started it that the hub serves, and where."""


async def serve_until_stopped(settings: Settings, greet: Greet, *, demo: bool) -> int:
    """The first signal stops it in order, which may take as long as agents at work may; the second ends it at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop(number: signal.Signals) -> None:
        if stopped.is_set():  # as safe as any kill: what was accepted is on the disk, and children die with us
            log.warning("ended at once; what was accepted is kept and goes on at the next start")
            os._exit(128 + number)
        stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    loop.add_signal_handler(signal.SIGUSR1, tell_what_runs)
    async with hub(settings) as running:
        greet(running.whereabouts)
        async with contextlib.AsyncExitStack() as beside:
            if demo:
                from dragoman.app.demo import demo_agents

                await beside.enter_async_context(demo_agents(running))
            await stopped.wait()
            patience = f"{settings.server.drain_seconds:g} s to finish and leave; a second Ctrl-C ends it at once"
            waited_for = those_waited_for(running)
            log.info("stopping", **{"waiting_for": waited_for, "they_have": patience} if waited_for else {})
    log.info("stopped; everything is kept and goes on at the next start", data=settings.data)
    return 0


def those_waited_for(running: Running) -> list[AgentId]:
    """Whom a stop waits for: streams until they leave, children at work. What others say next is heard at the next
    start."""
    intake, children = running.intake, running.children
    here = [one for one in intake.agents() if intake.reachable(one.id)]
    return [
        one.id
        for one in here
        if one.protocol == "coven" or (children.status(one.id) is not None and intake.load_of(one.id))
    ]


def tell_what_runs() -> None:
    """`kill -USR1`: where everything under way stands, into the log. For whoever looks at a hub that hangs."""
    for task in asyncio.all_tasks():
        at, awaited = [], task.get_coro()
        while (frame := getattr(awaited, "cr_frame", None)) is not None:
            at.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            awaited = awaited.cr_await  # type: ignore[union-attr]
        log.info("under way", task=task.get_name(), at=" > ".join(at))


def run(settings: Settings, greet: Greet, *, demo: bool = False) -> int:
    """Serve until a signal; the exit code of the process."""
    import uvloop

    set_up_logs(level=settings.log.level, form="json" if settings.log.format == "json" else "console")
    leave_no_dumps()
    spare_the_collector()
    return uvloop.run(serve_until_stopped(settings, greet, demo=demo))


def spare_the_collector() -> None:
    """Rows are frozen values without cycles, so reference counts free them; what is imported stays for good. The
    cycle collector would only walk all of it again and again: a tenth of a busy hub's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
