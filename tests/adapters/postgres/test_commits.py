"""What a commit promises when its epoch is over, its answer is lost, or the server dies under it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.ids import AgentId, TaskId
from dragoman.core.lookups import Claims, EventOf, Lane, TaskById
from dragoman.core.ports import Changes, Fenced, Recovered, Store, StoreFailed, TaskFilter
from dragoman.stores.postgres import lease, partitions, sessions
from dragoman.stores.postgres.lease import LeaseTable
from dragoman.stores.postgres.sessions import OutcomeUnknown, Writer
from dragoman.stores.postgres.store import PostgresStore
from tests.adapters.records import delivery, event, task
from tests.adapters.store_suite.stores import commit, load
from tests.support.leading import LeadingStore, done_with, lead
from tests.support.postgres import Server, need_postgres, private_directory, shared_url

PATIENCE = 60.0


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LeadingStore]:
    made = LeadingStore(tmp_path)
    await made.open()
    yield made
    await made.close()
    done_with(tmp_path)


def epoch_of(store: PostgresStore) -> int:
    assert store.term is not None
    return store.term.epoch


async def ids(store: Store) -> set[str]:
    found, _ = await store.tasks(TaskFilter(), after=None, limit=10_000)
    return {one.id for one in found}


# The epoch.


async def test_a_leader_whose_epoch_is_over_commits_nothing_and_is_fenced_from_then_on(store: LeadingStore) -> None:
    await commit(store, task("before"))
    assert store.term is not None
    other = PostgresStore(shared_url(), realm=store.term.realm)
    table = LeaseTable(shared_url(), store.term.realm)
    await lead(table, holder="another")
    for _ in range(2):
        with pytest.raises(Fenced):
            await commit(store, task("after"))
        with pytest.raises(Fenced):
            await store.note({"a" * 32: "b" * 32})
    assert await ids(other) == {"before"}
    await table.close()
    await other.close()


async def test_a_message_that_leaves_at_most_once_is_not_noted_by_a_leader_whose_epoch_is_over(
    store: LeadingStore,
) -> None:
    assert store.term is not None
    table = LeaseTable(shared_url(), store.term.realm)
    await lead(table, holder="another")
    with pytest.raises(Fenced):
        await store.note({"a" * 32: "b" * 32})
    await table.close()


async def test_a_store_without_a_term_reads_and_commits_nothing(store: LeadingStore) -> None:
    assert store.term is not None
    await commit(store, task("t"), event("t", 1))
    reader = PostgresStore(shared_url(), realm=store.term.realm)
    assert await reader.open() == Recovered()
    assert await reader.task(TaskId("t")) == task("t")
    assert list(await reader.events(TaskId("t"))) == [event("t", 1)]
    with pytest.raises(Fenced):
        await commit(reader, task("u"))
    with pytest.raises(Fenced):
        await reader.note({"a" * 32: "b" * 32})
    await reader.close()


async def test_every_commit_moves_the_end_of_the_lease_and_names_its_unit(store: LeadingStore) -> None:
    assert store.term is not None
    table = LeaseTable(shared_url(), store.term.realm)
    before = await table.read()
    await commit(store, task("t"))
    await commit(store, task("u"))
    after = await table.read()
    assert (after.last_unit, after.epoch) == (before.last_unit + 2, before.epoch)
    assert after.expires_at > before.expires_at
    assert after.last_instant > before.last_instant
    await table.close()


async def test_a_unit_is_one_statement(store: LeadingStore) -> None:
    """A leader that is stopped between two statements would hold the lease while it sleeps."""
    await commit(store, task("t"), event("t", 1), delivery("d", "t"))
    sent: list[str] = []
    connection = await store._writer.connection()
    connection.add_query_logger(lambda record: sent.append(record.query))
    async with store.unit() as unit:
        added = [task("u"), event("u", 1), delivery("e", "u"), event("t", 2)]
        changes = Changes(added=added, changed=[task("t", rank=2)], removed=[delivery("d", "t")])
        await unit.commit(changes)
    await asyncio.sleep(0)
    assert len(sent) == 1, sent
    assert sent[0].startswith("SELECT commit_")


# The answer.


class Losing:
    """Has the writer lose the answer to commits, before or after they reached the server."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *plan: str) -> None:
        self.left = list(plan)
        honest = Writer.write

        async def write(writer: Writer, sql: str, values: Sequence[Any]) -> Any:
            how = self.left.pop(0) if self.left else "honest"
            if how == "before":
                raise OutcomeUnknown("lost")
            given = await honest(writer, sql, values)
            if how == "after":
                raise OutcomeUnknown("lost")
            return given

        monkeypatch.setattr(Writer, "write", write)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_happens_once_and_is_known(
    store: LeadingStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    epoch = epoch_of(store)
    Losing(monkeypatch, when)
    await commit(store, task("t"), event("t", 1))
    assert epoch_of(store) == epoch + 1
    await commit(store, event("t", 2), changed=[task("t", rank=3)])
    assert await load(store, TaskById(TaskId("t")), EventOf(TaskId("t"), 1)) == [[task("t", rank=3)], [event("t", 1)]]


async def test_a_unit_whose_answer_is_lost_twice_before_it_arrived_is_refused_and_leaves_nothing(
    store: LeadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Losing(monkeypatch, "before", "before")
    with pytest.raises(StoreFailed) as failure:
        await commit(store, task("t"))
    assert not isinstance(failure.value, Fenced)
    assert await ids(store) == set()
    await commit(store, task("t"))
    assert await ids(store) == {"t"}


async def test_a_leader_that_lost_an_answer_and_its_lease_is_fenced(
    store: LeadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.term is not None
    table = LeaseTable(shared_url(), store.term.realm)
    Losing(monkeypatch, "after")
    honest = store._was_committed

    async def late(unit: int) -> bool:
        await lead(table, holder="another")
        return await honest(unit)

    monkeypatch.setattr(store, "_was_committed", late)
    with pytest.raises(Fenced):
        await commit(store, task("t"))
    await table.close()


async def test_a_cancelled_commit_is_looked_up_before_the_next_unit(
    store: LeadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub that cancelled it does not know what it changed: it ends its term."""
    honest = Writer.write

    async def cancelled(writer: Writer, sql: str, values: Sequence[Any]) -> Any:
        await honest(writer, sql, values)
        raise asyncio.CancelledError

    monkeypatch.setattr(Writer, "write", cancelled)
    with pytest.raises(asyncio.CancelledError):
        await commit(store, task("t"))
    monkeypatch.undo()
    with pytest.raises(Fenced):
        await commit(store, task("u"))


async def test_a_commit_under_way_ends_when_the_term_does(store: LeadingStore, tmp_path: Path) -> None:
    """The server holds it up: the keeper of the lease does not wait for that."""
    assert store.term is not None
    await commit(store, task("t"))
    other = await sessions.connect(shared_url(), store.term.realm)
    async with other.transaction():
        await other.execute("SELECT 1 FROM lease FOR UPDATE")
        under_way = asyncio.create_task(commit(store, task("u")))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'SELECT commit_%'"
        )
        async with asyncio.timeout(PATIENCE):
            while not await other.fetchval(waiting):
                await asyncio.sleep(0)
            store.fence("the lease is over")
            with pytest.raises(Fenced, match="the lease is over"):
                await under_way
    await other.close()


# The server.


async def test_no_acknowledged_unit_is_lost_and_no_refused_one_is_there_when_the_server_is_killed(
    tmp_path: Path,
) -> None:
    need_postgres()
    server = Server(private_directory("kill"), durable=True)
    acknowledged: set[str] = set()
    refused: set[str] = set()
    try:
        server.start()
        await lease.init(server.url(), "default")
        table = LeaseTable(server.url(), "default", seconds=2.0)
        for _ in range(3):
            term = await lead(table)
            store = PostgresStore(server.url(), term=term, doubt_seconds=PATIENCE)
            await store.open()
            over = asyncio.Event()

            async def write(store: PostgresStore = store, over: asyncio.Event = over) -> None:
                for number in range(10_000):
                    name = f"{epoch_of(store)}-{number}"
                    try:
                        await commit(store, task(name), event(name, 1))
                    except Fenced:  # it may be there, or not
                        return
                    except StoreFailed:
                        refused.add(name)
                    else:
                        acknowledged.add(name)
                        if over.is_set():
                            return

            writing = asyncio.create_task(write())
            before = len(acknowledged)
            async with asyncio.timeout(PATIENCE):
                while len(acknowledged) < before + 20:
                    await asyncio.sleep(0)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            over.set()
            async with asyncio.timeout(2 * PATIENCE):
                await writing
            found = await ids(store)
            assert acknowledged <= found
            assert not refused & found
            await store.close()
        await table.close()
    finally:
        server.remove()


# Names and partitions.


async def test_names_of_clients_may_hold_any_character(store: LeadingStore) -> None:
    id, request = "t\x00\x01\x01", "r\x00 of \x01"
    row = task(id, queue="q\x00", dependencies=(TaskId("a\x00"),), parent=TaskId("p\x00"))
    await commit(store, row, delivery("d\x00", id, "b\x00"), event(id, 1, agent=AgentId("b\x00"), raw=b"\x00"))
    lane = Lane(TaskId(id), AgentId("b\x00"))
    store._drop_cache()
    found = await load(store, TaskById(TaskId(id)), lane, EventOf(TaskId(id), 1), Claims(AgentId("ada"), request))
    said = event(id, 1, agent=AgentId("b\x00"), raw=b"\x00")
    assert found == [[row], [delivery("d\x00", id, "b\x00")], [said], []]
    assert await store.find_tasks("t\x00", 3) == [row]
    assert list(await store.events(TaskId(id))) == [said]


async def test_partitions_of_forgotten_tasks_are_dropped_and_new_ones_are_made_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "SPAN", 4)
    monkeypatch.setattr(partitions, "SPARSE", 1)
    server_url = shared_url()
    await lease.init(server_url, "parts")
    table = LeaseTable(server_url, "parts")
    store = PostgresStore(server_url, realm="parts", term=await lead(table))
    await store.open()
    count = (
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^event_p'"
        " AND relnamespace = current_schema()::regnamespace"
    )
    connection = await sessions.connect(server_url, "parts")
    for number in range(1, 22):
        await commit(store, task(f"t{number}", created_at=number), event(f"t{number}", 1))
    made = await connection.fetchval(count)
    assert made >= 6
    await commit(store, removed=[task(f"t{number}", created_at=number) for number in range(1, 16) if number != 5])
    assert await store.clear() == 2 * 3  # of events and of words: places 0, 2 and 3; t5 keeps place 1
    assert await connection.fetchval(count) == made - 3
    assert await connection.fetchval("SELECT count(*) FROM event_p1") == 1
    assert [e.task for e in await store.events_since(0, 100)] == ["t5", *(f"t{n}" for n in range(16, 22))]  # type: ignore[arg-type]
    await store.close()
    again = PostgresStore(server_url, realm="parts", term=await lead(table))
    await again.open()
    await commit(again, task("new"), event("new", 1))
    assert list(await again.events(TaskId("new"))) == [event("new", 1)]
    await again.close()
    await connection.close()
    await table.close()
