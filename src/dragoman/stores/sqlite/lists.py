"""The lists that people ask for: read in threads, on read-only connections of their own, each from one snapshot of the
database.

A snapshot keeps the write-ahead log from restarting (see `wal`). So while the log waits for readers, the store
interrupts a list that takes long, and the caller may ask again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw
import msgspec

from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import (
    ContractById,
    EntityById,
    QuestionById,
    Terms,
)
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task
from dragoman.core.ports import StoreFailed, TaskFilter
from dragoman.stores import layout
from dragoman.stores.layout import LEASED, POLLED, SEQ_MASK
from dragoman.stores.records import (
    audit_row,
    changed_from,
    contract_from,
    dead_letter_from,
    delivery_from,
    encode,
    entity_from,
    event_from,
    question_from,
    task_from,
)
from dragoman.stores.shared import IN_UNFINISHED, UNFINISHED, cursor_of, task_cursor
from dragoman.stores.sqlite import queries
from dragoman.stores.sqlite.queries import answer, number
from dragoman.stores.sqlite.rows import EVENT_COLUMNS

T = TypeVar("T")


class ListReader:
    def __init__(
        self,
        path: str,
        *,
        threads: int,
        seconds: float,
        connect: Callable[[str], apsw.Connection] = queries.connect,
    ) -> None:
        self._path = path
        self._connect = connect
        self._seconds = seconds
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="dragoman-read")
        self._idle: list[apsw.Connection] = []
        self._reading: dict[apsw.Connection, float] = {}
        """The connections that read, and since when."""

    async def read(self, read: Callable[[apsw.Connection], T]) -> T:
        """Raises `StoreFailed`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, read)
        except apsw.InterruptError as error:
            raise StoreFailed(
                f"the list took longer than {self._seconds:g} s while much was written; ask for less, or later"
            ) from error
        except apsw.Error as error:
            raise unreadable(error) from error

    def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        connection = self._idle.pop() if self._idle else self._connect(self._path)
        self._reading[connection] = time.monotonic()
        try:
            connection.execute("BEGIN")  # one snapshot, however many statements
            found = read(connection)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()  # which also ends its transaction
            raise
        finally:
            del self._reading[connection]
        self._idle.append(connection)
        return found

    def interrupt_long_ones(self) -> None:
        begun_by = time.monotonic() - self._seconds
        for connection, since in list(self._reading.items()):
            if since <= begun_by:
                connection.interrupt()

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.shutdown)
        for connection in self._idle:
            connection.close()
        self._idle.clear()


def unreadable(error: apsw.Error) -> StoreFailed:
    return StoreFailed(f"the store could not read: {error}")


def _where(**columns: Any) -> tuple[list[str], list[Any]]:
    given = {name: value for name, value in columns.items() if value is not None}
    return [f"{name} = ?" for name in given], list(given.values())


def _select(what: str, table: str, terms: list[str], order: str) -> str:
    where = f" WHERE {' AND '.join(terms)}" if terms else ""
    return f"SELECT {what} FROM {table}{where} ORDER BY {order} LIMIT ?"


def tasks(
    connection: apsw.Connection, where: TaskFilter, after: str | None, limit: int
) -> tuple[Sequence[Task], str | None]:
    terms, values = _where(
        status=where.status and where.status.value,
        type=where.type,
        owner=where.agent,
        principal=where.principal,
        parent=where.parent,
    )
    for term, at in (("created_at >= ?", where.since), ("created_at < ?", where.before)):
        if at is not None:
            terms.append(term)
            values.append(at)
    if after is not None:
        terms.append("(created_at, id) < (?, ?)")
        values += task_cursor(after)
    sql = _select("body", "task", terms, "created_at DESC, id DESC")
    page = [task_from(body) for (body,) in connection.execute(sql, (*values, limit + 1))]
    return page[:limit], cursor_of(page[limit - 1]) if len(page) > limit else None


def find_tasks(connection: apsw.Connection, prefix: str, limit: int) -> list[Task]:
    sql = "SELECT body FROM task WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
    found = connection.execute(sql, (prefix, prefix + "\U0010ffff", limit))
    return [task_from(body) for (body,) in found]


def events(connection: apsw.Connection, task: TaskId, after: int, limit: int) -> list[Event]:
    no = number(connection, task)
    if no is None:
        return []
    sql = f"SELECT {EVENT_COLUMNS} FROM event WHERE key > ? AND key < ? ORDER BY key LIMIT ?"
    first = no << layout.SEQ_BITS
    bounds = (first + min(max(after, -1), SEQ_MASK), first + SEQ_MASK + 1, limit)
    return [event_from(task, row) for row in connection.execute(sql, bounds)]


EVENT_OF_ALL = "key, at, kind, agent, CAST(event.body AS BLOB), event.protocol, raw, personal"
"""`EVENT_COLUMNS`, beside those of its task."""


def events_since(connection: apsw.Connection, at: Instant, limit: int) -> list[Event]:
    sql = (
        f"SELECT {EVENT_OF_ALL}, task.id FROM event CROSS JOIN task ON task.no = event.key >> {layout.SEQ_BITS}"
        " WHERE event.at > ? ORDER BY event.at, event.key LIMIT ?"
    )
    return [event_from(TaskId(task), row) for *row, task in connection.execute(sql, (at, limit))]


