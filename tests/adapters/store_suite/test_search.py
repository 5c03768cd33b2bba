"""Tasks as people look for them: any combination of filters, and words; every store finds the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dragoman.core.ids import AgentId, Instant
from dragoman.core.lookups import Row
from dragoman.core.model.agents import Agent
from dragoman.core.model.tasks import EventKind, Origin, Status, Task
from dragoman.core.ports import Store, TaskSearch
from dragoman.messages.faults import Fault, Kind
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite import search, text_index
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters import records
from tests.adapters.records import agent, event, origin, task
from tests.adapters.store_suite.stores import PATIENCE, bounded, commit, every_store, opened, property_test
from tests.support.heads import changed

PROTOCOLS = ["chiffon", "forge", "a2acp"]


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few tasks are many."""
    monkeypatch.setattr(text_index, "STEP", 3)
    monkeypatch.setattr(text_index, "EVENTS", 2)
    monkeypatch.setattr(text_index, "SWEPT", 2)
    monkeypatch.setattr(text_index, "CATCH_UP_SECONDS", 5.0)
    monkeypatch.setattr(search, "CHUNK", 2)
    monkeypatch.setattr(search, "READ_AHEAD", 5)


def asked(id: str, protocol: str, principal: str = "ada") -> Origin:
    return replace(origin(f"request of {id}", principal), protocol=protocol)


async def pages(store: Store, where: TaskSearch, size: int = 100) -> list[Task]:
    seen: list[Task] = []
    cursor: str | None = None
    for _ in range(1000):
        found = await store.search(where, after=cursor, limit=size)
        assert len(found.tasks) <= size
        seen += found.tasks
        if cursor is None and found.total is not None and found.next is None:
            assert found.total == len(seen)
        cursor = found.next
        if cursor is None:
            return seen
    raise AssertionError("the list has no end")


async def all_searched(store: Store) -> None:
    """Older texts are taken in bit by bit."""
    async with asyncio.timeout(PATIENCE):
        while (await store.search(TaskSearch(text="anything"), after=None, limit=1)).searched_since is not None:
            await asyncio.sleep(0)


async def ids(store: Store, **where: Any) -> list[str]:
    return [found.id for found in await pages(store, TaskSearch(**where))]


searches = st.builds(
    TaskSearch,
    statuses=st.lists(st.sampled_from(Status), max_size=3, unique=True).map(tuple),
    type=st.none() | st.sampled_from(["code", "text"]),
    agent=st.none() | st.sampled_from(records.AGENTS),
    principal=st.none() | st.sampled_from(records.AGENTS),
    parent=st.none() | st.sampled_from(records.TASKS),
    protocol=st.none() | st.sampled_from(PROTOCOLS),
    since=st.none() | records.instants,
    before=st.none() | records.instants,
)


@every_store
@property_test
@given(data=st.data(), wanted=st.lists(searches, min_size=1, max_size=8), size=st.integers(1, 4))
def test_tasks_are_found_by_any_combination_of_filters(
    kind: str, data: st.DataObject, wanted: list[TaskSearch], size: int
) -> None:
    world: list[Row] = []
    spoken: dict[AgentId | None, str] = {}
    for row in data.draw(records.worlds()):
        if isinstance(row, Agent):
            row = replace(row, protocol=data.draw(st.sampled_from(PROTOCOLS)))
            spoken[row.id] = row.protocol
        elif isinstance(row, Task):
            row = replace(row, origin=replace(row.origin, protocol=data.draw(st.sampled_from(PROTOCOLS))))
        world.append(row)
    accepted = enumerate(row for row in world if isinstance(row, Task))
    newest = [t for _, t in sorted(accepted, key=lambda one: (one[1].created_at, one[0]), reverse=True)]

    async def scenario() -> None:
        async with opened(kind) as store:
            await commit(store, *world)
            for where in wanted:
                expected = [
                    t
                    for t in newest
                    if (not where.statuses or t.status in where.statuses)
                    and where.type in (None, t.type)
                    and where.agent in (None, t.owner)
                    and where.principal in (None, t.origin.principal)
                    and where.parent in (None, t.lineage.parent)
                    and where.protocol in (None, t.origin.protocol, spoken.get(t.owner))
                    and (where.since is None or t.created_at >= where.since)
                    and (where.before is None or t.created_at < where.before)
                ]
                assert await pages(store, where, size) == expected
                found = await store.search(where, after=None, limit=size)
                assert (found.total, found.searched_since) == (len(expected), None)

    bounded(scenario())


async def test_a_protocol_with_more_agents_than_can_be_merged_is_found(store: Store) -> None:
    many = [f"agent-{n}" for n in range(search.MOST_MERGED + 5)]
    await commit(store, *(agent(id, protocol="forge") for id in many), agent("bob"))
    await commit(
        store,
        *(task(id, owner=AgentId(id), created_at=n) for n, id in enumerate(many)),
        task("theirs", origin=asked("theirs", "forge"), owner=AgentId("bob"), created_at=1_000),
        task("not theirs", owner=AgentId("bob"), created_at=1_000),
    )
    assert await ids(store, protocol="forge") == ["theirs", *reversed(many)]


