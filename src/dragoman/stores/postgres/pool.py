"""A few connections to PostgreSQL that calls of one node share: for files, sealed keys and whatever else is no unit.

Each call runs single statements that commit by themselves. So a node that stops in the middle, or loses its network,
never holds a lock that another node waits for. A connection on which something went wrong is closed, and so are the
idle ones: after a failover they may lead to a server that takes no writes any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres.connection import NOT_REPLICATED, Warnings, connect, errors, unreachable, within

if TYPE_CHECKING:
    import asyncpg

MOST = 4
SECONDS = 60.0
"""How long a statement may take: one that writes megabytes, or waits for a replica. Then the connection is closed; the
statement is not cancelled on the server."""


class Pool:
    """At most `most` connections. Every method raises `StoreFailed` where PostgreSQL does not do what it was asked."""

    def __init__(self, url: str, realm: str, *, most: int = MOST, seconds: float = SECONDS) -> None:
        self._url = url
        self._realm = realm
        self._seconds = seconds
        self._turns = asyncio.Semaphore(most)
        self._idle: list[tuple[asyncpg.Connection, Warnings]] = []
        self._closed = False

    async def rows(self, sql: str, *values: object) -> Sequence[asyncpg.Record]:
        """What one statement returns. It is committed, durably where it changed something."""
        async with self._turns:
            connection, warnings = await self._open()
            warnings.came = False
            try:
                answer: Sequence[asyncpg.Record] = await within(
                    self._seconds, connection, connection.fetch(sql, *values)
                )
            except errors() as error:
                connection.terminate()
                self._drop_idle()
                raise unreachable(error) from error
            if self._closed:
                connection.terminate()
            else:
                self._idle.append((connection, warnings))
            if warnings.came:  # what was written is visible, and a failover may lose it
                raise StoreFailed(f"PostgreSQL cannot be used: {NOT_REPLICATED}")
            return answer

    async def row(self, sql: str, *values: object) -> asyncpg.Record | None:
        rows = await self.rows(sql, *values)
        return rows[0] if rows else None

    async def close(self) -> None:
        self._closed = True
        self._drop_idle()

    async def _open(self) -> tuple[asyncpg.Connection, Warnings]:
        while self._idle:
            connection, warnings = self._idle.pop()
            if not connection.is_closed():
                return connection, warnings
        connection = await connect(self._url, self._realm)
        return connection, Warnings(connection)

    def _drop_idle(self) -> None:
        while self._idle:
            connection, _ = self._idle.pop()
            connection.terminate()
