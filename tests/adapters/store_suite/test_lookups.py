"""What decisions ask for: every lookup finds what it matches, the best first."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import Agreed, Claims, EventOf, Finished, Inbox, Loose, Ready, Row, Under
from dragoman.core.model.tasks import Event, QuestionStatus, Status, Task
from dragoman.core.ports import Changes, Store
from dragoman.stores.memory import key
from tests.adapters import records
from tests.adapters.records import chain, delivery, event, every_lookup, file, origin, task
from tests.adapters.store_suite.stores import bounded, commit, every_store, load, opened, property_test


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

    async def scenario() -> None:
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

    bounded(scenario())


async def test_ready_gives_the_best_first_even_when_there_are_many(store: Store) -> None:
    waiting = [task(f"t{n:03}", queue="code", rank=-(n % 7)) for n in range(300)]
    await commit(store, *waiting)
    best = sorted(waiting, key=lambda t: (t.rank, t.id))
    assert await load(store, Ready("code", 5), Ready("code", 400)) == [best[:5], best]
    await commit(store, changed=[msgspec.structs.replace(best[0], queue=None)])
    assert await load(store, Ready("code", 5)) == [best[1:6]]


async def test_the_front_of_a_queue_is_right_while_it_grows_long_and_empties_again(store: Store) -> None:
    standing: list[Task] = []

    async def front() -> None:
        assert await load(store, Ready("code", 4)) == [sorted(standing, key=lambda t: (t.rank, t.id))[:4]]

    for start, stop in ((0, 3), (3, 90), (90, 91), (91, 400)):
        added = [task(f"t{n:03}", queue="code", rank=-(n % 7)) for n in range(start, stop)]
        await commit(store, *added)
        standing += added
        await front()
    while standing:
        standing.sort(key=lambda t: (t.rank, t.id))
        taken = 40 if len(standing) > 50 else 1
        await commit(store, changed=[msgspec.structs.replace(row, queue=None) for row in standing[:taken]])
        del standing[:taken]
        await front()
    standing = [task("again", queue="code")]
    await commit(store, *standing)
    await front()


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


async def test_a_contract_is_known_to_be_needed_as_long_as_its_tasks_are_there(store: Store) -> None:
    under = [task(f"t{n}", contract="c1") for n in range(3)]
    await commit(store, records.contract("c1"), *under, task("other"))
    assert await load(store, Under("c1", 2), Under("c2", 2)) == [under[:2], []]
    ended = msgspec.structs.replace(under[0], status=Status.COMPLETED)
    await commit(store, changed=[ended], removed=under[1:])
    assert await load(store, Under("c1", 2)) == [[ended]]
    await commit(store, removed=[ended, records.contract("c1")])
    assert await load(store, Under("c1", 2), Agreed(Instant(0), "", Instant(9), 2)) == [[], []]


@pytest.mark.parametrize("kind", [Loose, Agreed])
async def test_what_has_no_task_is_found_from_a_place_on_also_where_it_came_together(store: Store, kind: Any) -> None:
    def row(id: str, at: int) -> Any:
        if kind is Agreed:
            return records.contract(id, created_at=at)
        return records.question(id, None, created_at=at, status=QuestionStatus.ANSWERED)

    rows = [row(f"r{n:03}", n // 40) for n in range(100)]
    asked = [records.question("asked", None, created_at=0), records.question("of one", "t", created_at=0)]
    await commit(store, *rows, task("t"), *asked, row("young", 3))
    since, after, found = Instant(0), "", []
    while page := (await load(store, kind(since, after, Instant(3), 32)))[0]:
        found += page
        since, after = page[-1].created_at, page[-1].id
    assert found == rows
