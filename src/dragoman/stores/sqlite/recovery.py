"""Recovery: what a hub reads from the database at its start, and whether a unit was committed whose writer died before
it answered.

Only the hub's writer writes, and a unit is committed as a whole or not at all, so one row of it is enough as proof
(`is_there`): an audit record, which is unique; an added row, which did not exist before; a removed one, which did. For
a unit that only changes rows, every row is compared: if all are equal, it makes no difference whether it was committed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import apsw
import msgspec

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import Newest
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter, Delivery, SeenMessage
from dragoman.core.model.holdings import NOTHING, Holding, holding_of
from dragoman.core.model.people import Person
from dragoman.core.model.series import SeriesRow
from dragoman.core.model.state import Changed, Entity
from dragoman.core.model.tasks import HELD, Event, Question, Task
from dragoman.core.ports import Changes, Due, Recovered
from dragoman.stores import layout, records
from dragoman.stores.records import agent_from, audit_from, entity_from, person_from
from dragoman.stores.shared import UNFINISHED, one_of
from dragoman.stores.sqlite import queries, rows
from dragoman.stores.sqlite.queries import STANDS

NAMED = (
    ("contract", "source", STANDS),
    ("contract", "target", STANDS),
    ("delivery", "receiver", "slot IS NOT NULL"),
)
"""Columns that may name removed agents: table, column, and which rows; each is read from an index."""

NAMES_PAGE = 2000
NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SELECT id FROM task WHERE id > ? ORDER BY id LIMIT ?", ("",)),
    (
        "SELECT principal, request_id FROM task WHERE (principal, request_id) > (?, ?)"
        " ORDER BY principal, request_id LIMIT ?",
        ("", ""),
    ),
    ("SELECT id FROM heard WHERE id > ? ORDER BY id LIMIT ?", ("",)),
)
"""The names for the filter (see `bloom_filter`): statements that read only an index, each with its first key."""


def names(connection: apsw.Connection, sql: str, after: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...] | None]:
    """One page of `NAMES`, and the key after which the next one begins."""
    rows = connection.execute(sql, (*after, NAMES_PAGE)).fetchall()
    found = [row[0] for row in rows] if len(after) == 1 else rows
    return found, rows[-1] if len(rows) == NAMES_PAGE else None


def recovered(connection: apsw.Connection) -> tuple[Recovered, int]:
    """What the hub starts with, and the next free number of a task."""
    active: dict[AgentId, list[TaskId]] = defaultdict(list)
    sql = (
        f"SELECT owner, id FROM task WHERE status {one_of(HELD)} AND owner IS NOT NULL AND NOT"
        " (coalesce(json_extract(body, '$.waiting'), '') = 'person'"
        " AND json_extract(body, '$.attempt.session') IS NULL) ORDER BY id"
    )
    for owner, id in connection.execute(sql):
        active[owner].append(id)
    newest = newest_audit(connection)
    (highest,) = connection.execute(
        "SELECT max(ifnull((SELECT max(no) FROM task), 0),"
        f" ifnull((SELECT max(key) FROM event), 0) >> {layout.SEQ_BITS},"
        f" ifnull((SELECT max(last) FROM remains), 0) >> {layout.SEQ_BITS})"
    ).fetchone() or (0,)
    sql = "SELECT queue, count(*) FROM task WHERE queue IS NOT NULL GROUP BY queue"
    begin = Recovered(
        agents=[agent_from(body) for (body,) in connection.execute("SELECT body FROM agent ORDER BY id")],
        people=[person_from(body) for (body,) in connection.execute("SELECT body FROM person ORDER BY id")],
        active=dict(active),
        backlog={str(queue): int(count) for queue, count in connection.execute(sql)},
        audit_seq=newest.seq,
        audit_hash=newest.hash,
        entities=[
            entity_from(body)
            for (body,) in connection.execute("SELECT body FROM entity WHERE registry <> 'TASK' ORDER BY id")
        ],
        parted=sorted({agent for place in NAMED for agent in _parted(connection, *place)}),
        holdings=_holdings(connection),
        state_cursor=next((int(at) for (at,) in connection.execute("SELECT max(cursor) FROM changed") if at), 0),
    )
    return begin, highest + 1


def _holdings(connection: apsw.Connection) -> dict[AgentId, Holding]:
    """What each principal has in the store that is not finished (`core.model.holdings`)."""
    held: dict[AgentId, Holding] = {}

    def add(whose: str, holding: Holding) -> None:
        held[AgentId(whose)] = held.get(AgentId(whose), NOTHING).plus(holding)

    tasks = (
        "SELECT principal, total(json_extract(body, '$.origin.bytes')) FROM task"
        f" WHERE status {one_of(UNFINISHED)} GROUP BY principal"
    )
    for whose, size in connection.execute(tasks):
        add(whose, Holding(bytes=int(size)))
    direct_messages = (
        "SELECT json_extract(body, '$.letter.sender'), total(json_extract(body, '$.size')), count(*) FROM delivery"
        " WHERE json_extract(body, '$.cargo') = 'letter' GROUP BY 1"
    )
    for whose, size, count in connection.execute(direct_messages):
        add(whose, Holding(bytes=int(size), direct_messages=count))
    for (body,) in connection.execute("SELECT body FROM entity WHERE registry = 'TASK'"):
        found = holding_of(entity_from(body))
        assert found is not None
        add(*found)
    return {id: holding for id, holding in held.items() if holding != NOTHING}


def _parted(connection: apsw.Connection, table: str, column: str, which: str) -> list[AgentId]:
    """Agents that a column names and that no longer exist. It steps from one name to the next, because each may have
    thousands of rows."""
    sql = f"""WITH RECURSIVE named (id) AS (
                SELECT (SELECT {column} FROM {table} WHERE {which} ORDER BY {column} LIMIT 1)
                UNION ALL
                SELECT (SELECT {column} FROM {table} WHERE {column} > named.id AND {which} ORDER BY {column} LIMIT 1)
                FROM named WHERE named.id IS NOT NULL
              ) SELECT id FROM named WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM agent)"""
    return [AgentId(id) for (id,) in connection.execute(sql)]


def due(connection: apsw.Connection, now: Instant, limit: int) -> Due:
    found: dict[str, list[Any]] = {}
    later: list[Any] = []
    for table in ("task", "delivery", "agent", "question"):
        sql = f"SELECT wake_at, id FROM {table} WHERE wake_at <= ? ORDER BY wake_at, id LIMIT ?"
        ripe = connection.execute(sql, (now, limit + 1)).fetchall()
        found[table] = [id for _, id in ripe[:limit]]
        if len(ripe) > limit:
            later += [at for at, _ in ripe[limit:]]
        else:
            sql = f"SELECT wake_at FROM {table} WHERE wake_at > ? ORDER BY wake_at LIMIT 1"
            later += [at for (at,) in connection.execute(sql, (now,))]
    return Due(
        tasks=found["task"],
        deliveries=found["delivery"],
        agents=found["agent"],
        questions=found["question"],
        next_at=min(later, default=None),
    )


def newest_audit(connection: apsw.Connection) -> Newest:
    """The newest audit record that was written, even if it has been deleted since: the next record follows it, so that
    a check finds the gap."""
    last = connection.execute("SELECT seq, body FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    found = Newest() if last is None else Newest(last[0], _hash_of(last[1]))
    written = connection.execute("SELECT seq, hash FROM audit_newest WHERE chain = 'main'").fetchone()
    return found if written is None or written[0] < found.seq else Newest(*written)


def _hash_of(body: str) -> str:
    try:
        return audit_from(body).hash
    except (msgspec.MsgspecError, TypeError):
        return ""  # it was damaged, and `audit verify` says so


BODIES: dict[type[Any], tuple[str, str, Callable[[Any], Any]]] = {
    Agent: ("agent", "id", records.agent_from),
    Person: ("person", "id", records.person_from),
    Task: ("task", "id", records.task_from),
    Delivery: ("delivery", "id", records.delivery_from),
    DeadLetter: ("dead_letter", "id", records.dead_letter_from),
    Question: ("question", "id", records.question_from),
    Contract: ("contract", "id", records.contract_from),
    Entity: ("entity", "id", records.entity_from),
    Changed: ("changed", "cursor", records.changed_from),
}
"""The table of each kind of row, its key, and how it is decoded."""


def is_there(connection: apsw.Connection, written: Changes) -> bool:
    """Whether a unit was committed. `written`: its changes as the writer got them, with personal content encrypted."""
    if written.audit:
        newest = written.audit[-1]
        found: Any = connection.execute("SELECT body FROM audit WHERE seq = ?", (newest.seq,)).fetchone()
        return found is not None and records.audit_from(found[0]).hash == newest.hash
    for row in written.added:
        return _kept(connection, row) is not None
    for row in written.removed:
        return _kept(connection, row) is None
    if written.used:
        newest_ids = connection.execute("SELECT messages FROM used ORDER BY until DESC LIMIT 1").fetchone()
        return newest_ids is not None and newest_ids[0] == layout.pack(written.used)
    return all(records.encode(_kept(connection, row)) == records.encode(row) for row in written.changed)


def _kept(connection: apsw.Connection, row: Any) -> Any:
    """The row that the database has under this row's key, or None."""
    kind = type(row)
    if kind is Event:
        no = queries.number(connection, row.task)
        sql = f"SELECT {rows.EVENT_COLUMNS} FROM event WHERE key = ?"
        found = None if no is None else connection.execute(sql, (records.event_key(no, row.seq),)).fetchone()
        return None if found is None else records.event_from(row.task, found)
    if kind is SeenMessage:
        found = connection.execute("SELECT id, digest, at FROM heard WHERE id = ?", (row.id,)).fetchone()
        return None if found is None else SeenMessage(id=found[0], digest=found[1], at=found[2])
    if kind is SeriesRow:
        sql = "SELECT step, at, CAST(body AS BLOB) FROM series WHERE step = ? AND at = ?"
        found = connection.execute(sql, (row.step, row.at)).fetchone()
        return None if found is None else SeriesRow(found[0], found[1], msgspec.Raw(found[2]))
    table, key, decode = BODIES[kind]
    found = connection.execute(f"SELECT body FROM {table} WHERE {key} = ?", (getattr(row, key),)).fetchone()
    return None if found is None else decode(found[0])
