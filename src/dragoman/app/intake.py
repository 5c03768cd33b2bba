"""The intake: where commands from all connections meet, and the only place that commits.

One loop. As soon as the last commit ended, everything that waits is loaded, decided in the order of arrival,
written in one unit and committed with a real fsync; then, and only then, callers get their outcomes and parcels
leave. There is no timer: one command alone commits at once, a thousand commit together.

If a commit fails, every command of that unit is refused (OVERLOADED, retryable) and nothing of it happened as far
as anybody was told: parcels and the floor's changes are dropped with the unit.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dragoman.core.agents.floor import Floor
from dragoman.core.agents.model import Agent
from dragoman.core.audit.chain import Newest
from dragoman.core.commands import CloseLink, Command, EndContractsOf, Forget, Sweep, Wake
from dragoman.core.contracts.model import Contract
from dragoman.core.delivery import outbox
from dragoman.core.delivery.model import Parcel
from dragoman.core.errors import Fault, Kind, Refused
from dragoman.core.hub import decide
from dragoman.core.ids import HOUR, MINUTE, AgentId, Instant, Moment, SessionId, TaskId
from dragoman.core.lookups import Lookup
from dragoman.core.ports import Changes, LinkEnd, Store, StoreFailed
from dragoman.core.rules import Rules
from dragoman.core.state.model import Entity
from dragoman.core.state.policy import Policy
from dragoman.core.state.policy import default as default_policy
from dragoman.core.tasks import clock
from dragoman.core.work import NotLoaded, Work

if TYPE_CHECKING:
    import structlog

LARGEST_UNIT = 128
"""Commands in one commit: bounds how long one caller can wait behind others, and how much one failure takes along."""

MENTION_WITHIN = 0.005
"""Seconds after which what was only mentioned is committed by itself."""

CONTRACTS = 20_000
"""Contracts that are remembered."""

SWEEP_EVERY = MINUTE
"""How often what need not be remembered any more is looked for, if anything else happens."""

FORGET_PAUSE = 0.025
"""Seconds between two pages of tasks that are forgotten: a long round of it takes a tenth of the hub's time at most."""

DEEPEST = 50_000
"""Commands waiting before new ones are refused: memory stays bounded when the disk does not keep up."""


Then = Callable[[Any, Refused | None], None]
Batch = list[tuple[Command, Then | None]]


@cache
def _log() -> structlog.stdlib.BoundLogger:
    """Imported when there is something to say: it brings rich along, which `dragoman translate` has no time for."""
    import structlog

    logger: structlog.stdlib.BoundLogger = structlog.get_logger("dragoman.intake")
    return logger


class Observer:
    """What telemetry may see of the intake. This one sees nothing."""

    def decided(self, command: Command, outcome: str) -> None: ...

    def committed(self, changes: Changes, commands: int, seconds: float) -> None: ...

    def failed(self, commands: int) -> None: ...

    def sent(self, parcels: int, protocol: str) -> None: ...


