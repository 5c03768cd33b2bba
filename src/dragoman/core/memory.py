"""Limits how many bytes of messages the hub holds at once: in all, and per principal.

The hub holds a message from the moment it decides to read it until its commands are committed or refused. Each endpoint
takes the bytes from this budget before it reads a body, and gives them back when the outcome is known. So a disk that
hangs, or a sender that is faster than the disk, costs a bounded amount of memory, whatever the number of requests.

    what an endpoint asks for               fits while
    --------------------------------------  -------------------------------------------------------------------------
    a message above `SMALL`                 the budget in all, the principal's, and the free memory have room for it
    a small one (status, acknowledgment)    the same, with a quarter more: large messages do not shut it out
    the first of all, whatever its size     always, so that no setting makes the hub deaf; only free memory counts

An endpoint that cannot refuse for the moment (a WebSocket, a pipe) stops reading, and is called when there is room:
`wait`, `when_room`. Nothing here waits or does I/O; a function reports the free memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from dragoman.messages.faults import Fault, Kind, new_fault

SMALL = 64 * 1024
"""Messages up to so many bytes may use the reserve, and are not checked against the free memory."""
RESERVE = 4
"""For small messages, each limit is higher by one part in so many."""
EXPANSION = 12
"""How many bytes of memory one byte of a large message may need at most: the body, its parsed form, rows, a growing
commit buffer. It is generous, because the JSON library (msgspec 0.22) ends the process by SIGSEGV if an allocation of
its own fails."""
MOST_WAITING = 1000
"""So many requests may wait for room; the next ones are refused at once."""

STRANGERS = ""
"""The principal of bodies that are read before their sender is known. They share one allowance."""


class MemoryLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of messages that may be held at once."""

    total: int = 256 * 1024 * 1024
    per_principal: int = 64 * 1024 * 1024


class Waiting(msgspec.Struct, eq=False):
    """A request that waits for room: `then` is called when its bytes are taken."""

    principal: str
    size: int
    already: int
    then: Callable[[], None]


class MemoryBudget:
    """Counts the bytes that are held. There is one for the whole hub."""

    def __init__(self, limits: MemoryLimits | None = None, *, free: Callable[[], int | None] = lambda: None) -> None:
        """`free` returns how many bytes of memory the process may still get, or None where there is no limit."""
        self.limits = limits or MemoryLimits()
        self.held = 0
        self.refused = 0
        self._free = free
        self._by: dict[str, int] = {}
        self._waiting: deque[Waiting] = deque()
        self._blocked: dict[Callable[[], None], str] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting) + len(self._blocked)

    # -- whether

    def misfit(self, principal: str, size: int, already: int = 0) -> Fault | None:
        """Why there is no room now for so many bytes, of a message that has so many `already`; None if there is."""
        limits, own = self.limits, self._by.get(principal, 0)
        total, each = limits.total, limits.per_principal
        if (whole := already + size) <= SMALL:
            total += total // RESERVE
            each += each // RESERVE
        if own and own + size > each:
            return new_fault(
                Kind.RATE_LIMITED,
                f"the hub holds {own} bytes of your messages that are not committed yet, and takes {each} at most",
                next="wait for the answers to what you sent, then send this again",
                retryable=True,
                facts={"scope": "bytes", "limit": each, "held": own, "retry_after": 1},
            )
        if self.held and self.held + size > total:
            return _overloaded(f"the hub holds {self.held} bytes of messages that are not committed yet")
        if whole > SMALL:
            free = self._free()
            if free is not None and EXPANSION * (self.held + size) > free:
                return _overloaded(f"the hub has no memory for a message of {whole} bytes now")
        return None

    def has_room(self, principal: str) -> bool:
        """Whether a link of this principal should go on reading."""
        return self._by.get(principal, 0) < self.limits.per_principal and self.held < self.limits.total

    # -- taking and giving back

    def take(self, principal: str, size: int, already: int = 0) -> Fault | None:
        """Take so many bytes; or return why not."""
        fault = self.misfit(principal, size, already)
        if fault is None:
            self.add(principal, size)
        return fault

    def add(self, principal: str, size: int) -> None:
        """Count bytes that are in memory already, whether there is room for them or not."""
        self.held += size
        self._by[principal] = self._by.get(principal, 0) + size

    def give_back(self, principal: str, size: int) -> None:
        if not size:
            return
        self.held -= size
        left = self._by[principal] - size
        if left:
            self._by[principal] = left
        else:
            del self._by[principal]
        if self._waiting:
            self._serve()
        if self._blocked:
            self._call()

    # -- waiting

    def wait(self, principal: str, size: int, then: Callable[[], None], already: int = 0) -> Waiting | None:
        """Call `then` as soon as the bytes are taken; None if too many wait already."""
        if len(self._waiting) >= MOST_WAITING:
            return None
        waiting = Waiting(principal, size, already, then)
        self._waiting.append(waiting)
        return waiting

    def forget(self, waiting: Waiting) -> None:
        """The request waits no longer, and has taken nothing."""
        self._waiting.remove(waiting)

    def when_room(self, principal: str, then: Callable[[], None]) -> None:
        """Call `then` once, as soon as `has_room`."""
        self._blocked[then] = principal

    def no_matter(self, then: Callable[[], None]) -> None:
        self._blocked.pop(then, None)

    def _serve(self) -> None:
        """Serve the requests that fit now, in their order. One that does not fit does not hold up the others."""
        still: deque[Waiting] = deque()
        served: list[Waiting] = []
        for one in self._waiting:
            if self.take(one.principal, one.size, one.already) is None:
                served.append(one)
            else:
                still.append(one)
        self._waiting = still
        for one in served:
            one.then()

    def _call(self) -> None:
        ready = [then for then, principal in self._blocked.items() if self.has_room(principal)]
        for then in ready:
            self._blocked.pop(then, None)
        for then in ready:
            then()


def _overloaded(why: str) -> Fault:
    return new_fault(Kind.OVERLOADED, why, next="send this again in a moment", retryable=True, facts={"retry_after": 1})
