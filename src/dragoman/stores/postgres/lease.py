"""The leader's lease of a realm: which node leads, in which epoch, until when. And the nodes that there are.

One row of PostgreSQL decides. Above: the store, which commits nothing unless this row still has its epoch, and the
election of the cluster. All times are PostgreSQL's, so that no clock of a node matters.

- *Take*: one UPDATE adds 1 to the epoch, if it is still the one that was seen, and if the lease has expired, or the
  caller's stream to the leader broke and the leader's session with PostgreSQL is gone. It returns when it is committed
  on the synchronous replicas: only what is read after that is believed.
- *Renew*: the leader moves the end on. This waits for no replica: it shows only that the leader lives, and a unit that
  waits for its replica must not cost the leader its lease.
- *Release*: the leader lets its lease expire at once, so that another node can take it.

The lease names the leader's session with PostgreSQL (`backend`): the one that took or last renewed it. So a leader
whose process died is seen to be gone without waiting for the end of its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from dragoman.core.ids import Instant
from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres import sealed
from dragoman.stores.postgres.connection import (
    NOT_REPLICATED,
    Warnings,
    connect,
    errors,
    schema_of,
    unreachable,
    within,
)

if TYPE_CHECKING:
    import asyncpg

SECONDS = 5.0
"""How long a statement about the lease may take."""

TABLES = """
    CREATE TABLE IF NOT EXISTS lease (
        realm text COLLATE "C" PRIMARY KEY, epoch bigint NOT NULL, holder text NOT NULL, url text NOT NULL,
        backend text NOT NULL, ttl float8 NOT NULL, expires_at timestamptz NOT NULL, last_unit bigint NOT NULL,
        last_instant bigint NOT NULL
    ) WITH (fillfactor = 10);
    CREATE TABLE IF NOT EXISTS node (
        name text COLLATE "C" PRIMARY KEY, http text NOT NULL, grpc text NOT NULL, last_seen timestamptz NOT NULL
    );
"""
"""Each unit rewrites the row of the lease, so its page has room for many versions of it."""

BACKEND = "(SELECT pid || '/' || extract(epoch FROM backend_start) FROM pg_stat_activity WHERE pid = pg_backend_pid())"
"""This session: its process, and when it began."""
ALIVE = (
    "EXISTS (SELECT 1 FROM pg_stat_activity"
    " WHERE lease.backend = pid || '/' || extract(epoch FROM backend_start) AND datname = current_database())"
)
COLUMNS = f"""
    realm, epoch, holder, url, backend, ttl, extract(epoch FROM expires_at)::float8 AS expires_at,
    extract(epoch FROM clock_timestamp())::float8 AS now, {ALIVE} AS backend_alive, last_unit, last_instant
"""
READ = f"SELECT {COLUMNS} FROM lease WHERE realm = $1"
TAKE = f"""
    UPDATE lease SET epoch = epoch + 1, holder = $3, url = $4, backend = {BACKEND}, ttl = $5,
        expires_at = clock_timestamp() + make_interval(secs => $5)
    WHERE realm = $1 AND epoch = $2 AND (expires_at <= clock_timestamp() OR ($6 AND NOT {ALIVE}))
    RETURNING {COLUMNS}
"""
AGAIN = f"""
    UPDATE lease SET epoch = epoch + 1, backend = {BACKEND},
        expires_at = clock_timestamp() + make_interval(secs => ttl)
    WHERE realm = $1 AND epoch = $2 RETURNING {COLUMNS}
"""
LOCALLY = "set_config('synchronous_commit', 'local', true) = 'local'"
"""The commit of this statement waits for no replica. (Within the statement: a transaction of several would stay open,
and hold the lease, while a node that was stopped in between sleeps.)"""
RENEW = f"""
    UPDATE lease SET backend = {BACKEND}, expires_at = clock_timestamp() + make_interval(secs => ttl)
    WHERE realm = $1 AND epoch = $2 AND {LOCALLY}
"""
RELEASE = f"UPDATE lease SET expires_at = clock_timestamp() WHERE realm = $1 AND epoch = $2 AND {LOCALLY}"
NOTE = f"""
    INSERT INTO node (name, http, grpc, last_seen) SELECT $1, $2, $3, clock_timestamp() WHERE {LOCALLY}
    ON CONFLICT (name) DO UPDATE SET http = $2, grpc = $3, last_seen = clock_timestamp()
"""
NODES = "SELECT name, http, grpc, extract(epoch FROM last_seen)::float8 AS last_seen FROM node ORDER BY name"

BEHIND = """
    SELECT application_name, pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint FROM pg_stat_replication
    WHERE replay_lsn IS NOT NULL
