"""Two intakes over one store with epochs, for the simulations: same seed, same trace.

`Server` is a small model of what PostgreSQL promises: a commit is one statement that the epoch of the lease fences; a
lease has an end by the server's clock; a commit whose wait for the replica was given up is visible, and is lost if the
primary is; a statement of a session that ended may still run later. `TermStore` is the shipped `PostgresStore` without
its SQL, so what it does about a lost answer is what is tested. `Cluster` is a `World` whose hub is that of two nodes
which leads; the nodes' clocks differ.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import msgspec
from tests.support.world import World

from dragoman.app.clock import SystemClock
from dragoman.app.intake import Intake
from dragoman.core.ids import SECOND, Instant, TaskId, uuid7
from dragoman.core.lookups import Lookup
from dragoman.core.model.audit import verify
from dragoman.core.model.deliveries import Delivery
from dragoman.core.model.tasks import Event, Task
from dragoman.core.ports import Changes, Due, Recovered, StoreFailed
from dragoman.core.rules import Rules
from dragoman.stores.memory import MemoryStore
from dragoman.stores.postgres import functions, recovery
from dragoman.stores.postgres.lease import Lease
from dragoman.stores.postgres.sessions import OutcomeUnknown
from dragoman.stores.postgres.store import PostgresStore

TTL = 3 * SECOND
SKEWS = (0, 4, -4)
"""Seconds that a node's clock may be off; one that is more than 5 s off does not lead."""


class Violation(AssertionError):
    """The cluster broke a promise."""


class Fault(Enum):
    """What happens to the next commit."""

    LOST_BEFORE = auto()
    """The connection ends, and the statement never came to the server."""
    LOST_AFTER = auto()
    """It is committed, and the answer is lost."""
    LATE = auto()
    """The connection ends, and the server runs the statement only after the next one."""
    NOT_REPLICATED = auto()
    """It is visible; the wait for the replica was given up. The replica may be the primary next."""
    CUT_OFF = auto()
    """It is committed, the answer is lost, and the node does not reach the server any more."""
    PAUSED_BEFORE = auto()
    """The node stands still, wakes up when another one leads, and only then its statement comes to the server."""
    PAUSED_AFTER = auto()
    """The node stands still while the answer to its commit is on the way."""


class Unit(msgspec.Struct, frozen=True):
    """What the server knows of one commit."""

    epoch: int
    number: int
    instant: Instant
    ids: tuple[str, ...]
    """Ids that the hub made."""


class State(msgspec.Struct):
    """What is replicated, or lost, together."""

    epoch: int = 0
    holder: str = ""
    expires_at: Instant = Instant(0)
    last_unit: int = 0
    last_instant: Instant = Instant(0)
    units: tuple[Unit, ...] = ()