async def test_tasks_are_found_by_the_beginnings_of_their_words(store: Store) -> None:
    late = Fault(kind=Kind.TIMEOUT, message="the Gateway did not answer")
    await commit(
        store,
        task("01890a5d-ac96-774b-bcce-b302099a8057", type="run_playbook", created_at=1),
        task("b", name="Invoice backup", description="for März, région/3", created_at=2),
        task("c", name="invoices", created_at=3, status=Status.FAILED, fault=late),
    )
    assert await ids(store, text="invo") == ["c", "b"]
    assert await ids(store, text="INVOICE back") == ["b"]
    assert await ids(store, text="back invoice, ") == ["b"]
    assert await ids(store, text="voice") == []
    assert await ids(store, text="playbook") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert await ids(store, text="run_play") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert await ids(store, text="01890a5d") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert await ids(store, text="01890a5d-ac96-774b-bcce-b302099a8057") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert await ids(store, text="…9a8057") == ["01890a5d-ac96-774b-bcce-b302099a8057"]
    assert await ids(store, text="märz 3") == ["b"]
    assert await ids(store, text="gateway") == ["c"]
    assert await ids(store, text='invoice" OR "run') == []
    assert await ids(store, text="invo", status=Status.FAILED) == ["c"]
    assert await ids(store, text="invo", since=Instant(3)) == ["c"]
    assert await ids(store, text="invo", before=Instant(3)) == ["b"]


async def test_a_list_under_a_text_goes_on_where_its_page_ended(store: Store) -> None:
    await commit(store, *(task(f"t{n:02}", name="even" if n % 2 == 0 else "odd", created_at=n) for n in range(20)))
    await all_searched(store)
    for size in (1, 3, 10):
        found = await pages(store, TaskSearch(text="even"), size)
        assert [t.id for t in found] == [f"t{n:02}" for n in range(18, -1, -2)]
    assert (await store.search(TaskSearch(text="even"), after=None, limit=3)).total == 10
    with pytest.raises(ValueError, match="cursor"):
        await store.search(TaskSearch(text="even"), after="nonsense", limit=3)


async def test_what_was_committed_is_found_by_the_next_search(store: Store) -> None:
    """New tasks, the error of one that fails later, and no forgotten ones."""
    await commit(store, *(task(f"old-{n}", name="apple", created_at=n) for n in range(8)))
    everyone = [f"old-{n}" for n in reversed(range(8))]
    await all_searched(store)
    assert await ids(store, text="apple") == everyone
    await commit(store, task("new", name="apple pie", created_at=20))
    assert await ids(store, text="apple") == ["new", *everyone]
    new = task("new", name="apple pie", created_at=20, status=Status.FAILED)
    new = changed(new, fault=Fault(kind=Kind.TIMEOUT, message="burnt"))
    await commit(store, event("new", 1, at=30, kind=EventKind.FAILED), changed=[new])
    assert await ids(store, text="burnt apple") == ["new"]
    again = changed(new, fault=None, status=Status.QUEUED)
    await commit(store, changed=[again])
    assert await ids(store, text="burnt") == []
    await commit(store, removed=[again])
    assert await ids(store, text="apple") == everyone
    assert (await store.search(TaskSearch(text="apple"), after=None, limit=3)).searched_since is None


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_of_a_personal_task_only_id_and_type_are_found(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "hub.db", vault=_Drawer())
    await store.open()
    await commit(store, task("t-zaphod", type="surgery", name="Zaphod", description="Heart", personal=True))
    assert await ids(store, text="surgery") == ["t-zaphod"]
    assert await ids(store, text="t-zaphod") == ["t-zaphod"]
    assert await ids(store, text="heart") == []
    [found] = (await store.search(TaskSearch(text="surgery"), after=None, limit=3)).tasks
    assert found.name == "Zaphod"
    await store.close()
    assert not (tmp_path / "hub.search").exists()


class _Drawer:
    def lock(self, data: bytes, about: object) -> bytes:
        return data[::-1]

    def unlock(self, record: bytes, about: object) -> bytes:
        return record[::-1]


async def test_a_search_says_since_when_tasks_were_searched_while_older_ones_are_not_in_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "hub.db")
    await store.open()
    monkeypatch.setattr(text_index, "take_older", lambda _: False)
    await commit(store, *(task(f"t{n}", name="apple", created_at=n) for n in range(10)))
    first = await store.search(TaskSearch(text="apple"), after=None, limit=100)
    assert [t.id for t in first.tasks] == ["t9", "t8", "t7"]
    assert (first.next, first.total, first.searched_since) == (None, None, 7)
    await store.close()


async def test_the_index_of_words_is_deleted_when_nobody_searches_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub.search").write_bytes(b"left by a hub that was killed")
    store = SqliteStore(tmp_path / "hub.db")
    await store.open()
    assert not (tmp_path / "hub.search").exists()
    await commit(store, task("t", name="apple"))
    monkeypatch.setattr(text_index, "KEPT_SECONDS", 0.05)
    assert await ids(store, text="apple") == ["t"]
    async with asyncio.timeout(PATIENCE):
        while (tmp_path / "hub.search").exists():
            await asyncio.sleep(0.01)
    await commit(store, task("u", name="apple"))
    assert await ids(store, text="apple") == ["u", "t"]
    await store.close()
