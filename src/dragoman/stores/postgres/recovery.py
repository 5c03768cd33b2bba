"""What a leader reads at the start of its term, after its epoch was committed on the replicas: what a hub begins with.
And what is due."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.core.ids import AgentId, DeliveryId, Instant, QuestionId, TaskId
from dragoman.core.model.audit import Newest
from dragoman.core.model.holdings import NOTHING, Holding, holding_of
from dragoman.core.model.tasks import HELD
from dragoman.core.ports import Due, Recovered
from dragoman.stores.layout import PAIR, SEQ_BITS
from dragoman.stores.postgres.names import read, written
from dragoman.stores.records import agent_from, audit_from, entity_from, person_from, task_from
from dragoman.stores.shared import IN_UNFINISHED, one_of

if TYPE_CHECKING:
    import asyncpg

NOTED = Struct("<16s16s")
"""A direct message that left at most once, and the digest of its content."""

NAMED = (
    ("contract", "source", "active"),
    ("contract", "target", "active"),
    ("delivery", "receiver", "slot IS NOT NULL"),
)
"""Columns that may name removed agents: table, column, and which rows; each is read from an index."""

NAMES_PAGE = 5000
NAMES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SELECT id FROM task WHERE id > $1 ORDER BY id LIMIT $2", ("",)),
    (
        "SELECT principal, request_id FROM task WHERE (principal, request_id) > ($1, $2)"
        " ORDER BY principal, request_id LIMIT $3",
        ("", ""),
    ),
    ("SELECT id FROM heard WHERE id > $1 ORDER BY id LIMIT $2", ("",)),
)
"""The names for the filter (see `bloom_filter`): statements that read only an index, each with its first key."""


async def names(
    connection: asyncpg.Connection, sql: str, after: tuple[str, ...]
) -> tuple[list[Any], tuple[str, ...] | None]:
    """One page of `NAMES`, and the key after which the next one begins."""
    rows = await connection.fetch(sql, *map(written, after), NAMES_PAGE)
    found = [tuple(map(read, row)) for row in rows]
    keys: list[Any] = [row[0] for row in found] if len(after) == 1 else list(found)
    return keys, found[-1] if len(rows) == NAMES_PAGE else None


class Counters(msgspec.Struct):
    """What the leader counts on from: the next free number of a task, and how many used and noted ids came so far."""

    number: int
    used: int
    passed: int


async def recovered(connection: asyncpg.Connection) -> tuple[Recovered, Counters]:
    active: dict[AgentId, list[TaskId]] = defaultdict(list)
    sql = f"SELECT body FROM task WHERE status {one_of(HELD)} AND owner IS NOT NULL ORDER BY id"
    for (body,) in await connection.fetch(sql):
        task = task_from(body)
        if task.holder is not None:
            active[task.holder].append(task.id)
    newest = await newest_audit(connection)
    used = await connection.fetch("SELECT until, messages FROM used ORDER BY until")
    passed = await connection.fetch("SELECT until, messages FROM passed ORDER BY until")
    queues = await connection.fetch("SELECT queue, count(*) FROM task WHERE queue IS NOT NULL GROUP BY queue")
    entities = await connection.fetch("SELECT body FROM entity WHERE registry <> 'TASK' ORDER BY id")
    begin = Recovered(
        agents=[agent_from(body) for (body,) in await connection.fetch("SELECT body FROM agent ORDER BY id")],
        people=[person_from(body) for (body,) in await connection.fetch("SELECT body FROM person ORDER BY id")],
        active=dict(active),
        backlog={read(queue): count for queue, count in queues},
        audit_seq=newest.seq,
        audit_hash=newest.hash,
        entities=[entity_from(body) for (body,) in entities],
        parted=sorted({agent for place in NAMED for agent in await _parted(connection, *place)}),
        holdings=await _holdings(connection),
        state_cursor=await connection.fetchval("SELECT max(cursor) FROM changed") or 0,
        used={id: content for row in used for id, content in PAIR.iter_unpack(row[1])},
        passed={id.hex(): digest.hex() for row in passed for id, digest in NOTED.iter_unpack(row[1])},
    )
    highest = await connection.fetchval(
        f"SELECT greatest((SELECT max(no) FROM task), (SELECT max(key) FROM event) >> {SEQ_BITS}, 0)"
    )
    return begin, Counters(highest + 1, used[-1][0] if used else 0, passed[-1][0] if passed else 0)


async def newest_audit(connection: asyncpg.Connection) -> Newest:
    """The newest audit record that was written, even if it has been deleted since: the next record follows it, so that
    a check finds the gap."""
    last = await connection.fetchrow("SELECT seq, body FROM audit ORDER BY seq DESC LIMIT 1")
    found = Newest() if last is None else Newest(last[0], _hash_of(last[1]))
    noted = await connection.fetchrow("SELECT seq, hash FROM audit_newest WHERE chain = 'main'")
    return found if noted is None or noted[0] < found.seq else Newest(noted[0], noted[1])


def _hash_of(body: str) -> str:
    try:
        return audit_from(body).hash
    except (msgspec.MsgspecError, TypeError):
        return ""  # it was damaged, and `audit verify` says so


async def _holdings(connection: asyncpg.Connection) -> dict[AgentId, Holding]:
    """What each principal has in the store that is not finished (`core.model.holdings`)."""
    held: dict[AgentId, Holding] = {}

    def add(whose: str, holding: Holding) -> None:
        held[AgentId(whose)] = held.get(AgentId(whose), NOTHING).plus(holding)

    tasks = f"SELECT principal, sum(size)::bigint FROM task WHERE status {IN_UNFINISHED} GROUP BY principal"
    for whose, size in await connection.fetch(tasks):
        add(read(whose), Holding(bytes=size))
    direct_messages = (
        "SELECT sender, sum(size)::bigint, count(*) FROM delivery WHERE sender IS NOT NULL GROUP BY sender"
    )
    for whose, size, count in await connection.fetch(direct_messages):
        add(read(whose), Holding(bytes=size, direct_messages=count))
    for (body,) in await connection.fetch("SELECT body FROM entity WHERE registry = 'TASK'"):
        found = holding_of(entity_from(body))
        assert found is not None
        add(*found)
    return {id: holding for id, holding in held.items() if holding != NOTHING}


async def _parted(connection: asyncpg.Connection, table: str, column: str, which: str) -> list[AgentId]:
    """Agents that a column names and that no longer exist. It steps from one name to the next, because each may have
    thousands of rows."""
    sql = f"""WITH RECURSIVE named (id) AS (
                SELECT (SELECT {column} FROM {table} WHERE {which} ORDER BY {column} LIMIT 1)
                UNION ALL
                SELECT (SELECT {column} FROM {table} WHERE {column} > named.id AND {which} ORDER BY {column} LIMIT 1)
                FROM named WHERE named.id IS NOT NULL
              ) SELECT id FROM named WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM agent)"""
    return [AgentId(read(id)) for (id,) in await connection.fetch(sql)]


KINDS = ("task", "delivery", "agent", "question")
_DUE = " UNION ALL ".join(
    f"(SELECT {place} AS kind, wake_at, id FROM {table} WHERE wake_at <= $1 ORDER BY wake_at, id LIMIT $2)"
    f" UNION ALL (SELECT {place} AS kind, wake_at, NULL FROM {table} WHERE wake_at > $1 ORDER BY wake_at LIMIT 1)"
    for place, table in enumerate(KINDS)
)
DUE = f"SELECT kind, wake_at, id FROM ({_DUE}) AS found ORDER BY kind, wake_at, id"


def due_of(rows: Sequence[asyncpg.Record], limit: int) -> Due:
    """What the statement `DUE` found, whose limit was one more."""
    found: list[list[Any]] = [[] for _ in KINDS]
    later: list[Instant] = []
    for kind, at, id in rows:
        if id is None or len(found[kind]) == limit:
            later.append(at)
        else:
            found[kind].append(read(id))
    tasks, deliveries, agents, questions = found
    return Due(
        tasks=[TaskId(id) for id in tasks],
        deliveries=[DeliveryId(id) for id in deliveries],
        agents=[AgentId(id) for id in agents],
        questions=[QuestionId(id) for id in questions],
        next_at=min(later, default=None),
    )
