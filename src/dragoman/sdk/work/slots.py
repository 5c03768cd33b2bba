"""Places to work at: as many handlers run at once as the agent said that it takes.

Whoever waits for a person or another agent leaves its place. For the hub its turn may be over, and the seat somebody
else's: if that work had to wait here for a place, and the answer at the hub for the seat, both would wait for ever.
Whoever comes back goes before those that have not begun.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.sdk.work.running_task import RunningTask


class Slots:
    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: set[RunningTask] = set()
        self._returning: deque[tuple[RunningTask, Callable[[], None]]] = deque()
        self._new: deque[tuple[RunningTask, Callable[[], None]]] = deque()

    def enter(self, task: RunningTask, begin: Callable[[], None]) -> None:
        """Begin, now or when there is a place; not if it is cancelled by then."""
        self._new.append((task, begin))
        self._fill()

    def leave(self, task: RunningTask) -> None:
        self._taken.discard(task)
        self._fill()

    async def back(self, task: RunningTask) -> None:
        """Go on, now or when there is a place."""
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
