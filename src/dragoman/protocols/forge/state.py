"""The life of one request, as a table, and the requests that one end has open.

    IDLE --request--> WAITING --response--> ANSWERED
                         |
                         +----- timeout --> TIMED_OUT     (a response that comes now is late: told, and ignored)

A request may be said again in every state: an agent that lost the response repeats it under the same id, and the
orchestrator answers with the first outcome (all-D5). So ANSWERED and TIMED_OUT lead back to WAITING.

Both ends keep such a list: the one that asked, to match responses and notice silence; the one that was asked, so that
each request gets one response and no more. Time is given as seconds of a clock that never jumps.
"""

from __future__ import annotations

import enum
import heapq

from msgspec import Struct

from dragoman.wire.machine import Table


class State(enum.StrEnum):
    IDLE = "idle"
    WAITING = "waiting"
    ANSWERED = "answered"
    TIMED_OUT = "timed_out"


class Said(enum.StrEnum):
    REQUEST = "request"
    RESPONSE = "response"
    TIMEOUT = "timeout"


REQUEST: Table[State, Said] = Table(
    {
        State.IDLE: {Said.REQUEST: State.WAITING},
        State.WAITING: {
            Said.REQUEST: State.WAITING,
            Said.RESPONSE: State.ANSWERED,
            Said.TIMEOUT: State.TIMED_OUT,
        },
        State.ANSWERED: {Said.REQUEST: State.WAITING},
        State.TIMED_OUT: {Said.REQUEST: State.WAITING, Said.RESPONSE: State.TIMED_OUT},
    },
    start=State.IDLE,
)


class Open(Struct, gc=False):
    """One request as one end sees it; `deadline` None waits for ever."""

    id: str
    type: str
    state: State
    deadline: float | None


class Requests:
    """At most `most` requests: when one more is opened, those that are over are forgotten first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[str, Open] = {}
        self._over: dict[str, Open] = {}
        self._deadlines: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def full(self) -> bool:
        return len(self._open) >= self.most

    def state(self, request_id: str) -> State:
        """Where a request is; IDLE if it is unknown or forgotten."""
        found = self._open.get(request_id) or self._over.get(request_id)
        return State.IDLE if found is None else found.state

    def open(self, request_id: str, kind: str, deadline: float | None) -> None:
        self._over.pop(request_id, None)
        self._open[request_id] = Open(request_id, kind, State.WAITING, deadline)
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, request_id))

    def answered(self, request_id: str) -> bool:
        """Whether the response was waited for; the request is over then."""
        found = self._open.pop(request_id, None)
        if found is None:
            return False
        self._close(found, State.ANSWERED)
        return True

    def expire(self, now: float) -> list[str]:
        """The requests whose time is up, oldest first. They are over."""
        late: list[str] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, request_id = heapq.heappop(self._deadlines)
            found = self._open.get(request_id)
            if found is not None and found.deadline == deadline:  # else it was answered, or asked again since
                del self._open[request_id]
                self._close(found, State.TIMED_OUT)
                late.append(request_id)
        return late

    @property
    def next_deadline(self) -> float | None:
        """When `expire` has something to do, at the earliest."""
        while self._deadlines:
            deadline, request_id = self._deadlines[0]
            found = self._open.get(request_id)
            if found is not None and found.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return None

    def _close(self, request: Open, state: State) -> None:
        request.state = state
        self._over[request.id] = request
        if len(self._over) > self.most:
            del self._over[next(iter(self._over))]
