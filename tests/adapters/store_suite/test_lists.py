"""What people read: tasks, events, the audit record, page by page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import Row
from dragoman.core.model.audit import GENESIS, verify
from dragoman.core.model.deliveries import DeliveryState
from dragoman.core.model.tasks import QuestionStatus, Status, Task
from dragoman.core.ports import Store, TaskFilter
from dragoman.stores.postgres.store import PostgresStore
from tests.adapters import records
from tests.adapters.records import chain, dead_letter, delivery, event, question, task
from tests.adapters.store_suite.stores import PATIENCE, bounded, commit, every_store, opened, property_test

FILTERS = [
    TaskFilter(),
    TaskFilter(status=Status.QUEUED),
    TaskFilter(status=Status.COMPLETED),
    TaskFilter(type="code"),
    TaskFilter(agent=AgentId("bob")),
    TaskFilter(principal=AgentId("cy")),
    TaskFilter(parent=TaskId("task-1")),
    TaskFilter(type="text", principal=AgentId("ada"), agent=AgentId("bob")),
    TaskFilter(since=Instant(2), before=Instant(4)),
    TaskFilter(principal=AgentId("ada"), since=Instant(3)),
]


@every_store
@property_test
@given(world=records.worlds(), size=st.integers(1, 4))
def test_tasks_are_listed_newest_first_page_by_page_under_every_filter(kind: str, world: list[Row], size: int) -> None:
    async def scenario() -> None:
        async with opened(kind) as store:
            await commit(store, *world)
            tasks = [row for row in world if isinstance(row, Task)]
            newest = sorted(tasks, key=lambda t: (t.created_at, t.id), reverse=True)
            for where in FILTERS:
                wanted = [
                    t
                    for t in newest
                    if where.status in (None, t.status)
                    and where.type in (None, t.type)
                    and where.agent in (None, t.owner)
                    and where.principal in (None, t.origin.principal)
                    and where.parent in (None, t.lineage.parent)
                    and (where.since is None or t.created_at >= where.since)
                    and (where.before is None or t.created_at < where.before)
                ]
                seen: list[Task] = []
                cursor: str | None = None
                for _ in range(len(tasks) + 1):
                    page, cursor = await store.tasks(where, after=cursor, limit=size)
                    assert len(page) <= size
                    seen += page
                    if cursor is None:
                        break
                assert (seen, cursor) == (wanted, None)

    bounded(scenario())


async def test_paging_is_complete_without_duplicates_while_rows_are_added(store: Store) -> None:
    await commit(store, *(task(f"old{n:02}", created_at=n // 3) for n in range(30)))
    seen: list[TaskId] = []
    cursor: str | None = None
    for page_number in range(31):
        page, cursor = await store.tasks(TaskFilter(), after=cursor, limit=4)
        seen += [t.id for t in page]
        await commit(store, task(f"new{page_number:02}", created_at=100 + page_number))
        if cursor is None:
            break
    assert seen == [f"old{n:02}" for n in reversed(range(30))]


async def test_a_cursor_that_is_none_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="cursor"):
        await store.tasks(TaskFilter(), after="nonsense", limit=3)


async def test_tasks_are_found_by_the_beginning_of_their_id(store: Store) -> None:
    await commit(store, *(task(id) for id in ("01ab", "01ac", "01%", "02", "01")))
    assert [t.id for t in await store.find_tasks("01a", 9)] == ["01ab", "01ac"]
    assert [t.id for t in await store.find_tasks("01", 2)] == ["01", "01%"]
    assert [t.id for t in await store.find_tasks("01%", 9)] == ["01%"]
    assert list(await store.find_tasks("zz", 9)) == []


async def test_events_come_in_order_from_where_one_left_off(store: Store) -> None:
    await commit(store, task("t"), task("u"), *(event("t", n) for n in (3, 1, 2, 5, 4)), event("u", 1))
    assert [e.seq for e in await store.events(TaskId("t"))] == [1, 2, 3, 4, 5]
    assert [e.seq for e in await store.events(TaskId("t"), after=2, limit=2)] == [3, 4]
    assert list(await store.events(TaskId("nowhere"))) == []


async def test_a_higher_event_is_never_seen_before_a_lower_one(store: Store) -> None:
    await commit(store, task("t"))
    done = asyncio.Event()

    async def watch() -> int:
        looks = 0
        while not done.is_set():
            numbers = [e.seq for e in await store.events(TaskId("t"))]
            assert numbers == list(range(1, len(numbers) + 1))
            looks += 1
            await asyncio.sleep(0)
        return looks

    watcher = asyncio.create_task(watch())
    for n in range(0, 60, 3):
        await commit(store, *(event("t", n + step) for step in (3, 1, 2)))
        await asyncio.sleep(0)
    done.set()
    async with asyncio.timeout(PATIENCE):
        assert await watcher > 0


async def test_deliveries_dead_letters_and_questions_are_listed_with_their_filters(store: Store) -> None:
    d1, d2, d3 = delivery("d1", "t"), delivery("d2", "t", "cy", seq=2), delivery("d3", "u", seq=3)
    x1, x2, x3 = dead_letter("x1", "t"), dead_letter("x2", "u", receiver=None), dead_letter("x3", "t")
    q1 = question("q1", "t")
    q2 = question("q2", "u", status=QuestionStatus.ANSWERED, answer={"a": [1]}, asked_of=AgentId("cy"))
    await commit(store, task("t"), task("u"), d3, d1, d2, x2, x1, x3, q2, q1)
    assert list(await store.deliveries()) == [d1, d2, d3]
    assert list(await store.deliveries(task=TaskId("t"))) == [d1, d2]
    assert list(await store.deliveries(receiver=AgentId("bob"), limit=1)) == [d1]
    assert list(await store.dead_letters()) == [x3, x2, x1]
    assert list(await store.dead_letters(task=TaskId("t"), after="x3")) == [x1]
    assert list(await store.questions()) == [q1, q2]
    assert list(await store.questions(limit=1)) == [q1]
    assert list(await store.questions(after="q1")) == [q2]
    assert list(await store.questions(status=QuestionStatus.ANSWERED)) == [q2]
    assert list(await store.questions(status=QuestionStatus.OPEN, task=TaskId("u"))) == []
    assert list(await store.questions(asked_of=AgentId("cy"))) == [q2]
    assert list(await store.questions(status=QuestionStatus.OPEN, asked_of=AgentId("cy"))) == []
    assert (await store.question(q2.id), await store.question(d1.id)) == (q2, None)


async def test_the_audit_record_is_kept_whole_and_found_by_who_what_and_outcome(store: Store) -> None:
    first = chain(3, principal="ada", subject="t")
    then = chain(2, after=first[-1], principal="bob", outcome="refused", reason="not yours")
    await commit(store, audit=first)
    await commit(store, audit=then)
    everyone = list(await store.audit())
    assert everyone == [*first, *then]
    assert verify(everyone) == (5, then[-1].hash, None)
    assert verify(await store.audit(after=3), seq=3, prev=first[-1].hash)[2] is None
    assert list(await store.audit(limit=2)) == first[:2]
    assert list(await store.audit(principal="bob", after=4)) == then[1:]
    assert list(await store.audit(subject="t", outcome="accepted")) == first
    assert list(await store.audit(outcome="refused")) == then
    assert first[0].prev == GENESIS


async def test_counts_are_of_what_is_unfinished(store: Store) -> None:
    await commit(
        store,
        task("a"),
        task("b", status=Status.RUNNING),
        task("c", status=Status.RUNNING),
        task("d", status=Status.FAILED),
        delivery("d1", "a"),
        delivery("d2", "a", head=False, seq=2),
        delivery("d3", "b", state=DeliveryState.LEASED),
        delivery("d4", "b", state=DeliveryState.LEASED, wake_at=Instant(5), seq=2),
        dead_letter("x", "d"),
        question("q", "b"),
        question("r", "b", status=QuestionStatus.EXPIRED),
    )
    assert dict(await store.counts()) == {
        "tasks_queued": 1,
        "tasks_assigned": 0,
        "tasks_running": 2,
        "tasks_waiting": 0,
        "deliveries_waiting": 2,
        "deliveries_leased": 2,
        "dead_letters": 1,
        "questions_open": 1,
    }


async def test_a_backup_does_not_overwrite_and_postgresql_makes_its_own(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    if isinstance(store, PostgresStore):
        with pytest.raises(OSError, match="pg_basebackup"):
            await store.backup(str(target))
        return
    await store.backup(str(target))
    size = target.stat().st_size
    with pytest.raises(FileExistsError):
        await store.backup(str(target))
    assert target.stat().st_size == size
