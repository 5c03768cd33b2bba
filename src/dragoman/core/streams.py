"""Limits how many streams of events are open: per principal, and in all. 0 is no limit.

A stream costs a connection, and reads for every event, as long as its client wants. People share one token, so only the
limit in all counts for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dragoman.core.ids import ADMIN, AgentId
from dragoman.messages.faults import Kind, refuse

AGAIN_SECONDS = 5


class Streams:
    def __init__(self, *, each: int = 500, most: int = 5_000) -> None:
        self.each = each
        self.most = most
        self._open: Counter[AgentId] = Counter()

    @property
    def open(self) -> int:
        return self._open.total()

    @contextmanager
    def one(self, principal: AgentId) -> Iterator[None]:
        """Held while a stream is open; raises `Refused` above a limit."""
        self.check(principal)
        self._open[principal] += 1
        try:
            yield
        finally:
            self._open[principal] -= 1
            if not self._open[principal]:
                del self._open[principal]

    def check(self, principal: AgentId) -> None:
        if self.most and self.open >= self.most:
            raise refuse(
                Kind.OVERLOADED,
                f"{self.most} streams are open already",
                next="try again later",
                retryable=True,
                retry_after=AGAIN_SECONDS,
            )
        if self.each and principal != ADMIN and self._open[principal] >= self.each:
            raise refuse(
                Kind.RATE_LIMITED,
                f"{principal} has {self.each} streams open already",
                next="close one first",
                retryable=True,
                scope="streams",
                limit=self.each,
                retry_after=AGAIN_SECONDS,
            )
