"""The partitions of events and words: by the number of their task, each for `SPAN` tasks.

Partitions are made before they are needed. When forgetting has removed all tasks of an old one, the leader drops it,
which costs nothing, however many events it had. Where a few tasks remain, it deletes the events of the others, bit by
bit. Neither holds up a commit: a partition is made aside and attached, and detached concurrently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.stores.layout import SEQ_BITS
from dragoman.stores.postgres.schema import FENCE

if TYPE_CHECKING:
    import asyncpg

    from dragoman.stores.postgres.lease import Lease

SPAN = 1 << 16
SPARSE = 1 << 10
"""Of a partition with at most so many tasks, the leader deletes the events of forgotten ones."""
AT_ONCE = 5000
"""Events that are deleted at once."""

TABLES = (("event", SEQ_BITS), ("words", 0))
"""The partitioned tables, and by how many bits a task's number is shifted in their keys."""


def place_of(number: int) -> int:
    return number // SPAN


async def make(connection: asyncpg.Connection, term: Lease, place: int) -> None:
    """Make the partitions of one place, unless they are there."""
    for table, bits in TABLES:
        name = f"{table}_p{place}"
        if await connection.fetchval(
            "SELECT EXISTS (SELECT 1 FROM pg_inherits WHERE inhrelid = to_regclass($1))", name
        ):
            continue
        first, last = place * SPAN << bits, (place + 1) * SPAN << bits
        await connection.execute(
            FENCE.format(epoch=term.epoch)
            + f"CREATE TABLE IF NOT EXISTS {name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS);"
            f"ALTER TABLE {table} ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({last});"
        )


async def clear(connection: asyncpg.Connection, below: int) -> int:
    """Drop the partitions before a place of which no task is left; of those with few, delete the events of forgotten
    ones. Gives how many were dropped. Another node may do the same meanwhile."""
    dropped = 0
    for table, bits in TABLES:
        rows = await connection.fetch(
            "SELECT c.relname, i.inhdetachpending FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid"
            " WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'"
            " AND c.relname ~ $1 ORDER BY c.oid",
            f"^{table}_p[0-9]+$",
        )
        for name, pending in rows:
            place = int(name.rpartition("_p")[2])
            if place >= below:
                continue
            first = place * SPAN
            left = [
                no
                for (no,) in await connection.fetch(
                    "SELECT no FROM task WHERE no >= $1 AND no < $2 ORDER BY no LIMIT $3",
                    first,
                    first + SPAN,
                    SPARSE + 1,
                )
            ]
            if not left:
                if pending is not None:
                    how = "FINALIZE" if pending else "CONCURRENTLY"
                    await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {name} {how}")
                await connection.execute(f"DROP TABLE {name}")
                dropped += 1
            elif len(left) <= SPARSE and table == "event":
                for after, before in zip([first - 1, *left], [*left, first + SPAN], strict=True):
                    await _delete(connection, name, after + 1 << bits, before << bits)
    return dropped


async def _delete(connection: asyncpg.Connection, name: str, first: int, end: int) -> None:
    """Delete the rows with these keys, some at a time."""
    sql = f"DELETE FROM {name} WHERE key IN (SELECT key FROM {name} WHERE key >= $1 AND key < $2 ORDER BY key LIMIT $3)"
    while await connection.execute(sql, first, end, AT_ONCE) == f"DELETE {AT_ONCE}":
        pass
