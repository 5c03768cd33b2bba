"""A message counts once (D15): a window of time, and the ids that were seen within it.

    timestamp                     else
    ----------------------------  -----------
    at most 5 minutes old         too_old
    at most 60 seconds ahead      in_the_future
    id new for this sender        replayed

An id is kept until its timestamp is too old to be accepted anyway, and a minute longer in case our clock is set back.
So the memory has a natural bound: the messages of seven minutes. Where even these are more than `most`, new ones are
refused and none is forgotten: forgetting would let a replay in. What is kept is a set of rows (sender, id, until), so
that a store can hold them and a restart forgets nothing: `recall` takes them back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from dragoman.protocols.a2acp.errors import Code, Refusal

OLDEST = timedelta(minutes=5)
AHEAD = timedelta(seconds=60)


class Seen(NamedTuple):
    """One id of one sender, to be kept until then."""

    until: datetime
    sender: str
    message_id: str


def untimely(timestamp: datetime, now: datetime) -> Refusal | None:
    """Why a timestamp is not accepted now, or None."""
    age = now - timestamp
    if -AHEAD <= age <= OLDEST:
        return None
    reason = "too_old" if age > OLDEST else "in_the_future"
    what = "timestamp is older than 5 minutes" if age > OLDEST else "timestamp is more than 60 seconds ahead"
    details = {"reason": reason, "field": "timestamp", "now": now.astimezone(UTC).isoformat().replace("+00:00", "Z")}
    return Refusal(code=Code.AUTH_FAILED, message=f"{what}; check your clock", details=details)


def row(sender: str, message_id: str, timestamp: datetime) -> Seen:
    """What to remember of a message that was accepted."""
    return Seen(timestamp + OLDEST + AHEAD, sender, message_id.lower())


class Memory:
    """The ids of the last minutes."""

    def __init__(self, most: int = 200_000) -> None:
        self.most = most
        self._seen: set[tuple[str, str]] = set()
        self._queue: list[Seen] = []

    def __len__(self) -> int:
        return len(self._seen)

    def recall(self, rows: Iterable[Seen]) -> None:
        """Take back what was seen before a restart."""
        for entry in rows:
            if (entry.sender, entry.message_id) not in self._seen:
                self._keep(entry)

    def judge(self, sender: str, message_id: str, timestamp: datetime, now: datetime) -> Refusal | None:
        """Why a message is not accepted, or None. Nothing is remembered yet: it may be refused for other reasons."""
        late = untimely(timestamp, now)
        if late is not None:
            return late
        if (sender, message_id.lower()) in self._seen:
            details = {"reason": "replayed", "field": "message_id"}
            return Refusal(code=Code.AUTH_FAILED, message="this message_id was used before", details=details)
        self._forget(now)
        if len(self._seen) >= self.most:
            what = f"more than {self.most} messages within the last minutes"
            return Refusal(code=Code.INTERNAL_ERROR, message=what, details={"reason": "overloaded"})
        return None

    def remember(self, sender: str, message_id: str, timestamp: datetime) -> Seen:
        """It was accepted. The row is for the store."""
        entry = row(sender, message_id, timestamp)
        self._keep(entry)
        return entry

    def release(self, entry: Seen) -> None:
        """It could not be committed after all: when it comes again it counts as new."""
        self._seen.discard((entry.sender, entry.message_id))

    def _keep(self, entry: Seen) -> None:
        self._seen.add((entry.sender, entry.message_id))
        heapq.heappush(self._queue, entry)

    def _forget(self, now: datetime) -> None:
        while self._queue and self._queue[0].until < now:
            gone = heapq.heappop(self._queue)
            self._seen.discard((gone.sender, gone.message_id))
