"""Keeps this node's part in its cluster: reads and renews the lease, has `election` decide, and acts on the verdict.

Runs beside all terms. `role` is what this node is to be now, and `changed` is set when it is another; `node` begins and
ends terms after it. A term's events are here: its epoch is over (`over`), it has ended in order (`release`),
the stream to the leader opened or broke (`stream`).

All waits are bounded: a leader looks at its own clock in time, whatever PostgreSQL does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from dragoman.app.cluster import election
from dragoman.app.cluster.election import Follow, Known, Lead, StepDown, Stream, Take, Verdict, Wait, Why
from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres.lease import Lease, LeaseTable, NodeRow

log = structlog.get_logger("dragoman.cluster")

NOTE_EVERY = 2.0
"""How often a node shows the others that it runs."""


class Leading(msgspec.Struct, frozen=True):
    lease: Lease


class Following(msgspec.Struct, frozen=True):
    to: Follow


class Waiting(msgspec.Struct, frozen=True):
    why: Why


Role = Leading | Following | Waiting


class Place(msgspec.Struct, frozen=True):
    """Where this node is reached: by its callers, and, while it leads, by the other nodes (`url`)."""

    name: str
    http: str
    grpc: str
    url: str


class Keeper:
    def __init__(
        self,
        table: LeaseTable,
        place: Place,
        *,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        ttl: float = election.TTL,
    ) -> None:
        self._table = table
        self.place = place
        self._wall = wall
        self._steady = steady
        self._ttl = ttl
        self.role: Role = Waiting(Why.NO_DATABASE)
        self.changed = asyncio.Event()
        self.looked = asyncio.Event()
        """Set once the lease was seen for the first time."""
        self.terms: Counter[str] = Counter()
        self.behind: Mapping[str, int] = {}
        self.known_nodes: Sequence[NodeRow] = ()
        self.lease: Lease | None = None
        """As it was seen last."""
        self._now = asyncio.Event()
        self._epoch: Callable[[], int] | None = None
        self._led = 0
        self._sure_until = 0.0
        self._yields_until = 0.0
        self._stream = (0, Stream.UNTRIED)
        self._off = 0.0
        self._noted_at = float("-inf")

    # -- what terms tell

    def leads_as(self, epoch: Callable[[], int]) -> None:
        """The store of the leading term, which may go on to the next epoch by itself, has this one now."""
        self._epoch = epoch

    def over(self, why: Why = Why.FENCED) -> None:
        """The leading term has ended without handing over."""
        if self._epoch is not None:
            self._led, self._epoch = self._epoch(), None
        self._become(Waiting(why))
        self._now.set()

    async def release(self) -> None:
        """The leading term has ended in order: another node may lead at once."""
        if self._epoch is None:
            return
        epoch, self._epoch = self._epoch(), None
        self._yields_until = self._steady() + election.YIELD
        self._become(Waiting(Why.YIELDS))
        try:
            async with asyncio.timeout(election.RENEW_EVERY):
                await self._table.release(epoch)
        except (StoreFailed, TimeoutError) as error:
            log.warning("the lease could not be released: it ends by itself", why=str(error))

    def stream(self, epoch: int, state: Stream) -> None:
        """The stream to the leader of this epoch has opened, or broken."""
        self._stream = (epoch, state)
        self._now.set()

    @property
    def sure(self) -> float:
        """Seconds for which its lease still lasts."""
        return self._sure_until - self._steady()

    # -- the loop

    async def run(self) -> None:
        while True:
            self._now.clear()
            lease = await self._look()
            known = self._knows(lease)
            verdict = election.decide(known)
            await self._act(verdict)
            self.looked.set()
            if type(verdict) is Take:
                continue
            try:
                async with asyncio.timeout(election.look_again(known, verdict)):
                    await self._now.wait()
            except TimeoutError:
                pass

    async def _look(self) -> Lease | None:
        """The lease, renewed first where this node leads. None: PostgreSQL did not answer in time."""
        patience = election.RENEW_EVERY
        if self._epoch is not None:
            patience = max(0.0, min(patience, self.sure - election.MARGIN))
        try:
            async with asyncio.timeout(patience):
                if self._epoch is not None:
                    before = self._steady()
                    if await self._table.renew(self._epoch()):
                        self._sure_until = before + self._ttl
                before, wall_before = self._steady(), self._wall()
                lease = await self._table.read()
                took = self._steady() - before
                self._note_clock(wall_before + took / 2 - lease.now, took)
                if before >= self._noted_at + NOTE_EVERY:
                    await self._note(before)
        except (StoreFailed, TimeoutError) as error:
            log.info("the lease cannot be read", why=str(error) or "no answer in time")
            return None
        self.lease = lease
        return lease

    async def _note(self, at: float) -> None:
        """Show that this node runs, and look who else does."""
        place = self.place
        await self._table.note_node(place.name, place.http, place.grpc)
        self.known_nodes = await self._table.nodes()
        self.behind = {} if self._epoch is None else await self._table.behind()
        self._noted_at = at

    def _note_clock(self, off: float, took: float) -> None:
        """By how much this clock is surely off: an answer that took long says little."""
        self._off = 0.0 if abs(off) <= took / 2 else off

    def _knows(self, lease: Lease | None) -> Known:
        following = self.role.to if type(self.role) is Following else None
        is_same = lease is None or (following is not None and following.holder == lease.holder)
        epoch = following.epoch if following is not None and is_same else 0 if lease is None else lease.epoch
        return Known(
            me=self.place.name,
            lease=lease,
            leads=None if self._epoch is None else self._epoch(),
            led=self._led,
            now=self._steady(),
            sure_until=self._sure_until,
            yields_until=self._yields_until,
            stream=self._stream[1] if self._stream[0] == epoch else Stream.UNTRIED,
            following=following,
            off=self._off,
        )

    async def _act(self, verdict: Verdict) -> None:
        match verdict:
            case Lead():
                pass
            case Take(seen):
                await self._take(seen)
            case Follow():
                self._become(Following(verdict))
            case Wait(why):
                self._become(Waiting(why))
            case StepDown(why):
                log.warning("this node steps down", node=self.place.name, why=why.value)
                self.over(why)

    async def _take(self, seen: int) -> None:
        before = self._steady()
        try:
            if seen and seen == self._led:
                taken = await self._table.take_again(seen)
            else:
                taken = await self._table.take(
                    seen, holder=self.place.name, url=self.place.url, ttl=self._ttl, stream_broke=True
                )
        except StoreFailed as error:
            log.info("the lease could not be taken", why=str(error))
            return
        if taken is None:
            await asyncio.sleep(election.LOOK_SOON)
            return
        self._sure_until = before + self._ttl
        self._epoch = lambda: taken.epoch
        self.lease = taken
        log.info("this node leads", node=self.place.name, epoch=taken.epoch)
        self._become(Leading(taken))

    def _become(self, role: Role) -> None:
        if role != self.role:
            self.role = role
            self.changed.set()
