"""Files of a hub whose store is PostgreSQL: what is known of them is rows, the bytes are blocks of rows or S3 objects.

Every node keeps and reads files by itself: the leader decides what they belong to, not where they lie. A file is
encrypted before it leaves the node, its name and its owner, too; only its size, its times and a hash of its owner can
be read in the database.

    file           one row for each: sealed description, size, when it was last wanted and claimed, whether it is whole
    file_block     its sealed bytes, a MiB a row, where no S3 bucket keeps them (`stores.s3_files`)
    file_use       bytes of each owner, and of all (`file_total`): so that no quota is found by counting

*Keep*: a row that is not whole, the bytes, then one call that checks the quotas, counts, and makes the row whole.
*Drop*: one call that makes it not whole and gives its room back, then the bytes, then the row. A node that dies in
between leaves a row that is not whole; nobody sees it, and it is found by its age like any file that no task wants.

Each step is one statement that commits by itself (`pool`), and the rows are locked in one order: file, owner, all.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from dragoman.core.ids import Instant
from dragoman.core.ports import StoreFailed, Vault
from dragoman.messages.faults import Kind, refuse
from dragoman.messages.files import FileRef, KeptFile
from dragoman.stores.files import MIB, PAGE, Room, described
from dragoman.stores.postgres.pool import Pool

BLOCK = MIB
AT_ONCE = 16
"""Blocks that one statement writes."""

TABLES = """
    CREATE TABLE file (
        id text COLLATE "C" PRIMARY KEY, owner bytea NOT NULL, bytes bigint NOT NULL, whole boolean NOT NULL,
        wanted_at bigint NOT NULL, claimed_at bigint, head bytea NOT NULL
    );
    CREATE INDEX file_wanted ON file (wanted_at, id);

    CREATE TABLE file_block (file text COLLATE "C", no integer, data bytea NOT NULL, PRIMARY KEY (file, no));
    ALTER TABLE file_block ALTER COLUMN data SET STORAGE EXTERNAL;

    CREATE TABLE file_use (owner bytea PRIMARY KEY, bytes bigint NOT NULL);
    CREATE TABLE file_total (sole boolean PRIMARY KEY, bytes bigint NOT NULL);
    INSERT INTO file_total VALUES (true, 0);

    CREATE FUNCTION finish_file(
        named text, quota bigint, own_quota bigint, OUT done boolean, OUT used bigint, OUT own bigint
    ) LANGUAGE plpgsql AS $$
    DECLARE one file;
    BEGIN
        SELECT * INTO one FROM file WHERE id = named AND NOT whole FOR UPDATE;
        IF NOT FOUND THEN RETURN; END IF;
        INSERT INTO file_use VALUES (one.owner, 0) ON CONFLICT DO NOTHING;
        SELECT bytes INTO own FROM file_use WHERE owner = one.owner FOR UPDATE;
        SELECT bytes INTO used FROM file_total FOR UPDATE;
        done := used + one.bytes <= quota AND (own_quota = 0 OR own + one.bytes <= own_quota);
        IF done THEN
            UPDATE file SET whole = true WHERE id = named;
            UPDATE file_use SET bytes = own + one.bytes WHERE owner = one.owner;
            UPDATE file_total SET bytes = used + one.bytes;
        END IF;
    END $$;

    CREATE FUNCTION hide_file(named text, before bigint) RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE one file;
    BEGIN
        SELECT * INTO one FROM file WHERE id = named AND (before IS NULL OR wanted_at < before) FOR UPDATE;
        IF NOT FOUND THEN RETURN false; END IF;
        IF one.whole THEN
            UPDATE file SET whole = false WHERE id = named;
            UPDATE file_use SET bytes = bytes - one.bytes WHERE owner = one.owner;
            DELETE FROM file_use WHERE owner = one.owner AND bytes = 0;
            UPDATE file_total SET bytes = bytes - one.bytes;
        END IF;
        RETURN true;
    END $$;
"""
"""The schema's part for files."""

