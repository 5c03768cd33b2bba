"""The store's sessions with PostgreSQL: the one that writes, and a few that read.

The writer sends one statement at a time. Where a commit's answer is lost, or says less than it should, it raises
`OutcomeUnknown`: the connection ended meanwhile, or the server gave up waiting for its replica, which it tells by a
warning (the commit is visible then, but not replicated). Statements that only read are repeated on a new connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres.connection import NOT_REPLICATED, Warnings, connect, errors, sentence, unreachable

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

SLOW_PLANS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin")
BY_INDEX = {**dict.fromkeys(SLOW_PLANS, "off"), "plan_cache_mode": "force_generic_plan"}
"""Statements of the writer find few rows by their keys; a plan made while a table was small must not stay when it has
grown."""
READ_SECONDS = 15
"""A list that takes longer is given up by the server."""


class OutcomeUnknown(Exception):
    """Whether the statement was committed is not known."""


class Writer:
    def __init__(self, url: str, realm: str) -> None:
        self._url = url
        self._realm = realm
        self._connection: asyncpg.Connection | None = None
        self._warnings: Warnings | None = None

    async def connection(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._url, self._realm, settings=BY_INDEX)
            self._warnings = Warnings(self._connection)
        return self._connection

    async def fetch(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        """Read rows; on a new connection, where this one was lost."""
        for again in (True, False):
            connection = await self.connection()
            try:
                rows: list[asyncpg.Record] = await connection.fetch(sql, *values)
                return rows
            except errors() as error:
                if not (again and connection.is_closed()):
                    raise unreachable(error) from error
        raise AssertionError

    async def write(self, sql: str, values: Sequence[Any]) -> Any:
        """What the function gives that writes. Raises `StoreFailed` if nothing was written, `OutcomeUnknown` if nobody
        knows."""
        import asyncpg

        connection = await self.connection()
        warnings = self._warnings
        assert warnings is not None
        warnings.came = False
        try:
            given = await connection.fetchval(sql, *values)
        except asyncpg.PostgresError as error:
            lost = connection.is_closed() or (error.sqlstate or "08").startswith(("08", "57P"))
            if lost or getattr(error, "severity_en", "ERROR") != "ERROR":
                raise OutcomeUnknown(sentence(error)) from error
            raise StoreFailed(f"PostgreSQL did not write the unit: {sentence(error)}") from error
        except (ValueError, TypeError, OverflowError) as error:  # the arguments cannot be sent: nothing was
            raise StoreFailed(f"the unit cannot be written: {sentence(error)}") from error
        except errors() as error:
            raise OutcomeUnknown(sentence(error)) from error
        if warnings.came:
            raise OutcomeUnknown(NOT_REPLICATED)
        return given

    def drop(self) -> None:
        """Close the connection; what is under way on it ends with an error."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


class Readers:
    """A few connections for what people read. They are opened when they are needed."""

    def __init__(self, url: str, realm: str, most: int) -> None:
        self._url = url
        self._realm = realm
        self._idle: list[asyncpg.Connection] = []
        self._room = asyncio.Semaphore(most)

    async def read(self, read: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Raises `StoreFailed`."""
        async with self._room:
            for again in (True, False):
                connection = await self._connection()
                try:
                    found = await read(connection)
                except errors() as error:
                    lost = connection.is_closed()
                    connection.terminate()
                    if not (again and lost):
                        raise unreachable(error) from error
                except BaseException:
                    connection.terminate()
                    raise
                else:
                    self._idle.append(connection)
                    return found
        raise AssertionError

    async def _connection(self) -> asyncpg.Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return await connect(self._url, self._realm, settings={"statement_timeout": f"{READ_SECONDS}s"})

    def close(self) -> None:
        for connection in self._idle:
            connection.terminate()
        self._idle.clear()