class Server:
    def __init__(self, now: Callable[[], Instant], rng: random.Random) -> None:
        self.now = now
        self.rng = rng
        self.rows = MemoryStore()
        self.state = State()
        self.behind: tuple[State, MemoryStore] | None = None
        """What the replica has, where that is less than what the primary shows."""
        self.late: list[Callable[[], Awaitable[bool]]] = []
        """Statements of sessions that ended, which the server still runs."""
        self.fault: Fault | None = None
        self.met: list[Fault] = []
        self.promotions = 0

    def fits(self, epoch: int) -> bool:
        """The condition of every statement that writes."""
        return epoch == self.state.epoch

    async def commit(self, epoch: int, unit: int, instant: Instant, changes: Changes) -> bool:
        if not self.fits(epoch):
            return False
        await self.rows._apply(changes)
        self.touch(epoch, unit, instant, changes)
        return True

    def touch(self, epoch: int, unit: int, instant: Instant, changes: Changes) -> None:
        ids = tuple(row.id for row in changes.added if isinstance(row, Delivery) and not row.alone)
        state = self.state
        state.last_unit = unit
        state.last_instant = max(state.last_instant, instant)
        state.expires_at = max(state.expires_at, Instant(self.now() + TTL))
        state.units = (*state.units, Unit(epoch, unit, instant, ids))

    def fall_behind(self) -> None:
        """The replica gets nothing of what comes next."""
        if self.behind is None:
            self.behind = (msgspec.structs.replace(self.state), self.rows.fork())

    def wait_for_replica(self) -> bool:
        """Before a statement that waits for the replica: it catches up, or the primary died and it is the primary now,
        and whoever had a connection lost it (False)."""
        behind, self.behind = self.behind, None
        if behind is None or self.rng.random() < 0.5:
            return True
        self.promotions += 1
        self.state, rows = behind
        for name in ("_tables", "_requests", "_audit", "_passed", "_used"):
            setattr(self.rows, name, getattr(rows, name))
        return False

    async def run_late(self) -> None:
        late, self.late = self.late, []
        for statement in late:
            try:
                await statement()
            except StoreFailed:
                pass  # a row exists already: nobody hears of it

    async def take(self, seen: int, holder: str, *, at_once: bool = False) -> Lease | None:
        """`LeaseTable.take`: by another holder when the lease has ended, or its session is gone."""
        if self.rng.random() < 0.5:
            await self.run_late()
        self.wait_for_replica()
        state = self.state
        if state.epoch != seen or not (at_once or self.now() >= state.expires_at):
            return None
        return self.next_epoch(holder)

    async def take_again(self, epoch: int) -> Lease | None:
        """`LeaseTable.take_again`: by the leader that lost the answer to a commit."""
        self.wait_for_replica()
        return self.next_epoch(self.state.holder) if self.state.epoch == epoch else None

    def next_epoch(self, holder: str) -> Lease:
        state = self.state
        state.epoch += 1
        state.holder, state.expires_at = holder, Instant(self.now() + TTL)
        return Lease(
            realm="default", epoch=state.epoch, holder=holder, url="", backend="", ttl=TTL / SECOND,
            expires_at=state.expires_at / SECOND, now=self.now() / SECOND, backend_alive=True,
            last_unit=state.last_unit, last_instant=state.last_instant,
        )  # fmt: skip

    def renew(self, epoch: int) -> None:
        if self.state.epoch == epoch:
            self.state.expires_at = Instant(self.now() + TTL)


class Session:
    """One node's sessions with the server, in the place of `sessions.Writer` and `lease.LeaseTable`."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.cut_off = False
        self.stalled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the node stands still."""
        self.woken = asyncio.Event()

    async def write(self, sql: str, given: Sequence[Any]) -> bool:
        if sql == functions.CALL_NOTE:
            return await self.note(given)
        server = self.server
        epoch, unit, instant, changes = given[0], given[1], given[2], given[-1]
        fault = None
        if server.fault is not None and not self.stalled.done():  # not one that was meant for the next leader
            fault, server.fault = server.fault, None
            server.met.append(fault)
        if fault is Fault.LOST_BEFORE:
            raise OutcomeUnknown("the connection was lost")
        if fault is Fault.LATE:
            server.late.append(lambda: server.commit(epoch, unit, instant, changes))
            raise OutcomeUnknown("the connection was lost")
        if fault is Fault.PAUSED_BEFORE:
            await self.sleep()
        if not server.wait_for_replica():
            raise OutcomeUnknown("the primary is another one")
        if fault is Fault.NOT_REPLICATED:
            server.fall_behind()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:  # the node was killed; the server may have the statement
            server.late.append(lambda: server.commit(epoch, unit, instant, changes))
            raise
        led = await server.commit(epoch, unit, instant, changes)
        if fault is Fault.PAUSED_AFTER:
            await self.sleep()
        if fault in (Fault.LOST_AFTER, Fault.CUT_OFF, Fault.NOT_REPLICATED):
            self.cut_off = fault is Fault.CUT_OFF
            raise OutcomeUnknown("the answer was lost")
        await asyncio.sleep(0)
        return led

    async def note(self, given: Sequence[Any]) -> bool:
        epoch, _, packed = given
        if not self.server.wait_for_replica():
            raise OutcomeUnknown("the primary is another one")
        if not self.server.fits(epoch):
            return False
        await self.server.rows.note({id.hex(): content.hex() for id, content in recovery.NOTED.iter_unpack(packed)})
        return True

    async def sleep(self) -> None:
        self.stalled.set_result(None)
        await self.woken.wait()

    async def take_again(self, epoch: int) -> Lease | None:
        if self.cut_off:
            raise StoreFailed("PostgreSQL does not answer")
        again = await self.server.take_again(epoch)
        await self.server.run_late()  # what the old session had sent comes after it, and must find its epoch over
        return again

    async def load(self, lookups: Sequence[Lookup[Any]]) -> Mapping[Lookup[Any], Sequence[Any]]:
        return {lookup: self.server.rows._answer(lookup) for lookup in lookups}

    def drop(self) -> None: ...

    async def close(self) -> None: ...


