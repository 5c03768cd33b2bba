"""Connections to PostgreSQL: how they are opened, what their errors mean, and the schema of a realm.

Above: the lease and the store. asyncpg is imported with the first connection: a hub with SQLite does not pay for it.

Every connection goes to the server that takes writes, also where the URL names several hosts: after a failover, that is
the promoted one. A commit must not be reported before the configured replicas have it, so `synchronous_commit` is never
below `on`, whatever the server's default. No statement has a timeout of asyncpg: that would cancel it on the server,
and a commit that waits for its replica would then stay visible without being replicated. A connection that takes too
long is closed instead.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.core.ports import StoreFailed

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")

REALM = re.compile(r"[a-z][a-z0-9_]{0,39}")
CONNECT_SECONDS = 10.0
NO_SETTINGS: Mapping[str, str] = {}
UNDEFINED_TABLE = "42P01"

SETTINGS = {"application_name": "dragoman", "jit": "off", "client_min_messages": "warning", "timezone": "UTC"}
DURABLE = (
    "SELECT set_config('synchronous_commit',"
    " CASE current_setting('synchronous_commit') WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false)"
)


def schema_of(realm: str) -> str:
    """The schema that has the tables of a realm."""
    if REALM.fullmatch(realm) is None:
        raise ValueError(f"{realm!r} cannot name a realm: use up to 40 small letters, digits and underscores")
    return f"dragoman_{realm}"


async def connect(
    url: str, realm: str, *, timeout: float = CONNECT_SECONDS, settings: Mapping[str, str] = NO_SETTINGS
) -> asyncpg.Connection:
    """A connection to the server that takes writes, with the tables of the realm in sight. Raises `StoreFailed`."""
    import asyncpg

    given = {**SETTINGS, "search_path": schema_of(realm), **settings}
    try:
        connection = await asyncpg.connect(
            url, timeout=timeout, server_settings=given, target_session_attrs="primary", statement_cache_size=200
        )
        try:
            await connection.execute(DURABLE)
        except BaseException:
            connection.terminate()
            raise
    except errors() as error:
        raise unreachable(error) from error
    return connection


class Warnings:
    """Whether the server warned since `came` was set to False. It does where it gave up waiting for a replica: then the
    commit is visible, but not replicated, and a failover may lose it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.came = False
        connection.add_log_listener(self._note)

    def _note(self, _: object, message: asyncpg.PostgresLogMessage) -> None:
        self.came |= message.severity_en == "WARNING"


NOT_REPLICATED = "the server did not wait for its replica"


def errors() -> tuple[type[BaseException], ...]:
    """What a statement on a connection raises when it fails, or when the connection is lost."""
    import asyncpg

    return (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)


def unreachable(error: BaseException) -> StoreFailed:
    if getattr(error, "sqlstate", None) == UNDEFINED_TABLE:
        return StoreFailed(f"the realm has no tables ({error}): run `dragoman cluster init`")
    return StoreFailed(f"PostgreSQL cannot be used: {sentence(error)}")


def sentence(error: BaseException) -> str:
    return str(error) or type(error).__name__


async def within(seconds: float, connection: asyncpg.Connection, answer: Awaitable[T]) -> T:
    """The answer, or `TimeoutError` with the connection closed. Nothing is cancelled on the server."""
    task: asyncio.Future[T] = asyncio.ensure_future(answer)
    try:
        done, _ = await asyncio.wait([task], timeout=seconds)
    except asyncio.CancelledError:
        connection.terminate()
        task.add_done_callback(_ignore)
        raise
    if not done:
        connection.terminate()
        task.add_done_callback(_ignore)
        raise TimeoutError(f"no answer within {seconds:g} s")
    return task.result()


def _ignore(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
