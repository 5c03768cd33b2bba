"""The intake: where commands from all connections meet, and the only place that commits.

One loop. As soon as the last commit ended, everything that waits is loaded, decided in the order of arrival,
written in one unit and committed with a real fsync; then, and only then, callers get their outcomes and outgoing
messages leave. There is no timer: one command alone commits at once, a thousand commit together.

If a commit fails, every command of that unit is refused (OVERLOADED, retryable) and nothing of it happened as far
as any caller knows: outgoing messages and the directory's changes are dropped with the unit.

If the store says that another node leads (`Fenced`), the intake is over and silent: it neither acknowledges nor
refuses what it has, since some of it may be committed, and the next leader answers for it. `app.cluster` waits for
`fenced` and closes every connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.app.command_queue import CommandQueue
from dragoman.app.directory_view import DirectoryView
from dragoman.app.intake_health import IntakeHealth
from dragoman.core import clock
from dragoman.core.commands import ClearOut, CloseLink, Command, CountRefusals, EndContractsOf, Forget, Sweep, Wake
from dragoman.core.delivery import redelivery
from dragoman.core.directory import Directory
from dragoman.core.hub import REACTIONS, decide
from dragoman.core.ids import HOUR, HUB, MINUTE, AgentId, Instant, Moment, SessionId
from dragoman.core.lookups import Lookup
from dragoman.core.memory import MemoryBudget
from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.outgoing import Outgoing
from dragoman.core.pipelining import Pipelined, Then
from dragoman.core.ports import Changes, Fenced, LinkEnd, Store, StoreFailed
from dragoman.core.rules import Rules
from dragoman.core.streams import Streams
from dragoman.core.work import NotLoaded, Work
from dragoman.messages.faults import Kind, Refused, new_fault, refuse
from dragoman.stores.crash_points import crash_point

if TYPE_CHECKING:
    import structlog

LARGEST_UNIT = 128
"""The most commands in one commit: bounds how long a caller waits for others, and how many one failure affects."""

FORGETTABLE_WITHIN = 0.005
"""Seconds after which commands of `enqueue_and_forget` are committed by themselves."""

SWEEP_EVERY = MINUTE
"""How often the intake looks for rows to forget, when it is not idle."""

FORGET_PAUSE = 0.025
"""Seconds between two pages of tasks that are forgotten: a long round of it takes a tenth of the hub's time at most."""

DEEPEST = 50_000
"""Commands waiting before new ones are refused: memory stays bounded when the disk does not keep up."""


Batch = list[tuple[Command, Then | None]]


@cache
def _log() -> structlog.stdlib.BoundLogger:
    """Imported with the first log line: it imports rich, which would slow `dragoman translate` down."""
    import structlog

    logger: structlog.stdlib.BoundLogger = structlog.get_logger("dragoman.intake")
    return logger


class Observer:
    """What telemetry may see of the intake. This one sees nothing."""

    def decided(self, command: Command, outcome: str) -> None: ...

    def committed(self, changes: Changes, commands: int, seconds: float) -> None: ...

    def failed(self, commands: int) -> None: ...

    def sent(self, outgoing_messages: int, protocol: str) -> None: ...


class CommitListener(Protocol):
    """What following nodes are told of each commit. Both are called in the turn of the loop in which the commit is
    published; neither may block or raise."""

    def settled(self, work: Work) -> None:
        """The directory has the commit. Called before any outcome is published."""
        ...

    def delivered(self, work: Work) -> None:
        """All outcomes and deliveries of the commit were given to their ends."""
        ...


