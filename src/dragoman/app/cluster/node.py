"""A node: one term after the other, on the same listening sockets, until it is stopped.

    role (keeper)   the term
    --------------  ----------------------------------------------------------------------------------------------
    leading         `wiring.term` over the PostgreSQL store of its epoch, and a port for the other nodes
    following       the same endpoints, which hand their commands to the leader over one stream; the API reads the
                    primary
    waiting         none: 503 for everything, and `/readyz` says why

To agents the end of a term looks like a restart of the hub. A lead that is handed over (a stop, `step-down`) drains
first: what was accepted is committed and answered, then the lease is released. A lead that was lost ends at once, as
does a term whose leader is gone: no caller hears anything more, since only the next leader knows what is committed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import structlog
from msgspec import structs

from dragoman.app.clock import SystemClock
from dragoman.app.cluster.certificates import Contexts, contexts
from dragoman.app.cluster.election import Follow, Stream
from dragoman.app.cluster.keeper import Following, Keeper, Leading, Place, Role
from dragoman.app.cluster.link import LeaderPort, LinkRefused, RemoteIntake
from dragoman.app.cluster.membership import Membership
from dragoman.app.cluster.sockets import Sockets, open_sockets
from dragoman.app.cluster.waiting import WaitingApp, WaitingHub
from dragoman.app.datadir import Whereabouts
from dragoman.app.endpoints import hosts_of, limits_of
from dragoman.app.settings import Settings
from dragoman.app.shared_files import open_shared_files
from dragoman.app.shared_keys import open_shared_keys
from dragoman.app.wiring import (
    EVERYWHERE,
    Abandoned,
    Core,
    Process,
    Running,
    clock_was_set,
    open_process,
    own_core,
    running_beside,
    term,
)
from dragoman.core.ports import Fenced, Files, StoreFailed
from dragoman.server.server import HttpServer
from dragoman.stores.postgres.lease import LeaseTable
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.store import PostgresStore

log = structlog.get_logger("dragoman.cluster")

PATIENCE = 1.0
"""Seconds that a statement about the lease may take."""
DRAIN = 3.0
"""A leader that hands over drains for so long at most: what it still waits for finds the next one."""
GAP = 0.5
"""Between two terms clients wait in the socket's backlog for so long; then they are told that there is no leader."""
AGAIN = 0.1
"""Seconds until a node tries again what failed: to reach the leader, or to open the store."""

Greet = Callable[[Whereabouts], None]


async def serve_node(settings: Settings, greet: Greet, stopped: asyncio.Event) -> None:
    """Be a node of the cluster until `stopped` is set. Raises `StoreFailed` or `StoreRefused` where this node cannot
    be one: PostgreSQL does not answer at the start, the realm does not exist, the master key is another."""
    async with AsyncExitStack() as stops:
        sockets = stops.enter_context(open_sockets(settings))
        node = await stops.enter_async_context(open_node(settings, sockets, greet, stopped))
        await node.run()


@asynccontextmanager
async def open_node(settings: Settings, sockets: Sockets, greet: Greet, stopped: asyncio.Event) -> AsyncIterator[Node]:
    url, of = settings.store.url, settings.cluster
    assert url is not None
    assert of.node is not None
    server = structs.replace(settings.server, port=sockets.http, grpc_port=sockets.grpc)
    settings = structs.replace(settings, server=server)
    clock = SystemClock(clock_was_set)
    table, pool = LeaseTable(url, of.realm, seconds=PATIENCE), Pool(url, of.realm)
    try:
        await table.read()
        process = open_process(settings, clock=clock, listener=sockets.listener)
        own_token = process.data.admin_token
        shared = await open_shared_keys(pool, of.realm, process.vault, settings.a2acp, now=clock, own_token=own_token)
        process = structs.replace(
            process, keys=shared.signing, admin_token=shared.admin_token, environments=shared.environments
        )
        files = open_shared_files(settings.files, pool, of.realm, mint=process.mint, now=clock, vault=process.vault)
        keeper = Keeper(table, place_of(settings, sockets, tls=process.certificates.http is not None))
        try:
            async with running_beside(keeper.run(), "lease"):
                yield Node(process, url, clock, keeper, Membership(keeper, table), files, sockets, greet, stopped)
        finally:
            process.data.withdraw()
    finally:
        await table.close()
        await pool.close()


