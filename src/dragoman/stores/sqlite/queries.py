"""Lookups of decisions, answered from the database.

Every function takes a read-only connection and returns records. Lookups are point reads with an index behind each
(`tests/unit/stores` holds the query plans against that), short enough for the event loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from typing import Any
from urllib.parse import quote

import apsw
from msgspec.structs import astuple

from dragoman.core import lookups
from dragoman.core.ids import TaskId
from dragoman.core.lookups import Lookup
from dragoman.core.model.deliveries import Delivery, SeenMessage
from dragoman.core.model.tasks import FINAL, Event, Task
from dragoman.stores import layout
from dragoman.stores.layout import LEASED, POLLED, SEQ_MASK, WAITING_HEAD
from dragoman.stores.records import (
    contract_from,
    dead_letter_from,
    delivery_from,
    entity_from,
    event_from,
    question_from,
    task_from,
)
from dragoman.stores.shared import IN_UNFINISHED
from dragoman.stores.sqlite.rows import EVENT_COLUMNS


def connect(path: str, *, unchanging: bool = False) -> apsw.Connection:
    """A connection that only reads. `unchanging`: no process writes the file meanwhile, so SQLite creates no files
    beside it."""
    flags = apsw.SQLITE_OPEN_READONLY
    if unchanging:
        path, flags = f"file:{quote(os.path.abspath(path))}?immutable=1", flags | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(path, flags=flags)
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def number(connection: apsw.Connection, id: TaskId) -> int | None:
    row = connection.execute("SELECT no FROM task WHERE id = ?", (id,)).fetchone()
    return None if row is None else int(row[0])


def _bodies(decode: Callable[[str], Any], sql: str) -> Callable[[apsw.Connection, Any], list[Any]]:
    """A lookup whose statement takes the lookup's fields, in their order, and gives bodies, perhaps after a key."""

    def answer(connection: apsw.Connection, lookup: Any) -> list[Any]:
        return [decode(row[0]) for row in connection.execute(sql, astuple(lookup))]

    return answer


def _seen_messages(sql: str) -> Callable[[apsw.Connection, Any], list[Any]]:
    def answer(connection: apsw.Connection, lookup: Any) -> list[Any]:
        found = connection.execute(sql, astuple(lookup))
        return [SeenMessage(id=id, digest=digest, at=at) for id, digest, at in found]

    return answer


def _claims(connection: apsw.Connection, lookup: lookups.Claims) -> list[Task]:
    sql = """SELECT body FROM task WHERE principal = ?1 AND request_id = ?2
             UNION ALL SELECT body FROM task WHERE id = ?3 AND NOT (principal = ?1 AND request_id = ?2)"""
    return [task_from(body) for (body,) in connection.execute(sql, astuple(lookup))]


def _event(connection: apsw.Connection, lookup: lookups.EventOf) -> list[Event]:
    if not 0 <= lookup.seq <= SEQ_MASK:
        return []
    row = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM event WHERE key = ((SELECT no FROM task WHERE id = ?) << {layout.SEQ_BITS} | ?)",
        (lookup.task, lookup.seq),
    ).fetchone()
    return [] if row is None else [event_from(lookup.task, row)]


def _events_of(connection: apsw.Connection, lookup: lookups.EventsOf) -> list[Event]:
    no = number(connection, lookup.task)
    if no is None:
        return []
    first = no << layout.SEQ_BITS
    sql = f"SELECT {EVENT_COLUMNS} FROM event WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
    rows = connection.execute(sql, (first, first | SEQ_MASK, lookup.limit)).fetchall()
    return [event_from(lookup.task, row) for row in rows]


def _dependents(connection: apsw.Connection, lookup: lookups.Dependents) -> list[Task]:
    sql = f"""SELECT task.body FROM blocked JOIN task USING (no)
              WHERE blocked.dependency = ? AND task.status {IN_UNFINISHED} ORDER BY task.id"""
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.dependency,)))
    return [task for task in tasks if lookup.matches(task)]  # a pair may be outdated


def _relying(connection: apsw.Connection, lookup: lookups.Relying) -> list[Task]:
    sql = f"""SELECT task.body FROM blocked JOIN task USING (no)
              WHERE blocked.dependency = ? AND task.status {IN_UNFINISHED}"""
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.dependency,)))
    return sorted(filter(lookup.matches, tasks), key=lookup.order)[: lookup.limit]


def _finished(connection: apsw.Connection, lookup: lookups.Finished) -> list[Task]:
    """Reads each status from its index, and a little more than asked: tasks of the same time have no order there."""
    found: list[Task] = []
    sql = "SELECT created_at, body FROM task WHERE status = ? AND created_at BETWEEN ? AND ? ORDER BY created_at"
    for status in FINAL:
        here: list[Task] = []
        for created_at, body in connection.execute(sql, (status.value, lookup.since, lookup.before - 1)):
            if len(here) >= lookup.limit and created_at > here[-1].created_at:
                break
            task = task_from(body)
            if lookup.matches(task):
                here.append(task)
        found += here
    return sorted(found, key=lookup.order)[: lookup.limit]


def _under(connection: apsw.Connection, lookup: lookups.Under) -> list[Task]:
    sql = "SELECT body FROM under JOIN task ON task.id = under.task WHERE contract = ? ORDER BY under.task"
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.contract,)))
    return list(islice(filter(lookup.matches, tasks), lookup.limit))


def _deliveries(slot: int) -> str:
    return f"SELECT body FROM delivery WHERE receiver = ? AND slot = {slot} ORDER BY rank, id LIMIT ?"