USED = "SELECT bytes AS used, coalesce((SELECT bytes FROM file_use WHERE owner = $1), 0) AS own FROM file_total"
BEGIN = "INSERT INTO file (id, owner, bytes, whole, wanted_at, head) VALUES ($1, $2, $3, false, $4, $5)"
FINISH = "SELECT done, used, own FROM finish_file($1, $2, $3)"
HIDE = "SELECT hide_file($1, $2) AS hidden"
FORGET = "DELETE FROM file WHERE id = $1 AND NOT whole"
DESCRIBE = "SELECT head FROM file WHERE id = $1 AND whole"
CLAIM = """
    UPDATE file SET wanted_at = greatest(wanted_at, $2), claimed_at = greatest(claimed_at, $2)
    WHERE id = $1 AND whole RETURNING head
"""
CLAIMED = "SELECT 1 FROM file WHERE id = $1 AND claimed_at >= $2"
LIST = "SELECT id, head FROM file WHERE id > $1 AND whole ORDER BY id LIMIT $2"
OLD = """
    SELECT id, wanted_at FROM file WHERE wanted_at < $1 AND (wanted_at, id) > ($2, $3) ORDER BY wanted_at, id LIMIT $4
"""
PUT_BLOCKS = "INSERT INTO file_block SELECT $1, $2 + no, data FROM unnest($3::bytea[]) WITH ORDINALITY AS of (data, no)"
GET_BLOCKS = "SELECT data FROM file_block WHERE file = $1 ORDER BY no"
REMOVE_BLOCKS = "DELETE FROM file_block WHERE file = $1"

_ours = re.compile(r"[0-9a-f-]{36}").fullmatch
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(KeptFile).decode
T = TypeVar("T")


class Place(Protocol):
    """Where sealed bytes lie. Durable when `put` returns. Raises `StoreFailed`."""

    async def put(self, id: str, data: bytes) -> None: ...

    async def get(self, id: str) -> bytes | None: ...

    async def remove(self, id: str) -> None:
        """Nothing happens where there is nothing."""
        ...

    async def close(self) -> None: ...


