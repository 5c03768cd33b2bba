"""What an agent remembers of the requests it was sent, so that a repeated one is never done twice (all-D5).

    the request is        and its content is    then
    --------------------  --------------------  -------------------------------------------------
    new                   -                     do it                               START
    running               the same              let the repetition wait for it      JOIN
    finished              the same              send the first result again         the bytes
    running or finished   another               refuse: one id, two meanings        CONFLICT

Only results are remembered. An error is forgotten at once: a retry after it must run. The memory is a plain value
without clock or file; the SDK writes `finish` to its journal before it sends, and feeds the journal back after a
restart. What was running when a process died is not in the journal, and so runs again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import Enum
from typing import NamedTuple

import msgspec

from dragoman.protocols.chiffon.types import WorkRequest

KEEP = timedelta(hours=24)
MOST_RESULTS = 10_000

_canonical = msgspec.json.Encoder(order="sorted").encode


class Decision(Enum):
    """What to do with a request, unless its result is there."""

    START = "start"
    JOIN = "join"
    CONFLICT = "conflict"


class Finished(NamedTuple):
    """A final result: whose request, what was asked, the frames that answered it, when."""

    request_id: str
    fingerprint: bytes
    frames: tuple[bytes, ...]
    at: datetime


def fingerprint(request: WorkRequest) -> bytes:
    """The content of a request, independent of the order of its keys."""
    return hashlib.sha256(_canonical(request)).digest()


class Memory:
    """Requests by id: running ones until they end, results until they are old or crowded out."""

    def __init__(self, *, keep: timedelta = KEEP, most: int = MOST_RESULTS) -> None:
        self._keep = keep
        self._most = most
        self._running: dict[str, bytes] = {}
        self._finished: dict[str, Finished] = {}

    def begin(self, request_id: str, content: bytes, now: datetime) -> Decision | tuple[bytes, ...]:
        """Decide about a request; START also marks it as running."""
        self._forget(now)
        known = self._finished.get(request_id)
        if known is not None:
            return known.frames if known.fingerprint == content else Decision.CONFLICT
        running = self._running.get(request_id)
        if running is not None:
            return Decision.JOIN if running == content else Decision.CONFLICT
        self._running[request_id] = content
        return Decision.START

    def finish(self, request_id: str, frames: tuple[bytes, ...], now: datetime) -> Finished:
        """A result is there: remember it, and hand back what belongs in the journal."""
        done = Finished(request_id, self._running.pop(request_id), frames, now)
        self._finished[request_id] = done
        self._forget(now)
        return done

    def fail(self, request_id: str) -> None:
        """The request ended in an error, which is never remembered."""
        self._running.pop(request_id, None)

    def restore(self, done: Finished) -> None:
        """Take back one line of the journal, oldest first."""
        self._finished[done.request_id] = done

    def _forget(self, now: datetime) -> None:
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if len(self._finished) <= self._most and now - oldest.at <= self._keep:
                break
            del self._finished[oldest.request_id]
