"""Files in PostgreSQL and in a bucket: several nodes, nodes that die half-way, and what others can read."""

from __future__ import annotations

import asyncio
import itertools
import socket
from contextlib import asynccontextmanager

import asyncpg
import pytest

from dragoman.app.keys import DataVault
from dragoman.core.ids import SECOND, Instant
from dragoman.core.ports import StoreFailed
from dragoman.messages.faults import Kind, Refused
from dragoman.stores.files import MIB, Room
from dragoman.stores.postgres.connection import schema_of
from dragoman.stores.postgres.files import AT_ONCE, Blocks, PostgresFiles
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.s3_files import BucketProblem, S3Objects, check
from tests.support import s3
from tests.support.postgres import shared_url
from tests.support.realms import realm

NOW = Instant(1_800_000_000 * SECOND)
ROOM = Room(largest=64 * MIB, quota=100 * MIB)


class Nodes:
    """Several nodes over one realm, with the same master key."""

    def __init__(self, directory, name):
        self.realm = name
        self.pools = []
        self.now = NOW
        self._directory = directory
        self._mint = itertools.count(1)

    def open(self, *, room=ROOM, place=None, vault=None):
        pool = Pool(shared_url(), self.realm)
        self.pools.append(pool)
        return PostgresFiles(
            pool,
            lambda: f"00000000-0000-7000-8000-{next(self._mint):012x}",
            now=lambda: self.now,
            vault=vault or DataVault(self._directory, lambda: NOW),
            room=room,
            place=place and place(pool),
        )

    async def sql(self, text):
        connection = await asyncpg.connect(shared_url(), server_settings={"search_path": schema_of(self.realm)})
        try:
            return await connection.fetch(text)
        finally:
            await connection.close()

    async def counted(self):
        """What the quotas count, and what is there."""
        [[counted]] = await self.sql("SELECT bytes FROM file_total")
        [[there]] = await self.sql("SELECT coalesce(sum(bytes), 0)::bigint FROM file WHERE whole")
        return counted, there


@pytest.fixture
async def nodes(tmp_path):
    async with realm() as name:
        made = Nodes(tmp_path, name)
        yield made
        for pool in made.pools:
            await pool.close()


async def unwanted(files, before):
    return {id async for page in files.unwanted(before) for id in page}


async def test_a_file_of_many_blocks_comes_back_word_for_word(nodes):
    files = nodes.open()
    data = bytes(range(256)) * (4096 * (AT_ONCE + 1)) + b"end"
    ref = await files.keep(data, name="x", mime_type="")
    assert await nodes.open().fetch(ref.id) == data
    [[blocks]] = await nodes.sql("SELECT count(*) FROM file_block")
    assert blocks == AT_ONCE + 2


async def test_an_empty_file_is_a_file(nodes):
    files = nodes.open()
    ref = await files.keep(b"", name="x", mime_type="")
    assert await files.fetch(ref.id) == b""


async def test_what_one_node_keeps_and_claims_the_others_know(nodes):
    one, other = nodes.open(), nodes.open()
    ref = await one.keep(b"x", name="x", mime_type="", owner="a1")
    assert (await other.describe(ref.id)).owner == "a1"
    assert await one.is_claimed(ref.id, NOW)
    assert await unwanted(one, NOW + 1) == {ref.id}
    nodes.now = Instant(NOW + SECOND)
    await other.describe(ref.id)
    assert (await unwanted(one, NOW + 1), await one.drop_unwanted(ref.id, Instant(NOW + 1))) == (set(), False)
    await other.drop(ref.id)
    assert await one.fetch(ref.id) is None


async def test_nodes_that_keep_files_at_once_stay_within_the_quota(nodes):
    room = Room(largest=10_000, quota=25_000, of_agent=0)
    each = [nodes.open(room=room) for _ in range(3)]
    keeping = [files.keep(b"x" * 8_000, name="x", mime_type="", owner="a1") for files in each * 4]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%finish_file%'"
    held = await asyncpg.connect(shared_url(), server_settings={"search_path": schema_of(nodes.realm)})
    try:
        async with asyncio.timeout(30), held.transaction():
            await held.execute("SELECT 1 FROM file_total FOR UPDATE")
            gathered = asyncio.gather(*keeping, return_exceptions=True)
            while (await nodes.sql(waiting))[0][0] < 4:  # all of them at the same point
                await asyncio.sleep(0)
    finally:
        await held.close()
    done = await gathered
    assert sum(not isinstance(one, BaseException) for one in done) == 3
    assert {one.fault.kind for one in done if isinstance(one, Refused)} == {Kind.RESOURCES}
    counted, there = await nodes.counted()
    assert counted == there
    assert await nodes.sql("SELECT 1 FROM file WHERE NOT whole") == []
    [[left]] = await nodes.sql("SELECT count(DISTINCT file) FROM file_block")
    assert left == 3


class Dies(Blocks):
    """A node that ends in the middle: after the first bytes, or before it removed any."""

    async def put(self, id, data):
        await super().put(id, data)
        raise StoreFailed("this node died")

    async def remove(self, id):
        raise StoreFailed("this node died")