def series(connection: apsw.Connection, step: int, since: int, until: int | None) -> list[SeriesRow]:
    sql = "SELECT step, at, CAST(body AS BLOB) FROM series WHERE step = ? AND at >= ? AND at < ? ORDER BY at"
    bounds = (step, since, 1 << 62 if until is None else until)
    return [SeriesRow(step, at, msgspec.Raw(body)) for step, at, body in connection.execute(sql, bounds)]


def deliveries(
    connection: apsw.Connection, task: TaskId | None, receiver: AgentId | None, limit: int
) -> list[Delivery]:
    terms, values = _where(task=task, receiver=receiver)
    sql = _select("body", "delivery", terms, "id")
    return [delivery_from(body) for (body,) in connection.execute(sql, (*values, limit))]


def dead_letters(connection: apsw.Connection, task: TaskId | None, after: str | None, limit: int) -> list[DeadLetter]:
    terms, values = _where(task=task)
    if after is not None:
        terms.append("id < ?")
        values.append(after)
    sql = _select("body", "dead_letter", terms, "id DESC")
    return [dead_letter_from(body) for (body,) in connection.execute(sql, (*values, limit))]


def questions(
    connection: apsw.Connection,
    status: QuestionStatus | None,
    task: TaskId | None,
    asked_of: AgentId | None,
    after: str,
    limit: int,
) -> list[Question]:
    terms, values = _where(status=status and status.value, task=task)
    if asked_of is not None:
        terms.append("json_extract(body, '$.asked_of') = ?")
        values.append(asked_of)
    sql = _select("body", "question", ["id > ?", *terms], "id")
    return [question_from(body) for (body,) in connection.execute(sql, (after, *values, limit))]


def question(connection: apsw.Connection, id: QuestionId) -> Question | None:
    return next(iter(answer(connection, QuestionById(id))), None)


def audit(
    connection: apsw.Connection, after: int, limit: int, principal: str | None, subject: str | None, outcome: str | None
) -> list[AuditRecord]:
    terms, values = _where(principal=principal, subject=subject)
    if outcome is not None:  # as text, so that SQLite can use the index over refusals
        terms.append("outcome = 'refused'" if outcome == "refused" else "outcome = ?")
        values += [] if outcome == "refused" else [outcome]
    sql = _select("seq, principal, subject, outcome, body", "audit", ["seq > ?", *terms], "seq")
    return [audit_row(*row) for row in connection.execute(sql, (after, *values, limit))]


def contract(connection: apsw.Connection, id: str) -> Contract | None:
    return next(iter(answer(connection, ContractById(id))), None)


def contracts(connection: apsw.Connection, agent: AgentId | None, after: str | None, limit: int) -> list[Contract]:
    terms, values = ([], []) if agent is None else (["(source = ? OR target = ?)"], [agent, agent])
    if after is not None:
        terms.append("id < ?")
        values.append(AgentId(after))
    sql = _select("body", "contract", terms, "id DESC")
    return [contract_from(body) for (body,) in connection.execute(sql, (*values, limit))]


def contract_of(connection: apsw.Connection, collaboration: str) -> Contract | None:
    return next(iter(answer(connection, Terms(collaboration, 1))), None)


def entity(connection: apsw.Connection, id: str) -> Entity | None:
    return next(iter(answer(connection, EntityById(id))), None)


def entities(connection: apsw.Connection, registry: Registry, after: str, limit: int) -> list[Entity]:
    sql = "SELECT body FROM entity WHERE registry = ? AND name > ? ORDER BY name LIMIT ?"
    return [entity_from(body) for (body,) in connection.execute(sql, (registry.value, after, limit))]


def changes(connection: apsw.Connection, after: int, limit: int) -> list[Changed]:
    sql = "SELECT body FROM changed WHERE cursor > ? ORDER BY cursor LIMIT ?"
    return [changed_from(body) for (body,) in connection.execute(sql, (after, limit))]


def attached(connection: apsw.Connection, files: Sequence[str]) -> set[str]:
    sql = "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM attached WHERE file = value)"
    return {str(file) for (file,) in connection.execute(sql, (encode(list(files)).decode(),))}


def counts(connection: apsw.Connection) -> dict[str, int]:
    def one(sql: str) -> int:
        row = connection.execute(sql).fetchone()
        return int(row[0]) if row else 0

    statuses = {status.value: 0 for status in UNFINISHED}
    sql = f"SELECT status, count(*) FROM task WHERE status {IN_UNFINISHED} GROUP BY status"
    statuses.update({str(status): int(count) for status, count in connection.execute(sql)})
    leased = one(f"SELECT count(*) FROM delivery WHERE slot IN ({LEASED}, {POLLED})")
    return {
        **{f"tasks_{status}": count for status, count in statuses.items()},
        "deliveries_waiting": one("SELECT count(*) FROM delivery") - leased,
        "deliveries_leased": leased,
        "dead_letters": one("SELECT count(*) FROM dead_letter"),
        "questions_open": one("SELECT count(*) FROM question WHERE status = 'open'"),
    }