class Intake(CommandQueue, DirectoryView):
    """`core.ports.Intake`, for one node."""

    def __init__(
        self,
        store: Store,
        *,
        rules: Rules | None = None,
        now: Callable[[], Instant],
        mint: Callable[[], str],
        observer: Observer | None = None,
        memory: MemoryBudget | None = None,
        streams: Streams | None = None,
    ) -> None:
        super().__init__(store, rules or Rules(), now)
        self.mint = mint
        self.memory = memory or MemoryBudget()
        self.streams = streams or Streams()
        self._observer = observer or Observer()
        self._waiting: deque[tuple[Command, Then | None]] = deque()
        self._forgettable: Batch = []
        self._arrived = asyncio.Event()
        self._ends: dict[SessionId, LinkEnd] = {}
        self._closing = False
        self._loop: asyncio.Task[None] | None = None
        self.next_wake: Instant | None = None
        self.wake_changed = asyncio.Event()
        self._health = IntakeHealth(now)
        self.fenced = asyncio.Event()
        """Set once, by the store: this node's epoch is over. From then on no caller hears anything."""
        self._swept_at = Instant(0)
        self._forget_every = min(HOUR, max(MINUTE, self.rules.keep_finished // 24))
        self._forget_at = Instant(0)
        self._listener: CommitListener | None = None
        self._missing: Sequence[Lookup[Any]] = ()

    # -- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        recovered = await self.store.open()
        self._directory = Directory(recovered)
        self._serving_since = self._swept_at = self.now()
        self._forget_at = Instant(self.now() + SWEEP_EVERY)
        self.next_wake = Instant(0)  # look at once for rows that became due while the hub was stopped
        for command in (
            *redelivery.after_a_stop(self._directory, self.rules, self.now()),
            *clock.after_a_stop(self._directory),
        ):
            self._enqueue(command)
        for agent in recovered.parted:
            self._enqueue(ClearOut(agent=agent))
            self._enqueue(EndContractsOf(agent=agent, until=self.now()))
        self._loop = asyncio.create_task(self._run(), name="intake")

    def part(self) -> None:
        """From now on the hub is about to stop (`Directory.stopping`). Commands are accepted until it does."""
        self._directory.stopping = True

    async def stop(self) -> None:
        """Decide and commit what has been accepted, then close the store. What was only counted is recorded."""
        if self._loop is not None and not self._closing:
            self._enqueue(CountRefusals())
        self._closing = True
        self._take_forgettable()
        self._arrived.set()
        if self._loop is not None:
            if self.fenced.is_set():
                self._loop.cancel()  # a commit that is under way may wait for a server that does not answer
                await asyncio.wait((self._loop,))
            else:
                await self._loop
        await self.store.close()

    def fence(self) -> None:
        """Another node leads, or may lead: decide nothing more, and answer nothing more."""
        self.fenced.set()
        self._closing = True
        self._waiting.clear()
        self._forgettable.clear()
        self._arrived.set()

    # -- the port ---------------------------------------------------------------------------------------------

    def enqueue_then(self, command: Command, then: Then) -> None:
        if self.fenced.is_set():
            return
        if self._closing or len(self._waiting) >= DEEPEST:
            why = "the hub is stopping" if self._closing else f"{len(self._waiting)} commands already wait"
            refusal = refuse(Kind.OVERLOADED, why, next="try again in a moment", retryable=True)
            if type(then) is Pipelined:
                then.decided(refusal, self.now())
            then(None, refusal)
        else:
            self._waiting.append((command, then))
            if not self._arrived.is_set():
                self._arrived.set()

    def enqueue_and_forget(self, command: Command) -> None:
        if self._closing or len(self._forgettable) >= LARGEST_UNIT:
            self._enqueue(command)
            return
        if not self._forgettable and not self._waiting:
            asyncio.get_running_loop().call_later(FORGETTABLE_WITHIN, self._take_forgettable)
        self._forgettable.append((command, None))

    def _take_forgettable(self) -> None:
        """Commit them by themselves, because no other command came."""
        if self._forgettable and not self._waiting:
            self._waiting.extend(self._forgettable)
            self._forgettable.clear()
            self._arrived.set()

    def _enqueue(self, command: Command) -> None:
        """A command of the hub itself; no caller waits for its outcome."""
        if self.fenced.is_set():
            return
        self._waiting.append((command, None))
        self._arrived.set()

    def attach(self, session: SessionId, end: LinkEnd) -> None:
        self._ends[session] = end

    def detach(self, session: SessionId) -> None:
        self._ends.pop(session, None)

    def is_attached(self, session: SessionId) -> bool:
        return session in self._ends

    def listen(self, listener: CommitListener | None) -> Directory:
        """Tell this one of each commit from now on (None: nobody). Returns the directory, as of the last commit."""
        self._listener = listener
        return self._directory

    @property
    def serving_since(self) -> Instant:
        return self._serving_since

    @property
    def depth(self) -> int:
        return len(self._waiting)

    @property
    def last_failure(self) -> str | None:
        return self._health.last_failure

    @property
    def stalled(self) -> tuple[int, int]:
        return self._health.stalled

    def why_stalled(self, seconds: float) -> str | None:
        return self._health.why_stalled(seconds, self.depth)

    # -- the loop ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                if self._closing:
                    return
                self._arrived.clear()
                await self._arrived.wait()
                continue
            waiting, forgettable = self._waiting, self._forgettable
            batch = [waiting.popleft() for _ in range(min(len(waiting), LARGEST_UNIT))]
            if forgettable:
                batch[:0] = forgettable  # acknowledgments came before the commands of this unit
                forgettable.clear()
            self._health.unit_begins(len(batch), waiting=len(waiting))
            try:
                await self._unit(batch)
            except Fenced as over:
                if not self.fenced.is_set():
                    _log().warning("this node leads no more", why=str(over), undecided=len(batch) + self.depth)
                self.fence()
                return
            except Exception as error:
                _log().exception("a unit of work failed", commands=len(batch))
                self._refuse(batch, str(error) or type(error).__name__)
            self._health.unit_ends()

    async def _unit(self, batch: Batch) -> None:
        moment = Moment(self.now(), self.mint)
        outcomes: list[tuple[Any, Refused | None]] = []
        async with self.store.unit() as unit:
            peek, complete = unit.peek, unit.complete
            work = Work(moment, self._directory, self.rules, self._serving_since, REACTIONS, peek, complete=complete)
            if not complete:  # a remote store loads the whole unit at once
                wanted = {lookup for command, _ in batch for lookup in command.wants()}
                if missing := work.missing(wanted):
                    work.feed(await unit.load(missing))
            for command, then in batch:
                in_turn = then if type(then) is Pipelined else None
                if in_turn is not None and (behind := in_turn.held_back(moment.now)) is not None:
                    outcomes.append((None, behind))
                    continue
                while (outcome := self._decide(work, command)) is None:
                    work.feed(await unit.load(self._missing))
                outcomes.append(outcome)
                if in_turn is not None:
                    in_turn.decided(outcome[1], moment.now)
            changes = work.changes()
            began = asyncio.get_running_loop().time()
            try:
                if work.passing:
                    await self.store.note(work.passing)
                if changes:
                    crash_point("before_commit")
                    await unit.commit(changes)
            except Fenced:
                raise
            except StoreFailed as error:
                self._observer.failed(len(batch))
                _log().error("nothing was committed", why=str(error), commands=len(batch))
                self._refuse(batch, str(error))
                return
            if self.fenced.is_set():
                return  # it stepped down meanwhile: the next leader answers for what was committed
            if changes:
                self._observer.committed(changes, len(batch), asyncio.get_running_loop().time() - began)
                crash_point("after_commit")
        self._health.committed()
        work.settle()
        listener = self._listener
        if listener is not None:
            listener.settled(work)
        self._publish(work, batch, outcomes, changes)
        if listener is not None:
            listener.delivered(work)

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
        except Fenced:
            raise
        except StoreFailed as error:  # this command could not be decided; the others of its unit may be
            _log().error("the store cannot be read", command=type(command).__name__, why=str(error))
            self._observer.decided(command, "error")
            what = "the hub cannot read its store now"
            return None, refuse(Kind.OVERLOADED, what, next="try again in a moment", retryable=True)
        except Exception:
            _log().exception("a decision failed", command=type(command).__name__)
            self._observer.decided(command, "error")
            fault = new_fault(Kind.INTERNAL, "the hub could not decide this", next="its log says why")
            return None, Refused(fault)
        self._observer.decided(command, "ok")
        return outcome, None

    def _publish(self, work: Work, batch: Batch, outcomes: list[tuple[Any, Refused | None]], changes: Changes) -> None:
        """The commit is durable: now callers get their answers."""
        for command in work.afterwards:
            if isinstance(command, Forget):  # in no hurry
                self._forget_at = Instant(self.now() + self._forget_every)
                asyncio.get_running_loop().call_later(FORGET_PAUSE, self._go_on, command)
            else:
                self._enqueue(command)
        self._send(work.outgoing_messages)
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
                self._wake(task)
        if work.changed is not None:
            self._wake_state()
        if self._callback_changed is not None:
            self._note_callbacks(work, self._callback_changed)
        self._note_wakes(changes)
        for rows in (changes.changed, changes.removed):
            for row in rows:
                if type(row) is Contract:
                    self._contracts.pop(row.id, None)

    def _go_on(self, command: Command) -> None:
        if not self._closing:
            self.enqueue_and_forget(command)

    def _send(self, outgoing_messages: list[tuple[SessionId, Outgoing]]) -> None:
        if not outgoing_messages:
            return
        crash_point("before_send")
        by_session: dict[SessionId, list[Outgoing]] = {}
        for session, outgoing in outgoing_messages:
            by_session.setdefault(session, []).append(outgoing)
        for session, batch in by_session.items():
            end = self._ends.get(session)
            if end is None:  # it closed while the commit was under way
                self._enqueue(CloseLink(principal=batch[0].delivery.receiver, session=session))
            else:
                end.deliver(batch)
                agent = self._directory.agents.get(batch[0].delivery.receiver)
                self._observer.sent(len(batch), agent.protocol if agent else "")
        crash_point("after_send")

    def _note_callbacks(self, work: Work, changed: Callable[[AgentId], None]) -> None:
        for id, entry in work.entries(Agent).items():
            before, now = (row.callback_url if isinstance(row, Agent) else None for row in (entry.base, entry.row))
            if before != now:
                changed(id)

    def _note_wakes(self, changes: Changes) -> None:
        """Let the wake timer know of an earlier time than it waits for."""
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
        self._health.failed(why)
        what = f"the hub could not store this ({why})"
        fault = new_fault(Kind.OVERLOADED, what, next="try again in a moment", retryable=True)
        for _, then in reversed(batch):
            if type(then) is Pipelined:
                then.undone(self.now())
        for command, then in batch:
            if then is not None:
                then(None, Refused(fault))
            elif isinstance(command, CloseLink) and not self._closing:
                self._enqueue(command)  # a link that is gone stays gone; after a stop there is none

    async def wake_due(self, limit: int = 500) -> int:
        """Ask the store what is due now, and look at all of it. Returns how much was."""
        if self.now() - self._swept_at >= SWEEP_EVERY:
            self._swept_at = self.now()
            self._enqueue(Sweep())
            if self._directory.refusal_counts:
                self._enqueue(CountRefusals())
        if self.rules.keep_finished and self.now() >= self._forget_at:
            self._forget_at = Instant(self.now() + self._forget_every)
            self._enqueue(Forget())
        due = await self.store.due(self.now(), limit)
        commands = [
            *(Wake(task=id) for id in due.tasks),
            *(Wake(delivery=id) for id in due.deliveries),
            *(Wake(agent=id) for id in due.agents),
            *(Wake(question=id) for id in due.questions),
        ]
        self.next_wake = due.next_at
        lapses = self._directory.totals_lapse_at
        if lapses is not None and lapses <= self.now():
            commands.append(Wake(agent=HUB))
        elif lapses is not None:
            self.next_wake = min(lapses, due.next_at or lapses)
        for future in [self.enqueue(command) for command in commands]:
            try:
                await future
            except Refused as refusal:
                _log().warning("a wake-up was refused", why=str(refusal.fault))
        return len(commands)
