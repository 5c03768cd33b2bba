"""What a commit promises with a synchronous replica: nothing is acknowledged that a failover could lose."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dragoman.app.keys import DataVault
from dragoman.core.ids import Instant
from dragoman.core.ports import Fenced, StoreFailed, TaskFilter
from dragoman.messages.faults import Refused
from dragoman.stores.files import MIB, Room
from dragoman.stores.postgres import lease
from dragoman.stores.postgres.files import Blocks, PostgresFiles
from dragoman.stores.postgres.lease import Lease, LeaseTable
from dragoman.stores.postgres.pool import Pool
from dragoman.stores.postgres.store import PostgresStore
from tests.adapters.records import event, task
from tests.adapters.store_suite.stores import commit
from tests.support.chiffon import new_id
from tests.support.leading import lead
from tests.support.postgres import Server, need_postgres, private_directory

PATIENCE = 60.0
A_WHILE = 0.5


class Pair:
    """A primary, its synchronous standby, and a store that knows both, in a realm of its own."""

    def __init__(self, primary: Server, standby: Server, realm: str, store: PostgresStore) -> None:
        self.primary = primary
        self.standby = standby
        self.realm = realm
        self.store = store

    async def found(self) -> set[str]:
        tasks, _ = await self.store.tasks(TaskFilter(), after=None, limit=100)
        return {row.id for row in tasks}

    async def waits(self, under_way: asyncio.Task[None]) -> bool:
        """Whether it is still under way after a while."""
        done, _ = await asyncio.wait([under_way], timeout=A_WHILE)
        return not done


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Server]]:
    """The primary and its standby, while there are any: a test that spoils them leaves none."""
    found: list[Server] = []
    yield found
    for server in found:
        server.remove()


def start(servers: list[Server]) -> None:
    base = private_directory("pair")
    servers.append(Server(Path(f"{base}-1"), durable=True))
    servers[0].start()
    servers.append(servers[0].add_standby(Path(f"{base}-2")))


@pytest.fixture
async def pair(servers: list[Server]) -> AsyncIterator[Pair]:
    need_postgres()
    if not servers:
        start(servers)
    primary, standby = servers
    realm = f"pair{uuid.uuid4().hex[:8]}"
    await lease.init(primary.url(), realm)
    url = f"postgresql://postgres@127.0.0.1:{primary.port},127.0.0.1:{standby.port}/postgres"
    store: PostgresStore | None = None
    try:
        table = LeaseTable(url, realm)
        store = PostgresStore(url, realm=realm, term=await lead(table), doubt_seconds=PATIENCE)
        await table.close()
        await store.open()
        await commit(store, task("first"))
        yield Pair(primary, standby, realm, store)
    finally:
        standby.thaw()
        if store is not None:
            await store.close()
        if not primary.runs:
            for server in servers:
                server.remove()
            servers.clear()


async def test_nothing_is_acknowledged_while_the_synchronous_replica_does_not_have_it(pair: Pair) -> None:
    pair.standby.freeze()
    under_way = asyncio.create_task(commit(pair.store, task("t")))
    assert await pair.waits(under_way)
    pair.standby.thaw()
    async with asyncio.timeout(PATIENCE):
        await under_way


async def test_a_message_leaves_at_most_once_only_when_the_synchronous_replica_has_its_note(pair: Pair) -> None:
    """Else a failover would forget that it left, and it would leave again when its sender repeats it."""
    pair.standby.freeze()
    under_way = asyncio.create_task(pair.store.note({"a" * 32: "b" * 32}))
    assert await pair.waits(under_way)
    pair.standby.thaw()
    async with asyncio.timeout(PATIENCE):
        await under_way


async def test_a_commit_whose_wait_for_the_replica_was_cancelled_is_not_acknowledged(pair: Pair) -> None:
    """It is visible on the primary, and nowhere else: a failover would lose it."""
    pair.standby.freeze()
    under_way = asyncio.create_task(commit(pair.store, task("t")))
    assert await pair.waits(under_way)
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT commit_%'"
    await asyncio.to_thread(pair.primary.sql, cancel)
    assert await pair.waits(under_way)
    pair.standby.thaw()
    async with asyncio.timeout(PATIENCE):
        await under_way
    assert pair.store.term is not None
    assert pair.store.term.epoch == 2
    assert await pair.found() == {"first", "t"}


async def test_a_unit_that_only_the_old_primary_had_is_written_to_the_promoted_one(pair: Pair) -> None:
    await commit(pair.store, task("second"), event("second", 1))
    pair.standby.freeze()
    under_way = asyncio.create_task(commit(pair.store, task("t")))
    assert await pair.waits(under_way)
    await asyncio.to_thread(pair.primary.kill)
    pair.standby.thaw()
    await asyncio.to_thread(pair.standby.promote)
    async with asyncio.timeout(PATIENCE):
        await under_way
    assert await pair.found() == {"first", "second", "t"}
    await commit(pair.store, task("u"), event("t", 1))
    assert await pair.found() == {"first", "second", "t", "u"}


async def take_beside_a_frozen_standby(pair: Pair) -> tuple[LeaseTable, int, asyncio.Task[Lease | None]]:
    """The lease, its epoch, and the taking of the next one, which waits for the standby."""
    assert pair.store.term is not None
    table = LeaseTable(pair.primary.url(), pair.realm, seconds=PATIENCE)
    await table.release(pair.store.term.epoch)
    seen = await table.read()
    pair.standby.freeze()
    taking = asyncio.create_task(table.take(seen.epoch, holder="b", url="", ttl=60.0, stream_broke=True))
    return table, seen.epoch, taking


async def test_a_new_epoch_is_believed_only_when_the_replica_has_it(pair: Pair) -> None:
    """A leader that read before its epoch was replicated could read what a failover then loses."""
    table, epoch, taking = await take_beside_a_frozen_standby(pair)
    done, _ = await asyncio.wait([taking], timeout=A_WHILE)
    assert not done
    pair.standby.thaw()
    async with asyncio.timeout(PATIENCE):
        taken = await taking
    assert taken is not None
    assert taken.epoch == epoch + 1
    await table.close()


async def give_up_waiting(server: Server, query: str) -> None:
    """As an operator may who sees commits hang: PostgreSQL commits without the replica, and says so by a warning."""
    waiting = f"FROM pg_stat_activity WHERE query LIKE '{query}%' AND wait_event = 'SyncRep'"
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(server.sql, f"SELECT pg_cancel_backend(pid) {waiting}"):
            pass


async def test_an_epoch_whose_wait_for_the_replica_was_cancelled_is_not_believed(pair: Pair) -> None:
    """What a leader read after it could be lost, and with it what the leader answers from that."""
    table, _, taking = await take_beside_a_frozen_standby(pair)
    await give_up_waiting(pair.primary, "%UPDATE lease SET epoch")
    with pytest.raises(StoreFailed, match="replica"):
        await taking
    pair.standby.thaw()
    await table.close()


async def test_a_commit_in_doubt_is_not_believed_from_an_epoch_that_the_replica_does_not_have(pair: Pair) -> None:
    """An operator who cancels every wait: the unit and the epoch after it are visible, and a failover loses both."""
    pair.standby.freeze()
    under_way = asyncio.create_task(commit(pair.store, task("t")))
    await give_up_waiting(pair.primary, "SELECT commit_")
    await give_up_waiting(pair.primary, "%UPDATE lease SET epoch")
    with pytest.raises(Fenced):
        await under_way
    pair.standby.thaw()


async def test_a_file_whose_wait_for_the_replica_was_cancelled_is_not_acknowledged(pair: Pair, tmp_path: Path) -> None:
    class Stalling(Blocks):
        """The replica stands still when it has the bytes, and not yet that they are whole."""

        async def put(self, id: str, data: bytes) -> None:
            await super().put(id, data)
            pair.standby.freeze()

    pool = Pool(pair.primary.url(), pair.realm)
    files = PostgresFiles(
        pool, new_id, now=lambda: Instant(0), vault=DataVault(tmp_path, lambda: Instant(0)),
        room=Room(largest=MIB, quota=MIB), place=Stalling(pool),
    )  # fmt: skip
    keeping = asyncio.create_task(files.keep(b"bytes", name="x", mime_type="text/plain"))
    await give_up_waiting(pair.primary, "%finish_file")
    with pytest.raises(Refused) as refused:
        await keeping
    assert refused.value.fault.retryable
    assert "replica" in str(refused.value.fault)
    pair.standby.thaw()
    await files.close()
