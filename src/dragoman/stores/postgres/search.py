"""Tasks as people look for them: by any combination of filters, and by words, within a bounded time.

As in SQLite's search: one filter leads, the one that fewest tasks fit. Its tasks are read from its index, the newest
first, and the others are held against them, chunk by chunk. What has taken too long by then ends the page, and the next
one goes on at that place; such a page may be short, even empty.

Words lead where there are any. The words of a task are written with it, and lie in partitions by its number: they are
searched one partition after the other, from the newest, so a page costs no more at a million tasks than at a hundred
thousand. Words that are longer than what is indexed, and texts that changed, are compared again with the task itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.model.tasks import Task
from dragoman.core.ports import FoundTasks, TaskSearch
from dragoman.stores.postgres.names import written
from dragoman.stores.postgres.partitions import SPAN, place_of
from dragoman.stores.postgres.rows import LONGEST_WORD
from dragoman.stores.records import task_from
from dragoman.stores.shared import cursor_at, has_words, place_cursor, search_words

if TYPE_CHECKING:
    import asyncpg

SECONDS = 0.05
MOST_COUNTED = 10_000
CHUNK = 2_000
"""Tasks that the other filters are held against at once."""
MOST_MERGED = 40
"""Parts of an index that one filter leads with; one that needs more does not lead."""
COMPARED = 5_000
"""Filters that more tasks fit are equally good to lead."""

Place = tuple[int, int]
"""A task among the others: when it was created, and its number."""


class Group(msgspec.Struct, frozen=True):
    """One filter: a task fits it if one of the columns has its value."""

    alternatives: tuple[tuple[str, str], ...]


class Statement:
    """A statement under construction, with its arguments."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def value(self, value: Any) -> str:
        self.values.append(value)
        return f"${len(self.values)}"

    def tests(self, groups: Sequence[Group]) -> list[str]:
        terms = []
        for group in groups:
            by_column: dict[str, list[str]] = {}
            for column, value in group.alternatives:
                by_column.setdefault(column, []).append(value)
            any_of = [f"task.{column} = ANY({self.value(values)}::text[])" for column, values in by_column.items()]
            terms.append(f"({' OR '.join(any_of)})")
        return terms

    def bounds(self, where: TaskSearch) -> list[str]:
        given = (("task.created_at >=", where.since), ("task.created_at <", where.before))
        return [f"{term} {self.value(at)}" for term, at in given if at is not None]


async def search(connection: asyncpg.Connection, where: TaskSearch, after: str | None, limit: int) -> FoundTasks:
    """The texts of personal tasks are still shut."""
    until = time.monotonic() + SECONDS
    place = None if after is None else place_cursor(after)
    words = search_words(where.text)
    if words:
        return await _by_words(connection, where, words, place, limit, until)
    return await _by_filters(connection, where, place, limit, until)


async def groups(connection: asyncpg.Connection, where: TaskSearch) -> list[Group]:
    statuses = where.statuses or (() if where.status is None else (where.status,))
    single = (("parent", where.parent), ("owner", where.agent), ("principal", where.principal), ("type", where.type))
    found = [Group(((column, written(value)),)) for column, value in single if value is not None]
    if statuses:
        found.append(Group(tuple(("status", status.value) for status in statuses)))
    if where.protocol is not None:
        agents = await connection.fetch("SELECT id FROM agent WHERE protocol = $1", where.protocol)
        found.append(Group((("protocol", where.protocol), *(("owner", id) for (id,) in agents))))
    return found


# By words.


async def _by_words(
    connection: asyncpg.Connection, where: TaskSearch, words: list[str], place: Place | None, limit: int, until: float
) -> FoundTasks:
    tests = await groups(connection, where)
    query = " & ".join(f"{word[:LONGEST_WORD]}:*" for word in words)
    lowest = await connection.fetchval("SELECT min(no) FROM task")
    highest = await connection.fetchval("SELECT max(no) FROM task")
    if highest is None:
        return FoundTasks(tasks=(), total=0 if place is None else None)
    begin = highest + 1 if place is None else min(place[1], highest + 1)

    def statement(what: str, first: int, end: int, most: int) -> tuple[str, list[Any]]:
        made = Statement()
        terms = [
            f"words.no >= {made.value(first)}", f"words.no < {made.value(end)}",
            f"words.words @@ {made.value(query)}::text::tsquery", *made.tests(tests), *made.bounds(where),
        ]  # fmt: skip
        sql = f"SELECT {what} FROM words JOIN task USING (no) WHERE {' AND '.join(terms)}"
        return f"{sql} ORDER BY words.no DESC LIMIT {made.value(most)}", made.values

    found: list[tuple[int, Task]] = []
    on: str | None = None
    end = begin
    while end > lowest:
        first = place_of(end - 1) * SPAN
        sql, values = statement("task.no, task.body", first, end, limit + 1 - len(found))
        found += [(no, task_from(body)) for no, body in await connection.fetch(sql, *values)]
        end = first
        if len(found) > limit:
            on = cursor_at((0, found[limit - 1][0]))
            break
        if end > lowest and time.monotonic() >= until:
            on = cursor_at((0, end))
            break
    tasks = [task for _, task in found[:limit] if has_words(task, words)]
    if place is not None or on is None:
        return FoundTasks(tasks=tasks, next=on, total=len(tasks) if place is None and on is None else None)
    total, end = 0, begin
    while end > lowest:
        first = place_of(end - 1) * SPAN
        sql, values = statement("1", first, end, MOST_COUNTED + 1 - total)
        total += len(await connection.fetch(sql, *values))
        end = first
        if total > MOST_COUNTED or (end > lowest and time.monotonic() >= until):
            return FoundTasks(tasks=tasks, next=on)
    return FoundTasks(tasks=tasks, next=on, total=total)


