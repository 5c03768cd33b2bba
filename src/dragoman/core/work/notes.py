"""Everything a unit of work holds, and how a row it touched is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from dragoman.core.commands import Command
from dragoman.core.directory import Directory
from dragoman.core.ids import AgentId, Instant, Moment, SessionId, TaskId
from dragoman.core.lookups import Lookup, Row
from dragoman.core.model.agents import Agent, Link
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, Heard, Outgoing
from dragoman.core.model.ratelimit import Key, Minute
from dragoman.core.model.state import Change, Changed, Entity
from dragoman.core.model.tally import Allowance, Tally
from dragoman.core.model.tally import Key as TallyKey
from dragoman.core.model.tasks import Event, Question, Task
from dragoman.core.rules import Rules
from dragoman.messages.faults import Fault

TABLES: tuple[type[Any], ...] = (Agent, Task, Event, Delivery, DeadLetter, Question, Entity, Heard, Contract)


class NotLoaded(Exception):
    """The decision needs these first."""

    def __init__(self, *lookups: Lookup[Any]) -> None:
        super().__init__(lookups)
        self.lookups = lookups


def key_of(row: Row) -> Any:
    """What a row is known by within its table."""
    return (row.task, row.seq) if type(row) is Event else row.id  # type: ignore[union-attr]


class Entry(msgspec.Struct, gc=False):
    """A row touched by this unit. `base`: it was in the store before. `row` None: it is gone."""

    base: Row | None
    row: Row | None

    def put(self, row: Row | None) -> None:
        self.row = row


class Reactions(NamedTuple):
    """What decisions of a lower layer have done by a higher one, at once and in the same commit.

    An ending goes on upwards: a task that ends may have been help with another one, and an answer that never came may
    end a handover. The lower layer does not know these functions; `hub.REACTIONS` is the one table that fills this in.
    """

    not_admitted: Callable[[Any, Task, Fault], Task]
    """The policy lets nobody begin a task any more: it has failed."""
    task_ended: Callable[[Any, Task], None]
    """A task that was help with another one ended."""
    question_closed: Callable[[Any, Question], None]
    """A handshake or a request to take a task over was answered by a person, or not in time."""


class Notes:
    """All fields stand here, so that one place shows what a unit knows."""

    def __init__(
        self,
        moment: Moment,
        directory: Directory,
        rules: Rules,
        serving_since: Instant,
        reactions: Reactions,
        peek: Callable[[Lookup[Any]], Sequence[Any]] | None = None,
    ) -> None:
        self.now = moment.now
        self.mint = moment.mint
        self.rules = rules
        self.serving_since = serving_since
        self.directory = directory
        self.reactions = reactions
        self._peek = peek
        self.outgoing_messages: list[tuple[SessionId, Outgoing]] = []
        self.touched_tasks: set[TaskId] = set()
        self.closed_links: list[tuple[SessionId, str]] = []
        self.afterwards: list[Command] = []
        self.births = 0
        self._loaded: dict[Lookup[Any], Sequence[Any]] = {}
        self._base: dict[type[Any], dict[Any, Any]] = {table: {} for table in TABLES}
        self._dirty: dict[type[Any], dict[Any, Entry]] = {table: {} for table in TABLES}
        self._lanes: dict[TaskId, dict[Any, None]] = {}
        self._requests: dict[tuple[str, str], TaskId] = {}
        self._ready: dict[str, tuple[Sequence[Task], int, int]] = {}
        self._queued: dict[TaskId, None] = {}
        self._links: dict[SessionId, Link | None] = {}
        self._load: dict[AgentId, int] = {}
        self._backlog: dict[str, int] = {}
        self._passed: dict[str, str] = {}
        self._used: dict[int, int] = {}
        self._minutes: dict[Key, Minute] = {}
        self.changed: Changed | None = None
        self._heard: set[AgentId] = set()
        self._log: list[Change] = []
        self._versioned: dict[TaskId, Task] = {}
        self._audit: list[AuditRecord] = []
        self._allowances: dict[str, Allowance] = {}
        self._tallies: dict[TallyKey, Tally | None] = {}
        self._undo: list[tuple[Callable[..., object], Any, Any]] = []
