"""What is read from the database: lookups of decisions, and the lists people ask for.

Every function takes a read-only connection and returns records. Lookups are point reads with an index behind each
(`tests/unit/stores` holds the query plans against that), short enough for the event loop; the lists run in threads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import apsw
from msgspec.structs import astuple, replace

from dragoman.core.audit.chain import AuditRecord, Newest
from dragoman.core.contracts.model import Contract
from dragoman.core.delivery.model import DeadLetter, Delivery, Heard
from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import (
    Agreed,
    AskedBy,
    Bound,
    Children,
    Claims,
    ContractById,
    DeadLetterById,
    DeadLettersOf,
    DeliveryById,
    Dependents,
    EntityById,
    EventOf,
    Finished,
    HeardById,
    Inbox,
    Lane,
    LaneEnd,
    LeasedTo,
    Lookup,
    Loose,
    OpenQuestions,
    QuestionById,
    QuestionsOf,
    Ready,
    Relying,
    Spent,
    Story,
    TaskById,
    Terms,
    Unacknowledged,
    Under,
    Underway,
)
from dragoman.core.ports import Due, Recovered, TaskFilter
from dragoman.core.state.model import Changed, Entity, Registry
from dragoman.core.tasks.model import FINAL, HELD, Event, Question, QuestionStatus, Status, Task
from dragoman.stores.paging import cursor_of, task_cursor
from dragoman.stores.sqlite import ops
from dragoman.stores.sqlite.rows import (
    EVENT_COLUMNS,
    SEQ_MASK,
    agent_from,
    audit_from,
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
from dragoman.stores.sqlite.schema import LEASED, POLLED, WAITING_HEAD


def _in(statuses: Iterable[Status]) -> str:
    return f"IN ({', '.join(repr(status.value) for status in statuses)})"


UNFINISHED = [status for status in Status if status not in FINAL]
IN_UNFINISHED = _in(UNFINISHED)


def connect(path: str) -> apsw.Connection:
    """A connection that only reads."""
    connection = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    connection.set_busy_timeout(5_000)
    connection.execute("PRAGMA cache_size = -16384")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def number(connection: apsw.Connection, id: TaskId) -> int | None:
    row = connection.execute("SELECT no FROM task WHERE id = ?", (id,)).fetchone()
    return None if row is None else int(row[0])


def _bodies(decode: Callable[[str], Any], sql: str) -> Callable[[apsw.Connection, Any], list[Any]]:
    """A lookup whose statement takes its fields, in their order, and gives bodies, perhaps with what they go by."""

    def answer(connection: apsw.Connection, lookup: Any) -> list[Any]:
        return [decode(row[0]) for row in connection.execute(sql, astuple(lookup))]

    return answer


def _heard(sql: str) -> Callable[[apsw.Connection, Any], list[Any]]:
    def answer(connection: apsw.Connection, lookup: Any) -> list[Any]:
        found = connection.execute(sql, astuple(lookup))
        return [Heard(id=id, digest=digest, at=at) for id, digest, at in found]

    return answer


def _claims(connection: apsw.Connection, lookup: Claims) -> list[Task]:
    sql = """SELECT body FROM task WHERE principal = ?1 AND request_id = ?2
             UNION ALL SELECT body FROM task WHERE id = ?3 AND NOT (principal = ?1 AND request_id = ?2)"""
    return [task_from(body) for (body,) in connection.execute(sql, astuple(lookup))]


def _event(connection: apsw.Connection, lookup: EventOf) -> list[Event]:
    if not 0 <= lookup.seq <= SEQ_MASK:
        return []
    row = connection.execute(
        f"SELECT {EVENT_COLUMNS} FROM event WHERE key = ((SELECT no FROM task WHERE id = ?) << {ops.SEQ_BITS} | ?)",
        (lookup.task, lookup.seq),
    ).fetchone()
    return [] if row is None else [event_from(lookup.task, row)]


def _story(connection: apsw.Connection, lookup: Story) -> list[Event]:
    no = number(connection, lookup.task)
    if no is None:
        return []
    first = no << ops.SEQ_BITS
    sql = f"SELECT {EVENT_COLUMNS} FROM event WHERE key > ? AND key <= ? ORDER BY key DESC LIMIT ?"
    rows = connection.execute(sql, (first, first | SEQ_MASK, lookup.limit)).fetchall()
    return [event_from(lookup.task, row) for row in rows]


def _dependents(connection: apsw.Connection, lookup: Dependents) -> list[Task]:
    sql = f"""SELECT task.body FROM blocked JOIN task USING (no)
              WHERE blocked.dependency = ? AND task.status {IN_UNFINISHED} ORDER BY task.id"""
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.dependency,)))
    return [task for task in tasks if lookup.matches(task)]  # a pair may outlive what it says


def _relying(connection: apsw.Connection, lookup: Relying) -> list[Task]:
    sql = f"""SELECT task.body FROM blocked JOIN task USING (no)
              WHERE blocked.dependency = ? AND task.status {IN_UNFINISHED}"""
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.dependency,)))
    return sorted(filter(lookup.matches, tasks), key=lookup.order)[: lookup.limit]


def _finished(connection: apsw.Connection, lookup: Finished) -> list[Task]:
    """Each status from its index, as far as it may be needed: tasks that came together are not in an order there."""
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


def _under(connection: apsw.Connection, lookup: Under) -> list[Task]:
    sql = "SELECT body FROM under JOIN task ON task.id = under.task WHERE contract = ? ORDER BY under.task"
    tasks = (task_from(body) for (body,) in connection.execute(sql, (lookup.contract,)))
    return list(islice(filter(lookup.matches, tasks), lookup.limit))


def _deliveries(slot: int) -> str:
    return f"SELECT body FROM delivery WHERE receiver = ? AND slot = {slot} ORDER BY rank, id LIMIT ?"


_LANE = "SELECT body FROM delivery WHERE task = ? AND receiver = ? AND task <> id ORDER BY seq {} LIMIT ?"

_STANDS = "json_extract(body, '$.standing') IS NULL"
_ENDS_AT = "json_extract(body, '$.expires_at')"

_ASKED_AT = "json_extract(body, '$.created_at')"

ANSWERS: dict[type[Lookup[Any]], Callable[[apsw.Connection, Any], list[Any]]] = {
    TaskById: _bodies(task_from, "SELECT body FROM task WHERE id = ?"),
    Claims: _claims,
    Ready: _bodies(task_from, "SELECT body FROM task WHERE queue = ? ORDER BY rank, id LIMIT ?"),
    Children: _bodies(task_from, f"SELECT body FROM task WHERE parent = ? AND status {IN_UNFINISHED} ORDER BY id"),
    Dependents: _dependents,
    Relying: _relying,
    Finished: _finished,
    Under: _under,
    EventOf: _event,
    Story: _story,
    DeliveryById: _bodies(delivery_from, "SELECT body FROM delivery WHERE id = ?"),
    Lane: _bodies(delivery_from, _LANE.format("")),
    LaneEnd: _bodies(delivery_from, _LANE.format("DESC")),
    Underway: _bodies(
        delivery_from, "SELECT body FROM delivery WHERE task = ? AND task <> id ORDER BY receiver, seq LIMIT ?"
    ),
    ContractById: _bodies(contract_from, "SELECT body FROM contract WHERE id = ?"),
    Terms: _bodies(
        contract_from, "SELECT body FROM contract WHERE collaboration = ? ORDER BY created_at DESC, id LIMIT ?"
    ),
    Bound: _bodies(
        contract_from,
        " UNION ALL ".join(  # both from an index, in order, and merged
            f"SELECT body, {_ENDS_AT} AS ends_at, id FROM contract WHERE {side} = ?1 AND {_STANDS}"
            f" AND {_ENDS_AT} > ?2 AND created_at <= ?3{but}"
            for side, but in (("source", ""), ("target", " AND source <> ?1"))
        )
        + " ORDER BY ends_at, id LIMIT ?4",
    ),
    Agreed: _bodies(
        contract_from,
        "SELECT body FROM contract WHERE (created_at, id) > (?, ?) AND created_at < ? ORDER BY created_at, id LIMIT ?",
    ),
    HeardById: _heard("SELECT id, digest, at FROM heard WHERE id = ?"),
    Spent: _heard("SELECT id, digest, at FROM heard WHERE at < ? ORDER BY at, id LIMIT ?"),
    Inbox: _bodies(delivery_from, _deliveries(WAITING_HEAD)),
    LeasedTo: _bodies(delivery_from, _deliveries(LEASED)),
    Unacknowledged: _bodies(
        delivery_from,
        " UNION ALL ".join(  # both from the index, in order, and merged
            f"SELECT body, rank, id FROM delivery WHERE receiver = ?1 AND slot = {slot} AND (rank, id) > (?2, ?3)"
            for slot in (LEASED, POLLED)
        )
        + " ORDER BY rank, id LIMIT ?4",
    ),
    DeadLetterById: _bodies(dead_letter_from, "SELECT body FROM dead_letter WHERE id = ?"),
    DeadLettersOf: _bodies(dead_letter_from, "SELECT body FROM dead_letter WHERE task = ? ORDER BY id"),
    EntityById: _bodies(entity_from, "SELECT body FROM entity WHERE id = ?"),
    QuestionById: _bodies(question_from, "SELECT body FROM question WHERE id = ?"),
    OpenQuestions: _bodies(
        question_from,
        "SELECT body FROM question WHERE task = ? AND status IN ('open', 'with_agent') ORDER BY id",
    ),
    AskedBy: _bodies(
        question_from,
        "SELECT body FROM question WHERE status = 'open' AND json_extract(body, '$.agent') = ? ORDER BY id LIMIT ?",
    ),
    QuestionsOf: _bodies(question_from, "SELECT body FROM question WHERE task = ? ORDER BY status, id LIMIT ?"),
    Loose: _bodies(
        question_from,
        f"SELECT body FROM question INDEXED BY question_loose WHERE task = '' AND {_ASKED_AT} >= ?1"
        f" AND ({_ASKED_AT}, id) > (?1, ?2) AND {_ASKED_AT} < ?3 AND status NOT IN ('open', 'with_agent')"
        f" ORDER BY {_ASKED_AT}, id LIMIT ?4",
    ),
}


def answer(connection: apsw.Connection, lookup: Lookup[Any]) -> list[Any]:
    return ANSWERS[type(lookup)](connection, lookup)


def of_task(connection: apsw.Connection, task: TaskId, limit: int) -> list[Delivery]:
    """What is on its way about one task, to whomever."""
    sql = "SELECT body FROM delivery WHERE task = ? AND task <> id LIMIT ?"
    return [delivery_from(body) for (body,) in connection.execute(sql, (task, limit))]


# Starting, and waking up.

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
"""What the rows go by that are looked for when they are not there (see `names`): read from indexes alone. Each with
where to begin."""


def names(connection: apsw.Connection, sql: str, after: tuple[Any, ...]) -> tuple[list[Any], tuple[Any, ...] | None]:
    """One page of `NAMES`, and after what the next one begins."""
    rows = connection.execute(sql, (*after, NAMES_PAGE)).fetchall()
    found = [row[0] for row in rows] if len(after) == 1 else rows
    return found, rows[-1] if len(rows) == NAMES_PAGE else None


def recovered(connection: apsw.Connection) -> tuple[Recovered, int]:
    """What a hub begins with, and the next free number of a task."""
    active: dict[AgentId, list[TaskId]] = defaultdict(list)
    sql = (
        f"SELECT owner, id FROM task WHERE status {_in(HELD)} AND owner IS NOT NULL AND NOT"
        " (coalesce(json_extract(body, '$.waiting'), '') = 'person' AND json_extract(body, '$.session') IS NULL)"
        " ORDER BY id"
    )
    for owner, id in connection.execute(sql):
        active[owner].append(id)
    newest = _newest_audit(connection)
    (highest,) = connection.execute(
        "SELECT max(ifnull((SELECT max(no) FROM task), 0),"
        f" ifnull((SELECT max(key) FROM event), 0) >> {ops.SEQ_BITS},"
        f" ifnull((SELECT max(last) FROM remains), 0) >> {ops.SEQ_BITS})"
    ).fetchone() or (0,)
    sql = "SELECT queue, count(*) FROM task WHERE queue IS NOT NULL GROUP BY queue"
    begin = Recovered(
        agents=[agent_from(body) for (body,) in connection.execute("SELECT body FROM agent ORDER BY id")],
        active=dict(active),
        backlog={str(queue): int(count) for queue, count in connection.execute(sql)},
        audit_seq=newest.seq,
        audit_hash=newest.hash,
        entities=[
            entity_from(body)
            for (body,) in connection.execute("SELECT body FROM entity WHERE registry <> 'TASK' ORDER BY id")
        ],
        parted=sorted({agent for side in ("source", "target") for agent in _parted(connection, side)}),
        state_cursor=next((int(at) for (at,) in connection.execute("SELECT max(cursor) FROM changed") if at), 0),
    )
    return begin, highest + 1


def _parted(connection: apsw.Connection, side: str) -> list[AgentId]:
    """Who stands on one side of contracts that nobody ended and is not there: from one name to the next, for each may
    have thousands."""
    sql = f"""WITH RECURSIVE named (id) AS (
                SELECT (SELECT {side} FROM contract WHERE {_STANDS} ORDER BY {side} LIMIT 1)
                UNION ALL
                SELECT (SELECT {side} FROM contract WHERE {side} > named.id AND {_STANDS} ORDER BY {side} LIMIT 1)
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


# What people read.


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
    first = no << ops.SEQ_BITS
    bounds = (first + min(max(after, -1), SEQ_MASK), first + SEQ_MASK + 1, limit)
    return [event_from(task, row) for row in connection.execute(sql, bounds)]


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
    connection: apsw.Connection, status: QuestionStatus | None, task: TaskId | None, limit: int
) -> list[Question]:
    terms, values = _where(status=status and status.value, task=task)
    sql = _select("body", "question", terms, "id")
    return [question_from(body) for (body,) in connection.execute(sql, (*values, limit))]


