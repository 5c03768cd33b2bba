"""How long a command may take in all: one deadline for connecting, asking, reading and coming back alike.

A read that is given a number of seconds starts its clock with every byte that comes, and a stream that stands sends
heartbeats for ever. So nothing below a command counts seconds of its own: it asks the deadline what is left.

A hub that was there and is away may only be restarted: a command that waits goes on waiting for it (`Outage`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from dragoman.cli import printing
from dragoman.cli.errors import CommandError, Exit

T = TypeVar("T")


class Deadline:
    """`seconds` from now; never, if None."""

    def __init__(self, seconds: float | None = None, *, clock: Callable[[], float] | None = None) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = None if seconds is None else self._now() + seconds

    def over(self) -> bool:
        return self.left(1.0) <= 0

    def left(self, most: float) -> float:
        """Seconds for something that alone may take `most`; 0 when the time is up."""
        return most if self._until is None else max(0.0, min(most, self._until - self._now()))

    def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the deadline."""
        time.sleep(self.left(seconds))

    def bound(self, work: Callable[[], T]) -> T:
        """What `work` returns, or TimeoutError when the time is up first; it is left to itself then.

        For what takes no timeout: resolving a name, a client of the SDK. Without a deadline it runs right here.
        """
        if self._until is None:
            return work()
        import queue  # for few commands
        import threading

        outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                outcome.put((work(), None))
            except BaseException as error:
                outcome.put((None, error))

        threading.Thread(target=run, daemon=True).start()
        try:
            value, error = outcome.get(timeout=self.left(float("inf")))
        except queue.Empty:
            raise TimeoutError from None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def _now(self) -> float:
        return (self._clock or time.monotonic)()


NEVER = Deadline()

LEAVING = 3.0
"""Seconds in which a command that was an agent for a moment removes itself, also when its own time is up."""


LONGEST_OUTAGE = 120.0
"""Seconds for which it may be away: time to restart it, agents that finish first included."""
PAUSE = 0.5
SHORTEST_PAUSE = 0.05
"""The least number of seconds between two looks."""


class Outage:
    """`ended` when the hub answered; `wait` when it did not. `kept` says what is not lost meanwhile. A hub that was not
    `there` to begin with is not waited for."""

    def __init__(self, kept: str = "", *, there: bool = True, deadline: Deadline = NEVER) -> None:
        self._kept = f" ({kept})" if kept else ""
        self._there = there
        self._deadline = deadline
        self._since: float | None = None

    def ended(self) -> None:
        self._since, self._there = None, True

    def wait(self, failure: CommandError) -> None:
        """Wait a moment; raises what it is given, if that is something else or has lasted too long."""
        if failure.code is not Exit.UNREACHABLE or not self._there:
            raise failure
        now = time.monotonic()
        if self._since is None:
            self._since = now
            printing.note(f"  the hub is away; waiting for it{self._kept}")
        if now - self._since > LONGEST_OUTAGE:
            raise failure
        self._deadline.pause(PAUSE)


def repeat(look: Callable[[], None], deadline: Deadline, interval: float, outage: Outage) -> None:
    """Look at the hub again and again until the deadline; a hub that is away is waited for."""
    while True:
        try:
            look()
            outage.ended()
        except CommandError as failure:
            if deadline.over():
                return
            outage.wait(failure)
        deadline.pause(max(SHORTEST_PAUSE, interval))
        if deadline.over():
            return
