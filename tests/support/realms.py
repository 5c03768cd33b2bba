"""Realms of the shared PostgreSQL server, each of its own test: made with the whole schema, and dropped afterwards."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from dragoman.stores.postgres import schema
from dragoman.stores.postgres.connection import connect, schema_of
from dragoman.stores.postgres.lease import LeaseTable, init
from tests.support.leading import lead
from tests.support.postgres import shared_url

_numbers = itertools.count(1)


@asynccontextmanager
async def realm() -> AsyncIterator[str]:
    """The name of an empty realm of `shared_url()`, which nobody leads. Skips the test where there is no PostgreSQL."""
    url, name = shared_url(), f"test_{next(_numbers)}"
    await init(url, name)
    table = LeaseTable(url, name)
    term = await lead(table)
    connection = await connect(url, name)
    await schema.migrate(connection, term)
    connection.terminate()
    await table.release(term.epoch)
    await table.close()
    try:
        yield name
    finally:
        dropping = await asyncpg.connect(url)
        await dropping.execute(f"DROP SCHEMA {schema_of(name)} CASCADE")
        await dropping.close()
