"""Records that all nodes of a realm share and nobody else may read: keys that sign, the admin's token, environments.

They lie in PostgreSQL, sealed under the master key, which operators give to each node (`app.keys`). So one secret is
distributed, and what is made later (a key that is rotated, the environment of a new child) is at every node at once.

The first node of a realm seals a note under its key. A node that cannot open that note has another key: it refuses to
start, for all that it sealed would be shut to the others. A record has a version, and is only replaced by a node that
has seen the last one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from dragoman.core.ports import StoreFailed, Vault
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.sqlite.schema import StoreRefused

TABLES = """
    CREATE TABLE IF NOT EXISTS sealed_record (
        name text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, body bytea NOT NULL,
        written_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
"""
"""Part of what `lease.init` makes: a node reads it before any node leads."""

NOTE = "master key"
GET = "SELECT version, body FROM sealed_record WHERE name = $1"
VERSION = "SELECT version FROM sealed_record WHERE name = $1"
ADD = "INSERT INTO sealed_record (name, version, body) VALUES ($1, 1, $2) ON CONFLICT DO NOTHING RETURNING 1"
REPLACE = "UPDATE sealed_record SET version = version + 1, body = $3 WHERE name = $1 AND version = $2 RETURNING 1"
DROP = "DELETE FROM sealed_record WHERE name = $1"
CLEAR_OUT = """
    DELETE FROM sealed_record WHERE starts_with(name, $1) AND name <> ALL($2)
        AND written_at < clock_timestamp() - make_interval(secs => $3)
        AND NOT EXISTS (SELECT 1 FROM agent WHERE strpos(agent.body, substr(sealed_record.name, length($1) + 1)) > 0)
"""
"""What an agent's row names stays, whatever the caller knows of agents."""


class Record(NamedTuple):
    version: int
    data: bytes


class SealedRecords:
    """Every method raises `StoreFailed` where PostgreSQL does not answer, or a record is not of this key."""

    def __init__(self, pool: Pool, realm: str, vault: Vault) -> None:
        self._pool = pool
        self._realm = realm
        self._vault = vault

    async def check_key(self, *, has_key: bool) -> None:
        """Seal the note if there is none, which makes a key where the node has none. Raises `StoreRefused` for a node
        without the realm's key."""
        found = await self._pool.row(GET, NOTE)
        if found is None:
            await self._pool.rows(ADD, NOTE, self._vault.lock(self._realm.encode(), self._about(NOTE)))
            found = await self._pool.row(GET, NOTE)
            has_key = True
        id = "" if found is None else bytes(found["body"])[1:9].hex()
        problem = f"the realm {self._realm} is sealed with the master key {id}"
        if not has_key:
            raise StoreRefused(f"{problem}, and this node has none", ADVICE)
        try:
            if found is not None:
                self._vault.unlock(found["body"], self._about(NOTE))
        except StoreFailed as failed:
            raise StoreRefused(f"{problem}, and this node has another one", ADVICE) from failed

    async def get(self, name: str) -> Record | None:
        found = await self._pool.row(GET, name)
        return None if found is None else Record(found["version"], self._vault.unlock(found["body"], self._about(name)))

    async def version(self, name: str) -> int:
        """0 where there is no such record."""
        found = await self._pool.row(VERSION, name)
        return 0 if found is None else found["version"]

    async def put(self, name: str, data: bytes, *, seen: int) -> bool:
        """Write the record whose version was `seen` (0: none yet). False where another node was faster."""
        body = self._vault.lock(data, self._about(name))
        rows = await (self._pool.rows(REPLACE, name, seen, body) if seen else self._pool.rows(ADD, name, body))
        return bool(rows)

    async def agreed(self, name: str, data: bytes) -> Record:
        """The record of this name; `data`, where no node has written one."""
        found = await self.get(name)
        while found is None:
            await self.put(name, data, seen=0)
            found = await self.get(name)
        return found

    async def drop(self, name: str) -> None:
        await self._pool.rows(DROP, name)

    async def clear_out(self, prefix: str, wanted: Collection[str], older: float) -> None:
        """Remove the records of this prefix that are not wanted, that no agent's row names behind the prefix, and that
        were written more than so many seconds ago."""
        await self._pool.rows(CLEAR_OUT, prefix, list(wanted), older)

    def _about(self, name: str) -> dict[str, str]:
        return {"realm": self._realm, "sealed": name}


ADVICE = (
    "give all nodes of a realm the same key: copy keys/master.json of a node that runs into this node's data directory,"
    " or set DRAGOMAN_MASTER_KEY as it is set there"
)
