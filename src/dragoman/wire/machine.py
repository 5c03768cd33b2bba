"""A state machine that is nothing but its table.

A protocol writes down, as a literal, what may be said in which state and what state follows. Code asks the
table; tests and documentation read it. The table is checked once, when it is made: a state nobody can reach or
a row that leads nowhere is a typing error, and it shows at import.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
I = TypeVar("I", bound=Hashable)  # noqa: E741 - the automaton's input


class Table(Generic[S, I]):
    """`rows[state][input]` is the state that follows; an input without a cell is not allowed there."""

    def __init__(self, rows: Mapping[S, Mapping[I, S]], *, start: S) -> None:
        reached = {start}
        frontier = [start]
        while frontier:
            new = set(rows[frontier.pop()].values()) - reached
            reached |= new
            frontier += new
        if reached != set(rows):
            raise ValueError(f"states never reached: {set(rows) - reached}")
        self.rows = rows
        self.start = start

    def after(self, state: S, input: I) -> S | None:
        """The state that follows, or None where `said` is not allowed."""
        return self.rows[state].get(input)

    def allowed(self, state: S) -> frozenset[I]:
        """Everything that may be said in `state`."""
        return frozenset(self.rows[state])
