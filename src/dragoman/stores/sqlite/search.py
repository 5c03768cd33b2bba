"""Tasks as people look for them: by any combination of filters, and by words, at a bounded cost.

Every filter has an index whose entries lie in the order of time, so tasks that fit several filters are what their
indexes have in common: SQLite merges them (INTERSECT), the newest first, and reads no task before it is known to fit.
An index that is many times denser than the thinnest one is not merged: what the others have in common is looked up in
it. How dense an index is, a sample of its newest entries tells.

An answer visits some entries of each index, then some more, until its page is full. What has visited too many by then,
or has taken too long, ends the page, and the next one goes on at that place. So a page costs no more at a million tasks
than at a thousand; it may be short, though, even empty, before the list is at its end.

A filter that several values fit (two statuses, a protocol's caller and agents) is a merge of the parts of an index.
The children of a task are few, and no index has them in the order of time: they are read, and the other filters are
held against them. So are tasks under words (`text_index`). Tasks of one instant are in the order of acceptance.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import apsw
import msgspec

from dragoman.core.model.tasks import Task
from dragoman.core.ports import FoundTasks, TaskSearch
from dragoman.stores.records import encode, task_from
from dragoman.stores.shared import cursor_at, has_words, place_cursor, search_words

SECONDS = 0.03
MOST_COUNTED = 10_000
MOST_VISITED = 100_000
"""Entries of each index that one answer visits, as far as they are merged only."""
MOST_TRIED = 10_000
"""Tasks that one answer looks up elsewhere, or reads, to see whether they fit."""
FIRST_STEP = 500
STEP = 4_000
"""Entries of each index that are merged at once; the first step is short, since most pages are full by then."""
CHUNK = 2_000
"""Tasks that are looked up, or read, at once."""
READ_AHEAD = MOST_COUNTED + 1
"""Tasks that are read at once where words lead."""
MOST_MERGED = 40
"""Parts of an index that are merged; a filter that needs more is held against tasks."""
MOST_LOOKED_UP = 12
"""Values that are looked up in an index for a task; beyond them, it costs less to read the task."""
MOST_WORDS = 8
"""Words with the same beginning that are looked up one by one."""
FIRST, LAST = "\x01", "\U0010ffff"
SAMPLE = 1_000
DENSER = 20
"""An index that is so many times denser than the thinnest one is not merged."""

Values = list[Any]

INDEXES = {
    "owner": "task_owner",
    "principal": "task_principal",
    "type": "task_type",
    "status": "task_status",
    "parent": "task_parent",
    "protocol": "task_protocol",
}


class Group(msgspec.Struct, frozen=True):
    """One filter: a task fits it if one of the columns has its value."""

    alternatives: tuple[tuple[str, Any], ...]

    def by_column(self) -> dict[str, Values]:
        columns: dict[str, Values] = {}
        for column, value in self.alternatives:
            columns.setdefault(column, []).append(value)
        return columns

    def of_task(self) -> Term:
        """As a condition on a row of `task`."""
        columns = self.by_column()
        terms = [f"task.{column} IN (SELECT value FROM json_each(?))" for column in columns]
        return f"({' OR '.join(terms)})", [encode(values).decode() for values in columns.values()]

    def of_place(self) -> Term:
        """As a condition on a place `c`, which reads nothing but indexes."""
        if len(self.alternatives) > MOST_LOOKED_UP:
            term, values = self.of_task()
            return f"(SELECT {term} FROM task WHERE task.no = c.no)", values
        looks, values = [], []
        for column, wanted in self.by_column().items():
            looks.append(
                f"(SELECT 1 FROM task INDEXED BY {INDEXES[column]} WHERE {column} IN ({', '.join('?' * len(wanted))})"
                " AND created_at = c.created_at AND no = c.no LIMIT 1)"
            )
            values += wanted
        return f"coalesce({', '.join(looks)}, 0)" if len(looks) > 1 else looks[0], values


Term = tuple[str, Values]
"""A part of a statement, and the values of its question marks."""
Place = tuple[int, int]
"""A task among the others: when it was created, and its number."""


class Found(msgspec.Struct, frozen=True):
    """Tasks that fit, among those that were looked at; the last place of these, if there may be more behind it; and the
    share of what an answer may look at that they were."""

    places: list[Place]
    last: Place | None
    share: float


def search(connection: apsw.Connection, where: TaskSearch, after: str | None, limit: int) -> FoundTasks:
    """The texts of personal tasks are still shut. With words, the connection is one of `text_index`."""
    until = time.monotonic() + SECONDS
    words = search_words(where.text)
    begin = None if after is None else place_cursor(after)
    candidates = ByWords(connection, where, words) if words else by_filters(connection, where, begin)
    at: list[Place] = []
    place, on, share = begin, None, 0.0
    while True:
        found = candidates.look(place, limit + 1 - len(at))
        at += found.places
        if len(at) > limit:
            on = cursor_at(at[limit - 1])
            break
        if found.last is None:
            break
        place, share = found.last, share + found.share
        if share >= 1 or time.monotonic() >= until:
            on = cursor_at(place)
            break
    tasks = read_tasks(connection, at[:limit])
    if words:
        tasks = [task for task in tasks if has_words(task, words)]  # texts may have changed since
    if after is not None or len(at) <= limit:
        return FoundTasks(tasks=tasks, next=on, total=len(tasks) if after is None and on is None else None)
    return FoundTasks(tasks=tasks, next=on, total=candidates.count(until))


def read_tasks(connection: apsw.Connection, places: Sequence[Place]) -> list[Task]:
    numbers = encode([no for _, no in places]).decode()
    sql = "SELECT task.body FROM json_each(?) CROSS JOIN task ON task.no = value"
    return [task_from(body) for (body,) in connection.execute(sql, (numbers,))]


class Candidates(ABC):
    """Tasks among which those are that are looked for, the newest first."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    @abstractmethod
    def look(self, place: Place | None, wanted: int) -> Found:
        """Look at some tasks behind a place, more with each call, until as many fit as are wanted."""

    def count(self, until: float) -> int | None:
        """How many tasks fit; None if that are too many to be counted."""
        total, share, place = 0, 0.0, None
        while share < 1 and time.monotonic() < until:
            count, found = self.how_many(place)
            total += count
            if total > MOST_COUNTED:
                return None
            if found.last is None:
                return total
            place, share = found.last, share + found.share
        return None

    def how_many(self, place: Place | None) -> tuple[int, Found]:
        """How many fit among the next ones."""
        found = self.look(place, MOST_COUNTED + 1)
        return len(found.places), found

    def first(self, sql: str, values: Sequence[Any]) -> tuple[Any, ...] | None:
        return self.connection.execute(sql, values).fetchone()


