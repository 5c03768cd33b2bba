"""The requests of one end that wait for their answers (D8, D9).

    OPEN --response or error--> ANSWERED        OPEN --its time is up--> OVERDUE

An answer names its request by the correlation id: that of the request, or the request's own message id where it had
none. The first one counts; later ones are unexpected. The memory is bounded and outlives a link.
"""

from __future__ import annotations

import heapq
from datetime import datetime, timedelta

from msgspec import Struct

from dragoman.protocols.a2acp.errors import Code, Refusal
from dragoman.protocols.a2acp.events import Overdue
from dragoman.protocols.a2acp.types import ROUTING_SECONDS, Message, MessageType
from dragoman.wire.errors import LocalProtocolError


class Open(Struct, frozen=True):
    """A request and when its time is up."""

    request: Message
    due: datetime


class Pending:
    """At most `most` open requests, by the thread that their answers name."""

    def __init__(self, most: int = 10_000) -> None:
        self.most = most
        self._open: dict[str, Open] = {}
        self._queue: list[tuple[datetime, str]] = []

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, thread: str) -> bool:
        return thread in self._open

    def asked(self, request: Message, now: datetime, seconds: float = ROUTING_SECONDS) -> None:
        """Wait for the answer to a request of ours."""
        if request.thread in self._open:
            raise LocalProtocolError("a request with this correlation id is still open", field="payload.correlation_id")
        if len(self._open) >= self.most:
            raise LocalProtocolError(f"more than {self.most} requests wait for their answers")
        due = now + timedelta(seconds=seconds)
        self._open[request.thread] = Open(request, due)
        heapq.heappush(self._queue, (due, request.thread))

    def answered(self, message: Message) -> Message | None:
        """The request that a message answers. A response comes from who was asked; an error may be the broker's."""
        found = self._open.get(message.correlation_id or "")
        if found is None:
            return None
        asked = found.request.target_agent.agent_id
        if message.message_type is MessageType.RESPONSE and message.source_agent.agent_id != asked:
            return None
        del self._open[found.request.thread]
        return found.request

    def request(self, thread: str) -> Message | None:
        """The open request of a thread."""
        found = self._open.get(thread)
        return None if found is None else found.request

    def overdue(self, now: datetime) -> list[Overdue]:
        """The requests whose time is up; they are forgotten."""
        found: list[Overdue] = []
        while self._queue and self._queue[0][0] <= now:
            due, thread = heapq.heappop(self._queue)
            entry = self._open.get(thread)
            if entry is None or entry.due != due:
                continue
            del self._open[thread]
            request = entry.request
            what = f"{request.target_agent.agent_id} did not answer {request.intent} in time"
            details = {"message_id": request.message_id, "intent": request.intent}
            found.append(Overdue(request, Refusal(code=Code.TIMEOUT, message=what, details=details)))
        return found

    @property
    def next_due(self) -> datetime | None:
        """When `overdue` has something to do, at the earliest."""
        while self._queue:
            due, thread = self._queue[0]
            entry = self._open.get(thread)
            if entry is not None and entry.due == due:
                return due
            heapq.heappop(self._queue)
        return None
