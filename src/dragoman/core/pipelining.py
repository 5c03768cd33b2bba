"""Messages that a link sends without waiting for answers: none about a task overtakes one that was refused for now.

A sender that pipelines sends B before the answer to A comes. If the hub refuses A for the moment (its store fails, it
is overloaded, a limit is met) and then accepts B, A comes again behind B: an inversion within the task. So, for each
link and task:

    a message                                          is
    -------------------------------------------------  ---------------------------------------------------------------
    before which none was refused for now              decided
    that is refused for now                            expected again, in its place
    that is the first of the expected                  decided: it has come again
    that restarts a split output (at byte 0), of       decided, and no message is expected any more: its sender has
      which a piece is expected                        seen the refusal, and sends all of it again
    any other, while some are expected                 refused for now, and expected again behind them

No sender is blocked for ever: one that sends none of the expected messages within `PATIENCE` has given them up. The
intake asks at each decision, so this also holds for messages that were enqueued together. All of this ends with the
link: over the next one, the sender repeats what was not accepted, from the first message on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dragoman.core.ids import SECOND, Instant, SessionId
from dragoman.messages.faults import Kind, Refused, new_fault

PATIENCE = 5 * SECOND
"""A sender that follows the documents comes again after a second."""
MOST = 1024
"""How many messages of one task may be expected again, and for how many tasks of one link."""

FOR_NOW = frozenset({Kind.OVERLOADED, Kind.INTERNAL, Kind.RATE_LIMITED, Kind.UNAVAILABLE, Kind.RESOURCES})
"""Refusals after which every protocol's sender may send the same message again."""

BEHIND = new_fault(
    Kind.OVERLOADED,
    "an earlier message about this task was refused for now",
    next="send that one again first, then this one",
    retryable=True,
)

Then = Callable[[Any, Refused | None], None]


class Pipeline:
    """The messages that one link is expected to send again, by task. `session` names the link."""

    def __init__(self, session: SessionId) -> None:
        self.session = session
        self.expected: dict[str, Expected] = {}
        self.count = 0

    def of(self, task: str, now: Instant) -> Expected | None:
        """The messages expected for a task, unless its sender has given them up."""
        found = self.expected.get(task)
        if found is not None and (not found.ids or now - found.since > PATIENCE):
            del self.expected[task]
            return None
        return found

    def expect(self, task: str, now: Instant) -> Expected:
        found = self.of(task, now)
        if found is None:
            if len(self.expected) >= MOST:
                del self.expected[next(iter(self.expected))]
            found = self.expected[task] = Expected(now)
        return found


class Missed(NamedTuple):
    """A message that is expected again: its place among all messages of its link, and the stream of which it is a
    piece, if any."""

    place: int
    stream: str | None


class Expected:
    """The messages of one task that are expected again, in order, by their ids. `since`: when the first was added or
    the last one came."""

    def __init__(self, since: Instant) -> None:
        self.ids: dict[str, Missed] = {}
        self.since = since


class Pipelined:
    """A message on its way through the intake, which calls it with each outcome.

    A message that becomes several commands is decided or held back as a whole. At a node that follows another, the
    leader holds the pipeline; the node only sends the place of each command (`pipeline`, `task`, `id`, `stream`,
    `begins`).
    """

    __slots__ = ("_held_back", "_place", "_then", "begins", "id", "pipeline", "stream", "task")

    def __init__(
        self,
        pipeline: Pipeline,
        task: str,
        id: str,
        then: Then,
        *,
        stream: str | None = None,
        begins: bool = False,
    ) -> None:
        self.pipeline = pipeline
        self.task = task
        self.id = id
        self._then = then
        self.stream = stream
        self.begins = begins
        self._held_back: bool | None = None
        pipeline.count += 1
        self._place = pipeline.count

    def __call__(self, outcome: Any, refusal: Refused | None) -> None:
        self._then(outcome, refusal)

    def held_back(self, now: Instant) -> Refused | None:
        """Why the message may not be decided yet; None if it may."""
        if self._held_back is None:
            self._held_back = self._stands_behind(now)
        return Refused(BEHIND) if self._held_back else None

    def _stands_behind(self, now: Instant) -> bool:
        if not self.pipeline.expected:
            return False
        expected = self.pipeline.of(self.task, now)
        if expected is None:
            return False
        first, missed = next(iter(expected.ids.items()))
        if first == self.id:
            self._place = missed.place
            return False
        if self._place < missed.place:
            return False  # it was enqueued before
        if self.begins and any(one.stream == self.stream for one in expected.ids.values()):
            del self.pipeline.expected[self.task]
            return False
        if len(expected.ids) < MOST:
            expected.ids.setdefault(self.id, Missed(self._place, self.stream))
        return True

    def decided(self, refusal: Refused | None, now: Instant) -> None:
        """The outcome of one of its commands, before the next message is decided."""
        if refusal is not None and (refusal.fault.retryable or refusal.fault.kind in FOR_NOW):
            self.pipeline.expect(self.task, now).ids.setdefault(self.id, Missed(self._place, self.stream))
            return
        expected_again = self.pipeline.expected.get(self.task)
        if expected_again is not None and expected_again.ids.pop(self.id, self) is not self:
            expected_again.since = now

    def undone(self, now: Instant) -> None:
        """The message was decided with others, and nothing was committed. Called for the last of them first: decided
        messages come before all that are still expected."""
        expected = self.pipeline.expect(self.task, now)
        rest = {id: missed for id, missed in expected.ids.items() if id != self.id}
        expected.ids = {self.id: Missed(self._place, self.stream), **rest}
