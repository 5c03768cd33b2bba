"""What happens in the hub, for the pages that watch it: changes as they are committed, many to one frame.

The intake reports each commit (`committed`). As long as no page watches, that costs one test. While one does, the
changes of a moment are gathered, and a tick later they become one `Moment`: the events, the newest head of each task
that changed, and how much more there was. Every watcher gets the same moment, and encodes nothing that another one has
encoded already, so that two hundred dashboards cost hardly more than one.

A moment's `until` is the instant of its last commit. Instants only grow, and the store finds events by them: a watcher
that was away reads what it missed from the store (`Store.events_since`) and goes on from there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext

import msgspec

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.ports import Changes

TICK_SECONDS = 0.2
QUICK_TICK_SECONDS = 0.1
FEW = 10
"""Up to so many watchers, a moment is short: a frame for each of them costs little."""
KEPT = 64
"""Moments that a slow watcher may be behind. One further behind reads from the store, or the hub tells it to."""
MOST_EVENTS = 2000
"""Events of one moment that are kept for watchers; those of busier moments are in the store."""


class Moment(msgspec.Struct, frozen=True, gc=False):
    """Everything that was committed in one tick. `left_out` events were more than fit; `cache` holds what watchers have
    encoded of it."""

    number: int
    until: Instant
    events: tuple[Event, ...]
    tasks: dict[TaskId, Task]
    agents: frozenset[AgentId]
    questions: frozenset[QuestionId]
    dead_letters: bool
    left_out: int = 0
    cache: dict[str, bytes] = {}


class Live:
    """Gathers commits into moments while pages watch."""

    def __init__(self, now: Callable[[], Instant]) -> None:
        self._now = now
        self._moments: deque[Moment] = deque(maxlen=KEPT)
        self._number = 0
        self._watchers = 0
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._start_over()

    def _start_over(self) -> None:
        self._events: list[Event] = []
        self._tasks: dict[TaskId, Task] = {}
        self._agents: set[AgentId] = set()
        self._questions: set[QuestionId] = set()
        self._dead_letters = False
        self._left_out = 0
        self._until = Instant(0)

    # -- the intake's side ---------------------------------------------------------------------------------------------

    def committed(self, changes: Changes) -> None:
        if not self._watchers:
            return
        for rows in (changes.added, changes.changed, changes.removed):
            for row in rows:
                match row:
                    case Event():
                        self._until = max(self._until, row.at)
                        if len(self._events) < MOST_EVENTS:
                            self._events.append(row)
                        else:
                            self._left_out += 1
                    case Task():
                        self._tasks[row.id] = row
                        if row.owner is not None:
                            self._agents.add(row.owner)
                    case Agent():
                        self._agents.add(row.id)
                    case Question():
                        self._questions.add(row.id)
                    case DeadLetter():
                        self._dead_letters = True
        if self._timer is None and (self._tasks or self._agents or self._questions or self._dead_letters):
            seconds = QUICK_TICK_SECONDS if self._watchers <= FEW else TICK_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._number += 1
        moment = Moment(
            self._number,
            self._until or self._now(),
            tuple(self._events),
            self._tasks,
            frozenset(self._agents),
            frozenset(self._questions),
            self._dead_letters,
            self._left_out,
            {},
        )
        self._start_over()
        self._add(moment)

    def _add(self, moment: Moment) -> None:
        self._moments.append(moment)
        self._arrived.set()
        self._arrived = asyncio.Event()

    # -- a watcher's side ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        self._watchers += 1
        try:
            yield Watcher(self, self._number)
        finally:
            self._watchers -= 1
            if not self._watchers:
                self._moments.clear()
                self._start_over()

    def behind(self, number: int) -> tuple[list[Moment], bool]:
        """The moments after this one, and whether some of them are gone already."""
        found = [moment for moment in self._moments if moment.number > number]
        missed = bool(found) and found[0].number > number + 1
        return found, missed

    @property
    def arrived(self) -> asyncio.Event:
        return self._arrived


class Watcher:
    """One connection's place among the moments."""

    def __init__(self, live: Live, number: int) -> None:
        self._live = live
        self._number = number

    async def next(self, seconds: float | None = None) -> tuple[list[Moment], bool]:
        """The moments since the last call, waiting for one; none after this time, if there is one. True: the watcher
        was too slow, and some moments before these are gone."""
        arrived = self._live.arrived
        found, missed = self._live.behind(self._number)
        if not found:
            try:
                # Where the caller has a clock already, a second one for each watcher would cost as much as the frame.
                async with nullcontext() if seconds is None else asyncio.timeout(seconds):
                    await arrived.wait()
            except TimeoutError:
                return [], False
            found, missed = self._live.behind(self._number)
        if found:
            self._number = found[-1].number
        return found, missed