def question(connection: apsw.Connection, id: QuestionId) -> Question | None:
    return next(iter(answer(connection, QuestionById(id))), None)


def audit(
    connection: apsw.Connection, after: int, limit: int, principal: str | None, subject: str | None, outcome: str | None
) -> list[AuditRecord]:
    terms, values = _where(principal=principal, subject=subject)
    if outcome is not None:  # as text, so that the index over refusals can be seen to fit
        terms.append("outcome = 'refused'" if outcome == "refused" else "outcome = ?")
        values += [] if outcome == "refused" else [outcome]
    sql = _select("seq, principal, subject, outcome, body", "audit", ["seq > ?", *terms], "seq")
    return [_audit_row(*row) for row in connection.execute(sql, (after, *values, limit))]


def _audit_row(seq: int, principal: str, subject: str | None, outcome: str, body: str) -> AuditRecord:
    """The record; where somebody edited it or a column beside it, so that they differ, without a hash that fits."""
    record = audit_from(body)
    if (record.seq, record.principal, record.subject, record.outcome) == (seq, principal, subject, outcome):
        return record
    return replace(record, seq=seq, hash="")


def _newest_audit(connection: apsw.Connection) -> Newest:
    """The newest audit record that was written, also if it has been deleted since: the next one follows it, so that the
    gap stays to be seen."""
    last = connection.execute("SELECT seq, body FROM audit ORDER BY seq DESC LIMIT 1").fetchone()
    found = Newest() if last is None else Newest(last[0], audit_from(last[1]).hash)
    written = connection.execute("SELECT seq, hash FROM audit_newest WHERE chain = 'main'").fetchone()
    return found if written is None or written[0] < found.seq else Newest(*written)


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


def oldest_change(connection: apsw.Connection) -> int | None:
    row = connection.execute("SELECT body FROM changed ORDER BY cursor LIMIT 1").fetchone()
    return None if row is None else changed_from(row[0]).first


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
