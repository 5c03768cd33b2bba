"""The exchanges one link remembers, found by request and by task, and never more than a bound.

An answer names its exchange twice: by the request_id of its envelope and by the task_id of its payload. The
document asks for neither to be copied in so many words, and there are agents that put a fresh request_id on
every message; so the request is looked up first and the task second.
"""

from __future__ import annotations

from msgspec import Struct

from dragoman.protocols.chiffon.state import OVER, Side, State
from dragoman.protocols.chiffon.types import Envelope, ErrorPayload, Payload, WorkRequest


class Exchange(Struct, gc=False):
    """One exchange as one end sees it. `closed_by` is the message that ended it."""

    request_id: str
    task_id: str
    trace_id: str
    requester: str
    performer: str
    we: Side
    state: State = State.IDLE
    delivery_id: str | None = None
    closed_by: str | None = None


class Exchanges:
    """At most `most` open exchanges and as many that are over; the oldest go first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[str, Exchange] = {}
        self._over: dict[str, Exchange] = {}
        self._by_task: dict[str, Exchange] = {}

    def __len__(self) -> int:
        return len(self._open) + len(self._over)

    @property
    def full(self) -> bool:
        """Whether another open exchange would push one out."""
        return len(self._open) >= self.most

    def get(self, request_id: str) -> Exchange | None:
        """The exchange of a request."""
        return self._open.get(request_id) or self._over.get(request_id)

    def find(self, message: Envelope[Payload]) -> Exchange | None:
        """The exchange a message belongs to."""
        found = self.get(message.request_id)
        payload = message.payload
        if found is not None or isinstance(payload, (WorkRequest, ErrorPayload)):
            return found
        return self._by_task.get(payload.task_id)

    def open(self, message: Envelope[Payload], we: Side) -> Exchange:
        """Remember an exchange from this message on; unless it is the request, it was under way before."""
        payload = message.payload
        asked = isinstance(payload, WorkRequest)
        exchange = Exchange(
            request_id=message.request_id,
            task_id="" if isinstance(payload, ErrorPayload) else payload.task_id,
            trace_id=message.trace_id,
            requester=message.from_agent if asked else message.to_agent,
            performer=message.to_agent if asked else message.from_agent,
            we=we,
            state=State.IDLE if asked else State.REQUESTED,
        )
        if self.full:
            self._forget(self._open)
        self._open[exchange.request_id] = exchange
        namesake = self._by_task.get(exchange.task_id)
        if namesake is None or namesake.state in OVER:  # a request to cancel does not hide the work itself
            self._by_task[exchange.task_id] = exchange
        return exchange

    def advance(self, exchange: Exchange, state: State, message_id: str) -> None:
        """Move an exchange on, and between the open ones and those that are over."""
        was_over = exchange.state in OVER
        exchange.state = state
        if state in OVER:
            if not was_over:
                exchange.closed_by = message_id
                self._open.pop(exchange.request_id, None)
                self._over[exchange.request_id] = exchange
                if len(self._over) > self.most:
                    self._forget(self._over)
        elif was_over:
            self._over.pop(exchange.request_id, None)
            self._open[exchange.request_id] = exchange

    def _forget(self, exchanges: dict[str, Exchange]) -> None:
        oldest = exchanges.pop(next(iter(exchanges)))
        if self._by_task.get(oldest.task_id) is oldest:
            del self._by_task[oldest.task_id]
