"""A store in PostgreSQL for tests: it leads a realm of its own, named after a directory, on the server that they share.

store = LeadingStore(directory); await store.open()      the same directory has the same rows again
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from dragoman.core.ids import Instant
from dragoman.core.ports import Recovered
from dragoman.stores.postgres import lease
from dragoman.stores.postgres.connection import connect
from dragoman.stores.postgres.lease import Lease, LeaseTable
from dragoman.stores.postgres.store import PostgresStore
from tests.support.postgres import shared_url

TTL = 3600.0
NOBODY = Lease(
    realm="", epoch=0, holder="", url="", backend="", ttl=0.0, expires_at=0.0, now=0.0, backend_alive=False,
    last_unit=0, last_instant=Instant(0),
)  # fmt: skip


_realms: dict[Path, str] = {}
"""The realm of each directory. To make a realm takes longer than most tests, so realms of directories that are gone are
emptied and used again."""
_names = (f"t{number}" for number in count())

EMPTY = """
    DO $$ DECLARE name text; BEGIN
        FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
            AND tablename NOT IN ('lease', 'migration') AND tablename !~ '_p[0-9]+$'
        LOOP EXECUTE format('DELETE FROM %I', name); END LOOP;
        UPDATE lease SET last_unit = 0, last_instant = 0;
    END $$
"""


def done_with(directory: Path) -> None:
    """The rows of this directory are not needed any more."""
    if (realm := _realms.pop(directory, None)) is not None:
        _realms[directory / "gone"] = realm


async def _realm_of(url: str, directory: Path) -> str:
    if directory in _realms:
        return _realms[directory]
    for other, realm in _realms.items():
        if not other.exists():
            del _realms[other]
            _realms[directory] = realm
            connection = await connect(url, realm)
            await connection.execute(EMPTY)
            connection.terminate()
            return realm
    _realms[directory] = realm = next(_names)
    await lease.init(url, realm)
    return realm


async def lead(table: LeaseTable, *, holder: str = "test", ttl: float = TTL) -> Lease:
    """Take the lease, whoever has it."""
    while True:
        seen = await table.read()
        if seen.backend_alive:
            await table.release(seen.epoch)
        taken = await table.take(seen.epoch, holder=holder, url="", ttl=ttl, stream_broke=True)
        if taken is not None:
            return taken


class LeadingStore(PostgresStore):
    def __init__(self, directory: Path, **options: Any) -> None:
        self._directory = directory
        self._options = options
        super().__init__("", term=NOBODY, **options)

    async def open(self) -> Recovered:
        url = shared_url()
        realm = await _realm_of(url, self._directory)
        super().__init__(url, realm=realm, term=NOBODY, **self._options)
        self._term = await lead(self._lease)
        return await super().open()
