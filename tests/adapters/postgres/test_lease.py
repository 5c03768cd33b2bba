"""The lease of a realm, on a real PostgreSQL: who may take it, and what its holder may do with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dragoman.core.ids import Instant
from dragoman.core.ports import StoreFailed
from dragoman.stores.postgres import lease
from dragoman.stores.postgres.connection import connect
from dragoman.stores.postgres.lease import Lease, LeaseTable
from tests.support.postgres import Server, need_postgres, private_directory, shared_url

FOREVER = 3600.0
realms = iter(range(1, 1 << 30))


@pytest.fixture
async def realm() -> str:
    name = f"r{next(realms)}"
    await lease.init(shared_url(), name)
    return name


@pytest.fixture
async def tables(realm: str) -> AsyncIterator[tuple[LeaseTable, LeaseTable]]:
    """Two nodes."""
    two = LeaseTable(shared_url(), realm), LeaseTable(shared_url(), realm)
    yield two
    for table in two:
        await table.close()


async def take(table: LeaseTable, seen: int, holder: str = "a", *, ttl: float = FOREVER, broke: bool = False) -> int:
    """The epoch, or 0."""
    taken = await table.take(seen, holder=holder, url=f"https://{holder}:1", ttl=ttl, stream_broke=broke)
    return 0 if taken is None else taken.epoch


async def test_a_new_realm_is_held_by_nobody_and_initialising_it_again_changes_nothing(
    realm: str, tables: tuple[LeaseTable, LeaseTable]
) -> None:
    found = await tables[0].read()
    expected = Lease(
        realm=realm, epoch=0, holder="", url="", backend="", ttl=0.0, expires_at=float("-inf"), now=found.now,
        backend_alive=False, last_unit=0, last_instant=Instant(0),
    )  # fmt: skip
    assert found == expected
    assert await take(tables[0], 0) == 1
    await lease.init(shared_url(), realm)
    again = await tables[0].read()
    assert (again.epoch, again.holder, again.url, again.backend_alive) == (1, "a", "https://a:1", True)
    assert again.expires_at - again.now == pytest.approx(FOREVER, abs=60)


async def test_initialising_a_realm_from_many_nodes_at_once_works() -> None:
    name = f"r{next(realms)}"
    await asyncio.gather(*[lease.init(shared_url(), name) for _ in range(6)])
    table = LeaseTable(shared_url(), name)
    assert (await table.read()).epoch == 0
    await table.close()


async def test_only_one_of_many_nodes_takes_an_epoch(realm: str) -> None:
    nodes = [LeaseTable(shared_url(), realm) for _ in range(6)]
    epochs = await asyncio.gather(*[take(node, 0, f"n{number}") for number, node in enumerate(nodes)])
    assert sorted(epochs) == [0, 0, 0, 0, 0, 1]
    for node in nodes:
        await node.close()


async def test_a_lease_that_is_held_cannot_be_taken(tables: tuple[LeaseTable, LeaseTable]) -> None:
    one, two = tables
    assert await take(one, 0) == 1
    assert await take(two, 1, "b") == 0
    assert await take(two, 1, "b", broke=True) == 0, "the leader's session is alive"
    assert await take(two, 0, "b", broke=True) == 0, "the epoch that was seen is over"


async def test_an_expired_lease_can_be_taken_and_the_old_epoch_is_over(tables: tuple[LeaseTable, LeaseTable]) -> None:
    one, two = tables
    assert await take(one, 0, ttl=0.0) == 1
    assert await take(two, 1, "b") == 2
    assert not await one.renew(1)
    await one.release(1)
    assert await one.take_again(1) is None
    assert (await one.read()).holder == "b"
    assert await two.renew(2)


async def test_a_leader_whose_session_is_gone_is_replaced_by_a_node_whose_stream_broke(
    tables: tuple[LeaseTable, LeaseTable],
) -> None:
    one, two = tables
    assert await take(one, 0) == 1
    await one.close()
    async with asyncio.timeout(60):
        while (await two.read()).backend_alive:  # the server notices the end of a session by itself
            await asyncio.sleep(0)
    assert await take(two, 1, "b") == 0
    assert await take(two, 1, "b", broke=True) == 2


async def test_renewing_moves_the_end_and_names_the_session_that_renews(tables: tuple[LeaseTable, LeaseTable]) -> None:
    one, two = tables
    assert await take(one, 0, ttl=1000.0) == 1
    before = await two.read()
    await one.close()
    assert await one.renew(1)
    after = await two.read()
    assert after.expires_at > before.expires_at
    assert (after.backend != before.backend, after.backend_alive, after.epoch) == (True, True, 1)


async def test_a_released_lease_can_be_taken_at_once(tables: tuple[LeaseTable, LeaseTable]) -> None:
    one, two = tables
    assert await take(one, 0) == 1
    await one.release(1)
    assert await take(two, 1, "b") == 2


async def test_taking_again_gives_the_next_epoch_and_the_last_unit(
    realm: str, tables: tuple[LeaseTable, LeaseTable]
) -> None:
    one, _ = tables
    assert await take(one, 0) == 1
    connection = await connect(shared_url(), realm)
    await connection.execute("UPDATE lease SET last_unit = 7, last_instant = 8")
    await connection.close()
    again = await one.take_again(1)
    assert again is not None
    assert (again.epoch, again.holder, again.last_unit, again.last_instant) == (2, "a", 7, 8)


async def test_nodes_are_listed_with_their_last_sign_of_life(tables: tuple[LeaseTable, LeaseTable]) -> None:
    one, two = tables
    await one.note_node("b", "http://b:1", "b:2")
    await one.note_node("a", "http://a:1", "a:2")
    first = await two.nodes()
    await two.note_node("b", "http://b:3", "b:2")
    second = await two.nodes()
    assert [(row.name, row.http, row.grpc) for row in first] == [("a", "http://a:1", "a:2"), ("b", "http://b:1", "b:2")]
    assert [(row.name, row.http) for row in second] == [("a", "http://a:1"), ("b", "http://b:3")]
    assert second[1].last_seen > first[1].last_seen
    assert second[0] == first[0]


async def test_a_realm_that_was_not_initialised_says_what_to_do() -> None:
    table = LeaseTable(shared_url(), "nowhere")
    with pytest.raises(StoreFailed, match="cluster init"):
        await table.read()
    await table.close()


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", "a" * 41, 'a"; DROP'])
async def test_a_realm_needs_a_plain_name(name: str) -> None:
    with pytest.raises(ValueError, match="realm"):
        await lease.init("postgresql://nowhere", name)


async def test_a_server_that_does_not_answer_fails_in_time_and_the_lease_is_read_after_it_returned() -> None:
    need_postgres()
    server = Server(private_directory("lease"))
    try:
        server.start()
        await lease.init(server.url(), "default")
        table = LeaseTable(server.url(), "default", seconds=0.5)
        assert await take(table, 0) == 1
        server.freeze()
        with pytest.raises(StoreFailed, match="PostgreSQL"):
            await table.renew(1)
        server.thaw()
        assert await table.renew(1)
        server.kill()
        with pytest.raises(StoreFailed, match="PostgreSQL"):
            await table.read()
        await table.close()
    finally:
        server.remove()


async def test_a_node_that_sleeps_while_it_renews_does_not_hold_the_lease() -> None:
    """No statement about the lease leaves a transaction open."""
    need_postgres()
    table = LeaseTable(shared_url(), "default")
    await lease.init(shared_url(), "default")
    await take(table, (await table.read()).epoch)
    await table.renew((await table.read()).epoch)
    connection = await connect(shared_url(), "default")
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND datname = $1"
    assert await connection.fetchval(open_ones, await connection.fetchval("SELECT current_database()")) == 0
    await connection.close()
    await table.close()


async def test_taking_waits_for_the_synchronous_replica_and_renewing_does_not(tmp_path: Path) -> None:
    need_postgres()
    base = private_directory("leases")
    primary = Server(Path(f"{base}-1"), durable=True)
    standby = None
    try:
        primary.start()
        await lease.init(primary.url(), "default")
        standby = primary.add_standby(Path(f"{base}-2"))
        table = LeaseTable(primary.url(), "default", seconds=1.0)
        assert await take(table, 0, ttl=0.0) == 1
        standby.freeze()
        assert await table.renew(1)
        with pytest.raises(StoreFailed, match="no answer"):
            await take(table, 1)
        await table.close()
    finally:
        for server in (primary, standby):
            if server is not None:
                server.remove()
