"""Which realms a PostgreSQL has, and which of their nodes take work: what a load balancer before one realm would know.

The front looks every second: at the rows of the nodes, and at each node's `/readyz`. While PostgreSQL does not answer
it goes on with what it knew; while no node is ready it tries those that there are, which say themselves why they are
not.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
import structlog

from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres.connection import connect, errors, unreachable, within

if TYPE_CHECKING:
    import asyncpg

log = structlog.get_logger("dragoman.realms")

LOOK_EVERY = 1.0
SECONDS = 2.0
"""How long PostgreSQL, or a node, may take to answer."""
LOST_AFTER = 10.0
"""A node that did not say for so long that it runs is left out. (Nodes say it every two seconds.)"""

SCHEMAS = r"SELECT nspname FROM pg_namespace WHERE nspname LIKE 'dragoman\_%' ORDER BY nspname"
NODES = """
    SELECT name, http, grpc FROM {schema}.node
    WHERE last_seen > clock_timestamp() - make_interval(secs => $1) ORDER BY name
"""
UNREADABLE = ("42501", "42P01", "3F000")
"""A schema that this role may not read, or that is no realm's any more."""


class Place(msgspec.Struct, frozen=True):
    """A node: its name, and how it is reached."""

    name: str
    http: str
    grpc: str

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.http)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def is_secure(self) -> bool:
        return self.http.startswith("https://")


Opener = Callable[[Place], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def opener(tls: ssl.SSLContext) -> Opener:
    """Connects to nodes. Raises `OSError`."""

    async def open_(place: Place) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = place.address
        secured = {"ssl": tls, "ssl_handshake_timeout": SECONDS} if place.is_secure else {}
        try:
            async with asyncio.timeout(SECONDS):
                return await asyncio.open_connection(host, port, **secured)  # type: ignore[arg-type]
        except TimeoutError as error:
            raise OSError(f"{host}:{port} did not answer") from error

    return open_


class Places:
    """`run` until cancelled; the rest answers from memory."""

    def __init__(self, url: str, open_: Opener) -> None:
        self._url = url
        self._open = open_
        self._connection: asyncpg.Connection | None = None
        self._nodes: Mapping[str, Sequence[Place]] = {}
        self._ready: frozenset[tuple[str, str]] = frozenset()
        self._turn = 0

    @property
    def realms(self) -> frozenset[str]:
        return frozenset(self._nodes)

    def of(self, realm: str) -> list[Place]:
        """The nodes to try, the best first. Another one begins each time."""
        nodes = list(self._nodes.get(realm, ()))
        ready = [node for node in nodes if (realm, node.name) in self._ready]
        self._turn += 1
        return _turned(ready, self._turn) + _turned([node for node in nodes if node not in ready], self._turn)

    def is_ready(self, realm: str) -> bool:
        return any(of == realm for of, _ in self._ready)

    async def run(self) -> None:
        reported = ""
        try:
            while True:
                try:
                    await self.look()
                    reported = ""
                except StoreFailed as error:
                    if str(error) != reported:
                        reported = str(error)
                        log.warning("the realms cannot be looked up; the last known ones stay", why=reported)
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._drop()

    async def look(self) -> None:
        """Raises `StoreFailed`; nodes are asked all the same."""
        try:
            self._nodes = await self._read()
        finally:
            asked = [(realm, node) for realm, nodes in self._nodes.items() for node in nodes]
            answers = await asyncio.gather(*(self._is_ready(node) for _, node in asked))
            self._ready = frozenset(
                (realm, node.name) for (realm, node), ready in zip(asked, answers, strict=True) if ready
            )

    async def _read(self) -> dict[str, list[Place]]:
        import asyncpg

        found: dict[str, list[Place]] = {}
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self._url, "default", timeout=SECONDS)
            for (schema,) in await self._fetch(SCHEMAS):
                try:
                    rows = await self._fetch(NODES.format(schema=schema), LOST_AFTER)
                except asyncpg.PostgresError as error:
                    if error.sqlstate not in UNREADABLE:
                        raise
                    continue
                found[schema.removeprefix("dragoman_")] = [Place(**dict(row)) for row in rows]
        except errors() as error:
            self._drop()
            raise unreachable(error) from error
        return found

    async def _fetch(self, sql: str, *values: object) -> list[asyncpg.Record]:
        assert self._connection is not None
        return list(await within(SECONDS, self._connection, self._connection.fetch(sql, *values)))

    async def _is_ready(self, node: Place) -> bool:
        try:
            async with asyncio.timeout(SECONDS):
                reader, writer = await self._open(node)
                try:
                    host = f"{node.address[0]}:{node.address[1]}"
                    writer.write(f"GET /readyz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
                    return (await reader.readline()).split(b" ")[1:2] == [b"200"]
                finally:
                    writer.close()
        except (OSError, ValueError):
            return False

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None


def _turned(nodes: list[Place], by: int) -> list[Place]:
    at = by % len(nodes) if nodes else 0
    return nodes[at:] + nodes[:at]
