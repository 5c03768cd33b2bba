"""Senders that are refused for ever: some of it is recorded, all of it is counted, and the chain stays whole."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.world import World

from dragoman.core.commands import Cancel, NoteRefusal
from dragoman.core.ids import NOBODY, AgentId, TaskId
from dragoman.core.model import refusals
from dragoman.core.model.audit import AuditRecord, verify
from dragoman.messages.faults import Fault, Kind

STRANGE = Fault(kind=Kind.UNAUTHENTICATED, message="no bearer token")


def knock(address: str, what: str = "agent.message", fault: Fault = STRANGE) -> NoteRefusal:
    return NoteRefusal(principal=NOBODY, protocol="chiffon", what=what, fault=fault, address=address)


async def records(world: World) -> list[AuditRecord]:
    found = list(await world.store.audit(after=0, limit=100_000))
    _, _, broken = verify(found)
    assert broken is None
    return found


async def refused(world: World) -> list[AuditRecord]:
    return [record for record in await records(world) if record.outcome == "refused"]


async def knocked(world: World, address: str, times: int) -> int:
    """How many of them are records."""
    return sum(await asyncio.gather(*(world.ask(knock(address)) for _ in range(times))))


async def a_minute(world: World) -> None:
    await world.advance(61)
    await world.settle()  # what the hub asked of itself


async def test_a_stranger_gets_some_records_and_then_one_a_minute_with_the_count() -> None:
    world = await World().start()
    assert await knocked(world, "192.0.2.1", 5000) == refusals.ADDRESS.burst
    await a_minute(world)
    found = await refused(world)
    assert len(found) == refusals.ADDRESS.burst + 1
    said = f"{5000 - refusals.ADDRESS.burst} more were refused from 192.0.2.1, the last: {STRANGE}"
    assert (found[-1].principal, found[-1].action, found[-1].reason) == (NOBODY, "agent.message", said)


async def test_what_is_only_counted_costs_no_commit() -> None:
    world = await World().start()
    await knocked(world, "192.0.2.1", 100)
    world.store.fail_next_commit()
    assert await knocked(world, "192.0.2.1", 100) == 0  # nothing was refused for want of a store


async def test_each_address_and_each_kind_is_counted_by_itself() -> None:
    world = await World().start()
    await knocked(world, "192.0.2.1", 30)
    await knocked(world, "2001:db8::1", 15)
    await knocked(world, "2001:db8::ffff", 15)  # the same network
    other = Fault(kind=Kind.INVALID, message="no JSON")
    for _ in range(3):
        await world.ask(knock("192.0.2.1", "agent.poll", other))
    await a_minute(world)
    counts = sorted(record.reason or "" for record in await refused(world) if "more were" in (record.reason or ""))
    assert [text.partition(",")[0] for text in counts] == [
        "10 more were refused from 192.0.2.1",
        "10 more were refused from 2001:db8::/64",
        "3 more were refused from 192.0.2.1",
    ]


async def test_very_many_addresses_have_one_allowance_together_and_bounded_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(refusals, "MOST_COUNTS", 50)
    monkeypatch.setattr(refusals, "ALL_STRANGERS", refusals.Rate(100, refusals.SECOND))
    world = await World().start()
    outcomes = [await world.ask(knock(f"10.0.{n // 200}.{n % 200}")) for n in range(1000)]
    assert sum(outcomes) == 100
    assert len(world.intake._directory.refusal_counts) <= 51
    await a_minute(world)
    counted = [record.reason or "" for record in await refused(world) if "more were" in (record.reason or "")]
    assert sum(int(text.partition(" ")[0]) for text in counted) == 900


async def test_an_allowance_fills_up_again() -> None:
    world = await World().start()
    await knocked(world, "192.0.2.1", 100)
    await world.advance(31)
    assert await knocked(world, "192.0.2.1", 5) == 1
    await world.advance(3600)
    assert await knocked(world, "192.0.2.1", 100) == refusals.ADDRESS.burst


async def test_an_agent_that_is_refused_for_ever_is_counted_too() -> None:
    world = await World().start()
    await world.add("boss", "orchestrator")
    for _ in range(refusals.KNOWN.burst + 70):
        await world.refused(Cancel(principal=AgentId("boss"), task_id=TaskId("nothing")))
    assert len(await refused(world)) == refusals.KNOWN.burst
    await a_minute(world)
    (*_, last) = await refused(world)
    assert (last.principal, last.action) == ("boss", "task.cancel")
    assert (last.reason or "").startswith("70 more were refused, the last: ")


async def test_a_stop_in_order_records_what_was_counted() -> None:
    world = await World().start()
    await knocked(world, "192.0.2.1", 50)
    await world.intake.stop()
    assert "30 more were refused from 192.0.2.1" in ((await refused(world))[-1].reason or "")


async def test_counts_of_a_unit_that_was_not_committed_are_dropped_with_it() -> None:
    world = await World().start()
    await knocked(world, "192.0.2.1", 10)
    world.store.fail_next_commit()
    await world.refused(knock("192.0.2.1"))
    assert await knocked(world, "192.0.2.1", 50) == refusals.ADDRESS.burst - 10