class TermStore(PostgresStore):
    """The shipped store of a leader, over the model of a server. It keeps no cache, as one with `cached_rows=0`."""

    def __init__(self, session: Session, term: Lease, now: Callable[[], Instant]) -> None:
        super().__init__("postgresql://", term=term, cached_rows=0, now=now, doubt_seconds=0)
        self._rows = session.server.rows
        self._writer = self._lease = self.loader = session  # type: ignore[assignment]

    async def open(self) -> Recovered:
        assert self._term is not None
        self._unit = self._term.last_unit
        return await self._rows.open()

    async def commit(self, changes: Changes) -> None:
        self._leading()
        if changes:
            await self._write([None] * 4, [changes], changes)

    async def due(self, now: Instant, limit: int) -> Due:
        return await self._rows.due(now, limit)

    async def task(self, id: TaskId) -> Task | None:
        return await self._rows.task(id)


class Term:
    """One node's time as the leader."""

    def __init__(self, session: Session, lease: Lease, clock: SystemClock, rules: Rules, mint: Callable[[], str]):
        self.session = session
        self.clock = clock
        self.store = TermStore(session, lease, clock)
        self.intake = Intake(self.store, rules=rules, now=clock, mint=mint)
        self.unanswered: list[tuple[Any, asyncio.Future[Any]]] = []
        self.gone: asyncio.Task[bool] = asyncio.create_task(self.intake.fenced.wait())

    async def end(self) -> None:
        """As with SIGKILL."""
        if (loop := self.intake._loop) is not None:
            loop.cancel()
            await asyncio.wait((loop,))
        self.gone.cancel()
        await self.store.close()