@pytest.mark.parametrize("at", ["keep", "drop"])
async def test_what_a_node_leaves_when_it_dies_is_seen_by_nobody_and_found_by_its_age(nodes, at):
    dying, other = nodes.open(place=Dies), nodes.open()
    if at == "keep":
        with pytest.raises(Refused) as refusal:
            await dying.keep(b"x" * 100, name="x", mime_type="", owner="a1")
        assert (refusal.value.fault.kind, refusal.value.fault.retryable) == (Kind.OVERLOADED, True)
    else:
        ref = await other.keep(b"x" * 100, name="x", mime_type="", owner="a1")
        with pytest.raises(Refused):
            await dying.drop(ref.id)
    assert await nodes.counted() == (0, 0)
    assert await other.listing(after="", limit=10) == []
    [left] = await unwanted(other, NOW + 1)
    assert await other.describe(left) is None
    assert await other.drop_unwanted(left, Instant(NOW + 1))
    for table in ("file", "file_block", "file_use"):
        assert await nodes.sql(f"SELECT * FROM {table} WHERE {'bytes > 0' if table == 'file_use' else 'true'}") == []
    assert await nodes.counted() == (0, 0)


async def test_a_file_that_is_removed_while_it_comes_is_refused(nodes):
    class Slow(Blocks):
        async def put(self, id, data):
            await super().put(id, data)
            assert await nodes.open().drop_unwanted(id, Instant(NOW + 1))

    with pytest.raises(Refused, match="took so long"):
        await nodes.open(place=Slow).keep(b"x", name="x", mime_type="")
    assert await nodes.counted() == (0, 0)


async def test_neither_the_database_nor_the_bucket_can_be_read_without_the_key(nodes, tmp_path, monkeypatch):
    for variable, value in s3.CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    bucket = s3.make_bucket("sealed-files")
    for place in (None, lambda _: S3Objects(bucket, nodes.realm)):
        files = nodes.open(place=place)
        ref = await files.keep(b"whose blood", name="Erika.txt", mime_type="text/plain", owner="the-laboratory")
        assert await files.fetch(ref.id) == b"whose blood"
        other = nodes.open(place=place, vault=DataVault(tmp_path / "other", lambda: NOW))
        for asked in (other.fetch(ref.id), other.describe(ref.id), other.listing(after="", limit=9)):
            with pytest.raises(Refused, match="master key"):
                await asked
    tables = [
        str(row).encode() for table in ("file", "file_block", "file_use") for row in await nodes.sql(f"TABLE {table}")
    ]
    seen = tables + [bytes(value) for row in await nodes.sql("SELECT head FROM file") for value in row]
    stored = s3.objects("sealed-files")
    assert list(stored) == [f"{nodes.realm}/{ref.id}"]
    assert not any(word in text for word in (b"blood", b"Erika", b"laboratory") for text in [*seen, *stored.values()])


async def test_a_file_that_is_kept_is_committed_durably_whatever_the_servers_default(nodes):
    [[default]] = await nodes.sql("SHOW synchronous_commit")
    assert default == "off"  # of the tests' server
    nodes.open()
    assert (await nodes.pools[0].row("SELECT current_setting('synchronous_commit') AS it"))["it"] == "on"


async def test_connections_that_the_server_ended_are_replaced(nodes):
    files = nodes.open()
    ref = await files.keep(b"x", name="x", mime_type="")
    await nodes.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dragoman'")
    answers = [await _tried(files.fetch(ref.id)) for _ in range(2)]
    assert answers[-1] == b"x"


async def _tried(asked):
    try:
        return await asked
    except Refused as refused:
        return refused.fault.kind


@asynccontextmanager
async def closed_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        yield one.getsockname()[1]


async def test_without_postgresql_or_the_bucket_a_file_is_refused_as_retryable(nodes, monkeypatch):
    for variable, value in s3.CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr("dragoman.stores.s3_files.RETRIES", 0)
    async with closed_port() as port:
        bucket = nodes.open(place=lambda _: S3Objects(f"s3://nowhere?endpoint=http://127.0.0.1:{port}", nodes.realm))
        gone = nodes.open(place=lambda pool: Blocks(pool))
        gone._pool = Pool(f"postgresql://postgres@127.0.0.1:{port}/x", nodes.realm)
        for files, what in ((bucket, "bucket of files"), (gone, "PostgreSQL")):
            with pytest.raises(Refused, match=what) as refusal:
                await files.keep(b"x", name="x", mime_type="")
            assert (refusal.value.fault.kind, refusal.value.fault.retryable) == (Kind.OVERLOADED, True)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("s3://", "names no bucket"),
        ("https://bucket", "names no bucket"),
        ("s3://key:secret@bucket", "do not belong"),
        ("s3://bucket?endpont=x", "no option 'endpont'"),
    ],
)
def test_an_address_that_names_no_bucket_says_what_to_write(url, problem):
    with pytest.raises(BucketProblem, match=problem):
        check(url)
