"""How long a command may take in all: one deadline for connecting, asking, reading and coming back alike.

A read that is given a number of seconds starts its clock with every byte that comes, and a stream that stands sends
heartbeats for ever. So nothing below a command counts seconds of its own: it asks the deadline what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

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
"""Seconds in which a command that was an agent for a moment is put out again, also when its own time is up."""
