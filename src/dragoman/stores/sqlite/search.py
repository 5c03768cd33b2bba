"""Tasks as people look for them: by any combination of filters, and by words, within a bounded time.

A list by one filter comes from one index. Where several are combined, one of them leads: the one that fewest tasks
fit. Its tasks are read from its index, the newest first, and the other filters are held against them, chunk by chunk.
What has taken too long by then ends the page, and the next one goes on at that place. So a page costs no more at a
million tasks than at a thousand; it may be short, though, even empty, before the list is at its end.

A filter that several values fit (two statuses, a protocol's caller and agents) leads as a merge of the parts of an
index. Words lead where there are any (`text_index`). Tasks of one instant are in the order of acceptance, as they lie
in every index.
"""

from __future__ import annotations

import time
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
CHUNK = 2_000
"""Tasks that the other filters are held against at once."""
READ_AHEAD = MOST_COUNTED + 1
"""Tasks that are read at once where words lead."""
MOST_MERGED = 40
"""Parts of an index that one filter leads with; one that needs more does not lead."""
COMPARED = 5_000
"""Filters that more tasks fit are equally good to lead."""

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

    def test(self) -> tuple[str, Values]:
        by_column: dict[str, list[Any]] = {}
        for column, value in self.alternatives:
            by_column.setdefault(column, []).append(value)
        terms = [f"task.{column} IN (SELECT value FROM json_each(?))" for column in by_column]
        return f"({' OR '.join(terms)})", [encode(values).decode() for values in by_column.values()]


Place = tuple[int, int]
"""A task among the others: when it was created, and its number."""


def search(connection: apsw.Connection, where: TaskSearch, after: str | None, limit: int) -> FoundTasks:
    """The texts of personal tasks are still shut. With words, the connection is one of `text_index`."""
    until = time.monotonic() + SECONDS
    words = search_words(where.text)
    candidates: Candidates = ByWords(connection, where, words) if words else ByFilters(connection, where)
    place = None if after is None else place_cursor(after)
    found: list[Task] = []
    at: list[Place] = []
    on: str | None = None
    size = CHUNK if candidates.tests else limit + 1
    while True:
        chunk = candidates.after(place, size)
        for one, body in candidates.fitting(chunk, limit + 1 - len(at)):
            at.append(one)
            found.append(task_from(body))
        if len(at) > limit:
            on = cursor_at(at[limit - 1])
            break
        if len(chunk) < size or candidates.is_over(chunk[-1]):
            break
        place = chunk[-1]
        if time.monotonic() >= until:
            on = cursor_at(place)
            break
    tasks = [task for task in found[:limit] if not words or has_words(task, words)]  # texts may have changed since
    if after is not None or len(at) <= limit:
        return FoundTasks(tasks=tasks, next=on, total=len(tasks) if after is None and on is None else None)
    return FoundTasks(tasks=tasks, next=on, total=candidates.count(until))


class Candidates:
    """Tasks that fit the filter that leads, the newest first, and the other filters."""

    def __init__(self, connection: apsw.Connection, where: TaskSearch) -> None:
        self.connection = connection
        self.where = where
        self.tests: list[tuple[str, Values]] = []

    def after(self, place: Place | None, most: int) -> list[Place]:
        raise NotImplementedError

    def is_over(self, place: Place) -> bool:
        """Whether nothing behind this place can fit."""
        return False

    def fitting(self, chunk: Sequence[Place], most: int) -> list[tuple[Place, str]]:
        """Those of a chunk that pass the tests, and their bodies."""
        source, values = self._tested(chunk)
        sql = f"SELECT task.created_at, task.no, task.body FROM {source} LIMIT ?"
        return [((at, no), body) for at, no, body in self.connection.execute(sql, (*values, most))]

    def count(self, until: float) -> int | None:
        total, place = 0, None
        while time.monotonic() < until:
            chunk = self.after(place, CHUNK)
            total += self.fit(chunk)
            if total > MOST_COUNTED:
                return None
            if len(chunk) < CHUNK or self.is_over(chunk[-1]):
                return total
            place = chunk[-1]
        return None

    def fit(self, chunk: Sequence[Place]) -> int:
        """How many of a chunk pass the tests."""
        source, values = self._tested(chunk)
        (count,) = self.connection.execute(f"SELECT count(*) FROM {source}", values).fetchone() or (0,)
        return int(count)

    def _tested(self, chunk: Sequence[Place]) -> tuple[str, Values]:
        terms = " AND ".join(term for term, _ in self.tests)
        numbers = encode([no for _, no in chunk]).decode()
        values = [numbers, *(value for _, values in self.tests for value in values)]
        return f"json_each(?) CROSS JOIN task ON task.no = value{' WHERE ' if terms else ''}{terms}", values


