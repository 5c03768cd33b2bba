"""What every store promises, on every store: the promises of `core.ports`, one test each.

The memory store is the fake the core is tested with, so it must pass what the real ones pass; the SQLite store
runs with its hot cache and without it, and nobody may be able to tell.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dragoman.core.audit.chain import GENESIS, verify
from dragoman.core.delivery.model import Cargo, DeliveryState
from dragoman.core.ids import AgentId, Instant, QuestionId, TaskId
from dragoman.core.lookups import Claims, EventOf, Finished, Inbox, Lane, Lookup, QuestionById, Ready, Row, TaskById
from dragoman.core.ports import Changes, Recovered, Store, StoreFailed, TaskFilter
from dragoman.core.state.model import Registry
from dragoman.core.tasks.model import Event, QuestionStatus, Status, Task
from dragoman.stores.memory import MemoryStore, key
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters import records
from tests.adapters.records import (
    agent,
    chain,
    changed_state,
    dead_letter,
    delivery,
    entity,
    event,
    every_lookup,
    file,
    origin,
    question,
    task,
)

PATIENCE = 20.0

Make = Callable[[Path], Store]

KINDS: dict[str, Make] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda directory: SqliteStore(directory / "hub.db"),
    "sqlite-uncached": lambda directory: SqliteStore(directory / "hub.db", cached_rows=0),
    "sqlite-tiny-cache": lambda directory: SqliteStore(directory / "hub.db", cached_rows=2),
}

every_store = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(params=["memory", "sqlite", "sqlite-uncached"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    made = KINDS[request.param](tmp_path)
    await made.open()
    yield made
    await made.close()


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Store]:
    with TemporaryDirectory() as directory:
        made = KINDS[kind](Path(directory))
        await made.open()
        try:
            yield made
        finally:
            await made.close()


async def commit(store: Store, *added: Row, **changes: Sequence[Any]) -> None:
    async with store.unit() as unit:
        await unit.commit(Changes(added=added, **changes))


async def load(store: Store, *lookups: Lookup[Any]) -> list[list[Any]]:
    async with store.unit() as unit:
        found = await unit.load(lookups)
        return [list(found[lookup]) for lookup in lookups]


def bounded(story: Awaitable[None]) -> None:
    """Run one example of a property."""

    async def run() -> None:
        async with asyncio.timeout(PATIENCE):
            await story

    asyncio.run(run())


property_test = settings(
    max_examples=settings().max_examples // 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


# Lookups.


@every_store
@property_test
@given(data=st.data())
def test_every_lookup_finds_what_it_matches_through_adding_changing_and_removing(
    kind: str, data: st.DataObject
) -> None:
    draw = data.draw
    shuffle = random.Random(draw(st.integers(0, 2**32)))
    world = {(type(row), key(row)): row for row in draw(records.worlds())}
    steps: list[Changes] = [Changes(added=list(world.values()))]
    expected: list[dict[Any, Row]] = [dict(world)]
    for _ in range(3):
        touched = draw(st.lists(st.sampled_from(sorted(world, key=str)), unique=True, max_size=6)) if world else []
        gone = [name for name in touched if draw(st.booleans())]
        forgotten = {name[1] for name in gone if name[0] is Task}
        gone += [name for name, row in world.items() if getattr(row, "task", None) in forgotten and name not in gone]
        news = {name: records.changed(draw, world[name]) for name in touched if name not in gone}
        removed = [
            row for row in map(world.__getitem__, gone) if not (isinstance(row, Event) and row.task in forgotten)
        ]
        steps.append(Changes(changed=list(news.values()), removed=removed))
        world = {name: row for name, row in (world | news).items() if name not in gone}
        expected.append(dict(world))

    async def story() -> None:
        async with opened(kind) as store:
            for changes, rows in zip(steps, expected, strict=True):
                async with store.unit() as unit:
                    await unit.commit(changes)
                lookups = every_lookup(list(rows.values()))
                shuffle.shuffle(lookups)
                async with store.unit() as unit:
                    found = await unit.load(lookups)
                for lookup in lookups:
                    meant = [row for row in rows.values() if isinstance(row, lookup.row) and lookup.matches(row)]
                    assert list(found[lookup]) == sorted(meant, key=lookup.order)[: lookup.most], lookup

    bounded(story())


async def test_ready_gives_the_best_first_even_when_there_are_many(store: Store) -> None:
    waiting = [task(f"t{n:03}", queue="code", rank=-(n % 7)) for n in range(300)]
    await commit(store, *waiting)
    best = sorted(waiting, key=lambda t: (t.rank, t.id))
    assert await load(store, Ready("code", 5), Ready("code", 400)) == [best[:5], best]
    await commit(store, changed=[msgspec.structs.replace(best[0], queue=None)])
    assert await load(store, Ready("code", 5)) == [best[1:6]]


async def test_an_inbox_gives_the_best_first_even_when_there_are_many(store: Store) -> None:
    await commit(store, task("t"))
    waiting = [delivery(f"d{n:03}", "t", seq=n, rank=-(n % 7)) for n in range(300)]
    await commit(store, *waiting)
    best = sorted(waiting, key=lambda d: (d.rank, d.id))
    assert await load(store, Inbox(AgentId("bob"), 3), Inbox(AgentId("bob"), 400)) == [best[:3], best]
    await commit(store, removed=best[:2])
    assert await load(store, Inbox(AgentId("bob"), 3)) == [best[2:5]]


async def test_a_task_goes_with_its_events_its_claim_and_its_hold_on_files(store: Store) -> None:
    gone, stays = task("gone", seq=3, files=(file("f1"), file("f2"))), task("stays", seq=1, files=(file("f2"),))
    await commit(store, gone, stays, *(event("gone", n) for n in (1, 2, 3)), event("stays", 1), audit=chain(1))
    assert await load(store, EventOf(gone.id, 2)) == [[event("gone", 2)]]
    assert set(await store.attached(["f0", "f1", "f2"])) == {"f1", "f2"}
    again = task("next", origin=gone.origin)
    await commit(store, again, removed=[gone])
    assert (await store.task(gone.id), list(await store.events(gone.id))) == (None, [])
    found = await load(store, *(EventOf(gone.id, n) for n in (1, 2, 3)), Claims(AgentId("ada"), "request of gone"))
    assert found == [[], [], [], [again]]
    assert set(await store.attached(["f0", "f1", "f2"])) == {"f2"}
    assert (list(await store.events(stays.id)), len(await store.audit())) == ([event("stays", 1)], 1)
    reborn = task("gone", seq=1, origin=origin("later"))  # the same id has nothing of the first
    await commit(store, reborn, event("gone", 1, agent=AgentId("bob")))
    assert list(await store.events(reborn.id)) == [event("gone", 1, agent=AgentId("bob"))]
    assert await load(store, EventOf(gone.id, 2)) == [[]]


async def test_finished_tasks_are_found_from_a_place_on_also_those_that_came_together(store: Store) -> None:
    over = [Status.COMPLETED, Status.FAILED, Status.CANCELLED]
    rows = [task(f"t{n:03}", status=over[n % 3], created_at=n // 40, owner=AgentId("bob")) for n in range(200)]
    await commit(store, *rows, task("open", created_at=0), task("young", created_at=5, status=Status.FAILED))
    since, after, found = Instant(0), TaskId(""), []
    while page := (await load(store, Finished(since, after, Instant(5), 32)))[0]:
        found += page
        since, after = page[-1].created_at, page[-1].id
    assert found == sorted(rows, key=lambda row: (row.created_at, row.id))


# Atomic.

BAD: dict[str, Changes] = {
    "adds a task that exists": Changes(added=[event("t", 2), task("t", origin=origin("other"))]),
    "adds a request that exists": Changes(added=[task("u"), task("v", origin=origin("request of t"))]),
    "adds an event that exists": Changes(added=[task("u"), event("t", 1)]),
    "adds a delivery that exists": Changes(added=[task("u"), delivery("d", "t")]),
    "adds an agent that exists": Changes(added=[task("u"), agent("ada")]),
    "adds a question that exists": Changes(added=[task("u"), question("q", "t")]),
    "adds a dead letter that exists": Changes(added=[task("u"), dead_letter("x", "t")]),
    "adds an event of no task": Changes(added=[task("u"), event("nowhere", 1)]),
    "adds an audit record that exists": Changes(added=[task("u")], audit=chain(2)),
    "changes a task that does not exist": Changes(added=[task("u")], changed=[task("nowhere")]),
    "changes a delivery that does not exist": Changes(added=[task("u")], changed=[delivery("nowhere", "t")]),
    "changes an agent that does not exist": Changes(added=[task("u")], changed=[agent("nowhere")]),
    "removes a delivery that does not exist": Changes(added=[task("u")], removed=[delivery("nowhere", "t")]),
    "adds an entity that exists": Changes(added=[task("u"), entity("e")]),
    "changes an entity that does not exist": Changes(added=[task("u")], changed=[entity("nowhere")]),
    "adds a row of the state's log that exists": Changes(added=[task("u"), changed_state(1)]),
    "removes a task that does not exist": Changes(added=[task("u")], removed=[task("nowhere")]),
    "removes a question that does not exist": Changes(added=[task("u")], removed=[question("nowhere", "t")]),
    "changes one that exists and one that does not": Changes(
        added=[task("u")], changed=[delivery("d", "t", rank=3), delivery("nowhere", "t")]
    ),
    "cannot be encoded": Changes(added=[task("u"), task("v", name="\ud800")]),
    "does not fit": Changes(added=[task("u"), task("v", rank=2**70)]),
}


@pytest.mark.parametrize("why", BAD)
async def test_a_unit_with_one_bad_row_leaves_nothing(store: Store, why: str) -> None:
    if isinstance(store, MemoryStore) and why in ("cannot be encoded", "does not fit"):
        pytest.skip("memory holds anything")
    first = [task("t"), event("t", 1), delivery("d", "t"), agent("ada"), question("q", "t"), dead_letter("x", "t")]
    first += [entity("e"), changed_state(1)]
    await commit(store, *first, audit=chain(1))
    before = await everything(store)
    with pytest.raises(StoreFailed):
        async with store.unit() as unit:
            await unit.commit(BAD[why])
    assert await everything(store) == before
    await commit(store, task("w"))
    assert await load(store, TaskById(TaskId("w")), TaskById(TaskId("u"))) == [[task("w")], []]


async def everything(store: Store) -> dict[str, Any]:
    tasks, _ = await store.tasks(TaskFilter(), after=None, limit=1000)
    return {
        "tasks": list(tasks),
        "events": [list(await store.events(task.id, after=-1)) for task in tasks],
        "deliveries": list(await store.deliveries()),
        "dead letters": list(await store.dead_letters()),
        "questions": list(await store.questions()),
        "audit": list(await store.audit()),
        "entities": list(await store.entities(Registry.TASK)),
        "changes": list(await store.changes()),
        "counts": dict(await store.counts()),
        "loaded": await load(store, *every_lookup([])),
    }


async def test_rows_of_one_unit_may_come_in_any_order(store: Store) -> None:
    await commit(store, event("t", 1), delivery("d", "t"), task("t"))
    assert await load(store, EventOf(TaskId("t"), 1), Lane(TaskId("t"), AgentId("bob"))) == [
        [event("t", 1)],
        [delivery("d", "t")],
    ]


async def test_an_answer_may_be_on_its_way_for_a_question_of_no_task(store: Store) -> None:
    row = question("q1", None, status=QuestionStatus.ANSWERED)
    answer = delivery("d1", "q1", cargo=Cargo.ANSWER, event=0, question=QuestionId("q1"))
    await commit(store, row, answer)
    assert await load(store, Lane(TaskId("q1"), AgentId("bob")), QuestionById(QuestionId("q1"))) == [[answer], [row]]
    assert await load(store, Inbox(AgentId("bob"), 8)) == [[answer]]
    await commit(store, removed=[answer])
    assert await load(store, Lane(TaskId("q1"), AgentId("bob"))) == [[]]


async def test_an_empty_unit_is_a_unit(store: Store) -> None:
    async with store.unit() as unit:
        await unit.commit(Changes())


async def test_a_node_has_at_most_one_unit_open(store: Store) -> None:
    async with store.unit():
        with pytest.raises(RuntimeError, match="one"):
            async with store.unit():
                pass
    async with store.unit():
        pass


async def test_a_unit_commits_once(store: Store) -> None:
    async with store.unit() as unit:
        await unit.commit(Changes(added=[task("t")]))
        with pytest.raises(RuntimeError, match="once"):
            await unit.commit(Changes(added=[task("u")]))


async def test_a_unit_that_is_left_without_commit_changes_nothing(store: Store) -> None:
    async def leave() -> None:
        async with store.unit() as unit:
            await unit.load([TaskById(TaskId("t"))])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await leave()
    assert await store.task(TaskId("t")) is None


# Read your writes.


async def test_reads_and_loads_see_the_last_commit(store: Store) -> None:
    await commit(store, task("t"))
    now = task("t")
    for step in range(20):
        now = msgspec.structs.replace(now, status=Status.RUNNING, owner=AgentId("bob"), progress=step, seq=step + 1)
        await commit(store, event("t", step + 1), changed=[now])
        page, _ = await store.tasks(TaskFilter(agent=AgentId("bob")), after=None, limit=5)
        assert (await store.task(TaskId("t")), list(page)) == (now, [now])
        assert await load(store, TaskById(TaskId("t")), Claims(AgentId("ada"), "request of t")) == [[now], [now]]
        assert [e.seq for e in await store.events(TaskId("t"))] == list(range(1, step + 2))


async def test_what_the_wire_said_is_kept_byte_for_byte(store: Store) -> None:
    said = event(
        "t", 1, body=msgspec.Raw(b'{ "a" : 1.0 , "\xc3\xa9":"\\u0000"}'), raw=bytes(range(256)), protocol="chiffon"
    )
    empty = event("t", 2, raw=b"")
    await commit(store, task("t"), said, empty)
    assert list(await store.events(TaskId("t"))) == [said, empty]
    assert await load(store, EventOf(TaskId("t"), 1), EventOf(TaskId("t"), 2)) == [[said], [empty]]


async def test_a_batch_of_64_megabytes_is_one_unit(store: Store) -> None:
    big = [event("t", n + 1, raw=bytes([n]) * (1 << 20)) for n in range(64)]
    await commit(store, task("t"), *big)
    assert await load(store, EventOf(TaskId("t"), 64)) == [[big[63]]]
    assert list(await store.events(TaskId("t"), after=62)) == big[62:]


# Durable.


async def reopened(kind: str, directory: Path, *units: Changes) -> tuple[dict[str, Any], dict[str, Any], Recovered]:
    store = KINDS[kind](directory)
    await store.open()
    for changes in units:
        async with store.unit() as unit:
            await unit.commit(changes)
    before = await everything(store)
    await store.close()
    again = store.fork() if isinstance(store, MemoryStore) else KINDS[kind](directory)
    recovered = await again.open()
    after = await everything(again)
    await again.close()
    return before, after, recovered


@every_store
@property_test
@given(world=records.worlds())
def test_everything_is_there_after_closing_and_opening(kind: str, world: list[Row]) -> None:
    async def story() -> None:
        with TemporaryDirectory() as directory:
            before, after, _ = await reopened(kind, Path(directory), Changes(added=world, audit=chain(3)))
            assert before == after

    bounded(story())


@every_store
async def test_opening_tells_what_a_hub_begins_with(kind: str, tmp_path: Path) -> None:
    ada, bob = agent("ada"), agent("bob", wake_at=7)
    grant = entity("ada:tokens", Registry.RESOURCE)
    audit = chain(4)
    rows = [
        bob,
        ada,
        task("a", status=Status.RUNNING, owner=AgentId("bob")),
        task("b", status=Status.WAITING, owner=AgentId("bob")),
        task("c", status=Status.COMPLETED, owner=AgentId("bob")),
        task("d", queue="code"),
        task("e", queue="code"),
        task("f", queue="text", owner=AgentId("ada")),
        grant,
        entity("a task that agents keep among themselves"),
        changed_state(5, 5),
    ]
    _, _, recovered = await reopened(kind, tmp_path, Changes(added=rows, audit=audit))
    assert recovered == Recovered(
        agents=[ada, bob],
        active={AgentId("bob"): [TaskId("a"), TaskId("b")]},
        backlog={"code": 2, "text": 1},
        audit_seq=4,
        audit_hash=audit[-1].hash,
        entities=[grant],
        state_cursor=5,
    )


async def test_an_empty_store_begins_with_nothing(store: Store) -> None:
    async with asyncio.timeout(PATIENCE):
        assert (await store.due(Instant(1), 5)).next_at is None
    assert await everything(store) == {
        **{
            name: []
            for name in ("tasks", "events", "deliveries", "dead letters", "questions", "audit", "entities", "changes")
        },
        "counts": dict.fromkeys(await store.counts(), 0),
        "loaded": [[] for _ in every_lookup([])],
    }


# Waking up.


async def test_due_gives_what_has_come_in_order_and_says_when_to_look_again(store: Store) -> None:
    await commit(
        store,
        *(task(f"t{n}", wake_at=Instant(10 - n)) for n in range(5)),  # 10, 9, 8, 7, 6
        task("never"),
        delivery("d", "t1", wake_at=Instant(3)),
        agent("ada", wake_at=Instant(20)),
        question("q", "t1", wake_at=Instant(8)),
    )
    due = await store.due(Instant(8), 10)
    assert [list(ids) for ids in (due.tasks, due.deliveries, due.agents, due.questions)] == [
        ["t4", "t3", "t2"],
        ["d"],
        [],
        ["q"],
    ]
    assert due.next_at == 9
    few = await store.due(Instant(8), 2)
    assert (list(few.tasks), few.next_at) == (["t4", "t3"], 8)
    none = await store.due(Instant(0), 5)
    assert (list(none.tasks), none.next_at) == ([], 3)


async def test_nothing_due_means_no_time_to_look_again(store: Store) -> None:
    await commit(store, task("t"))
    due = await store.due(Instant(1_000), 5)
    assert (list(due.tasks), due.next_at) == ([], None)


# What people read.

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
    async def story() -> None:
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
                    and where.parent in (None, t.parent)
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

    bounded(story())


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
    q1, q2 = question("q1", "t"), question("q2", "u", status=QuestionStatus.ANSWERED, answer={"a": [1]})
    await commit(store, task("t"), task("u"), d3, d1, d2, x2, x1, x3, q2, q1)
    assert list(await store.deliveries()) == [d1, d2, d3]
    assert list(await store.deliveries(task=TaskId("t"))) == [d1, d2]
    assert list(await store.deliveries(receiver=AgentId("bob"), limit=1)) == [d1]
    assert list(await store.dead_letters()) == [x3, x2, x1]
    assert list(await store.dead_letters(task=TaskId("t"), after="x3")) == [x1]
    assert list(await store.questions()) == [q1, q2]
    assert list(await store.questions(status=QuestionStatus.ANSWERED)) == [q2]
    assert list(await store.questions(status=QuestionStatus.OPEN, task=TaskId("u"))) == []
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


async def test_a_backup_does_not_overwrite(store: Store, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    await store.backup(str(target))
    size = target.stat().st_size
    with pytest.raises(FileExistsError):
        await store.backup(str(target))
    assert target.stat().st_size == size


# What agents share.


async def test_entities_are_listed_by_registry_and_name_and_change(store: Store) -> None:
    rows = [entity(f"t{n}") for n in range(3)] + [
        entity("ada:tokens", Registry.RESOURCE),
        entity("ada", Registry.AGENT),
    ]
    await commit(store, *rows)
    assert await store.entities(Registry.TASK) == rows[:3]
    assert await store.entities(Registry.TASK, after="t0", limit=1) == [rows[1]]
    newer = msgspec.structs.replace(rows[1], version=2, value={"status": "done"}, past=({"status": "new"},))
    await commit(store, changed=[newer], removed=[rows[2]])
    assert await store.entities(Registry.TASK) == [rows[0], newer]
    assert await store.entity("TASK/t1") == newer
    assert await store.entity("TASK/t2") is None


async def test_the_log_of_the_shared_state_is_read_from_any_place_in_it(store: Store) -> None:
    assert (await store.oldest_change(), list(await store.changes())) == (None, [])
    log = [changed_state(2, 2), changed_state(3), changed_state(6, 3)]
    for row in log:
        await commit(store, row)
    assert await store.changes() == log
    assert await store.changes(after=1) == log
    assert await store.changes(after=2, limit=1) == log[1:2]
    assert await store.changes(after=6) == []
    assert await store.oldest_change() == 1


async def test_the_log_of_the_shared_state_forgets_bit_by_bit_what_it_may(store: Store) -> None:
    await commit(store, *(changed_state(n) for n in range(1, 201)))
    await commit(store, changed_state(201), forget=100)
    assert await store.oldest_change() == 65
    await commit(store, changed_state(202), forget=100)
    assert await store.oldest_change() == 101
    await commit(store, changed_state(203), forget=100)
    assert await store.oldest_change() == 101
    assert len(await store.changes(limit=1000)) == 103