"""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at` and `now` are seconds of PostgreSQL's clock. `last_unit`: the number of the last unit that was
    committed; `last_instant`: the time and ids of the next leader go on after it."""

    realm: str
    epoch: int
    holder: str
    url: str
    backend: str
    ttl: float
    expires_at: float
    now: float
    backend_alive: bool
    last_unit: int
    last_instant: Instant


class NodeRow(msgspec.Struct, frozen=True):
    """A node, and when it was last heard of, in seconds of PostgreSQL's clock."""

    name: str
    http: str
    grpc: str
    last_seen: float


async def init(url: str, realm: str) -> None:
    """Make the schema of a realm and its lease, which nobody holds. Does nothing where they exist."""
    schema = schema_of(realm)
    connection = await connect(url, realm)
    try:
        if await connection.fetchval("SHOW server_encoding") != "UTF8":
            raise StoreFailed("the database is not in UTF-8: create one with ENCODING 'UTF8' TEMPLATE template0")
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", schema)
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            await connection.execute(TABLES + sealed.TABLES)
            await connection.execute(
                "INSERT INTO lease VALUES ($1, 0, '', '', '', 0, '-infinity', 0, 0) ON CONFLICT DO NOTHING", realm
            )
    except errors() as error:
        raise unreachable(error) from error
    finally:
        connection.terminate()


class LeaseTable:
    """The lease of one realm, over one session with PostgreSQL, which is opened again when it was lost.

    Every method raises `StoreFailed` where PostgreSQL does not answer. Whether a `take` that failed so has happened is
    seen by reading the lease; a leader whose `renew` failed so goes on until its lease expires.
    """

    def __init__(self, url: str, realm: str, *, seconds: float = SECONDS) -> None:
        self._url = url
        self.realm = realm
        self._seconds = seconds
        self._connection: asyncpg.Connection | None = None
        self._warnings: Warnings | None = None
        self._turn = asyncio.Lock()

    async def read(self) -> Lease:
        [row] = await self._rows(READ, self.realm) or [None]
        if row is None:
            raise StoreFailed(f"the realm {self.realm} does not exist: run `dragoman cluster init`")
        return _lease(row)

    async def take(self, seen: int, *, holder: str, url: str, ttl: float, stream_broke: bool = False) -> Lease | None:
        """Lead in the epoch after the one that was seen; None where the lease is still held, or another node was
        faster. `stream_broke`: the caller lost its stream to the leader, or is a later process of the leader's node."""
        rows = await self._rows(TAKE, self.realm, seen, holder, url, ttl, stream_broke)
        return _lease(rows[0]) if rows else None

    async def take_again(self, epoch: int) -> Lease | None:
        """For the leader that lost the answer to a commit: the next epoch, whose `last_unit` is the answer. None: its
        own is over."""
        rows = await self._rows(AGAIN, self.realm, epoch)
        return _lease(rows[0]) if rows else None

    async def renew(self, epoch: int) -> bool:
        """Whether this epoch still leads; if so, it does for the time of its lease from now on."""
        return bool(await self._rows(f"{RENEW} RETURNING epoch", self.realm, epoch))

    async def release(self, epoch: int) -> None:
        await self._rows(RELEASE, self.realm, epoch)

    async def note_node(self, name: str, http: str, grpc: str) -> None:
        await self._rows(NOTE, name, http, grpc)

    async def nodes(self) -> Sequence[NodeRow]:
        return [NodeRow(*row) for row in await self._rows(NODES)]

    async def behind(self) -> Mapping[str, int]:
        """By the name of each standby of PostgreSQL, the bytes that it has not applied yet. A role without `pg_monitor`
        sees none."""
        return {row[0]: row[1] for row in await self._rows(BEHIND)}

    async def close(self) -> None:
        async with self._turn:
            if self._connection is not None:
                self._connection.terminate()
                self._connection = None

    async def _rows(self, sql: str, *values: object) -> list[asyncpg.Record]:
        async with self._turn:
            connection, warnings = await self._open()
            warnings.came = False
            try:
                rows: list[asyncpg.Record] = await within(self._seconds, connection, connection.fetch(sql, *values))
            except errors() as error:  # another session is opened next time: this server may lead no more
                connection.terminate()
                self._connection = None
                raise unreachable(error) from error
            if warnings.came:  # an epoch that a failover may lose: nothing that is read in it can be believed
                connection.terminate()
                self._connection = None
                raise StoreFailed(f"PostgreSQL cannot be used: {NOT_REPLICATED}")
            return rows

    async def _open(self) -> tuple[asyncpg.Connection, Warnings]:
        if self._connection is None or self._warnings is None or self._connection.is_closed():
            self._connection = await connect(self._url, self.realm, timeout=self._seconds)
            self._warnings = Warnings(self._connection)
        return self._connection, self._warnings


def _lease(row: asyncpg.Record) -> Lease:
    return msgspec.convert(dict(row), Lease)
