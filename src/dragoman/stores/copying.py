"""Copies the SQLite store of a stopped hub into a realm of PostgreSQL: rows, files, keys and environments.

    source   a data directory: locked as a hub locks it, and only read
    aside    the schema of a realm that no node knows, where everything is written, and compared with the source
    switch   one transaction: the realm's own schema, which must be empty, is replaced by the one aside

So a copy that ends half-way leaves a schema aside, which the next one drops, and no node ever serves half a store. Rows
are copied as they stand: each body byte for byte, sealed where it was sealed. The columns beside it are made by the
encoders that the PostgreSQL store writes with.

What is compared before the switch: how many rows each table has, a sum over the hashes of their bodies, the chain of
the audit record from its first record to its newest, and how many files there are with how many bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import apsw

from dragoman.core.model.agents import Agent
from dragoman.core.model.audit import GENESIS, Newest, cut_short, verify
from dragoman.core.model.contracts import Contract
from dragoman.core.model.deliveries import DeadLetter
from dragoman.core.model.people import Person
from dragoman.core.model.state import Entity
from dragoman.core.model.tasks import Question
from dragoman.stores import records
from dragoman.stores.layout import SEQ_BITS
from dragoman.stores.postgres import functions, partitions, rows, schema
from dragoman.stores.postgres.connection import DURABLE, schema_of
from dragoman.stores.postgres.lease import Lease, LeaseTable, init
from dragoman.stores.postgres.names import written
from dragoman.stores.postgres.recovery import NOTED
from dragoman.stores.sqlite import sent_messages
from dragoman.stores.sqlite.schema import VERSION, StoreRefused, known_version

if TYPE_CHECKING:
    import asyncpg

BATCH_ROWS = 2000
BATCH_BYTES = 8 * 1024 * 1024
TTL = 24 * 3600.0
"""Seconds of the lease of the schema aside, which nobody else asks for."""

Say = Callable[[str, int], None]
"""Told of every batch: the table, and how many rows of it are copied."""
Source = apsw.Connection


class Copied(NamedTuple):
    """What was copied and found to be the same on both sides."""

    tables: Mapping[str, int]
    audit_hash: str


class Batch(NamedTuple):
    """Values of some rows, column by column, and what each row's body hashes to."""

    columns: Sequence[Sequence[Any]]
    hashes: int


class Table(NamedTuple):
    """`read` gives the rows of the source; `body` is what is compared, as SQL over a row of the target."""

    name: str
    columns: functions.Columns
    read: Callable[[Source], Iterator[Batch]]
    body: str = "convert_to(body, 'UTF8')"