class Intake:
    """`core.ports.Intake`, for one node."""

    def __init__(
        self,
        store: Store,
        *,
        rules: Rules | None = None,
        now: Callable[[], Instant],
        mint: Callable[[], str],
        observer: Observer | None = None,
    ) -> None:
        self.store = store
        self.rules = rules or Rules()
        self.now = now
        self.mint = mint
        self._observer = observer or Observer()
        self._waiting: deque[tuple[Command, Then | None]] = deque()
        self._mentioned: Batch = []
        self._arrived = asyncio.Event()
        self._ends: dict[SessionId, LinkEnd] = {}
        self._watches: dict[TaskId, set[asyncio.Event]] = {}
        self._state_watches: set[asyncio.Event] = set()
        self._floor: Floor
        self._serving_since = Instant(0)
        self._closing = False
        self._loop: asyncio.Task[None] | None = None
        self.next_wake: Instant | None = None
        self.wake_changed = asyncio.Event()
        self.last_failure: str | None = None
        self._swept_at = Instant(0)
        self._forget_every = min(HOUR, max(MINUTE, self.rules.keep_finished // 24))
        self._forget_at = Instant(0)
        self._contracts: dict[str, Contract] = {}
        self._missing: Sequence[Lookup[Any]] = ()

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        recovered = await self.store.open()
        self._floor = Floor(recovered)
        self._serving_since = self._swept_at = self.now()
        self._forget_at = Instant(self.now() + SWEEP_EVERY)
        self.next_wake = Instant(0)  # look at once what became due while we were away
        for command in (*outbox.after_a_stop(self._floor, self.rules, self.now()), *clock.after_a_stop(self._floor)):
            self.tell(command)
        for agent in recovered.parted:
            self.tell(EndContractsOf(agent=agent, until=self.now()))
        self._loop = asyncio.create_task(self._run(), name="intake")

    def part(self) -> None:
        """From now on the hub is about to stop (`Floor.parting`). What anybody says is taken until it does."""
        self._floor.parting = True

    async def stop(self) -> None:
        """Decide and commit what has been accepted, then close the store."""
        self._closing = True
        self._no_later()
        self._arrived.set()
        if self._loop is not None:
            await self._loop
        await self.store.close()

    # -- the port ---------------------------------------------------------------------------------------------

    async def ask(self, command: Command) -> Any:
        return await self.post(command)

    def post(self, command: Command) -> asyncio.Future[Any]:
        """`ask` without waiting: the future of the outcome. Commands are decided in the order they are posted."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def then(outcome: Any, refusal: Refused | None) -> None:
            if future.done():
                return
            if refusal is not None:
                future.set_exception(refusal)
            else:
                future.set_result(outcome)

        self.hand_in(command, then)
        return future

    def hand_in(self, command: Command, then: Then) -> None:
        if self._closing or len(self._waiting) >= DEEPEST:
            why = "the hub is stopping" if self._closing else f"{len(self._waiting)} commands already wait"
            fault = Fault(kind=Kind.OVERLOADED, message=f"{why}; try again in a moment", retryable=True)
            then(None, Refused(fault))
        else:
            self._waiting.append((command, then))
            if not self._arrived.is_set():
                self._arrived.set()

    def mention(self, command: Command) -> None:
        if self._closing or len(self._mentioned) >= LARGEST_UNIT:
            self.tell(command)
            return
        if not self._mentioned and not self._waiting:
            asyncio.get_running_loop().call_later(MENTION_WITHIN, self._no_later)
        self._mentioned.append((command, None))

    def _no_later(self) -> None:
        """Nothing came along to take them with it."""
        if self._mentioned and not self._waiting:
            self._waiting.extend(self._mentioned)
            self._mentioned.clear()
            self._arrived.set()

    def tell(self, command: Command) -> None:
        """Something the hub itself wants done; nobody waits for the outcome."""
        self._waiting.append((command, None))
        self._arrived.set()

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        self._ends[session] = end

    def detach(self, session: SessionId) -> None:
        self._ends.pop(session, None)

    def agent_of(self, token_hash: str) -> Agent | None:
        id = self._floor.by_token.get(token_hash)
        return None if id is None else self._floor.agents.get(id)

    def agent(self, id: AgentId) -> Agent | None:
        return self._floor.agents.get(id)

    def agents(self) -> Sequence[Agent]:
        return list(self._floor.agents.values())

    async def contract(self, id: str) -> Contract | None:
        """A contract as of the last commit. The ones that are used are remembered."""
        known = self._contracts.get(id)
        if known is None:
            known = await self.store.contract(id)
            if known is not None:
                if len(self._contracts) >= CONTRACTS:
                    self._contracts.clear()
                self._contracts[id] = known
        return known

    def load_of(self, id: AgentId) -> Sequence[TaskId]:
        return sorted(self._floor.active.get(id, ()))

    def holds(self, id: AgentId, task: TaskId) -> bool:
        return task in self._floor.active.get(id, ())

    def reachable(self, id: AgentId) -> bool:
        if id in self._floor.links_of:
            return True
        polled = self._floor.polled_at.get(id)
        return polled is not None and self.now() - polled < self.rules.poll_presence

    @asynccontextmanager
    async def watch(self, task: TaskId) -> AsyncIterator[_Watch]:
        event = asyncio.Event()
        watchers = self._watches.setdefault(task, set())
        watchers.add(event)
        try:
            yield _Watch(event)
        finally:
            watchers.discard(event)
            if not watchers:
                self._watches.pop(task, None)

    @asynccontextmanager
    async def watch_state(self) -> AsyncIterator[_Watch]:
        event = asyncio.Event()
        self._state_watches.add(event)
        try:
            yield _Watch(event)
        finally:
            self._state_watches.discard(event)

    def entity(self, id: str) -> Entity | None:
        return self._floor.entities.get(id)

    def entities(self) -> Sequence[Entity]:
        return list(self._floor.entities.values())

    @property
    def newest_audit(self) -> Newest:
        return Newest(self._floor.audit_seq, self._floor.audit_hash)

    @property
    def policy(self) -> Policy:
        return self._floor.policy or default_policy(self.rules)

    def heard_at(self, id: AgentId) -> Instant | None:
        return self._floor.heard_at.get(id)

    @property
    def state_cursor(self) -> int:
        return self._floor.state_cursor

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def links(self) -> int:
        return len(self._floor.links)

    # -- the loop ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            waiting, mentioned = self._waiting, self._mentioned
            batch = [waiting.popleft() for _ in range(min(len(waiting), LARGEST_UNIT))]
            if mentioned:
                batch[:0] = mentioned  # what arrived came before what is asked
                mentioned.clear()
            try:
                await self._unit(batch)
            except Exception as error:
                _log().exception("a unit of work failed", commands=len(batch))
                self._refuse(batch, str(error) or type(error).__name__)

    async def _unit(self, batch: Batch) -> None:
        moment = Moment(self.now(), self.mint)
        outcomes: list[tuple[Any, Refused | None]] = []
        async with self.store.unit() as unit:
            work = Work(moment, self._floor, self.rules, self._serving_since, unit.peek)
            if unit.peek is None:  # a store at the end of a wire is asked for the whole unit at once
                work.feed(await unit.load(list({lookup for command, _ in batch for lookup in command.wants()})))
            for command, _ in batch:
                while (outcome := self._decide(work, command)) is None:
                    work.feed(await unit.load(self._missing))
                outcomes.append(outcome)
            changes = work.changes()
            began = asyncio.get_running_loop().time()
            try:
                if work.passing:
                    self.store.note(work.passing)
                if changes:
                    crash_point("before_commit")
                    await unit.commit(changes)
            except StoreFailed as error:
                self._observer.failed(len(batch))
                _log().error("nothing was committed", why=str(error), commands=len(batch))
                self._refuse(batch, str(error))
                return
            if changes:
                self._observer.committed(changes, len(batch), asyncio.get_running_loop().time() - began)
                crash_point("after_commit")
        self.last_failure = None
        work.settle()
        self._publish(work, batch, outcomes, changes)

    def _decide(self, work: Work, command: Command) -> tuple[Any, Refused | None] | None:
        """Outcome or refusal; None if something is missing, which is to be loaded first."""
        try:
            outcome = decide(work, command)
        except NotLoaded as missing:
            self._missing = missing.lookups
            return None
        except Refused as refusal:
            self._observer.decided(command, refusal.fault.kind.value)
            return None, refusal
        except Exception:
            _log().exception("a decision failed", command=type(command).__name__)
            self._observer.decided(command, "error")
            fault = Fault(kind=Kind.INTERNAL, message="the hub could not decide this; its log says why")
            return None, Refused(fault)
        self._observer.decided(command, "ok")
        return outcome, None

    def _publish(self, work: Work, batch: Batch, outcomes: list[tuple[Any, Refused | None]], changes: Changes) -> None:
        """The commit is durable: now everybody may know."""
        for command in work.afterwards:
            if isinstance(command, Forget):  # in no hurry
                self._forget_at = Instant(self.now() + self._forget_every)
                asyncio.get_running_loop().call_later(FORGET_PAUSE, self._go_on, command)
            else:
                self.tell(command)
        self._send(work.parcels)
        crash_point("before_ack")
        for (_, then), (outcome, refusal) in zip(batch, outcomes, strict=True):
            if then is not None:
                then(outcome, refusal)
        crash_point("after_ack")
        for session, reason in work.closed_links:
            if (end := self._ends.pop(session, None)) is not None:
                end.hang_up(reason)
        if self._watches:
            for task in work.touched_tasks:
                for event in self._watches.get(task, ()):
                    event.set()
        if work.changed is not None:
            for event in self._state_watches:
                event.set()
        self._note_wakes(changes)
        for rows in (changes.changed, changes.removed):
            for row in rows:
                if type(row) is Contract:
                    self._contracts.pop(row.id, None)

    def _go_on(self, command: Command) -> None:
        if not self._closing:
            self.mention(command)

    def _send(self, parcels: list[tuple[SessionId, Parcel]]) -> None:
        if not parcels:
            return
        crash_point("before_send")
        by_session: dict[SessionId, list[Parcel]] = {}
        for session, parcel in parcels:
            by_session.setdefault(session, []).append(parcel)
        for session, batch in by_session.items():
            end = self._ends.get(session)
            if end is None:  # it closed while the commit was under way
                self.tell(CloseLink(principal=batch[0].delivery.receiver, session=session))
            else:
                end.deliver(batch)
                agent = self._floor.agents.get(batch[0].delivery.receiver)
                self._observer.sent(len(batch), agent.protocol if agent else "")
        crash_point("after_send")

    def _note_wakes(self, changes: Changes) -> None:
        """Let the alarm clock know of an earlier time than it waits for."""
        earliest = self.next_wake
        for rows in (changes.added, changes.changed):
            for row in rows:
                at = getattr(row, "wake_at", None)
                if at is not None and (earliest is None or at < earliest):
                    earliest = at
        if earliest != self.next_wake:
            self.next_wake = earliest
            self.wake_changed.set()

    def _refuse(self, batch: Batch, why: str) -> None:
        self.last_failure = why
        fault = Fault(
            kind=Kind.OVERLOADED, message=f"the hub could not store this ({why}); try again in a moment", retryable=True
        )
        for command, then in batch:
            if then is not None:
                then(None, Refused(fault))
            elif isinstance(command, CloseLink):
                self.tell(command)  # a link that is gone stays gone

    async def wake_due(self, limit: int = 500) -> int:
        """Ask the store what is due now, and look at all of it. Returns how much was."""
        if self.now() - self._swept_at >= SWEEP_EVERY:
            self._swept_at = self.now()
            self.tell(Sweep())
        if self.rules.keep_finished and self.now() >= self._forget_at:
            self._forget_at = Instant(self.now() + self._forget_every)
            self.tell(Forget())
        due = await self.store.due(self.now(), limit)
        commands = [
            *(Wake(task=id) for id in due.tasks),
            *(Wake(delivery=id) for id in due.deliveries),
            *(Wake(agent=id) for id in due.agents),
            *(Wake(question=id) for id in due.questions),
        ]
        self.next_wake = due.next_at
        for future in [self.post(command) for command in commands]:
            try:
                await future
            except Refused as refusal:
                _log().warning("a wake-up was refused", why=str(refusal.fault))
        return len(commands)


class _Watch:
    def __init__(self, event: asyncio.Event) -> None:
        self._event = event

    async def changed(self, timeout: float) -> bool:
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


@cache
def _crash_plan() -> tuple[str, list[None]]:
    """`DRAGOMAN_CRASH_AT=before_commit[:N]`: die there, the Nth time. For fault tests; the writer has its own."""
    step, _, count = os.environ.get("DRAGOMAN_CRASH_AT", "").partition(":")
    return step, [None] * (int(count) if count.isdigit() else 1)


def crash_point(step: str) -> None:
    planned, left = _crash_plan()
    if planned == step:
        left.pop()
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
