"""The lists that people ask for: one statement each, on connections that only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.audit import AuditRecord
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity, Registry
from dragoman.core.model.tasks import Event, Question, QuestionStatus, Task
from dragoman.core.ports import TaskFilter
from dragoman.stores.layout import LEASED, POLLED, SEQ_BITS, SEQ_MASK
from dragoman.stores.postgres.names import read, written
from dragoman.stores.postgres.queries import EVENT_COLUMNS, event_of
from dragoman.stores.records import (
    audit_row,
    changed_from,
    contract_from,
    dead_letter_from,
    delivery_from,
    entity_from,
    question_from,
    task_from,
)
from dragoman.stores.shared import IN_UNFINISHED, UNFINISHED, cursor_of, task_cursor

if TYPE_CHECKING:
    import asyncpg


class Terms:
    """The conditions of a statement, and its arguments."""

    def __init__(self, **columns: str | None) -> None:
        self.terms: list[str] = []
        self.values: list[Any] = []
        for name, value in columns.items():
            if value is not None:
                self.add(f"{name} = {{}}", written(str(value)))

    def add(self, term: str, *values: Any) -> None:
        """`{}` in the term stands for the next value."""
        places = [f"${len(self.values) + n}" for n in range(1, len(values) + 1)]
        self.terms.append(term.format(*places))
        self.values += values

    async def read(
        self, connection: asyncpg.Connection, what: str, table: str, order: str, limit: int
    ) -> list[asyncpg.Record]:
        where = f" WHERE {' AND '.join(self.terms)}" if self.terms else ""
        sql = f"SELECT {what} FROM {table}{where} ORDER BY {order} LIMIT ${len(self.values) + 1}"
        rows: list[asyncpg.Record] = await connection.fetch(sql, *self.values, limit)
        return rows


async def tasks(
    connection: asyncpg.Connection, where: TaskFilter, after: str | None, limit: int
) -> tuple[Sequence[Task], str | None]:
    terms = Terms(
        status=where.status and where.status.value,
        type=where.type,
        owner=where.agent,
        principal=where.principal,
        parent=where.parent,
    )
    if where.since is not None:
        terms.add("created_at >= {}", where.since)
    if where.before is not None:
        terms.add("created_at < {}", where.before)
    if after is not None:
        at, id = task_cursor(after)
        terms.add("(created_at, id) < ({}, {})", at, written(id))
    rows = await terms.read(connection, "body", "task", "created_at DESC, id DESC", limit + 1)
    page = [task_from(body) for (body,) in rows]
    return page[:limit], cursor_of(page[limit - 1]) if len(page) > limit else None


async def find_tasks(connection: asyncpg.Connection, prefix: str, limit: int) -> list[Task]:
    sql = "SELECT body FROM task WHERE id >= $1 AND id < $2 ORDER BY id LIMIT $3"
    rows = await connection.fetch(sql, written(prefix), written(prefix) + "\U0010ffff", limit)
    return [task_from(body) for (body,) in rows]


async def events(connection: asyncpg.Connection, task: TaskId, after: int, limit: int) -> list[Event]:
    sql = f"""SELECT {EVENT_COLUMNS} FROM event
              WHERE key > (SELECT (no << {SEQ_BITS}) + $2 FROM task WHERE id = $1)
              AND key <= (SELECT no << {SEQ_BITS} | {SEQ_MASK} FROM task WHERE id = $1) ORDER BY key LIMIT $3"""
    rows = await connection.fetch(sql, written(task), min(max(after, -1), SEQ_MASK), limit)
    return [event_of(task, tuple(row)) for row in rows]


async def events_since(connection: asyncpg.Connection, at: Instant, limit: int) -> list[Event]:
    sql = f"""SELECT {EVENT_COLUMNS}, task.id FROM event JOIN task ON task.no = event.key >> {SEQ_BITS}
              WHERE event.at > $1 ORDER BY event.at, event.key LIMIT $2"""
    return [event_of(TaskId(read(task)), row) for *row, task in await connection.fetch(sql, at, limit)]


async def series(connection: asyncpg.Connection, step: int, since: int, until: int | None) -> list[SeriesRow]:
    sql = "SELECT step, at, body FROM series WHERE step = $1 AND at >= $2 AND at < $3 ORDER BY at"
    rows = await connection.fetch(sql, step, since, 1 << 62 if until is None else until)
    return [SeriesRow(step, at, msgspec.Raw(body.encode())) for step, at, body in rows]


async def deliveries(
    connection: asyncpg.Connection, task: TaskId | None, receiver: AgentId | None, limit: int
) -> list[Delivery]:
    rows = await Terms(task=task, receiver=receiver).read(connection, "body", "delivery", "id", limit)
    return [delivery_from(body) for (body,) in rows]


async def dead_letters(
    connection: asyncpg.Connection, task: TaskId | None, after: str | None, limit: int
) -> list[DeadLetter]:
    terms = Terms(task=task)
    if after is not None:
        terms.add("id < {}", written(after))
    rows = await terms.read(connection, "body", "dead_letter", "id DESC", limit)
    return [dead_letter_from(body) for (body,) in rows]


async def questions(
    connection: asyncpg.Connection,
    status: QuestionStatus | None,
    task: TaskId | None,
    asked_of: AgentId | None,
    after: str,
    limit: int,
) -> list[Question]:
    terms = Terms(status=status and status.value, task=task, asked_of=asked_of)
    terms.add("id > {}", written(after))
    return [question_from(body) for (body,) in await terms.read(connection, "body", "question", "id", limit)]


async def audit(
    connection: asyncpg.Connection,
    after: int,
    limit: int,
    principal: str | None,
    subject: str | None,
    outcome: str | None,
) -> list[AuditRecord]:
    terms = Terms(principal=principal, subject=subject, outcome=None if outcome == "refused" else outcome)
    if outcome == "refused":  # as text, so that PostgreSQL can use the index over refusals
        terms.add("outcome = 'refused'")
    terms.add("seq > {}", after)
    rows = await terms.read(connection, "seq, principal, subject, outcome, body", "audit", "seq", limit)
    return [
        audit_row(seq, read(principal), subject and read(subject), outcome, body)
        for seq, principal, subject, outcome, body in rows
    ]


async def contracts(
    connection: asyncpg.Connection, agent: AgentId | None, after: str | None, limit: int
) -> list[Contract]:
    terms = Terms()
    if agent is not None:
        terms.add("(source = {0} OR target = {0})", written(agent))
    if after is not None:
        terms.add("id < {}", written(after))
    return [contract_from(body) for (body,) in await terms.read(connection, "body", "contract", "id DESC", limit)]


async def entities(connection: asyncpg.Connection, registry: Registry, after: str, limit: int) -> list[Entity]:
    sql = "SELECT body FROM entity WHERE registry = $1 AND name > $2 ORDER BY name LIMIT $3"
    return [entity_from(body) for (body,) in await connection.fetch(sql, registry.value, written(after), limit)]


async def changes(connection: asyncpg.Connection, after: int, limit: int) -> list[Changed]:
    sql = "SELECT body FROM changed WHERE cursor > $1 ORDER BY cursor LIMIT $2"
    return [changed_from(body) for (body,) in await connection.fetch(sql, after, limit)]


async def attached(connection: asyncpg.Connection, files: Sequence[str]) -> set[str]:
    sql = "SELECT DISTINCT file FROM attached WHERE file = ANY($1::text[])"
    return {read(file) for (file,) in await connection.fetch(sql, [written(file) for file in files])}


COUNTS = f"""
    SELECT 'tasks_' || status, count(*) FROM task WHERE status {IN_UNFINISHED} GROUP BY status
    UNION ALL SELECT CASE WHEN slot IN ({LEASED}, {POLLED}) THEN 'deliveries_leased' ELSE 'deliveries_waiting' END,
        count(*) FROM delivery GROUP BY 1
    UNION ALL SELECT 'dead_letters', count(*) FROM dead_letter
    UNION ALL SELECT 'questions_open', count(*) FROM question WHERE status = 'open'
"""


async def counts(connection: asyncpg.Connection) -> Mapping[str, int]:
    names = [*(f"tasks_{status.value}" for status in UNFINISHED), "deliveries_waiting", "deliveries_leased"]
    return {**dict.fromkeys(names, 0), **dict(map(tuple, await connection.fetch(COUNTS)))}