def by_filters(connection: apsw.Connection, where: TaskSearch, begin: Place | None) -> Candidates:
    all = groups(connection, where)
    if where.parent is not None:
        return Children(connection, where, all)
    return ByIndexes(connection, where, all, begin)


NEWEST_FIRST = "ORDER BY created_at DESC, no DESC"


class ByIndexes(Candidates):
    def __init__(
        self, connection: apsw.Connection, where: TaskSearch, all: Sequence[Group], begin: Place | None
    ) -> None:
        super().__init__(connection)
        self._since, self._before = where.since, where.before
        self._step = FIRST_STEP
        parts = [group for group in all if len(group.alternatives) <= MOST_MERGED]
        rates = {group: self._rate(group, begin) for group in parts} if len(all) > 1 else dict.fromkeys(parts, 1.0)
        thinnest = min(rates.values(), default=0.0)
        # The densest ends a step first. One of several parts stands first in the statement, where its parts need no
        # sorting.
        merged = sorted((one for one in parts if rates[one] <= DENSER * thinnest), key=lambda one: -rates[one])
        self.merged: Sequence[Group | None] = merged or (None,)
        self.tests = [group.of_place() for group in all if group not in merged]

    def _rate(self, group: Group, begin: Place | None) -> float:
        """How many of its tasks came in a microsecond of late."""
        most = max(SAMPLE // 10, SAMPLE // len(group.alternatives))
        rate = 0.0
        for alternative in group.alternatives:
            sql, values = self._part(alternative, begin)
            newest, oldest = self.first(f"{sql} LIMIT 1", values), self.first(f"{sql} LIMIT 1 OFFSET {most}", values)
            if newest is not None and oldest is not None:
                rate += most / (newest[0] - oldest[0] + 1)
        return rate

    def _part(self, alternative: tuple[str, Any] | None, before: Place | None, last: Place | None = None) -> Term:
        """Of one part of an index, what lies behind a place, the newest first, down to another place."""
        index, terms, values = "task_created", [], []
        if alternative is not None:
            index, terms, values = INDEXES[alternative[0]], [f"{alternative[0]} = ?"], [alternative[1]]
        # One bound on each side: of two, SQLite would walk the index to either.
        for comparison, place, at in (("<", before, self._before), (">=", last, self._since)):
            if place is not None:
                terms, values = [*terms, f"(created_at, no) {comparison} (?, ?)"], [*values, *place]
            elif at is not None:
                terms, values = [*terms, f"created_at {comparison} ?"], [*values, at]
        where = " AND ".join(terms) or "created_at > -1"
        return f"SELECT created_at, no FROM task INDEXED BY {index} WHERE {where} {NEWEST_FIRST}", values

    def _parts(self, group: Group | None, before: Place | None, last: Place | None = None) -> list[Term]:
        alternatives = (None,) if group is None else group.alternatives
        return [self._part(alternative, before, last) for alternative in alternatives]

    def _last(self, before: Place | None, most: int) -> Place | None:
        """The place before which no filter has more entries than these; None if all are over there."""
        last: Place | None = None
        for group in self.merged:
            parts = self._parts(group, before, last)
            for sql, values in parts:
                place = self.first(f"{sql} LIMIT 1 OFFSET ?", [*values, most // len(parts) - 1])
                last = last if place is None else (place[0], place[1])
        return last

    def merge(self, before: Place | None, last: Place | None) -> Term:
        """What all filters have in common between two places."""
        sql, values = "", []
        for group in sorted(self.merged, key=lambda one: -len(self._parts(one, None))):
            parts = self._parts(group, before, last)
            union = " UNION ".join(sql.removesuffix(NEWEST_FIRST) for sql, _ in parts)
            if not sql:
                sql = union
            elif len(parts) == 1:
                sql += f" INTERSECT {union}"
            else:
                sql += f" INTERSECT SELECT created_at, no FROM ({union})"
            values += [value for _, given in parts for value in given]
        sql = f"{sql} {NEWEST_FIRST}"
        if self.tests:
            terms = " AND ".join(term for term, _ in self.tests)
            sql = f"SELECT created_at, no FROM ({sql} LIMIT -1) AS c WHERE {terms}"
            values += [value for _, given in self.tests for value in given]
        return f"{sql} LIMIT ?", values

    def look(self, place: Place | None, wanted: int) -> Found:
        last, share = self._next_step(place)
        sql, values = self.merge(place, last)
        places: list[Place] = [(at, no) for at, no in self.connection.execute(sql, [*values, wanted])]
        return Found(places, places[-1] if len(places) == wanted else last, share)

    def how_many(self, place: Place | None) -> tuple[int, Found]:
        last, share = self._next_step(place)
        sql, values = self.merge(place, last)
        (count,) = self.first(f"SELECT count(*) FROM ({sql})", [*values, MOST_COUNTED + 1]) or (0,)
        return int(count), Found([], last, share)

    def _next_step(self, place: Place | None) -> tuple[Place | None, float]:
        """Where the next step ends, and its share of what an answer may look at."""
        if not self.tests and len(self.merged) == 1:
            return None, 0.0
        most = min(self._step, CHUNK) if self.tests else self._step
        self._step = min(4 * self._step, STEP)
        return self._last(place, most), most / (MOST_TRIED if self.tests else MOST_VISITED)


class Children(Candidates):
    """All at once: of one task."""

    def __init__(self, connection: apsw.Connection, where: TaskSearch, all: Sequence[Group]) -> None:
        super().__init__(connection)
        terms, values = bounds(where)
        tests = [*(group.of_task() for group in all), *zip(terms, ([value] for value in values), strict=True)]
        self._terms = " AND ".join(term for term, _ in tests)
        self._values = [value for _, given in tests for value in given]

    def look(self, place: Place | None, wanted: int) -> Found:
        behind = "" if place is None else " AND (created_at, no) < (?, ?)"
        source = f"task INDEXED BY task_parent WHERE {self._terms}{behind}"
        sql = f"SELECT created_at, no FROM {source} {NEWEST_FIRST} LIMIT ?"
        found = self.connection.execute(sql, [*self._values, *(place or ()), wanted])
        places: list[Place] = [(at, no) for at, no in found]
        return Found(places, places[-1] if len(places) == wanted else None, 0.0)


class ByWords(Candidates):
    def __init__(self, connection: apsw.Connection, where: TaskSearch, words: list[str]) -> None:
        super().__init__(connection)
        self._since = where.since
        self._query = " AND ".join(self._beginning(word) for word in words)
        self._read: list[Place] = []
        """To look words up costs more than to read what they are in, so much of that is read at once."""
        self._before = 0
        self._is_all = False
        terms, values = bounds(where)
        self.tests = [group.of_task() for group in groups(connection, where)]
        self.tests += [(f"task.{term}", [value]) for term, value in zip(terms, values, strict=True)]

    def look(self, place: Place | None, wanted: int) -> Found:
        most = CHUNK if self.tests else wanted
        chunk = self._after(place, most)
        terms = " AND ".join(term for term, _ in self.tests)
        numbers = encode([no for _, no in chunk]).decode()
        values = [numbers, *(value for _, given in self.tests for value in given), wanted]
        source = f"json_each(?) CROSS JOIN task ON task.no = value{' WHERE ' if terms else ''}{terms}"
        sql = f"SELECT task.created_at, task.no FROM {source} LIMIT ?"
        places: list[Place] = [(at, no) for at, no in self.connection.execute(sql, values)]
        if len(places) == wanted:
            return Found(places, places[-1], 0.0)
        is_over = len(chunk) < most or self._is_over(chunk[-1])
        return Found(places, None if is_over else chunk[-1], most / MOST_TRIED)

    def _beginning(self, word: str) -> str:
        """The query for what begins so: the words themselves, if they are few. For the beginning of a word, FTS5 first
        gathers all tasks that have it, a million where there are; those of a word it gives as they are wanted."""
        found: list[str] = []
        sql, at = "SELECT term FROM vocabulary WHERE term >= ? AND term < ? LIMIT 1", word
        while (row := self.first(sql, (at, word + LAST))) is not None:
            found.append(f'"{row[0]}"')
            if len(found) > MOST_WORDS:
                return f'"{word}"*'
            at = row[0] + FIRST
        return f"({' OR '.join(found)})" if found else f'"{word}"*'

    def _is_over(self, place: Place) -> bool:
        """Whether nothing behind this place can fit."""
        if self._since is None:
            return False
        row = self.first("SELECT created_at FROM task WHERE no = ?", [place[1]])
        return row is not None and row[0] < self._since

    def _after(self, place: Place | None, most: int) -> list[Place]:
        before = 1 << 62 if place is None else place[1]
        begin = bisect_right(self._read, -before, key=lambda one: -one[1])
        if before > self._before or (not self._is_all and begin + most > len(self._read)):
            sql = "SELECT rowid FROM words WHERE words MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?"
            ahead = max(most, READ_AHEAD)
            self._read = [(0, no) for (no,) in self.connection.execute(sql, (self._query, before, ahead))]
            self._before, self._is_all, begin = before, len(self._read) < ahead, 0
        return self._read[begin : begin + most]


def bounds(where: TaskSearch) -> tuple[list[str], Values]:
    given = (("created_at >= ?", where.since), ("created_at < ?", where.before))
    return [term for term, at in given if at is not None], [at for _, at in given if at is not None]


def groups(connection: apsw.Connection, where: TaskSearch) -> list[Group]:
    statuses = where.statuses or (() if where.status is None else (where.status,))
    single = (
        ("parent", where.parent),
        ("owner", where.agent),
        ("principal", where.principal),
        ("type", where.type),
    )
    found = [Group(((column, value),)) for column, value in single if value is not None]
    if statuses:
        found.append(Group(tuple(("status", status.value) for status in statuses)))
    if where.protocol is not None:
        sql = "SELECT id FROM agent WHERE json_extract(body, '$.protocol') = ?"
        agents = [("owner", id) for (id,) in connection.execute(sql, (where.protocol,))]
        found.append(Group((("protocol", where.protocol), *agents)))
    return found