# By filters.


async def _by_filters(
    connection: asyncpg.Connection, where: TaskSearch, place: Place | None, limit: int, until: float
) -> FoundTasks:
    candidates = await Candidates.of(connection, where)
    is_first = place is None
    begin = place
    found: list[tuple[Place, Task]] = []
    on: str | None = None
    size = CHUNK if candidates.tests else limit + 1
    while True:
        chunk = await candidates.after(begin, size)
        found += await candidates.fitting(chunk, limit + 1 - len(found))
        if len(found) > limit:
            on = cursor_at(found[limit - 1][0])
            break
        if len(chunk) < size:
            break
        begin = chunk[-1]
        if time.monotonic() >= until:
            on = cursor_at(begin)
            break
    tasks = [task for _, task in found[:limit]]
    if not is_first or len(found) <= limit:
        return FoundTasks(tasks=tasks, next=on, total=len(tasks) if is_first and on is None else None)
    return FoundTasks(tasks=tasks, next=on, total=await candidates.count(until))


class Candidates:
    """Tasks that fit the filter that leads, the newest first, and the other filters."""

    def __init__(self, connection: asyncpg.Connection, where: TaskSearch) -> None:
        self._connection = connection
        self._where = where
        self._lead: Group | None = None
        self.tests: list[Group] = []

    @staticmethod
    async def of(connection: asyncpg.Connection, where: TaskSearch) -> Candidates:
        made = Candidates(connection, where)
        every = await groups(connection, where)
        can_lead = [group for group in every if len(group.alternatives) <= MOST_MERGED]
        if len(can_lead) == 1:
            made._lead = can_lead[0]
        elif can_lead:
            sizes = [await made._size(group) for group in can_lead]
            made._lead = can_lead[sizes.index(min(sizes))]
        made.tests = [group for group in every if group is not made._lead]
        return made

    async def _size(self, group: Group) -> int:
        statement = Statement()
        parts = [f"(SELECT 1 {self._part(statement, one)} LIMIT {COMPARED})" for one in group.alternatives]
        sql = f"SELECT count(*) FROM ({' UNION ALL '.join(parts)}) AS found"
        return int(await self._connection.fetchval(sql, *statement.values))

    def _part(self, statement: Statement, alternative: tuple[str, str] | None) -> str:
        terms = statement.bounds(self._where)
        if alternative is not None:
            terms.append(f"{alternative[0]} = {statement.value(alternative[1])}")
        return f"FROM task WHERE {' AND '.join(terms) or 'true'}"

    async def after(self, place: Place | None, most: int) -> list[Place]:
        statement = Statement()
        parts = []
        for alternative in self._lead.alternatives if self._lead else (None,):
            part = f"SELECT created_at, no {self._part(statement, alternative)}"
            if place is not None:
                part += f" AND (created_at, no) < ({statement.value(place[0])}, {statement.value(place[1])})"
            parts.append(f"({part} ORDER BY created_at DESC, no DESC LIMIT {statement.value(most)})")
        found = f"SELECT * FROM ({' UNION '.join(parts)}) AS found"
        sql = f"{found} ORDER BY created_at DESC, no DESC LIMIT {statement.value(most)}"
        return [(at, no) for at, no in await self._connection.fetch(sql, *statement.values)]

    def _tested(self, what: str, chunk: Sequence[Place]) -> tuple[str, Statement]:
        statement = Statement()
        terms = [f"no = ANY({statement.value([no for _, no in chunk])}::bigint[])", *statement.tests(self.tests)]
        return f"SELECT {what} FROM task WHERE {' AND '.join(terms)}", statement

    async def fitting(self, chunk: Sequence[Place], most: int) -> list[tuple[Place, Task]]:
        """Those of a chunk that pass the tests."""
        sql, statement = self._tested("created_at, no, body", chunk)
        sql += f" ORDER BY created_at DESC, no DESC LIMIT {statement.value(most)}"
        return [((at, no), task_from(body)) for at, no, body in await self._connection.fetch(sql, *statement.values)]

    async def count(self, until: float) -> int | None:
        if not self.tests and (self._lead is None or len(self._lead.alternatives) == 1):
            statement = Statement()
            part = self._part(statement, self._lead.alternatives[0] if self._lead else None)
            sql = f"SELECT count(*) FROM (SELECT 1 {part} LIMIT {MOST_COUNTED + 1}) AS found"
            count = int(await self._connection.fetchval(sql, *statement.values))
            return count if count <= MOST_COUNTED else None
        total, place = 0, None
        while time.monotonic() < until:
            chunk = await self.after(place, CHUNK)
            if self.tests:
                sql, statement = self._tested("count(*)", chunk)
                total += int(await self._connection.fetchval(sql, *statement.values))
            else:
                total += len(chunk)
            if total > MOST_COUNTED:
                return None
            if len(chunk) < CHUNK:
                return total
            place = chunk[-1]
        return None