_LANE = "SELECT body FROM delivery WHERE task = ? AND receiver = ? AND task <> id ORDER BY seq {} LIMIT ?"

STANDS = "json_extract(body, '$.standing') IS NULL"
_ENDS_AT = "json_extract(body, '$.expires_at')"

_ASKED_AT = "json_extract(body, '$.created_at')"

ANSWERS: dict[type[Lookup[Any]], Callable[[apsw.Connection, Any], list[Any]]] = {
    lookups.TaskById: _bodies(task_from, "SELECT body FROM task WHERE id = ?"),
    lookups.Claims: _claims,
    lookups.Ready: _bodies(task_from, "SELECT body FROM task WHERE queue = ? ORDER BY rank, id LIMIT ?"),
    lookups.Children: _bodies(
        task_from, f"SELECT body FROM task WHERE parent = ? AND status {IN_UNFINISHED} ORDER BY id"
    ),
    lookups.AllChildren: _bodies(task_from, "SELECT body FROM task WHERE parent = ? ORDER BY id"),
    lookups.Dependents: _dependents,
    lookups.Relying: _relying,
    lookups.Finished: _finished,
    lookups.Under: _under,
    lookups.EventOf: _event,
    lookups.EventsOf: _events_of,
    lookups.DeliveryById: _bodies(delivery_from, "SELECT body FROM delivery WHERE id = ?"),
    lookups.Lane: _bodies(delivery_from, _LANE.format("")),
    lookups.LaneEnd: _bodies(delivery_from, _LANE.format("DESC")),
    lookups.Underway: _bodies(
        delivery_from, "SELECT body FROM delivery WHERE task = ? AND task <> id ORDER BY receiver, seq LIMIT ?"
    ),
    lookups.ContractById: _bodies(contract_from, "SELECT body FROM contract WHERE id = ?"),
    lookups.Terms: _bodies(
        contract_from, "SELECT body FROM contract WHERE collaboration = ? ORDER BY created_at DESC, id LIMIT ?"
    ),
    lookups.Bound: _bodies(
        contract_from,
        " UNION ALL ".join(  # both from an index, in order, and merged
            f"SELECT body, {_ENDS_AT} AS ends_at, id FROM contract WHERE {side} = ?1 AND {STANDS}"
            f" AND {_ENDS_AT} > ?2 AND created_at <= ?3{but}"
            for side, but in (("source", ""), ("target", " AND source <> ?1"))
        )
        + " ORDER BY ends_at, id LIMIT ?4",
    ),
    lookups.Agreed: _bodies(
        contract_from,
        "SELECT body FROM contract WHERE (created_at, id) > (?, ?) AND created_at < ? ORDER BY created_at, id LIMIT ?",
    ),
    lookups.SeenMessageById: _seen_messages("SELECT id, digest, at FROM heard WHERE id = ?"),
    lookups.Spent: _seen_messages("SELECT id, digest, at FROM heard WHERE at < ? ORDER BY at, id LIMIT ?"),
    lookups.Inbox: _bodies(delivery_from, _deliveries(WAITING_HEAD)),
    lookups.LeasedTo: _bodies(delivery_from, _deliveries(LEASED)),
    lookups.Unacknowledged: _bodies(
        delivery_from,
        " UNION ALL ".join(  # both from the index, in order, and merged
            f"SELECT body, rank, id FROM delivery WHERE receiver = ?1 AND slot = {slot} AND (rank, id) > (?2, ?3)"
            for slot in (LEASED, POLLED)
        )
        + " ORDER BY rank, id LIMIT ?4",
    ),
    lookups.DeadLetterById: _bodies(dead_letter_from, "SELECT body FROM dead_letter WHERE id = ?"),
    lookups.DeadLettersOf: _bodies(dead_letter_from, "SELECT body FROM dead_letter WHERE task = ? ORDER BY id"),
    lookups.EntityById: _bodies(entity_from, "SELECT body FROM entity WHERE id = ?"),
    lookups.QuestionById: _bodies(question_from, "SELECT body FROM question WHERE id = ?"),
    lookups.OpenQuestions: _bodies(
        question_from,
        "SELECT body FROM question WHERE task = ? AND status IN ('open', 'with_agent') ORDER BY id",
    ),
    lookups.AskedBy: _bodies(
        question_from,
        "SELECT body FROM question WHERE status = 'open' AND json_extract(body, '$.agent') = ? ORDER BY id",
    ),
    lookups.PutTo: _bodies(
        question_from,
        "SELECT body FROM question WHERE status = 'with_agent' AND json_extract(body, '$.asked_of') = ? ORDER BY id",
    ),
    lookups.QuestionsOf: _bodies(question_from, "SELECT body FROM question WHERE task = ? ORDER BY status, id LIMIT ?"),
    lookups.Loose: _bodies(
        question_from,
        f"SELECT body FROM question INDEXED BY question_loose WHERE task = '' AND {_ASKED_AT} >= ?1"
        f" AND ({_ASKED_AT}, id) > (?1, ?2) AND {_ASKED_AT} < ?3 AND status NOT IN ('open', 'with_agent')"
        f" ORDER BY {_ASKED_AT}, id LIMIT ?4",
    ),
}


def answer(connection: apsw.Connection, lookup: Lookup[Any]) -> list[Any]:
    return ANSWERS[type(lookup)](connection, lookup)


def of_task(connection: apsw.Connection, task: TaskId, limit: int) -> list[Delivery]:
    """The deliveries about one task, to every receiver."""
    sql = "SELECT body FROM delivery WHERE task = ? AND task <> id LIMIT ?"
    return [delivery_from(body) for (body,) in connection.execute(sql, (task, limit))]
