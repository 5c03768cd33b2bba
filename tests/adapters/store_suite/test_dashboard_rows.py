"""What the dashboard reads: events of all tasks by their time, figures over time, people."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dragoman.core.ids import Instant, TaskId
from dragoman.core.model.people import Person, Role
from dragoman.core.model.series import KEPT, SeriesRow
from dragoman.core.model.tasks import Event
from dragoman.core.ports import Recovered, Store, StoreFailed
from dragoman.stores.memory import MemoryStore
from dragoman.stores.sqlite.store import SqliteStore
from tests.adapters.records import event, task
from tests.adapters.store_suite.stores import KINDS, commit, every_store

# Events of all tasks.


async def test_events_of_all_tasks_come_by_their_time(store: Store) -> None:
    rows = [
        event("t", 1, at=10),
        event("u", 1, at=20),
        event("t", 2, at=20),
        event("u", 2, at=30),
        event("t", 3, at=40),
    ]
    await commit(store, task("t"), task("u"), *rows)
    in_order = [rows[0], rows[2], rows[1], rows[3], rows[4]]  # of one instant: those of the older task first
    assert list(await store.events_since(Instant(0), 100)) == in_order
    assert list(await store.events_since(Instant(10), 100)) == in_order[1:]
    assert list(await store.events_since(Instant(10), 2)) == in_order[1:3]
    assert list(await store.events_since(Instant(40), 100)) == []


async def test_events_of_all_tasks_do_not_name_forgotten_tasks_and_a_page_of_them_is_full(store: Store) -> None:
    await commit(store, task("gone"), task("t"), *(event("gone", n, at=n) for n in range(1, 3000)))
    last = event("t", 1, at=5000)
    await commit(store, last)
    await commit(store, removed=[task("gone")])
    assert list(await store.events_since(Instant(0), 10)) == [last]


class Drawer:
    """A vault that writes down what it locks, backwards."""

    def lock(self, data: bytes, about: object) -> bytes:
        return data[::-1]

    def unlock(self, record: bytes, about: object) -> bytes:
        return record[::-1]


@pytest.mark.parametrize("cached", [8192, 0])
async def test_personal_events_are_read_opened(tmp_path: Path, cached: int) -> None:
    store = SqliteStore(tmp_path / "hub.db", cached_rows=cached, vault=Drawer())
    await store.open()
    said = event("t", 1, at=5, personal=True, body=msgspec.Raw(b'{"input":"who"}'), raw=b"wire", protocol="forge")
    await commit(store, task("t", personal=True), said)
    assert list(await store.events_since(Instant(0), 10)) == [said]
    await store.close()
    without = SqliteStore(tmp_path / "hub.db", cached_rows=cached)
    await without.open()
    [shut] = await without.events_since(Instant(0), 10)
    assert (bytes(shut.body), shut.raw) == (b'{"personal":true}', None)
    await without.close()


async def test_no_event_is_missed_by_a_reader_that_goes_on_from_the_last_instant(store: Store) -> None:
    await commit(store, task("t"), task("u"))
    seen: list[Event] = []
    at = Instant(0)
    for n in range(1, 30):
        await commit(store, event("t", n, at=Instant(n)), event("u", n, at=Instant(n)))
        if n % 3 == 0:
            page = await store.events_since(at, 100)
            seen += page
            at = page[-1].at
    assert [(e.task, e.seq) for e in seen] == [(TaskId(id), n) for n in range(1, 28) for id in ("t", "u")]


# Figures over time.


def figures(step: int, at: int, body: bytes = b"{}") -> SeriesRow:
    return SeriesRow(step, at, msgspec.Raw(body))


async def test_figures_are_read_by_their_resolution_and_range(store: Store) -> None:
    rows = [figures(15, at) for at in (0, 15, 30, 45)]
    await commit(store, figures(300, 0, b'{"coarse":1}'), *reversed(rows))
    assert list(await store.series(15, since=0)) == rows
    assert list(await store.series(15, since=15, until=45)) == rows[1:3]
    assert list(await store.series(15, since=46)) == []
    assert list(await store.series(15, since=0, until=0)) == []
    assert list(await store.series(300, since=0)) == [figures(300, 0, b'{"coarse":1}')]
    assert list(await store.series(3600, since=0)) == []


async def test_figures_that_are_written_again_replace_those_before(store: Store) -> None:
    await commit(store, figures(15, 30, b'{"submitted":1}'), figures(15, 45))
    await commit(store, figures(15, 30, b'{"submitted":2}'))
    assert list(await store.series(15, since=0)) == [figures(15, 30, b'{"submitted":2}'), figures(15, 45)]


@pytest.mark.parametrize("step", KEPT)
async def test_figures_are_kept_for_so_long_and_no_longer(store: Store, step: int) -> None:
    """Also those of a step without others between, and those of other resolutions are left alone."""
    other = next(each for each in KEPT if each != step)
    await commit(store, figures(other, 0), figures(step, 0), figures(step, step), figures(step, 10 * step))
    await commit(store, figures(step, KEPT[step] + step))
    assert [row.at for row in await store.series(step, since=0)] == [step, 10 * step, KEPT[step] + step]
    await commit(store, figures(step, 3 * KEPT[step]), figures(step, 3 * KEPT[step] + step))
    assert [row.at for row in await store.series(step, since=0)] == [3 * KEPT[step], 3 * KEPT[step] + step]
    assert [row.at for row in await store.series(other, since=0)] == [0]


@every_store
async def test_figures_are_there_after_a_stop(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    await store.open()
    await commit(store, figures(3600, 7200, b'{"submitted":3}'))
    await store.close()
    again, _ = await opened_again(kind, store, tmp_path)
    assert list(await again.series(3600, since=0)) == [figures(3600, 7200, b'{"submitted":3}')]
    await again.close()


# People.

EVE = Person(id="eve", role=Role.VIEWER, created_at=Instant(1))
MAX = Person(
    id="max ✓", role=Role.ADMIN, created_at=Instant(2), token_hash="t", login_hash="l", login_until=Instant(9),
    sessions=2, subject="sub", last_login=Instant(5),
)  # fmt: skip


async def opened_again(kind: str, store: Store, directory: Path) -> tuple[Store, Recovered]:
    again = store.fork() if isinstance(store, MemoryStore) else KINDS[kind](directory)
    return again, await again.open()


@every_store
async def test_people_are_added_changed_removed_and_recovered(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert (await store.open()).people == []
    await commit(store, MAX, EVE, Person(id="gone", role=Role.OPERATOR, created_at=Instant(3)))
    promoted = msgspec.structs.replace(EVE, role=Role.OPERATOR, sessions=1)
    await commit(store, changed=[promoted], removed=[Person(id="gone", role=Role.OPERATOR, created_at=Instant(3))])
    await store.close()
    again, recovered = await opened_again(kind, store, tmp_path)
    assert recovered.people == [promoted, MAX]
    await again.close()


async def test_a_person_is_added_once_and_only_an_added_one_is_changed_or_removed(store: Store) -> None:
    await commit(store, EVE)
    for changes in ({"added": [EVE]}, {"changed": [MAX]}, {"removed": [MAX]}):
        with pytest.raises(StoreFailed):
            await commit(store, *changes.pop("added", ()), **changes)
