"""Realms of the shared PostgreSQL server, each of its own test: made with the whole schema, and dropped afterwards."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from dragoman.stores.postgres import files
from dragoman.stores.postgres.connection import schema_of
from dragoman.stores.postgres.lease import init
from dragoman.stores.postgres.pool import Pool
from tests.support.postgres import shared_url

_numbers = itertools.count(1)


@asynccontextmanager
async def realm() -> AsyncIterator[str]:
    """The name of an empty realm of `shared_url()`. Skips the test where there is no PostgreSQL."""
    url, name = shared_url(), f"test_{next(_numbers)}"
    await init(url, name)
    pool = Pool(url, name)
    await pool.script(files.TABLES)
    await pool.close()
    try:
        yield name
    finally:
        connection = await asyncpg.connect(url)
        await connection.execute(f"DROP SCHEMA {schema_of(name)} CASCADE")
        await connection.close()
