"""What the task runner keeps: each running task (a handler sees its `Task`), how many run at once, and counters."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from dragoman.sdk.messages import Assignment, Question
from dragoman.sdk.runtime import Runtime

if TYPE_CHECKING:
    from dragoman.sdk.work.journal import Answered


class RunningTask:
    def __init__(self, work: Assignment, given: dict[str, Any], print: str) -> None:
        self.work = work
        self.input = given
        self.correlation = work.correlation
        """Of the request that the result will answer: the last one of `requests`."""
        self.requests = [work.correlation.request_id]
        self.print = print
        """Identifies the content of that request."""
        self.receipt = work.receipt
        """Acknowledges the work, until the first message about it does."""
        self.execution: asyncio.Task[None] | None = None
        self.deadline: float | None = None
        self.overdue = False
        self.retries = 0
        """How often the handler was run again after a failure."""
        self.is_between_runs = False
        self.cancelled = False
        self.withdrawn = False
        self.handed_to: str | None = None
        self.place: asyncio.Future[None] | None = None
        """Set while it waits for a free slot (`Slots`)."""
        # Reports.
        self.percent = 0
        self.step: str | None = None
        self.step_number = 0
        self.last_sign = 0.0
        self.messages_sent = 0
        """How many messages went out about it."""
        self.output_pieces: list[str] = []
        """All output; `answer_pieces` are those of it that are part of the answer (`task.text`)."""
        self.answer_pieces: list[str] = []
        self.unconfirmed = 0
        """Reports with content that the hub may still lack; a task with too many waits for `room`."""
        self.room: asyncio.Event | None = None
        self.usage: dict[str, float] | None = None
        # Questions.
        self.answers: list[Answered] = []
        self.asked = 0
        """How many questions the handler has come to, of which the first ones may have answers already."""
        self.turn = asyncio.Lock()
        self.asking: Question | None = None
        self.answer: asyncio.Future[Answered] | None = None
        self.waits = 0
        """For other agents."""
        self._held: asyncio.Event | None = None  # made when a handler looks: most tasks are never held
        self._released: asyncio.Event | None = None

    @property
    def id(self) -> str:
        return self.correlation.task_id

    @property
    def type(self) -> str:
        return self.work.type

    @property
    def trace_id(self) -> str:
        return self.correlation.trace_id.replace("-", "")

    @property
    def is_held(self) -> bool:
        return self._held is not None and self._held.is_set()

    @property
    def held(self) -> asyncio.Event:
        if self._held is None:
            self._held = asyncio.Event()
        return self._held

    @property
    def released(self) -> asyncio.Event:
        if self._released is None:
            self._released = asyncio.Event()
            if not self.is_held:
                self._released.set()
        return self._released

    def hold(self) -> None:
        self.held.set()
        self.released.clear()

    def release(self) -> None:
        self.held.clear()
        self.released.set()

    def begin_again(self) -> None:
        """The handler runs again from its start: its questions are answered from memory, its answer starts over."""
        self.retries += 1
        self.asked = 0
        self.answer_pieces.clear()

    def give_up(self) -> None:
        """The task is no longer wanted: wake a handler that waits inside."""
        self.cancelled = True
        if self.answer is not None and not self.answer.done():
            self.answer.cancel()
        if self.place is not None:
            self.place.cancel()
        if self.room is not None:
            self.room.set()
        if self.is_held:
            self.release()


class Slots:
    """At most `concurrency` handlers run at once.

    A task that waits for a person or another agent leaves its slot, because the hub may give another task to the agent
    meanwhile: if that one waited here for the slot, and the answer at the hub for that one's end, both would wait for
    ever. A task that comes back goes before those that have not begun.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: set[RunningTask] = set()
        self._returning: deque[tuple[RunningTask, Callable[[], None]]] = deque()
        self._new: deque[tuple[RunningTask, Callable[[], None]]] = deque()

    def enter(self, task: RunningTask, begin: Callable[[], None]) -> None:
        """Begin, now or when there is a slot; not if it is cancelled by then."""
        self._new.append((task, begin))
        self._fill()

    def leave(self, task: RunningTask) -> None:
        self._taken.discard(task)
        self._fill()

    async def back(self, task: RunningTask) -> None:
        """Continue, now or when there is a slot."""
        task.place = place = asyncio.get_running_loop().create_future()
        self._returning.append((task, lambda: None if place.done() else place.set_result(None)))
        self._fill()
        await place

    def _fill(self) -> None:
        while len(self._taken) < self._most and (line := self._returning or self._new):
            task, go_on = line.popleft()
            if not task.cancelled:
                self._taken.add(task)
                go_on()


SMOOTHING = 0.2
"""How much the newest piece of work counts in the average time."""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class WorkStats:
    """Counts since the agent began to serve."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._since = runtime.monotonic()
        self._last_look = (time.perf_counter(), time.process_time())
        self.done = 0
        self.failed = 0
        self.average_ms = 0.0
        self.last_error: datetime | None = None
        self.beaten_at = runtime.now()
        self.reported: dict[str, Any] = {}
        """The state and the usage that the agent itself reported last: they replace what is counted here."""
        self.used = {"tokens_used": 0.0, "cost_usd": 0.0}

    def ended(self, seconds: float, *, failed: bool, usage: dict[str, float] | None = None) -> None:
        """Count a task that ended."""
        self.done += not failed
        self.failed += failed
        if failed:
            self.last_error = self._runtime.now()
        first = self.done + self.failed == 1
        self.average_ms += (seconds * 1000 - self.average_ms) * (1 if first else SMOOTHING)
        for name, amount in (usage or {}).items():
            self.used[name] = self.used.get(name, 0.0) + amount

    @property
    def error_rate(self) -> float:
        return self.failed / max(1, self.done + self.failed)

    @property
    def uptime(self) -> float:
        return self._runtime.monotonic() - self._since

    def cpu_percent(self) -> float:
        """Percent of one processor, since the last call."""
        now = (time.perf_counter(), time.process_time())
        (wall, cpu), self._last_look = self._last_look, now
        return round(min(100.0, 100 * (now[1] - cpu) / max(now[0] - wall, 1e-3)), 1)

    def memory_percent(self) -> float:
        """Percent of the machine's memory, the most so far."""
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return round(min(100.0, 100 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _RSS_UNIT / total), 1)
