"""What agents share, and the log of its changes."""

from __future__ import annotations

import msgspec

from dragoman.core.model.state import Registry
from dragoman.core.ports import Store
from tests.adapters.records import changed_state, entity
from tests.adapters.store_suite.stores import commit


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
    assert await store.changes() == []
    log = [changed_state(2, 2), changed_state(3), changed_state(6, 3)]
    for row in log:
        await commit(store, row)
    assert await store.changes() == log
    assert await store.changes(after=1) == log
    assert await store.changes(after=2, limit=1) == log[1:2]
    assert await store.changes(after=6) == []


async def test_the_log_of_the_shared_state_forgets_bit_by_bit_what_it_may(store: Store) -> None:
    await commit(store, *(changed_state(n) for n in range(1, 201)))
    await commit(store, changed_state(201), forget=100)
    assert (await store.changes(limit=1))[0].cursor == 65
    await commit(store, changed_state(202), forget=100)
    assert (await store.changes(limit=1))[0].cursor == 101
    await commit(store, changed_state(203), forget=100)
    assert (await store.changes(limit=1))[0].cursor == 101
    assert len(await store.changes(limit=1000)) == 103