class Blocks:
    """Bytes in PostgreSQL itself."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def put(self, id: str, data: bytes) -> None:
        step = AT_ONCE * BLOCK
        for start in range(0, len(data), step):
            blocks = [data[at : at + BLOCK] for at in range(start, min(start + step, len(data)), BLOCK)]
            await self._pool.rows(PUT_BLOCKS, id, start // BLOCK, blocks)

    async def get(self, id: str) -> bytes | None:
        rows = await self._pool.rows(GET_BLOCKS, id)
        return b"".join(row["data"] for row in rows) if rows else None

    async def remove(self, id: str) -> None:
        await self._pool.rows(REMOVE_BLOCKS, id)

    async def close(self) -> None:
        """The pool is not ours."""


class PostgresFiles:
    """`core.ports.Files`, for any number of nodes. `place`: where the bytes lie; by default in PostgreSQL."""

    def __init__(
        self,
        pool: Pool,
        mint: Callable[[], str],
        *,
        now: Callable[[], Instant],
        vault: Vault,
        room: Room,
        place: Place | None = None,
    ) -> None:
        self._pool = pool
        self._mint = mint
        self._now = now
        self._vault = vault
        self._room = room
        self._place: Place = place or Blocks(pool)

    async def close(self) -> None:
        await self._place.close()
        await self._pool.close()

    async def keep(self, data: bytes, *, name: str, mime_type: str, owner: str = "") -> FileRef:
        return await _asked(self._keep(data, name, mime_type, owner))

    async def _keep(self, data: bytes, name: str, mime_type: str, owner: str) -> FileRef:
        self._room.check(len(data), 0, owner, 0)
        known = await self._pool.row(USED, _hash(owner))
        self._room.check(len(data), *_use(known, owner))  # before any byte is sent; what counts is `finish_file`
        ref = described(self._mint(), data, name, mime_type)
        head, sealed = await asyncio.to_thread(self._seal, KeptFile(ref=ref, owner=owner), data)
        await self.put(ref.id, head, sealed, owner=owner, wanted_at=self._now())
        return ref

    async def put(self, id: str, head: bytes, sealed: bytes, *, owner: str, wanted_at: Instant) -> None:
        """Keep what is sealed already. Raises `Refused` where there is no room, and `StoreFailed`."""
        size = len(head) + len(sealed)
        await self._pool.rows(BEGIN, id, _hash(owner), size, wanted_at, head)
        await self._place.put(id, sealed)
        bounded = self._room.of_agent if self._room.is_bounded(owner) else 0
        found = await self._pool.row(FINISH, id, self._room.quota, bounded)
        if found is None or found["done"] is None:
            raise StoreFailed("the file took so long to come that it was removed as one that nobody wants")
        if not found["done"]:
            await self._remove(id)
            self._room.check_quotas(size, *_use(found, owner))

    def _seal(self, kept: KeptFile, data: bytes) -> tuple[bytes, bytes]:
        return self._vault.lock(_encode(kept), about(kept.ref.id, "head")), self._vault.lock(
            data, about(kept.ref.id, "data")
        )

    async def fetch(self, id: str) -> bytes | None:
        return await _asked(self._fetch(id)) if _ours(id) else None

    async def _fetch(self, id: str) -> bytes | None:
        sealed = await self._place.get(id)
        return None if sealed is None else await asyncio.to_thread(self._vault.unlock, sealed, about(id, "data"))

    async def describe(self, id: str, *, claim: bool = True) -> KeptFile | None:
        return await _asked(self._describe(id, claim)) if _ours(id) else None

    async def _describe(self, id: str, claim: bool) -> KeptFile | None:
        row = await (self._pool.row(CLAIM, id, self._now()) if claim else self._pool.row(DESCRIBE, id))
        return None if row is None else self._opened(id, row["head"])

    def _opened(self, id: str, head: bytes) -> KeptFile:
        return _decode(self._vault.unlock(head, about(id, "head")))

    async def listing(self, *, after: str, limit: int) -> Sequence[KeptFile]:
        rows = await _asked(self._pool.rows(LIST, _plain(after), limit))
        return await _asked(asyncio.to_thread(lambda: [self._opened(row["id"], row["head"]) for row in rows]))

    async def is_claimed(self, id: str, since: Instant) -> bool:
        return bool(_ours(id) and await _asked(self._pool.rows(CLAIMED, id, since)))

    async def drop(self, id: str) -> None:
        if _ours(id):
            await _asked(self._drop(id, None))

    async def unwanted(self, before: Instant) -> AsyncGenerator[Sequence[str]]:
        at, id = -1, ""
        while rows := await self._pool.rows(OLD, before, at, id, PAGE):
            at, id = rows[-1]["wanted_at"], rows[-1]["id"]
            yield [row["id"] for row in rows]

    async def drop_unwanted(self, id: str, before: Instant) -> bool:
        return bool(_ours(id)) and await self._drop(id, before)

    async def _drop(self, id: str, before: Instant | None) -> bool:
        row = await self._pool.row(HIDE, id, before)
        if row is None or not row["hidden"]:
            return False
        await self._remove(id)
        return True

    async def _remove(self, id: str) -> None:
        """The bytes of a file that is not whole, then its row: in this order, or no row would lead to them."""
        await self._place.remove(id)
        await self._pool.rows(FORGET, id)


def about(id: str, part: str) -> dict[str, str]:
    """What a sealed record of a file is bound to; the same as beside a SQLite store, so that records can be copied."""
    return {"file": id, "part": part}


async def _asked(work: Awaitable[T]) -> T:
    """Raises `Refused`, retryable, where the store or the key fails."""
    try:
        return await work
    except StoreFailed as failed:
        raise refuse(Kind.OVERLOADED, str(failed), next="try again later", retryable=True) from failed


def _hash(owner: str) -> bytes:
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).digest()[:16]


def _use(row: Mapping[str, int] | None, owner: str) -> tuple[int, str, int]:
    return (0, owner, 0) if row is None else (row["used"], owner, row["own"])


def _plain(text: str) -> str:
    """PostgreSQL takes no NUL; no id has one."""
    return text.replace("\0", "")
