"""What is known not to be in the database, and that this is never wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.adapters.records import task

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import Claims, SeenMessageById, TaskById
from dragoman.core.model.deliveries import SeenMessage
from dragoman.core.ports import Changes, StoreFailed
from dragoman.stores.bloom_filter import NameFilter
from dragoman.stores.sqlite import queries, recovery
from dragoman.stores.sqlite.store import SqliteStore


def heard(id: str) -> SeenMessage:
    return SeenMessage(id=id, digest="", at=Instant(1))


def test_what_was_noted_is_never_lacking_however_full_it_is() -> None:
    names = NameFilter(1 << 10, 1 << 12)
    names.complete = True
    noted = [f"n{number}" for number in range(2000)]
    names.note_all(noted)
    assert not any(map(names.lack, noted))


def test_what_it_is_worth_does_not_shrink_with_what_it_holds() -> None:
    names = NameFilter(1 << 10, 1 << 14)
    names.complete = True
    names.note_all(range(10_000))
    assert sum(names.lack((name, "x")) for name in range(1000)) > 900


def test_what_was_not_noted_is_lacking_nearly_always() -> None:
    names = NameFilter(1 << 16)
    names.complete = True
    names.note_all(range(1000))
    assert sum(names.lack((name, "x")) for name in range(1000)) > 990


def test_nothing_is_lacking_until_all_names_are_noted() -> None:
    assert not NameFilter().lack("anything")


async def opened(path: Path) -> SqliteStore:
    store = SqliteStore(path / "hub.db")
    await store.open()
    assert store._naming is not None
    await asyncio.wait([store._naming])
    return store


async def found(store: SqliteStore, *lookups: object) -> list[int]:
    async with store.unit() as unit:
        return [len(rows) for rows in (await unit.load(lookups)).values()]  # type: ignore[arg-type]


async def test_rows_of_an_earlier_run_are_found_in_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "NAMES_PAGE", 2)
    old, messages = task("t1"), [heard(f"m{n}") for n in range(5)]
    store = await opened(tmp_path)
    async with store.unit() as unit:
        await unit.commit(Changes(added=[old, *messages]))
    await store.close()
    store = await opened(tmp_path)
    claim = Claims(old.origin.principal, old.origin.request_id, None)
    assert await found(store, TaskById(old.id), claim, *(SeenMessageById(row.id) for row in messages)) == [1] * 7
    await store.close()


async def test_news_needs_no_look_into_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = await opened(tmp_path)
    looked: list[object] = []
    monkeypatch.setattr(queries, "answer", lambda _, lookup: looked.append(lookup) or [])
    assert await found(
        store, TaskById(TaskId("t1")), Claims(AgentId("boss"), "r1", TaskId("t1")), SeenMessageById("m1")
    ) == [
        0,
        0,
        0,
    ]
    assert looked == []
    await store.close()


async def test_a_commit_of_which_nobody_knows_whether_it_happened_is_looked_for(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    assert store._writer is not None

    async def commits_and_dies(operations: list[tuple[object, ...]]) -> None:
        await commit(operations)
        raise StoreFailed("the writer process ended")

    commit = store._writer.commit
    store._writer.commit = commits_and_dies  # type: ignore[method-assign]
    with pytest.raises(StoreFailed):
        async with store.unit() as unit:
            await unit.commit(Changes(added=[heard("m1")]))
    assert await found(store, SeenMessageById("m1")) == [1]
    await store.close()