class ByFilters(Candidates):
    def __init__(self, connection: apsw.Connection, where: TaskSearch) -> None:
        super().__init__(connection, where)
        all = groups(connection, where)
        self._bounds = bounds(where)
        can_lead = [group for group in all if len(group.alternatives) <= MOST_MERGED]
        self._lead = min(can_lead, key=self._size) if len(can_lead) > 1 else can_lead[0] if can_lead else None
        self.tests = [group.test() for group in all if group is not self._lead]

    def _size(self, group: Group) -> int:
        size = 0
        for alternative in group.alternatives:
            term, values = self._term(alternative)
            sql = f"SELECT count(*) FROM (SELECT 1 FROM {term} LIMIT {COMPARED})"
            size += (self.connection.execute(sql, values).fetchone() or (0,))[0]
        return size

    def _term(self, alternative: tuple[str, Any] | None) -> tuple[str, Values]:
        terms, values = self._bounds
        if alternative is None:
            return f"task INDEXED BY task_created WHERE {' AND '.join(terms) or 'created_at > -1'}", list(values)
        column, value = alternative
        return f"task INDEXED BY {INDEXES[column]} WHERE {' AND '.join([f'{column} = ?', *terms])}", [value, *values]

    def after(self, place: Place | None, most: int) -> list[Place]:
        parts, values = [], []
        for alternative in self._lead.alternatives if self._lead else (None,):
            term, given = self._term(alternative)
            if place is not None:
                term += " AND (created_at, no) < (?, ?)"
                given += place
            parts.append(f"SELECT created_at, no FROM {term}")
            values += given
        sql = f"{' UNION '.join(parts)} ORDER BY created_at DESC, no DESC LIMIT ?"
        return [(at, no) for at, no in self.connection.execute(sql, (*values, most))]

    def fit(self, chunk: Sequence[Place]) -> int:
        return super().fit(chunk) if self.tests else len(chunk)

    def count(self, until: float) -> int | None:
        if self.tests or (self._lead is not None and len(self._lead.alternatives) > 1):
            return super().count(until)
        term, values = self._term(self._lead.alternatives[0] if self._lead else None)
        sql = f"SELECT count(*) FROM (SELECT 1 FROM {term} LIMIT {MOST_COUNTED + 1})"
        (count,) = self.connection.execute(sql, values).fetchone() or (0,)
        return int(count) if count <= MOST_COUNTED else None


class ByWords(Candidates):
    def __init__(self, connection: apsw.Connection, where: TaskSearch, words: list[str]) -> None:
        super().__init__(connection, where)
        self._query = " AND ".join(f'"{word}"*' for word in words)
        self._read: list[Place] = []
        """To look words up costs more than to read what they are in, so much of that is read at once."""
        self._before = 0
        self._is_all = False
        terms, values = bounds(where)
        self.tests = [group.test() for group in groups(connection, where)]
        self.tests += [(f"task.{term}", [value]) for term, value in zip(terms, values, strict=True)]

    def is_over(self, place: Place) -> bool:
        if self.where.since is None:
            return False
        row: Any = self.connection.execute("SELECT created_at FROM task WHERE no = ?", (place[1],)).fetchone()
        return row is not None and row[0] < self.where.since

    def after(self, place: Place | None, most: int) -> list[Place]:
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