def open_source(file: Path) -> Source:
    """The store, for reading; as it is now, whatever happens. Raises `StoreRefused`."""
    log = file.with_name(file.name + "-wal")
    # Without a log of commits to look into, SQLite need not make files beside it.
    how = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
    try:
        source = apsw.Connection(
            f"file:{quote(str(file.absolute()))}?{how}", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
        version = known_version(source, str(file))
        source.execute("BEGIN")
        source.execute("SELECT 1 FROM sqlite_schema").fetchall()
    except apsw.Error as error:
        raise StoreRefused(f"{file} cannot be read ({error})", "dragoman doctor says what is wrong with it") from error
    if version < VERSION:
        raise StoreRefused(
            f"{file} was written by an older version (schema {version}, now {VERSION})",
            "start the hub of this version over it once, stop it, and copy then",
        )
    return source


# -- what is copied


def _hash(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha256(b"".join(parts)).digest()[:7])


def _batches(found: Iterable[Sequence[Any]], size: Callable[[Sequence[Any]], int]) -> Iterator[list[Sequence[Any]]]:
    batch: list[Sequence[Any]] = []
    filled = 0
    for row in found:
        batch.append(row)
        filled += size(row)
        if len(batch) == BATCH_ROWS or filled >= BATCH_BYTES:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch


def _columns(batch: Sequence[Sequence[Any]]) -> list[list[Any]]:
    return [list(column) for column in zip(*batch, strict=True)]


def _plain(sql: str, names: Sequence[int] = (), body: int = -1) -> Callable[[Source], Iterator[Batch]]:
    """Rows of which every column is one of the target's. `names`: the columns that hold names; `body`: the one that is
    compared."""

    def read(source: Source) -> Iterator[Batch]:
        for batch in _batches(source.execute(sql), lambda row: len(row[body])):
            columns = _columns(batch)
            for place in names:
                columns[place] = [written(name) for name in columns[place]]
            yield Batch(columns, sum(_hash(_bytes(value)) for value in columns[body]))

    return read


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _decoded(
    sql: str, decode: Callable[[str], Any], encode: Callable[[list[int], list[Any]], list[list[Any]]]
) -> Callable[[Source], Iterator[Batch]]:
    """Rows of which the source has a number and the record. The other columns follow from the record; its text is
    copied as it is."""

    def read(source: Source) -> Iterator[Batch]:
        for batch in _batches(source.execute(sql), lambda row: len(row[1])):
            columns = encode([no for no, _ in batch], [decode(body) for _, body in batch])
            columns[-1] = [body for _, body in batch]
            yield Batch(columns, sum(_hash(body.encode()) for _, body in batch))

    return read


def _of_kind(kind: type[Any]) -> Callable[[list[int], list[Any]], list[list[Any]]]:
    return lambda _, found: _columns([[*rows.OTHERS[kind](row), ""] for row in found])


def _words(source: Source) -> Iterator[Batch]:
    for batch in _batches(source.execute("SELECT no, body FROM task ORDER BY no"), lambda row: len(row[1])):
        texts = [rows.words_of(records.task_from(body)) for _, body in batch]
        yield Batch([[no for no, _ in batch], texts], 0)


def _events(source: Source) -> Iterator[Batch]:
    """Without the remains of forgotten tasks, which no read returns."""
    sql = (
        "SELECT key, at, kind, agent, body, protocol, raw, personal FROM event"
        f" WHERE EXISTS (SELECT 1 FROM task WHERE no = key >> {SEQ_BITS}) ORDER BY key"
    )
    found: Iterable[tuple[Any, ...]] = source.execute(sql)
    for batch in _batches(found, lambda row: len(row[4]) + len(row[6] or b"")):
        columns = _columns(batch)
        columns[3] = [written(name) for name in columns[3]]
        columns[5] = [written(name) for name in columns[5]]
        columns[7] = [bool(one) or None for one in columns[7]]
        yield Batch(columns, sum(_hash(row[4].encode(), row[6] or b"") for row in batch))


def _master_keys(source: Source) -> Iterator[Batch]:
    found: list[tuple[Any, ...]] = source.execute("SELECT id, given_up FROM master_key").fetchall()
    if found:
        ids = [id for id, _ in found]
        yield Batch([ids, [bool(gone) for _, gone in found]], sum(_hash(id.encode()) for id in ids))


def _passed(file: Path) -> Callable[[Source], Iterator[Batch]]:
    """The direct messages that left at most once, from the ring beside the database."""

    def read(_: Source) -> Iterator[Batch]:
        if not file.exists():
            return
        slots = sorted(slot for slot in sent_messages.SLOT.iter_unpack(_whole(file.read_bytes())) if slot[0])
        for start in range(0, len(slots), BATCH_ROWS):
            part = slots[start : start + BATCH_ROWS]
            packed = b"".join(NOTED.pack(id, digest) for _, id, digest in part)
            yield Batch([[start + len(part)], [packed]], _hash(packed))

    return read


def _whole(data: bytes) -> bytes:
    return data[: len(data) - len(data) % sent_messages.SLOT.size]


_RARE: dict[type[Any], tuple[str, Callable[[str], Any]]] = {
    Agent: ("agent", records.agent_from),
    Person: ("person", records.person_from),
    DeadLetter: ("dead_letter", records.dead_letter_from),
    Question: ("question", records.question_from),
    Entity: ("entity", records.entity_from),
    Contract: ("contract", records.contract_from),
}
SERIES_COLUMNS: functions.Columns = (("step", "bigint"), ("at", "bigint"), ("body", "text"))
PASSED_COLUMNS: functions.Columns = (("until", "bigint"), ("messages", "bytea"))


def tables(store: Path) -> list[Table]:
    """Everything that the source has, in the order in which it is copied."""
    rare = [
        Table(name, functions.RARE[name], _decoded(f"SELECT 0, body FROM {name} ORDER BY id", decode, _of_kind(kind)))
        for kind, (name, decode) in _RARE.items()
    ]
    pairs = [
        Table(
            name,
            columns,
            _plain(f"SELECT {columns[0][0]}, {columns[1][0]} FROM {name} ORDER BY 1, 2", _names_of(columns), 0),
            f"convert_to({columns[0][0]}, 'UTF8')",
        )
        for name, columns in functions.PAIRS.items()
    ]
    return [
        *rare,
        Table("task", functions.TASK, _decoded("SELECT no, body FROM task ORDER BY no", records.task_from, rows.tasks)),
        Table("words", functions.WORDS, _words, ""),
        *pairs,
        Table("event", functions.EVENT, _events, "convert_to(body, 'UTF8') || coalesce(raw, '')"),
        Table(
            "delivery",
            functions.DELIVERY,
            _decoded(
                "SELECT no, body FROM delivery ORDER BY no",
                records.delivery_from,
                lambda _, found: rows.deliveries(found),
            ),
        ),
        Table(
            "heard",
            functions.SEEN,
            _plain("SELECT id, digest, at FROM heard ORDER BY id", (0, 1), 1),
            "convert_to(digest, 'UTF8')",
        ),
        Table("changed", functions.CHANGED, _plain("SELECT cursor, body FROM changed ORDER BY cursor")),
        Table("series", SERIES_COLUMNS, _plain("SELECT step, at, body FROM series ORDER BY step, at")),
        Table("used", PASSED_COLUMNS, _plain("SELECT until, messages FROM used ORDER BY until"), "messages"),
        Table("passed", PASSED_COLUMNS, _passed(sent_messages.beside(str(store))), "messages"),
        Table("master_key", (("id", "text"), ("given_up", "boolean")), _master_keys, "convert_to(id, 'UTF8')"),
        Table(
            "audit",
            functions.AUDIT,
            _plain("SELECT seq, principal, subject, outcome, body FROM audit ORDER BY seq", (1, 2)),
        ),
        Table(
            "audit_newest",
            (("chain", "text"), ("seq", "bigint"), ("hash", "text")),
            _plain("SELECT chain, seq, hash FROM audit_newest ORDER BY chain"),
            "convert_to(hash, 'UTF8')",
        ),
    ]


def _names_of(columns: functions.Columns) -> list[int]:
    return [place for place, (_, kind) in enumerate(columns) if kind == "text"]


# -- where it goes


def aside(realm: str) -> str:
    """The realm whose schema is written before the switch."""
    return f"copying_{hashlib.sha256(realm.encode()).hexdigest()[:16]}"


NOTHING_LOST = frozenset({"lease", "node", "migration", "file_total"})
"""Tables of a realm that nobody has used yet and that have rows all the same. (The note of the master key, too.)"""
OUTSIDE = """
    SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace($1) AND c.relkind IN ('r', 'p')
    AND NOT c.relispartition ORDER BY c.relname
"""


class Target:
    """A realm of PostgreSQL that is to take the copy. Its methods raise `StoreRefused` and errors of asyncpg."""

    def __init__(self, connection: asyncpg.Connection, realm: str) -> None:
        self._connection = connection
        self._realm = realm
        self._lease: Lease | None = None

    async def check(self) -> None:
        """That no node leads the realm, and that nothing is in it."""
        place = schema_of(self._realm)
        for (name,) in await self._connection.fetch(OUTSIDE, place):
            if name == "lease":
                led = f"SELECT holder FROM {place}.lease WHERE expires_at > clock_timestamp()"
                if (holder := await self._connection.fetchval(led)) is not None:
                    raise StoreRefused(
                        f"the node {holder} leads the realm {self._realm}", "stop all nodes of the realm, and copy then"
                    )
            where = " WHERE name <> 'master key'" if name == "sealed_record" else ""
            if name not in NOTHING_LOST and await self._connection.fetchval(
                f"SELECT EXISTS (SELECT 1 FROM {place}.{name}{where})"
            ):
                raise StoreRefused(
                    f"the realm {self._realm} is in use: {name} has rows",
                    f"name another one with --realm; or, if nothing in it is needed: DROP SCHEMA {place} CASCADE",
                )

    async def begin(self, url: str) -> None:
        """An empty schema aside, in place of one that an earlier copy left."""
        place = aside(self._realm)
        if not await self._connection.fetchval("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", place):
            raise StoreRefused(f"another copy into the realm {self._realm} is under way", "wait for its end")
        await self._connection.execute(f"DROP SCHEMA IF EXISTS {schema_of(place)} CASCADE")
        await init(url, place)
        table = LeaseTable(url, place)
        try:
            self._lease = await table.take((await table.read()).epoch, holder="store copy", url="", ttl=TTL)
        finally:
            await table.close()
        assert self._lease is not None  # nobody else knows this realm
        await schema.migrate(self._connection, self._lease)
        await self._connection.execute("SET synchronous_commit = off")  # the switch waits for all of it

    async def copy(self, source: Source, store: Path, say: Say) -> Copied:
        """All rows; raises `StoreRefused` where they are not the same afterwards."""
        assert self._lease is not None
        for (place,) in source.execute(f"SELECT DISTINCT no / {partitions.SPAN} FROM task ORDER BY 1").fetchall():
            await partitions.make(self._connection, self._lease, int(str(place)))
        counts: dict[str, int] = {}
        for table in tables(store):
            copied = hashes = 0
            for batch in table.read(source):
                await self._connection.execute(_insert(table), *batch.columns)
                copied += len(batch.columns[0])
                hashes += batch.hashes
                say(table.name, copied)
            await self._compare(table, copied, hashes)
            counts[table.name] = copied
        return Copied(counts, await self._verify_audit(source))

    async def _compare(self, table: Table, copied: int, hashes: int) -> None:
        hash = f"('x' || substr(encode(sha256({table.body}), 'hex'), 1, 14))::bit(56)::bigint"
        total = f"coalesce(sum({hash}), 0)::text" if table.body else "'0'"
        count, there = await self._connection.fetchrow(f"SELECT count(*), {total} FROM {table.name}")
        if (count, int(there)) != (copied, hashes):
            raise StoreRefused(
                f"{table.name} came out different: {copied} rows were read and {count} are there", "run the copy again"
            )

    async def _verify_audit(self, source: Source) -> str:
        """The hash of the newest record: of a chain that is whole, and ends where the source says."""
        seq, prev = 0, GENESIS
        select = "SELECT body FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2"
        while found := await self._connection.fetch(select, seq, BATCH_ROWS):
            seq, prev, broken = verify((records.audit_from(body) for (body,) in found), prev=prev, seq=seq)
            if broken is not None:
                raise StoreRefused(f"the audit record is broken: {broken.why}", AUDIT_ADVICE)
        noted = source.execute("SELECT seq, hash FROM audit_newest WHERE chain = 'main'").fetchall()
        newest = Newest(int(str(noted[0][0])), str(noted[0][1])) if noted else Newest()
        if (broken := cut_short(seq, prev, newest)) is not None:
            raise StoreRefused(f"the audit record is broken: {broken.why}", AUDIT_ADVICE)
        return prev

    async def note_keys(self, labels: Sequence[str]) -> None:
        """These master keys, too, seal something."""
        await self._connection.execute(
            "INSERT INTO master_key (id) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING", list(labels)
        )

    async def switch(self, last_instant: int) -> None:
        """Put the copy in the realm's place, unless a hub used the realm meanwhile. Durable when this returns."""
        place, made = schema_of(self._realm), schema_of(aside(self._realm))
        await self._connection.execute(DURABLE)
        async with self._connection.transaction():
            epoch = 0
            if await self._connection.fetchval("SELECT to_regclass($1) IS NOT NULL", f"{place}.lease"):
                # Locked, so that no node takes it before the end.
                epoch = await self._connection.fetchval(f"SELECT epoch FROM {place}.lease FOR UPDATE") or 0
            await self.check()
            await self._connection.execute(f"DROP SCHEMA IF EXISTS {place} CASCADE")
            await self._connection.execute(
                f"UPDATE {made}.lease SET realm = $1, epoch = greatest(epoch, $2) + 1, holder = '', url = '',"
                " expires_at = '-infinity', last_instant = greatest(last_instant, $3)",
                self._realm,
                epoch,
                last_instant,
            )
            await self._connection.execute(f"ALTER SCHEMA {made} RENAME TO {place}")


AUDIT_ADVICE = (
    "the source has it so, too: `dragoman audit verify` beside its hub says where; restore a backup of before"
)


def _insert(table: Table) -> str:
    names = ", ".join(name for name, _ in table.columns)
    given = ", ".join(f"${place}::{kind}[]" for place, (_, kind) in enumerate(table.columns, 1))
    values = names.replace("words", "words::tsvector") if table.name == "words" else names
    return f"INSERT INTO {table.name} ({names}) SELECT {values} FROM unnest({given}) AS n ({names})"


def last_instant(source: Source) -> int:
    """A time that is not before anything in the source: the realm's time goes on after it."""
    [[found]] = source.execute(
        "SELECT max(ifnull((SELECT max(at) FROM event), 0), ifnull((SELECT max(created_at) FROM task), 0),"
        " ifnull((SELECT max(at) FROM heard), 0),"
        " ifnull((SELECT json_extract(body, '$.at') FROM audit ORDER BY seq DESC LIMIT 1), 0))"
    ).fetchall()
    return int(str(found))