def place_of(settings: Settings, sockets: Sockets, *, tls: bool) -> Place:
    of, host = settings.cluster, settings.server.host
    reached = socket.gethostname() if host in EVERYWHERE or host == "::" else f"[{host}]" if ":" in host else host
    link = of.address or of.host
    return Place(
        name=of.node or "",
        http=of.http or f"{'https' if tls else 'http'}://{reached}:{sockets.http}",
        grpc=f"{reached}:{sockets.grpc}" if settings.coven.enabled else "",
        url=link if link.rpartition(":")[2].isdigit() and ":" in link else f"{link}:{sockets.link}",
    )


class Node:
    def __init__(
        self,
        process: Process,
        url: str,
        clock: SystemClock,
        keeper: Keeper,
        membership: Membership,
        files: Files,
        sockets: Sockets,
        greet: Greet,
        stopped: asyncio.Event,
    ) -> None:
        self._process = process
        self._url = url
        self._clock = clock
        self._keeper = keeper
        self._membership = membership
        self._files = files
        self._sockets = sockets
        self._greet: Greet | None = greet
        self._stopped = stopped
        self._of = process.settings.cluster
        self._waiting: HttpServer | None = None
        self._since = 0.0
        """When the last term ended."""

    async def run(self) -> None:
        self._since = asyncio.get_running_loop().time()
        try:
            while not self._stopped.is_set():
                role = self._keeper.role
                match role:
                    case Leading():
                        await self._lead(role)
                    case Following(to):
                        await self._follow(role, to)
                    case _:
                        await self._pause(role)
        finally:
            await self._end_waiting()

    # -- terms

    async def _lead(self, role: Leading) -> None:
        lease, keeper, membership = role.lease, self._keeper, self._membership
        self._clock.go_on_after(lease.last_instant)
        membership.hands_over.clear()
        membership.refusal = None
        drain = min(DRAIN, self._process.settings.server.drain_seconds)
        server = structs.replace(self._process.settings.server, drain_seconds=drain)
        process = structs.replace(self._process, settings=structs.replace(self._process.settings, server=server))
        store = PostgresStore(
            self._url, realm=lease.realm, term=lease, vault=process.vault, keys=process.vault, now=process.clock
        )

        def epoch() -> int:
            return store.term.epoch if store.term is not None else lease.epoch

        keeper.leads_as(epoch)
        core = own_core(process, store, self._files)
        try:
            async with self._term("leading", process, core) as running:
                tls = self._tls()
                port = LeaderPort(
                    running.local, host=self._of.host, port=self._sockets.link, tls=tls.listening, realm=lease.realm,
                    epoch=epoch, live=core.live, series=core.series,
                )  # fmt: skip
                await port.start()
                try:
                    await self._until(role, running.local.fenced, membership.hands_over)
                    if running.local.fenced.is_set() or keeper.role != role:
                        raise Abandoned
                finally:
                    await port.stop()
            await keeper.release()
        except Abandoned:
            log.warning("this node's term is over", epoch=lease.epoch)
        except Fenced as over:
            log.warning("this node's term is over", epoch=lease.epoch, why=str(over))
        except StoreFailed as error:
            log.error("this node cannot lead", epoch=lease.epoch, why=str(error))
        if keeper.role == role:
            keeper.over()

    async def _follow(self, role: Following, to: Follow) -> None:
        process, keeper = self._process, self._keeper
        store = PostgresStore(self._url, realm=self._of.realm, term=None, vault=process.vault, keys=process.vault)
        try:
            intake = await self._connected(store, to)
        except (LinkRefused, OSError, StoreFailed, ValueError) as error:
            await store.close()
            why = str(error) or repr(error)
            is_refused = isinstance(error, LinkRefused)
            if not is_refused or why != self._membership.refusal:  # tried again ten times a second
                log.info("the leader cannot be followed", leader=to.holder, at=to.url, why=why)
            self._membership.refusal = why if is_refused else None
            keeper.stream(to.epoch, Stream.BROKEN)
            await self._pause(role, AGAIN)
            return
        self._membership.refusal = None
        keeper.stream(to.epoch, Stream.OPEN)
        core = Core(store=store, intake=intake, live=intake.live, series=intake.series, files=self._files)
        try:
            async with self._term("following", process, core) as running:
                intake.lost.add_done_callback(lambda _: running.serving.cut())
                await self._until(role, intake.lost)
                if intake.lost.done() or keeper.role != role:
                    keeper.stream(to.epoch, Stream.BROKEN)
                    raise Abandoned
        except Abandoned:
            log.info("the leader is followed no more", leader=to.holder, epoch=to.epoch)
        except StoreFailed as error:
            log.error("this node cannot follow", why=str(error))
            await self._pause(role, AGAIN)

    async def _connected(self, store: PostgresStore, to: Follow) -> RemoteIntake:
        process = self._process
        host, _, port = to.url.rpartition(":")
        await store.open()
        return await RemoteIntake.connect(
            (host, int(port)), node=self._keeper.place.name, store=store, rules=process.settings.core_rules(),
            now=process.clock, mint=process.mint, tls=self._tls().connecting, leader=to.holder, realm=self._of.realm,
            epoch=to.epoch, memory=process.memory, streams=process.streams,
        )  # fmt: skip

    @asynccontextmanager
    async def _term(self, part: str, process: Process, core: Core) -> AsyncIterator[Running]:
        await self._end_waiting()
        self._keeper.terms[part] += 1
        try:
            async with term(process, core, self._membership) as running:
                log.info("this node serves", part=part, http=running.serving.url)
                if self._greet is not None:
                    self._greet(running.with_login())
                    self._greet = None
                yield running
        finally:
            self._since = asyncio.get_running_loop().time()

    def _tls(self) -> Contexts:
        return contexts(self._of.tls, self._keeper.place.name)

    # -- between terms

    async def _pause(self, role: Role, seconds: float | None = None) -> None:
        """Until this node has another role, or for so long. After a while without a term, clients are told."""
        loop = asyncio.get_running_loop()
        until = None if seconds is None else loop.time() + seconds
        patient_until = self._since + GAP
        if self._waiting is None and loop.time() < patient_until:
            first = patient_until if until is None else min(until, patient_until)
            await self._until(role, seconds=first - loop.time())
            if self._stopped.is_set() or self._keeper.role != role or loop.time() < patient_until:
                return
        if self._waiting is None:
            await self._begin_waiting()
        await self._until(role, seconds=None if until is None else until - loop.time())

    async def _until(
        self, role: Role, *others: asyncio.Event | asyncio.Future[str], seconds: float | None = None
    ) -> None:
        """Until this node has another role, is stopped, or one of these happens."""
        changed = self._keeper.changed
        changed.clear()
        if self._keeper.role != role:
            return
        events = [changed, self._stopped, *(one for one in others if isinstance(one, asyncio.Event))]
        waits = [asyncio.create_task(event.wait()) for event in events]
        either: set[asyncio.Future[Any]] = {*waits, *(one for one in others if isinstance(one, asyncio.Future))}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _begin_waiting(self) -> None:
        settings, process = self._process.settings, self._process
        self._keeper.terms["waiting"] += 1
        self._waiting = HttpServer(
            WaitingHub(process.clock, process.memory),
            (),
            fallback=WaitingApp(lambda: self._membership.waiting),
            host=settings.server.host,
            port=settings.server.port,
            limits=limits_of(settings),
            tls=process.certificates.http,
            hosts=hosts_of(settings),
            listener=process.listener,
        )
        await self._waiting.start()

    async def _end_waiting(self) -> None:
        server, self._waiting = self._waiting, None
        if server is not None:
            await server.stop(AGAIN)
