"""What a hub begins with after a stop: everything, and what is due."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from hypothesis import given

from dragoman.core.ids import AgentId, Instant, TaskId
from dragoman.core.lookups import Row
from dragoman.core.model.contracts import Party, Standing
from dragoman.core.model.deliveries import DeliveryState, DirectMessage, MessageKind
from dragoman.core.model.holdings import Holding
from dragoman.core.model.people import Role
from dragoman.core.model.state import Registry
from dragoman.core.model.tasks import Origin, Status
from dragoman.core.ports import Changes, Recovered, Store
from dragoman.stores.memory import MemoryStore
from tests.adapters import records
from tests.adapters.records import (
    agent,
    chain,
    changed_state,
    contract,
    delivery,
    entity,
    every_lookup,
    origin,
    person,
    question,
    task,
)
from tests.adapters.store_suite.stores import KINDS, PATIENCE, bounded, commit, every_store, everything, property_test


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
    async def scenario() -> None:
        with TemporaryDirectory() as directory:
            before, after, _ = await reopened(kind, Path(directory), Changes(added=world, audit=chain(3)))
            assert before == after

    bounded(scenario())


@every_store
async def test_opening_returns_what_a_hub_begins_with(kind: str, tmp_path: Path) -> None:
    ada, bob = agent("ada"), agent("bob", wake_at=7)
    grant = entity("ada:tokens", Registry.RESOURCE)
    audit = chain(4)
    ann, zoe = person("ann"), person("zoe", Role.ADMIN, token_hash="h")
    rows = [
        bob,
        ada,
        zoe,
        ann,
        task("a", status=Status.RUNNING, owner=AgentId("bob")),
        task("b", status=Status.WAITING, owner=AgentId("bob")),
        task("c", status=Status.COMPLETED, owner=AgentId("bob")),
        task("d", queue="code"),
        task("e", queue="code"),
        task("f", queue="text", owner=AgentId("ada")),
        grant,
        entity("a task that agents keep among themselves"),
        changed_state(5, 5),
        contract("c1"),
        contract("c2", source=Party(AgentId("gone"), "default", "1.0.0"), standing=Standing.TERMINATED),
        contract("c3", target=Party(AgentId("went"), "default", "1.0.0")),
        delivery("1", "a", "bob"),
        *(delivery(f"{n}", "a", "removed", seq=n, head=n == 2) for n in (2, 3)),
        delivery("4", "d", "taken away", state=DeliveryState.LEASED, wake_at=9),
    ]
    _, _, recovered = await reopened(kind, tmp_path, Changes(added=rows, audit=audit))
    assert recovered == Recovered(
        agents=[ada, bob],
        people=[ann, zoe],
        active={AgentId("bob"): [TaskId("a"), TaskId("b")]},
        backlog={"code": 2, "text": 1},
        audit_seq=4,
        audit_hash=audit[-1].hash,
        entities=[grant],
        state_cursor=5,
        parted=[AgentId("removed"), AgentId("taken away"), AgentId("went")],
        holdings={AgentId("ada"): Holding(bytes=43, entities=1)},
    )


def asked(id: str, size: int) -> Origin:
    return msgspec.structs.replace(origin(f"request of {id}"), bytes=size)


@every_store
async def test_opening_returns_what_each_principal_has_pending(kind: str, tmp_path: Path) -> None:
    words = msgspec.Raw(b'{ "text" : "\xc3\xa4" }')
    spoken = DirectMessage(
        sender=AgentId("ann"), message_id="m", kind="NOTE", digest="d", raw=words, protocol="agentmsg"
    )
    rows = [
        task("a", status=Status.RUNNING, origin=asked("a", 10)),
        task("b", status=Status.COMPLETED, origin=asked("b", 100)),
        task("c", queue="code", origin=asked("c", 1000)),
        task("d", queue="code"),
        delivery("1", "1", "bob", kind=MessageKind.DIRECT_MESSAGE, direct_message=spoken, size=16),
        delivery("2", "2", "ann", kind=MessageKind.UNDELIVERED, direct_message=spoken, size=16),
        entity("kept", created_by=AgentId("cid"), value={"ä": 1}),
        entity("cid:tokens", Registry.RESOURCE),
    ]
    principal = rows[0].origin.principal
    _, _, recovered = await reopened(kind, tmp_path, Changes(added=rows))
    assert recovered.holdings == {
        principal: Holding(bytes=1010),
        AgentId("ann"): Holding(bytes=16, direct_messages=1),
        AgentId("cid"): Holding(bytes=8, entities=1),
    }


@every_store
async def test_messages_that_were_noted_are_known_after_a_stop(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert (await store.open()).passed == {}
    await store.note({"a" * 32: "b" * 32, "c" * 32: "d" * 32})
    await store.note({"e" * 32: "f" * 32})
    await store.close()
    again = store.fork() if isinstance(store, MemoryStore) else KINDS[kind](tmp_path)
    passed = (await again.open()).passed
    await again.close()
    assert list(passed.items()) == [(letter * 32, said * 32) for letter, said in ("ab", "cd", "ef")]


@every_store
async def test_message_ids_that_were_used_are_known_after_a_stop(kind: str, tmp_path: Path) -> None:
    store = KINDS[kind](tmp_path)
    assert (await store.open()).used == {}
    for used in ({7: 1, (1 << 64) - 1: 2}, {3: (1 << 64) - 1}):
        async with store.unit() as unit:
            await unit.commit(Changes(used=used))
    await store.close()
    again = store.fork() if isinstance(store, MemoryStore) else KINDS[kind](tmp_path)
    used = (await again.open()).used
    await again.close()
    assert list(used.items()) == [(7, 1), ((1 << 64) - 1, 2), (3, (1 << 64) - 1)]


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
