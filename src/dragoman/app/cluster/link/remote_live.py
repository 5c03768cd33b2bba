"""What a following node shows of commits: the moments of the event stream, and the plots.

Only the leader sees commits. While a page of this node is open, the leader sends it the moments that it gathers for its
own pages (`api.live`); what was left out because the node was slow, its watchers read from the store. Plots come from
the store, except for the last seconds, which the leader has in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from dragoman.api.live import Live, Watcher
from dragoman.api.series import Series
from dragoman.app.cluster.link.messages import MomentItem
from dragoman.core.ids import Instant
from dragoman.core.model.series import Bucket


class RemoteLive(Live):
    """`watch` says whether the leader shall send moments, and returns when it does."""

    def __init__(self, now: Callable[[], Instant], watch: Callable[[bool], asyncio.Future[None]]) -> None:
        super().__init__(now)
        self._watch = watch
        self._last = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        async with super().watching() as watcher:
            await self._watch(True)
            try:
                yield watcher
            finally:
                if self._watchers == 1:
                    self._last = 0
                    self._watch(False)

    def take(self, item: MomentItem) -> None:
        """A moment came. A gap in the leader's numbers becomes one in this node's: what is missing was left out."""
        if not self._watchers:
            return
        self._number += item.number - self._last if self._last else 1
        self._last = item.number
        self._add(item.numbered(self._number))


class RemoteSeries(Series):
    """Counts nothing: `recent` asks the leader."""

    def __init__(self, now: Callable[[], Instant], recent: Callable[[], Awaitable[list[Bucket]]]) -> None:
        super().__init__(now, lambda agent: None, lambda: 0)
        self._ask = recent

    async def _recent(self) -> list[Bucket]:
        return await self._ask()