class Cluster(World):
    """Commands go to the node that leads. `late_answer` hears what a node that had been asleep says in the end."""

    def __init__(
        self, rules: Rules | None = None, seed: int = 1, faults: Collection[Fault] = tuple(Fault),
        late_answer: Callable[[Any, Any], None] = lambda command, answer: None,
    ) -> None:  # fmt: skip
        self.rng = random.Random(f"cluster {seed}")
        super().__init__(MemoryStore(), rules, seed + 10**9)  # not the ids that the simulation has drawn already
        self.server = Server(lambda: self.time, self.rng)
        self.store = self.server.rows
        self.store.fail_next_commit = self.break_next_commit  # type: ignore[method-assign]
        self.faults = list(faults)
        self.late_answer = late_answer
        self.clocks = [self.clock(self.rng.choice(SKEWS)) for _ in range(2)]
        self.leads = 0
        self.term: Term | None = None
        self.asleep: list[tuple[int, Term]] = []
        """With how many commands the cluster takes until they wake up."""

    def clock(self, skew: int) -> SystemClock:
        def steady() -> int:
            return self.time * 1000

        return SystemClock(wall=lambda: steady() + skew * 10**9, steady=steady)

    def _new_intake(self) -> Any:
        return None  # until a node leads

    def break_next_commit(self, error: StoreFailed | None = None, *, after: bool = False) -> None:
        self.server.fault = self.rng.choice(self.faults)

    def mint(self) -> str:
        count = next(self._count)
        return uuid7(self.clocks[self.leads](), ((count >> 62) & 0xFFF) | (count << 12))

    async def start(self) -> World:
        await self._lead(at_once=True)
        return self

    async def _lead(self, *, at_once: bool) -> None:
        server = self.server
        lease = None
        while lease is None:  # a late commit of the leader before may have moved the end of its lease on
            if not at_once:
                self.time = max(self.time, server.state.expires_at)
            lease = await server.take(server.state.epoch, f"node {self.leads}", at_once=at_once)
        await server.run_late()
        clock = self.clocks[self.leads]
        clock.go_on_after(lease.last_instant)
        self.term = Term(Session(server), lease, clock, self.rules, self.mint)
        self.intake = self.term.intake
        await self.intake.start()

    async def restart(self) -> None:
        """The leader is gone, asleep or fenced: the other node leads, or a later process of the same."""
        over, server = self.term, self.server
        assert over is not None
        server.fault = None
        asleep = over.session.stalled.done()
        if asleep:
            over.intake._ends.clear()  # agents have left its connections
            self.asleep.append((self.rng.randrange(1, 12), over))
        else:
            await over.end()
        if not asleep and not over.intake.fenced.is_set() and over.store.term is not None:
            server.renew(over.store.term.epoch)  # its keeper did, until now
        if asleep or self.rng.random() < 0.7:
            self.leads = 1 - self.leads
        await self._lead(at_once=not asleep and self.rng.random() < 0.5)

    async def wake(self, *, everybody: bool = False) -> None:
        waiting, self.asleep = self.asleep, []
        for count, term in waiting:
            if count > 0 and not everybody:
                self.asleep.append((count - 1, term))
                continue
            term.session.woken.set()
            for _ in range(20):
                await asyncio.sleep(0)
            for command, future in term.unanswered:
                if future.done() and future.exception() is None:
                    self.late_answer(command, future.result())
            term.intake.fence()  # its keeper has read the lease
            await term.end()

    async def ask(self, command: Any) -> Any:
        if self.asleep:
            await asyncio.shield(self.wake())  # whoever asks may be cut off meanwhile
        term = self.term
        assert term is not None
        future = term.intake.enqueue(command)
        await asyncio.wait((future, term.gone, term.session.stalled), return_when=asyncio.FIRST_COMPLETED)
        if future.done():
            return future.result()
        term.unanswered.append((command, future))
        raise asyncio.CancelledError  # its connection ended

    async def advance(self, seconds: float) -> None:
        end = Instant(self.time + int(seconds * SECOND))
        while True:
            await self.settle()
            now = self.clocks[self.leads]()
            due = await self.store.due(now, 1)
            if due.next_at is None or due.next_at - now + self.time > end:
                break
            self.time = Instant(self.time + max(1, due.next_at - now))
        self.time = end
        await self.settle()

    async def judge(self) -> None:
        """After everybody is awake: one leader wrote at a time, its time and ids went on, the audit chain is whole, and
        so is the history of each task."""
        await self.wake(everybody=True)
        before: Unit | None = None
        newest = ""
        for unit in self.server.state.units:
            if before is not None:
                if unit.epoch < before.epoch:
                    raise Violation(f"unit {unit.number} of epoch {unit.epoch} came after one of {before.epoch}")
                if unit.number <= before.number:
                    raise Violation(f"unit {unit.number} came after unit {before.number}")
                if unit.instant < before.instant:
                    raise Violation(f"time went back in epoch {unit.epoch}")
                if unit.epoch > before.epoch and unit.ids and min(unit.ids) <= newest:
                    raise Violation(f"an id of epoch {unit.epoch} sorts before one of the epochs before")
            newest = max(newest, *unit.ids, "")
            before = unit
        records = [self.server.rows._audit[seq] for seq in sorted(self.server.rows._audit)]
        if (broken := verify(records)[2]) is not None:
            raise Violation(f"the audit chain: {broken.why}")
        if any(later.at < record.at for record, later in pairwise(records)):
            raise Violation("the audit chain goes back in time")
        for task in self.server.rows.rows(Task):
            seqs = sorted(event.seq for event in self.server.rows.rows(Event) if event.task == task.id)
            if seqs != list(range(1, task.seq + 1)):
                raise Violation(f"the history of {task.id} has gaps: {seqs}")
