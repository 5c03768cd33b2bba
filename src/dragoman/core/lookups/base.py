"""The base class of all lookups, and the types of rows."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.core.model.agents import Agent
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, SeenMessage
from dragoman.core.model.people import Person
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import Event, Question, Task

Row = (
    Agent
    | Task
    | Event
    | Delivery
    | DeadLetter
    | Question
    | Entity
    | Changed
    | SeenMessage
    | Contract
    | Person
    | SeriesRow
)
R = TypeVar("R", Task, Event, Delivery, DeadLetter, Question, Entity, SeenMessage, Contract)

EVERYTHING = 1 << 30
PAGE = 64
"""How many rows a decision takes at a time where there may be many."""


class Lookup(msgspec.Struct, Generic[R], frozen=True, gc=False):
    """A lookup. `row` is the type of its rows."""

    row: ClassVar[type[Any]]
    single: ClassVar[bool] = False

    @property
    def most(self) -> int:
        return getattr(self, "limit", 1 if self.single else EVERYTHING)

    @abstractmethod  # mypy holds every lookup to it; msgspec's metaclass does not
    def matches(self, row: R) -> bool:
        """Whether the lookup means this row."""

    def order(self, row: R) -> Any:
        return 0

    def widened(self) -> Lookup[R]:
        """The same lookup with room for more rows."""
        return replace(self, limit=self.most * 4)
