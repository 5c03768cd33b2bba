"""A unit of work is written whole or not at all, and seen from then on."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.ids import AgentId, QuestionId, TaskId
from dragoman.core.lookups import Claims, EventOf, Inbox, Lane, QuestionById, TaskById
from dragoman.core.model.deliveries import MessageKind
from dragoman.core.model.tasks import QuestionStatus, Status
from dragoman.core.ports import Changes, Store, StoreFailed, TaskFilter
from dragoman.stores.memory import MemoryStore
from tests.adapters.records import (
    agent,
    chain,
    changed_state,
    dead_letter,
    delivery,
    entity,
    event,
    origin,
    question,
    task,
)
from tests.adapters.store_suite.stores import commit, everything, load
from tests.support.heads import changed

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
        pytest.skip("not applicable: memory holds anything")
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


async def test_rows_of_one_unit_may_come_in_any_order(store: Store) -> None:
    await commit(store, event("t", 1), delivery("d", "t"), task("t"))
    assert await load(store, EventOf(TaskId("t"), 1), Lane(TaskId("t"), AgentId("bob"))) == [
        [event("t", 1)],
        [delivery("d", "t")],
    ]


async def test_an_answer_may_be_on_its_way_for_a_question_of_no_task(store: Store) -> None:
    row = question("q1", None, status=QuestionStatus.ANSWERED)
    answer = delivery("d1", "q1", kind=MessageKind.ANSWER, event=0, question=QuestionId("q1"))
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


async def test_reads_and_loads_see_the_last_commit(store: Store) -> None:
    await commit(store, task("t"))
    now = task("t")
    for step in range(20):
        now = changed(now, status=Status.RUNNING, owner=AgentId("bob"), progress=step, seq=step + 1)
        await commit(store, event("t", step + 1), changed=[now])
        page, _ = await store.tasks(TaskFilter(agent=AgentId("bob")), after=None, limit=5)
        assert (await store.task(TaskId("t")), list(page)) == (now, [now])
        assert await load(store, TaskById(TaskId("t")), Claims(AgentId("ada"), "request of t")) == [[now], [now]]
        assert [e.seq for e in await store.events(TaskId("t"))] == list(range(1, step + 2))


async def test_the_raw_message_is_kept_byte_for_byte(store: Store) -> None:
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
